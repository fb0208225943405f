package cluster

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"headgate/cmd/check"
	"headgate/cmd/config"
	"headgate/cmd/rbac"
	"headgate/gateway/build"
	"headgate/gateway/snapshot"
	"headgate/sync/kubestatus"
	"headgate/sync/kubewatch"
	"headgate/test/cluster/harness"
)

// configured is what the two sides of the test share: what `headgate rbac` reads, and what the daemon does.
func configured(kubeconfig string, namespaces []string, defaultCertificate string) config.Config {
	c := config.Default()
	c.Kubeconfig, c.Namespaces, c.DefaultCertificate = kubeconfig, namespaces, defaultCertificate
	return c
}

func secret(namespace, name string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {namespace: %s, name: %s}
type: kubernetes.io/tls
data: {tls.crt: "", tls.key: ""}
---
`, namespace, name)
}

// clientOf speaks with the rights of a kubeconfig.
func clientOf(t *testing.T, kubeconfig string) kubernetes.Interface {
	t.Helper()
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return kubernetes.NewForConfigOrDie(c)
}

// TestNamespacedRoles: with `headgate rbac --namespaces` everything works in those namespaces, and nothing can be read in
// any other.
func TestNamespacedRoles(t *testing.T) {
	c := harness.Start(t)
	shop, blog, other, certs := c.Namespace(t, "shop"), c.Namespace(t, "blog"), c.Namespace(t, "other"), c.Namespace(t, "certs")
	for _, n := range []string{shop, blog, other} {
		c.Apply(t, ingress(n, "a", n+".test"))
		c.Apply(t, secret(n, "tls"))
	}
	c.Apply(t, secret(certs, "wildcard"))
	c.Apply(t, secret(certs, "private"))
	settings := configured("", []string{shop, blog}, certs+"/wildcard")
	c.Apply(t, string(rbac.YAML(rbac.From(settings), "test")))
	settings.Kubeconfig = c.ServiceAccountKubeconfig(t, "headgate-system", "headgate")

	t.Run("allow", func(t *testing.T) {
		read := kubewatch.Config{
			Kubeconfig: settings.Kubeconfig, Namespaces: settings.Namespaces, Version: "test",
			Secrets: []snapshot.Key{{Namespace: certs, Name: "wildcard"}},
		}
		e := newEdgeOf(t, read, "host-1", func(config *kubestatus.Config) { config.ClearOnStop = true })
		e.leads(t)
		for _, n := range []string{shop, blog} {
			hasAddresses(t, c, n, "a", "192.0.2.10", "edge.example.org")
		}
		s := complete(t, e.source)
		var secrets []string
		for _, one := range s.Secrets {
			secrets = append(secrets, one.String())
		}
		slices.Sort(secrets)
		want := []string{shop + "/tls", blog + "/tls", certs + "/wildcard"}
		slices.Sort(want)
		if !slices.Equal(secrets, want) {
			t.Errorf("secrets %v, want %v", secrets, want)
		}
		i := findIngress(s, shop, "a")
		e.setProblems(problemOf(i, build.BackendNotFound, "Service web does not exist"))
		hasEvents(t, c, shop, i.UID, "Warning BackendNotFound 1: Service web does not exist")
		e.stop()
		hasAddresses(t, c, shop, "a")
		hasAddresses(t, c, other, "a")
		if h := e.source.Health(); len(h.Forbidden) > 0 || strings.Contains(e.log.String(), "refuses") {
			t.Errorf("something was refused: %v", h.Forbidden)
		}
	})
	t.Run("check", func(t *testing.T) {
		if failed := rights(t, settings); len(failed) > 0 {
			t.Errorf("check finds %v", failed)
		}
		settings := settings
		settings.Namespaces = append(slices.Clone(settings.Namespaces), other)
		failed := rights(t, settings)
		if len(failed) != 6 || !strings.Contains(failed[0], "may not get, list, watch ingresses.networking.k8s.io in namespace "+other) {
			t.Errorf("check finds %v", failed)
		}
	})
	t.Run("deny", func(t *testing.T) {
		client := clientOf(t, settings.Kubeconfig)
		denied(t, client, shop)
		for _, n := range []string{other, metav1.NamespaceAll, "kube-system"} {
			nothingReadable(t, client, n)
		}
		if _, err := client.CoreV1().Secrets(certs).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("list the Secrets beside the default certificate: %v", err)
		}
		one := metav1.ListOptions{FieldSelector: "metadata.name=private"}
		if _, err := client.CoreV1().Secrets(certs).List(t.Context(), one); !apierrors.IsForbidden(err) {
			t.Errorf("read another Secret beside the default certificate: %v", err)
		}
	})
}

func nothingReadable(t *testing.T, client kubernetes.Interface, namespace string) {
	t.Helper()
	ctx, all := t.Context(), metav1.ListOptions{}
	patch := []byte(`{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.1"}]}}}`)
	for what, do := range map[string]func() error{
		"ingresses":  func() error { _, err := client.NetworkingV1().Ingresses(namespace).List(ctx, all); return err },
		"services":   func() error { _, err := client.CoreV1().Services(namespace).List(ctx, all); return err },
		"slices":     func() error { _, err := client.DiscoveryV1().EndpointSlices(namespace).List(ctx, all); return err },
		"secrets":    func() error { _, err := client.CoreV1().Secrets(namespace).List(ctx, all); return err },
		"watch":      func() error { _, err := client.CoreV1().Secrets(namespace).Watch(ctx, all); return err },
		"configmaps": func() error { _, err := client.CoreV1().ConfigMaps(namespace).List(ctx, all); return err },
		"one secret": func() error {
			if namespace == metav1.NamespaceAll {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "", nil) // there is no such request
			}
			_, err := client.CoreV1().Secrets(namespace).Get(ctx, "tls", metav1.GetOptions{})
			return err
		},
		"a status": func() error {
			if namespace == metav1.NamespaceAll {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "ingresses"}, "", nil)
			}
			_, err := client.NetworkingV1().Ingresses(namespace).Patch(ctx, "a", types.MergePatchType, patch, metav1.PatchOptions{}, "status")
			return err
		},
	} {
		if err := do(); !apierrors.IsForbidden(err) {
			t.Errorf("%s in %q: got %v, want a refusal", what, namespace, err)
		}
	}
}

// rights runs `headgate check` and gives what it says must be mended in the cluster.
func rights(t *testing.T, c config.Config) []string {
	t.Helper()
	c.StateDir, c.RuntimeDir = filepath.Join(t.TempDir(), "state"), filepath.Join(t.TempDir(), "run")
	c.Listeners.HTTP, c.Listeners.HTTPS = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:18080")}, nil
	report := check.Run(t.Context(), check.Subject{Config: c, Version: "test", Host: check.This()})
	var failed []string
	seen := map[string]bool{}
	for _, l := range report.Lines {
		seen[l.Message] = true
		if l.Verdict == check.Fail && slices.Contains([]string{"kubeconfig", "cluster", "rbac"}, l.Area) {
			failed = append(failed, l.Message)
			if l.Area == "rbac" && !strings.HasPrefix(l.Fix, "headgate rbac") {
				t.Errorf("%q is mended by %q", l.Message, l.Fix)
			}
		}
	}
	if !seen["the clock agrees with the API server's"] {
		t.Errorf("the clock was not looked at: %v", report.Lines)
	}
	return failed
}

// TestEachRuleIsNeeded takes the verbs away one by one: each time something no longer works, and says which rule it
// lacks. list is left out where a server streams it through the watch, as this one does (see rbac.Rules).
func TestEachRuleIsNeeded(t *testing.T) {
	c := harness.Start(t)
	shop := c.Namespace(t, "shop")
	c.Apply(t, ingress(shop, "a", "a.test"))
	for name, namespaces := range map[string][]string{"cluster": nil, "namespaces": {shop}} {
		options := rbac.From(configured("", namespaces, ""))
		options.Account.Name = "headgate-" + name
		c.Apply(t, roles(t, options, nil, nil))
		kubeconfig := c.ServiceAccountKubeconfig(t, options.Account.Namespace, options.Account.Name)
		client := clientOf(t, kubeconfig)
		for _, rule := range rbac.Rules(options) {
			for _, without := range takeAway(rule, name) {
				t.Run(name+" "+strings.Join(without, ",")+" "+rule.Resource, func(t *testing.T) {
					c.Apply(t, roles(t, options, &rule, without))
					defer c.Apply(t, roles(t, options, nil, nil))
					awaitRight(t, client, rule, without, false)
					told(t, c, kubewatch.Config{Kubeconfig: kubeconfig, Namespaces: namespaces, Version: "test"}, shop, rule, without)
				})
				awaitRight(t, client, rule, without, true)
			}
		}
	}
}

// takeAway are the sets of verbs to try without. With namespaces the whole rule is enough: the verbs are the same.
func takeAway(rule rbac.Rule, variant string) [][]string {
	if slices.Contains(rule.Verbs, "watch") {
		sets := [][]string{{"list", "watch"}}
		if slices.Contains(rule.Verbs, "get") && variant == "cluster" {
			sets = append(sets, []string{"get"})
		}
		return sets
	}
	if variant != "cluster" {
		return [][]string{rule.Verbs}
	}
	var sets [][]string
	for _, verb := range rule.Verbs {
		sets = append(sets, []string{verb})
	}
	return sets
}

// roles is the manifest, with one rule less some verbs.
func roles(t *testing.T, options rbac.Options, less *rbac.Rule, verbs []string) string {
	t.Helper()
	text, err := rbac.JSON(options)
	if err != nil || less == nil {
		return string(text)
	}
	var list struct {
		APIVersion string           `json:"apiVersion"`
		Kind       string           `json:"kind"`
		Items      []map[string]any `json:"items"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	taken := 0
	for _, item := range list.Items {
		metadata, _ := item["metadata"].(map[string]any)
		namespace, _ := metadata["namespace"].(string)
		rules, _ := item["rules"].([]any)
		var kept []any
		for _, r := range rules {
			one := r.(map[string]any)
			_, named := one["resourceNames"]
			if namespace == less.Namespace && fmt.Sprint(one["resources"], one["apiGroups"]) == fmt.Sprint([]string{less.Resource}, []string{less.Group}) && named == (len(less.Names) > 0) {
				taken++
				one["verbs"] = slices.DeleteFunc(one["verbs"].([]any), func(v any) bool { return slices.Contains(verbs, v.(string)) })
			}
			if len(one["verbs"].([]any)) > 0 {
				kept = append(kept, one)
			}
		}
		if rules != nil {
			item["rules"] = kept
		}
	}
	if taken != 1 {
		t.Fatalf("%+v stands %d times in the manifest", less, taken)
	}
	text, err = json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// awaitRight waits until the API server has taken the change of the roles in.
func awaitRight(t *testing.T, client kubernetes.Interface, rule rbac.Rule, verbs []string, want bool) {
	t.Helper()
	resource, sub, _ := strings.Cut(rule.Resource, "/")
	harness.Eventually(t, soon, func() error {
		for _, verb := range verbs {
			review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{
				Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: rule.Namespace, Group: rule.Group, Resource: resource, Subresource: sub, Verb: verb, Name: strings.Join(rule.Names, ""),
				}},
			}, metav1.CreateOptions{})
			if err != nil {
				return err
			}
			if review.Status.Allowed != want {
				return fmt.Errorf("%s %s is allowed: %v", verb, rule.Resource, review.Status.Allowed)
			}
		}
		return nil
	})
}

// told runs what needs the rule, and waits for the word.
func told(t *testing.T, c *harness.Cluster, read kubewatch.Config, shop string, rule rbac.Rule, without []string) {
	t.Helper()
	says := func(log *journal, text string) {
		t.Helper()
		harness.Eventually(t, soon, func() error {
			if !strings.Contains(log.String(), text) {
				return fmt.Errorf("the log does not say %q", text)
			}
			return nil
		})
	}
	if slices.Contains(without, "watch") {
		source, log := watching(t, read)
		says(log, "resources: ["+rule.Resource+"], verbs: [list, watch]")
		if _, ok := source.Snapshot(); ok {
			t.Error("half a cluster counts as complete")
		}
		if h := source.Health(); len(h.Forbidden) == 0 {
			t.Errorf("health %+v", h)
		}
		return
	}
	// Each begins with no Lease and no status.
	err := c.Client.CoordinationV1().Leases("headgate-system").Delete(t.Context(), "edge-status", metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	patchStatus(t, c, shop, "a", "null")
	e := newEdgeOf(t, read, "host-"+strings.Join(without, "-"), func(config *kubestatus.Config) { config.ClearOnStop = true })
	switch rule.Resource {
	case "leases":
		says(e.log, "the Lease cannot be used")
		says(e.log, "resources: [leases], verbs: [create]")
	case "ingresses/status":
		says(e.log, "resources: [ingresses/status], verbs: [patch]")
	case "ingresses": // get
		hasAddresses(t, c, shop, "a", "192.0.2.10", "edge.example.org")
		e.stop()
		says(e.log, "an Ingress keeps its addresses")
	case "events":
		e.leads(t)
		i := findIngress(complete(t, e.source), shop, "a")
		message := "told at " + time.Now().Format(time.RFC3339Nano)
		e.setProblems(problemOf(i, build.BackendNotFound, message))
		if !slices.Contains(without, "create") {
			harness.Eventually(t, soon, func() error {
				if got := events(t, c, shop, i.UID); !slices.ContainsFunc(got, func(s string) bool { return strings.HasSuffix(s, message) }) {
					return fmt.Errorf("events %v", got)
				}
				return nil
			})
			e.setProblems()
			harness.Eventually(t, soon, func() error {
				if got := events(t, c, shop, i.UID); !slices.ContainsFunc(got, func(s string) bool { return strings.HasSuffix(s, "is over: "+message) }) {
					return fmt.Errorf("events %v", got)
				}
				return nil
			})
			e.setProblems(problemOf(i, build.BackendNotFound, message)) // counted by a patch
		}
		says(e.log, "resources: [events], verbs: [create, patch]")
	default:
		t.Fatalf("nothing is known to need %s %s", without, rule.Resource)
	}
}
