package lastgood

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"

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

// keep runs a Keeper over the lists.
func keep(t *testing.T, path string, lists ...[]*snapshot.Ingress) {
	t.Helper()
	k := New(path, nil)
	for _, list := range lists {
		k.Keep(list)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := k.Run(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestKeptOverARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "last-good.json")
	if got := New(path, nil).Load(); got != nil {
		t.Errorf("without a file: %v", got)
	}
	want := []*snapshot.Ingress{ingress("a"), ingress("b")}
	keep(t, path, []*snapshot.Ingress{ingress("old")}, want)
	if diff := cmp.Diff(want, New(path, nil).Load()); diff != "" {
		t.Errorf("read again (-want +got):\n%s", diff)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o007 != 0 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestTheSameListIsNotWrittenAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "last-good.json")
	list := []*snapshot.Ingress{ingress("a")}
	keep(t, path, list)
	k := New(path, nil)
	k.Keep(k.Load())
	if len(k.newest) != 0 {
		t.Error("what was loaded is to be written")
	}
	k.Keep(nil)
	if len(k.newest) != 1 {
		t.Error("the end of the last good versions is not written")
	}
}

func TestABrokenFileCountsAsNone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "last-good.json")
	for _, text := range []string{"{", `{"a": 1}`, "[null]"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := New(path, nil).Load(); len(got) != 0 {
			t.Errorf("%s: %v", text, got)
		}
	}
}

func TestABrokenFileIsSetAside(t *testing.T) {
	for _, text := range []string{"", "{", `{"a": 1}`} {
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
		if got := New(path, slog.New(slog.NewTextHandler(&log, nil))).Load(); len(got) != 0 {
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
	f.Add([]byte(`[{"Namespace":"a","Name":"b","Spec":{"rules":[{"host":"x"}]}}]`))
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), "last-good.json")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, i := range New(path, nil).Load() {
			if i == nil {
				t.Error("a nil Ingress")
			}
		}
	})
}
