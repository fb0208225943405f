package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"headgate/gateway/snapshot"
	"headgate/sync/kubewatch"
	"headgate/test/cluster/harness"
)

// generic is what `kubectl create secret generic` makes.
func generic(namespace, name, kind, ca string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {namespace: %s, name: %s}
type: %s
stringData: {ca.crt: %q, tls.crt: "", tls.key: "", password: hidden}
---
`, namespace, name, kind, ca)
}

// hasSecrets expects the Secrets "name type ca.crt".
func hasSecrets(want ...string) func(*snapshot.Snapshot) error {
	return func(s *snapshot.Snapshot) error {
		var have []string
		for _, o := range s.Secrets {
			have = append(have, fmt.Sprintf("%s %s %s", o.Name, o.Type, o.Data["ca.crt"]))
		}
		if !slices.Equal(have, want) {
			return fmt.Errorf("secrets %q, want %q", have, want)
		}
		return nil
	}
}

// TestNamedSecretsAreRead: a Secret of type Opaque is read once it is named, followed as long as it is, with the rights that the shipped
// roles give; no other is.
func TestNamedSecretsAreRead(t *testing.T) {
	c := harness.Start(t)
	shop := c.Namespace(t, "shop")
	c.Apply(t, generic(shop, "peers", "Opaque", "one")+generic(shop, "private", "Opaque", "no")+generic(shop, "usual", "kubernetes.io/tls", "tls"))
	source, log := watching(t, kubewatch.Config{Kubeconfig: shippedRoles(t, c)})
	s := complete(t, source)
	const usual = "usual kubernetes.io/tls tls"
	if err := hasSecrets(usual)(s); err != nil {
		t.Error(err)
	}
	wanted := []snapshot.Key{{Namespace: shop, Name: "missing"}, {Namespace: shop, Name: "peers"}, {Namespace: shop, Name: "usual"}}
	want := func() {
		t.Helper()
		harness.Eventually(t, soon, func() error {
			if !source.Want(wanted) {
				return fmt.Errorf("not read yet")
			}
			return nil
		})
	}
	want()
	s = sees(t, source, hasSecrets("peers Opaque one", usual))
	if _, kept := s.Secrets[0].Data["password"]; kept {
		t.Error("what else the Secret holds is kept")
	}
	c.Apply(t, generic(shop, "peers", "Opaque", "two"))
	sees(t, source, hasSecrets("peers Opaque two", usual))
	c.Apply(t, generic(shop, "missing", "Opaque", "found"))
	sees(t, source, hasSecrets("missing Opaque found", "peers Opaque two", usual))

	// Gone, and made anew with the other type, and back: the watch for the one must not take away what the other sees.
	c.Delete(t, generic(shop, "missing", "Opaque", ""))
	sees(t, source, hasSecrets("peers Opaque two", usual))
	c.Delete(t, generic(shop, "peers", "Opaque", "two"))
	c.Apply(t, generic(shop, "peers", "kubernetes.io/tls", "three"))
	sees(t, source, hasSecrets("peers kubernetes.io/tls three", usual))
	want()
	c.Delete(t, generic(shop, "peers", "kubernetes.io/tls", "three"))
	c.Apply(t, generic(shop, "peers", "Opaque", "four"))
	sees(t, source, func(s *snapshot.Snapshot) error {
		source.Want(wanted) // as the loop does after each build
		return hasSecrets("peers Opaque four", usual)(s)
	})
	if h := source.Health(); !h.Troubled.IsZero() || len(h.Forbidden) > 0 {
		t.Errorf("reading Secrets by name is taken for trouble: %+v", h)
	}

	// Another connection has them before it takes over.
	before, listed := complete(t, source), source.Health().Listed
	source.Relist()
	harness.Eventually(t, soon, func() error {
		if s := complete(t, source); !slices.Equal(s.Secrets, before.Secrets) {
			t.Fatalf("the Secrets were gone, or others, for a moment: %v", hasSecrets("peers Opaque four", usual)(s))
		}
		if !source.Health().Listed.After(listed) {
			return fmt.Errorf("the former reading")
		}
		return nil
	})

	source.Want(nil)
	sees(t, source, hasSecrets(usual))
	if strings.Contains(log.String(), "hidden") || strings.Contains(log.String(), "refuses") {
		t.Error("the log tells a secret, or of a refusal")
	}
}
