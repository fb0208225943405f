package kubewatch

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"headgate/gateway/snapshot"
)

// TestNamedSecretsStandBesideTheOthers: what one watch tells of a name takes nothing away that the other knows, in whatever
// order a Secret is seen to be made anew with the other type.
func TestNamedSecretsStandBesideTheOthers(t *testing.T) {
	tables, m := newTables(), newMemo()
	usual := func(uid string) *held {
		return convert(t, m, &corev1.Secret{ObjectMeta: meta("peers", uid, uid), Type: corev1.SecretTypeTLS})
	}
	opaque := func(name, uid string) *held {
		out, err := m.transformNamed(&corev1.Secret{
			ObjectMeta: meta(name, uid, uid), Type: corev1.SecretTypeOpaque, Data: map[string][]byte{"ca.crt": []byte("x"), "password": []byte("y")},
		})
		if err != nil {
			t.Fatal(err)
		}
		return out.(*held)
	}
	seen := func() string {
		var all []string
		for _, s := range tables.snapshot().Secrets {
			all = append(all, s.Name+" "+s.UID)
		}
		return strings.Join(all, ", ")
	}
	want := func(step, want string) {
		t.Helper()
		if got := seen(); got != want {
			t.Errorf("%s: %s, want %s", step, got, want)
		}
	}
	first, second, third := usual("u1"), opaque("peers", "u2"), usual("u3")
	tables.put(first)
	tables.put(opaque("zone", "u9"))
	tables.put(opaque("alpha", "u8"))
	want("sorted", "alpha u8, peers u1, zone u9")
	tables.put(second)
	want("both", "alpha u8, peers u1, zone u9")
	tables.remove(first.id)
	want("the old one is gone", "alpha u8, peers u2, zone u9")
	tables.put(third)
	tables.put(second) // a late event of what was removed by then
	tables.remove(second.id)
	want("back again", "alpha u8, peers u3, zone u9")
	if got := tables.size(); got != 3 {
		t.Errorf("%d objects", got)
	}
	named := tables.snapshot().Secrets[0]
	if keys := slices.Sorted(maps.Keys(named.Data)); !slices.Equal(keys, []string{"ca.crt"}) {
		t.Errorf("kept %v", keys)
	}
	if usual := together([]*snapshot.Secret{named}, nil); len(usual) != 1 {
		t.Errorf("alone: %v", usual)
	}
}
