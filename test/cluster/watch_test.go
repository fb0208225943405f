package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"headgate/gateway/snapshot"
	"headgate/sync/kubewatch"
	"headgate/test/cluster/harness"
)

func TestTheSnapshotFollowsTheCluster(t *testing.T) {
	c := harness.Start(t)
	shop, other, third := c.Namespace(t, "shop"), c.Namespace(t, "other"), c.Namespace(t, "third")
	c.Apply(t, ingress(shop, "a", "a.test")+ingress(other, "b", "b.test")+ingress(third, "c", "c.test")+fmt.Sprintf(`
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: headgate}
spec: {controller: headgate.io/ingress}
---
apiVersion: v1
kind: Service
metadata: {namespace: %[1]s, name: web}
spec: {ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: %[1]s, name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints: [{addresses: [10.244.0.7]}]
ports: [{port: 8080, name: ""}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: %[1]s, name: names, labels: {kubernetes.io/service-name: web}}
addressType: FQDN
endpoints: [{addresses: [db.example.org]}]
---
apiVersion: v1
kind: Secret
metadata: {namespace: %[1]s, name: tls}
type: kubernetes.io/tls
data: {tls.crt: YQ==, tls.key: Yg==}
---
apiVersion: v1
kind: Secret
metadata: {namespace: %[1]s, name: opaque}
stringData: {a: b}
---
apiVersion: v1
kind: Secret
metadata: {namespace: %[2]s, name: default-tls}
type: kubernetes.io/tls
data: {tls.crt: YQ==, tls.key: Yg==}
`, shop, third))

	source, _ := watching(t, kubewatch.Config{Kubeconfig: c.KubeconfigPath})
	s := complete(t, source)
	if findIngress(s, third, "c") == nil {
		t.Error("without a list of namespaces, all are read")
	}
	if slices.ContainsFunc(s.Secrets, func(o *snapshot.Secret) bool { return o.Type != "kubernetes.io/tls" }) {
		t.Errorf("only TLS Secrets are read, got %d", len(s.Secrets))
	}
	if !slices.ContainsFunc(s.Faults, func(f snapshot.Fault) bool {
		return f.Key == snapshot.Key{Namespace: shop, Name: "names"} && strings.Contains(f.Message, "FQDN")
	}) {
		t.Errorf("a slice of names must be told, got %v", s.Faults)
	}
	if got := source.APIServers(); !slices.Equal(got, []netip.Addr{netip.MustParseAddr("127.0.0.1")}) {
		t.Errorf("API servers %v", got)
	}
	if h := source.Health(); !h.Synced || len(h.Forbidden) > 0 {
		t.Errorf("health %+v", h)
	}

	t.Run("an update changes one pointer", func(t *testing.T) {
		before := complete(t, source)
		c.Apply(t, ingress(shop, "a", "changed.test"))
		after := sees(t, source, hasHost(shop, "a", "changed.test"))
		if findIngress(before, other, "b") != findIngress(after, other, "b") || before.Services[0] != after.Services[0] {
			t.Error("what did not change must keep its pointer")
		}
		if host(findIngress(before, shop, "a")) != "a.test" {
			t.Error("a snapshot must not change")
		}
	})
	t.Run("a deletion", func(t *testing.T) {
		c.Delete(t, ingress(shop, "a", "changed.test"))
		sees(t, source, hasHost(shop, "a", ""))
	})
	t.Run("an IngressClass changes live", func(t *testing.T) {
		c.Delete(t, "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: headgate}\n")
		sees(t, source, func(s *snapshot.Snapshot) error {
			if len(s.IngressClasses) != 0 {
				return errors.New("the class is still there")
			}
			return nil
		})
		c.Apply(t, "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: headgate}\nspec: {controller: example.org/other}\n")
		c.Apply(t, "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: headgate, annotations: {ingressclass.kubernetes.io/is-default-class: \"true\"}}\nspec: {controller: example.org/other}\n")
		sees(t, source, func(s *snapshot.Snapshot) error {
			if len(s.IngressClasses) != 1 || !s.IngressClasses[0].Default || s.IngressClasses[0].Controller != "example.org/other" {
				return fmt.Errorf("classes %+v", s.IngressClasses)
			}
			return nil
		})
	})
	t.Run("nothing happens, nothing changes", func(t *testing.T) {
		before := complete(t, source)
		if complete(t, source) != before {
			t.Error("an unchanged cluster must give the same snapshot")
		}
	})
	t.Run("some namespaces only", func(t *testing.T) {
		source, _ := watching(t, kubewatch.Config{
			Kubeconfig: c.KubeconfigPath, Namespaces: []string{shop, other},
			Secrets: []snapshot.Key{{Namespace: third, Name: "default-tls"}},
		})
		s := complete(t, source)
		if findIngress(s, other, "b") == nil || findIngress(s, third, "c") != nil {
			t.Errorf("ingresses %v", s.Ingresses)
		}
		var names []string
		for _, o := range s.Secrets {
			names = append(names, o.String())
		}
		if want := []string{shop + "/tls", third + "/default-tls"}; !slices.Equal(names, want) {
			t.Errorf("secrets %v, want %v", names, want)
		}
		c.Apply(t, ingress(shop, "late", "late.test"))
		sees(t, source, hasHost(shop, "late", "late.test"))
	})
}

func TestAnOutageChangesNothing(t *testing.T) {
	c := harness.Start(t)
	shop := c.Namespace(t, "shop")
	c.Apply(t, ingress(shop, "a", "a.test")+ingress(shop, "b", "b.test"))
	source, log := watching(t, kubewatch.Config{Kubeconfig: c.KubeconfigPath})
	before := complete(t, source)
	healthy(t, source, true)

	c.Kill(t)
	healthy(t, source, false)
	if h := source.Health(); h.LastError != "connection refused" || h.Since.IsZero() || !h.Synced {
		t.Errorf("health %+v", h)
	}
	if s, ok := source.Snapshot(); !ok || s != before {
		t.Error("an outage must not change the snapshot")
	}
	// Another source that starts meanwhile waits, and says why.
	late, lateLog := watching(t, kubewatch.Config{Kubeconfig: c.KubeconfigPath})
	harness.Eventually(t, soon, func() error {
		if _, ok := late.Snapshot(); ok || late.Health().LastError != "connection refused" {
			return fmt.Errorf("health %+v", late.Health())
		}
		return nil
	})
	if !strings.Contains(lateLog.String(), "the API server cannot be used: trying on") {
		t.Error("waiting must be logged")
	}

	c.Resume(t)
	c.Delete(t, ingress(shop, "b", "b.test"))
	c.Apply(t, ingress(shop, "c", "c.test"))
	healthy(t, source, true)
	after := sees(t, source, hasHost(shop, "c", "c.test"))
	sees(t, source, hasHost(shop, "b", ""))
	if findIngress(before, shop, "a") != findIngress(after, shop, "a") {
		t.Error("after a reconnect, what did not change must keep its pointer")
	}
	complete(t, late)
	if n := strings.Count(log.String(), "what was read last stays"); n != 1 {
		t.Errorf("one outage must be logged once, was %d times", n)
	}
}

func healthy(t *testing.T, source *kubewatch.Source, want bool) {
	t.Helper()
	harness.Eventually(t, soon, func() error {
		if h := source.Health(); h.Healthy != want {
			return fmt.Errorf("health %+v", h)
		}
		return nil
	})
}

func TestARefusedReadIsTold(t *testing.T) {
	c := harness.Start(t)
	kubeconfig := shippedRoles(t, c)
	const role = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: headgate-read}
rules:
- {apiGroups: [networking.k8s.io], resources: [ingresses, ingressclasses], verbs: [get, list, watch]}
- {apiGroups: [""], resources: [services], verbs: [get, list, watch]}
`
	c.Apply(t, role)
	source, log := watching(t, kubewatch.Config{Kubeconfig: kubeconfig})
	const advice = `add to the ClusterRole of headgate's ServiceAccount: {apiGroups: ["discovery.k8s.io"], resources: [endpointslices], verbs: [list, watch]}`
	harness.Eventually(t, soon, func() error {
		h := source.Health()
		if len(h.Forbidden) == 0 || !strings.Contains(h.Forbidden[0], advice) {
			return fmt.Errorf("health %+v", h)
		}
		return nil
	})
	if _, ok := source.Snapshot(); ok {
		t.Error("half a cluster must not be complete")
	}
	if !strings.Contains(log.String(), "resource=endpointslices") {
		t.Error("the refusal must be logged")
	}
	c.Apply(t, role+`- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [get, list, watch]}`)
	harness.Eventually(t, time.Minute, func() error {
		if _, ok := source.Snapshot(); !ok || len(source.Health().Forbidden) > 0 {
			return fmt.Errorf("health %+v", source.Health())
		}
		return nil
	})
}

func TestAReplacedKubeconfigIsTakenUp(t *testing.T) {
	c := harness.Start(t)
	shop := c.Namespace(t, "shop")
	c.Apply(t, ingress(shop, "a", "a.test"))
	first := shippedRoles(t, c)
	path := copyFile(t, first)
	source, log := watching(t, kubewatch.Config{Kubeconfig: path})
	before := complete(t, source)
	client := source.Client()

	replace(t, path, "apiVersion: v1\nkind: Config\nclusters: [")
	harness.Eventually(t, soon, func() error {
		if h := source.Health(); !strings.Contains(h.Kubeconfig, "cannot be read") || !h.Healthy {
			return fmt.Errorf("health %+v", h)
		}
		return nil
	})
	c.Apply(t, ingress(shop, "b", "b.test"))
	sees(t, source, hasHost(shop, "b", "b.test"))

	// Well-formed, and refused: the old connection stays.
	good := read(t, first)
	token := good[strings.Index(good, "token: ")+len("token: "):]
	token, _, _ = strings.Cut(token, "\n")
	replace(t, path, strings.Replace(good, token, "nonsense", 1))
	harness.Eventually(t, soon, func() error {
		if h := source.Health(); !strings.Contains(h.Kubeconfig, "refuses our credentials") || !h.Healthy {
			return fmt.Errorf("health %+v", h)
		}
		return nil
	})
	c.Apply(t, ingress(shop, "c", "c.test"))
	sees(t, source, hasHost(shop, "c", "c.test"))
	if source.Client() != client {
		t.Error("a kubeconfig that does not work must not be taken up")
	}

	// Another ServiceAccount takes over; the first one's rights are taken away.
	c.Apply(t, "apiVersion: v1\nkind: ServiceAccount\nmetadata: {namespace: headgate-system, name: second}\n"+
		"---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: second}\n"+
		"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}\n"+
		"subjects: [{kind: ServiceAccount, namespace: headgate-system, name: second}]\n")
	replace(t, path, read(t, c.ServiceAccountKubeconfig(t, "headgate-system", "second")))
	harness.Eventually(t, soon, func() error {
		if h := source.Health(); source.Client() == client || h.Kubeconfig != "" {
			return fmt.Errorf("health %+v", h)
		}
		return nil
	})
	c.Delete(t, "apiVersion: v1\nkind: ServiceAccount\nmetadata: {namespace: headgate-system, name: headgate}\n")
	c.Apply(t, ingress(shop, "d", "d.test"))
	after := sees(t, source, hasHost(shop, "d", "d.test"))
	if findIngress(before, shop, "a") != findIngress(after, shop, "a") {
		t.Error("with a new connection, what did not change must keep its pointer")
	}
	if strings.Contains(log.String(), token) {
		t.Error("a token stands in the log")
	}
}

func TestAKubeconfigThatAppearsLater(t *testing.T) {
	c := harness.Start(t)
	path := t.TempDir() + "/kubeconfig"
	source, _ := watching(t, kubewatch.Config{Kubeconfig: path})
	harness.Eventually(t, soon, func() error {
		if h := source.Health(); !strings.Contains(h.Kubeconfig, "does not exist") {
			return fmt.Errorf("health %+v", h)
		}
		return nil
	})
	replace(t, path, read(t, c.KubeconfigPath))
	complete(t, source)
}
