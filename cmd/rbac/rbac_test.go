package rbac

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"headgate/cmd/config"
)

func options(change func(*config.Config)) Options {
	c := config.Default()
	change(&c)
	return From(c)
}

func variants() map[string]Options {
	return map[string]Options{
		"cluster": options(func(*config.Config) {}),
		"namespaces": options(func(c *config.Config) {
			c.Namespaces, c.DefaultCertificate = []string{"shop", "123", "null"}, "certs/wildcard"
		}),
		"read only": options(func(c *config.Config) { c.Status.Enabled = false }),
		"elsewhere": {Account: Account{"edge", "on"}, Status: true, LeaseNamespace: "leases", LeaseName: "1e3"},
	}
}

// TestBothFormatsSayTheSame: the YAML is written by hand, for its comments.
func TestBothFormatsSayTheSame(t *testing.T) {
	for name, o := range variants() {
		text, err := JSON(o)
		if err != nil {
			t.Fatal(err)
		}
		var list struct{ Items []any }
		if err := json.Unmarshal(text, &list); err != nil {
			t.Fatal(err)
		}
		var documents []any
		for _, document := range bytes.Split(YAML(o, "test"), []byte("---\n")) {
			var one any
			if err := yaml.UnmarshalStrict(document, &one); err != nil {
				t.Fatalf("%s: %v\n%s", name, err, document)
			}
			documents = append(documents, one)
		}
		if diff := cmp.Diff(list.Items, documents); diff != "" {
			t.Errorf("%s (-JSON +YAML):\n%s", name, diff)
		}
	}
}

func TestRules(t *testing.T) {
	for name, o := range variants() {
		seen := map[string]bool{}
		for _, r := range Rules(o) {
			id := r.Namespace + " " + r.Group + " " + r.Resource + " " + strings.Join(r.Names, ",")
			if seen[id] {
				t.Errorf("%s: %s stands twice", name, id)
			}
			seen[id] = true
			if r.Why == "" || len(r.Verbs) == 0 || r.role == "" {
				t.Errorf("%s: %+v", name, r)
			}
			if !slices.IsSorted(r.Verbs) {
				t.Errorf("%s: verbs %v are not sorted", name, r.Verbs)
			}
			for _, verb := range r.Verbs {
				if !o.Status && !slices.Contains([]string{"list", "watch"}, verb) {
					t.Errorf("%s: %s %s although nothing is written", name, verb, r.Resource)
				}
			}
			if len(o.Namespaces) > 0 && r.Namespace == "" && r.Resource != "ingressclasses" {
				t.Errorf("%s: %s in the whole cluster", name, r.Resource)
			}
		}
	}
	inside := options(func(c *config.Config) { c.Namespaces, c.DefaultCertificate = []string{"certs"}, "certs/wildcard" })
	for _, r := range Rules(inside) {
		if r.Resource == "secrets" && len(r.Names) > 0 {
			t.Error("a default certificate in a namespace that is read needs no rule of its own")
		}
	}
}
