package lastgood

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"

	"headgate/gateway/build"
	"headgate/gateway/snapshot"
)

func ingress(name string) *snapshot.Ingress {
	class, pathType := "headgate", networkingv1.PathTypePrefix
	return &snapshot.Ingress{
		Meta: snapshot.Meta{
			Key: snapshot.Key{Namespace: "shop", Name: name}, UID: "u-" + name, Generation: 3,
			Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Origin: "shop.yaml:12",
		},
		Annotations: map[string]string{"a/b": "c"},
		Spec: networkingv1.IngressSpec{IngressClassName: &class, Rules: []networkingv1.IngressRule{{
			Host: "shop.test", IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{
				Paths: []networkingv1.HTTPIngressPath{{Path: "/", PathType: &pathType}},
			}},
		}}},
	}
}

// keep runs a Keeper over all of them.
func keep(t *testing.T, path string, all ...build.Kept) {
	t.Helper()
	k := New(path, nil)
	for _, kept := range all {
		k.Keep(kept)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := k.Run(ctx); err != nil {
		t.Fatal(err)
	}
}

// some is something of each kind.
func some() build.Kept {
	key := snapshot.Key{Namespace: "shop", Name: "peers"}
	return build.Kept{
		Ingresses: []*snapshot.Ingress{ingress("a"), ingress("b")},
		Services:  []*build.KeptService{{Key: key, UID: "u1", Annotations: map[string]string{"headgate.io/load-balance": "p2c"}}},
		PeerSecrets: []*build.KeptSecret{{
			Key: key, Certificate: []byte("c"), PrivateKey: build.KeptData("k"), Verified: &build.KeptSecret{Key: key, CA: []byte("ca")},
		}},
	}
}

func TestKeptOverARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "last-good.json")
	if got := New(path, nil).Load(); !got.Equal(build.Kept{}) {
		t.Errorf("without a file: %v", got)
	}
	want := some()
	keep(t, path, build.Kept{Ingresses: []*snapshot.Ingress{ingress("old")}}, want)
	got := New(path, nil).Load()
	parts := func(k build.Kept) []any { return []any{k.Ingresses, k.Services, k.PeerSecrets} }
	if diff := cmp.Diff(parts(want), parts(got)); diff != "" {
		t.Errorf("read again (-want +got):\n%s", diff)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o007 != 0 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if text := fmt.Sprintf("%v %+v %#v", want.PeerSecrets[0], *want.PeerSecrets[0], *want.PeerSecrets[0]); strings.Contains(text, "0x6b") || strings.Contains(text, "107") || !strings.Contains(text, "[redacted]") {
		t.Errorf("a key is printed: %s", text)
	}
}

func TestTheSameIsNotWrittenAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "last-good.json")
	keep(t, path, some())
	k := New(path, nil)
	k.Keep(k.Load())
	if len(k.newest) != 0 {
		t.Error("what was loaded is to be written")
	}
	k.Keep(build.Kept{})
	if len(k.newest) != 1 {
		t.Error("the end of the last good versions is not written")
	}
}

func TestABrokenFileCountsAsNone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "last-good.json")
	for _, text := range []string{"{", "[]", `{"Ingresses": 1}`, `{"Ingresses": [null], "Services": [null], "PeerSecrets": [null]}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := New(path, nil).Load(); !got.Equal(build.Kept{}) {
			t.Errorf("%s: %v", text, got)
		}
	}
}

func TestABrokenFileIsSetAside(t *testing.T) {
	for _, text := range []string{"", "{", `[{"Name": "x"}]`} {
		path := filepath.Join(t.TempDir(), "last-good.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: read: %v", text, err)
		}
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%q: Read changed something: %v", text, err)
		}
		var log strings.Builder
		if got := New(path, slog.New(slog.NewTextHandler(&log, nil))).Load(); !got.Equal(build.Kept{}) {
			t.Errorf("%q: %v", text, got)
		}
		if aside, err := os.ReadFile(path + ".refused"); err != nil || string(aside) != text {
			t.Errorf("%q set aside: %q, %v", text, aside, err)
		}
		if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), path+".refused") {
			t.Errorf("%q: log %s", text, log.String())
		}
	}
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte(`{"Ingresses":[{"Namespace":"a","Name":"b","Spec":{"rules":[{"host":"x"}]}}],"PeerSecrets":[{"CA":"eA=="}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), "last-good.json")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		kept := New(path, nil).Load()
		build.New(build.Options{}).Remember(kept) // it comes to terms with anything
		for _, i := range kept.Ingresses {
			if i == nil {
				t.Error("a nil Ingress")
			}
		}
	})
}
