package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"headgate/gateway/build"
	"headgate/gateway/snapshot"
	"headgate/sync/kubestatus"
	"headgate/test/cluster/harness"
)

func addresses(t *testing.T, c *harness.Cluster, namespace, name string) []string {
	t.Helper()
	o, err := c.Client.NetworkingV1().Ingresses(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, one := range o.Status.LoadBalancer.Ingress {
		list = append(list, one.IP+one.Hostname)
	}
	return list
}

func hasAddresses(t *testing.T, c *harness.Cluster, namespace, name string, want ...string) {
	t.Helper()
	harness.Eventually(t, soon, func() error {
		if got := addresses(t, c, namespace, name); !slices.Equal(got, want) {
			return fmt.Errorf("status of %s/%s is %v, want %v", namespace, name, got, want)
		}
		return nil
	})
}

func patchStatus(t *testing.T, c *harness.Cluster, namespace, name, ingress string) {
	t.Helper()
	_, err := c.Client.NetworkingV1().Ingresses(namespace).Patch(t.Context(), name, types.MergePatchType,
		[]byte(`{"status":{"loadBalancer":{"ingress":`+ingress+`}}}`), metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
}

// events are "type reason count: note" of one object, oldest first.
func events(t *testing.T, c *harness.Cluster, namespace, uid string) []string {
	t.Helper()
	list, err := c.Client.EventsV1().Events(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(list.Items, func(a, b eventsv1.Event) int { return a.EventTime.Compare(b.EventTime.Time) })
	var lines []string
	for _, e := range list.Items {
		if string(e.Regarding.UID) != uid {
			continue
		}
		count := int32(1)
		if e.Series != nil {
			count = e.Series.Count
		}
		lines = append(lines, fmt.Sprintf("%s %s %d: %s", e.Type, e.Reason, count, e.Note))
	}
	return lines
}

func hasEvents(t *testing.T, c *harness.Cluster, namespace, uid string, want ...string) {
	t.Helper()
	harness.Eventually(t, soon, func() error {
		if got := events(t, c, namespace, uid); !slices.Equal(got, want) {
			return fmt.Errorf("events\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
		}
		return nil
	})
}

func problemOf(i *snapshot.Ingress, reason build.Reason, message string) build.Problem {
	return build.Problem{
		Object: build.Object{Kind: "Ingress", Namespace: i.Namespace, Name: i.Name, UID: i.UID},
		Reason: reason, Message: message,
	}
}

func TestTheShippedRoles(t *testing.T) {
	c := harness.Start(t)
	shop := c.Namespace(t, "shop")
	c.Apply(t, ingress(shop, "a", "a.test"))
	kubeconfig := shippedRoles(t, c)

	t.Run("allow", func(t *testing.T) {
		e := newEdge(t, kubeconfig, "host-1", nil)
		e.leads(t)
		hasAddresses(t, c, shop, "a", "192.0.2.10", "edge.example.org")
		s := complete(t, e.source)
		i := findIngress(s, shop, "a")
		e.setProblems(problemOf(i, build.BackendNotFound, "Service web does not exist"))
		hasEvents(t, c, shop, i.UID, "Warning BackendNotFound 1: Service web does not exist")
		e.setProblems()
		hasEvents(t, c, shop, i.UID, "Warning BackendNotFound 1: Service web does not exist",
			"Normal Resolved 1: BackendNotFound is over: Service web does not exist")
		e.setProblems(problemOf(i, build.BackendNotFound, "Service web does not exist"))
		// The return is counted by a patch.
		hasEvents(t, c, shop, i.UID, "Warning BackendNotFound 2: Service web does not exist",
			"Normal Resolved 1: BackendNotFound is over: Service web does not exist")
		e.stop()
		lease, err := c.Client.CoordinationV1().Leases("headgate-system").Get(t.Context(), "edge-status", metav1.GetOptions{})
		if err != nil || (lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != "") {
			t.Errorf("the Lease must be released at the end: %v, %v", lease.Spec.HolderIdentity, err)
		}
		hasAddresses(t, c, shop, "a", "192.0.2.10", "edge.example.org")
		if strings.Contains(e.log.String(), "refuses") {
			t.Error("something was refused")
		}
	})
	t.Run("deny", func(t *testing.T) {
		config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		denied(t, kubernetes.NewForConfigOrDie(config), shop)
	})
}

func denied(t *testing.T, client kubernetes.Interface, namespace string) {
	t.Helper()
	ctx := t.Context()
	patch := []byte(`{"metadata":{"annotations":{"a":"b"}}}`)
	for what, do := range map[string]func() error{
		"read pods": func() error {
			_, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
			return err
		},
		"change an Ingress": func() error {
			_, err := client.NetworkingV1().Ingresses(namespace).Patch(ctx, "a", types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		},
		"delete an Ingress": func() error {
			return client.NetworkingV1().Ingresses(namespace).Delete(ctx, "a", metav1.DeleteOptions{})
		},
		"write a Secret": func() error {
			_, err := client.CoreV1().Secrets(namespace).Patch(ctx, "a", types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		},
		"write a Service": func() error {
			_, err := client.CoreV1().Services(namespace).Patch(ctx, "web", types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		},
		"read another Lease": func() error {
			_, err := client.CoordinationV1().Leases("headgate-system").Get(ctx, "other", metav1.GetOptions{})
			return err
		},
		"create a Lease elsewhere": func() error {
			_, err := client.CoordinationV1().Leases("kube-system").Create(ctx,
				&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "edge-status"}}, metav1.CreateOptions{})
			return err
		},
		"read Events": func() error {
			_, err := client.EventsV1().Events(namespace).List(ctx, metav1.ListOptions{})
			return err
		},
	} {
		if err := do(); !apierrors.IsForbidden(err) {
			t.Errorf("%s: got %v, want a refusal", what, err)
		}
	}
}

func TestTwoHosts(t *testing.T) {
	c := harness.Start(t)
	shop := c.Namespace(t, "shop")
	c.Apply(t, ingress(shop, "a", "a.test"))
	kubeconfig := shippedRoles(t, c)
	clearing := func(config *kubestatus.Config) { config.ClearOnStop = true }
	one := newEdge(t, kubeconfig, "host-1", clearing)
	one.leads(t)
	two := newEdge(t, kubeconfig, "host-2", clearing)
	harness.Eventually(t, soon, func() error {
		if identity, mine := two.writer.Leader(); mine || identity != "host-1" {
			return fmt.Errorf("host-2 sees %q lead, itself: %v", identity, mine)
		}
		return nil
	})
	hasAddresses(t, c, shop, "a", "192.0.2.10", "edge.example.org")
	s := complete(t, one.source)
	i := findIngress(s, shop, "a")
	problem := problemOf(i, build.HostConflict, "a.test belongs to another Ingress")
	one.setProblems(problem)
	two.setProblems(problem)
	hasEvents(t, c, shop, i.UID, "Warning HostConflict 1: a.test belongs to another Ingress")

	// Another hand in the status is put right.
	patchStatus(t, c, shop, "a", `[{"ip":"198.51.100.1"}]`)
	hasAddresses(t, c, shop, "a", "192.0.2.10", "edge.example.org")
	// Order does not matter, and is no reason to write.
	patchStatus(t, c, shop, "a", `[{"hostname":"edge.example.org"},{"ip":"192.0.2.10"}]`)
	version := steadyVersion(t, c, shop, "a")

	// The leader goes: the other takes over, keeps the addresses, and repeats no Event.
	one.stop()
	two.leads(t)
	c.Apply(t, ingress(shop, "b", "b.test"))
	hasAddresses(t, c, shop, "b", "192.0.2.10", "edge.example.org")
	hasEvents(t, c, shop, i.UID, "Warning HostConflict 1: a.test belongs to another Ingress")
	if now := steadyVersion(t, c, shop, "a"); now != version {
		t.Errorf("a status that is right must not be written again: version %s, then %s", version, now)
	}

	// The last one goes, and was told to clear.
	two.stop()
	hasAddresses(t, c, shop, "a")
	hasAddresses(t, c, shop, "b")
}

// steadyVersion is the resourceVersion once it has not changed for a second.
func steadyVersion(t *testing.T, c *harness.Cluster, namespace, name string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	last, since := "", time.Now()
	for time.Since(since) < time.Second {
		o, err := c.Client.NetworkingV1().Ingresses(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if o.ResourceVersion != last {
			last, since = o.ResourceVersion, time.Now()
		}
		select {
		case <-ctx.Done():
			t.Fatal("the version does not settle")
		case <-time.After(50 * time.Millisecond):
		}
	}
	return last
}

func TestAnIngressThatIsNoLongerOurs(t *testing.T) {
	c := harness.Start(t)
	shop := c.Namespace(t, "shop")
	c.Apply(t, ingress(shop, "a", "a.test")+ingress(shop, "b", "b.test")+
		strings.Replace(ingress(shop, "never", "c.test"), "ingressClassName: headgate", "ingressClassName: other", 1))
	patchStatus(t, c, shop, "never", `[{"ip":"192.0.2.10"},{"hostname":"edge.example.org"}]`)
	e := newEdge(t, shippedRoles(t, c), "host-1", nil)
	e.leads(t)
	for _, name := range []string{"a", "b"} {
		hasAddresses(t, c, shop, name, "192.0.2.10", "edge.example.org")
	}
	changeClass := func(name, class string) {
		t.Helper()
		_, err := c.Client.NetworkingV1().Ingresses(shop).Patch(t.Context(), name, types.MergePatchType,
			[]byte(`{"spec":{"ingressClassName":"`+class+`"}}`), metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	changeClass("a", "other")
	hasAddresses(t, c, shop, "a")
	// Once: the other controller may publish what it likes, even the same.
	patchStatus(t, c, shop, "a", `[{"ip":"192.0.2.10"},{"hostname":"edge.example.org"}]`)
	steadyVersion(t, c, shop, "a")
	hasAddresses(t, c, shop, "a", "192.0.2.10", "edge.example.org")
	// What was never ours is not touched.
	hasAddresses(t, c, shop, "never", "192.0.2.10", "edge.example.org")
	changeClass("a", "headgate")
	hasAddresses(t, c, shop, "a", "192.0.2.10", "edge.example.org")
}

func TestEventsOncePerTransition(t *testing.T) {
	c := harness.Start(t)
	shop := c.Namespace(t, "shop")
	c.Apply(t, ingress(shop, "a", "a.test"))
	e := newEdge(t, shippedRoles(t, c), "host-1", nil)
	e.leads(t)
	i := findIngress(complete(t, e.source), shop, "a")
	long := strings.Repeat("ü", 1000)
	problems := []build.Problem{
		problemOf(i, build.Unsupported, "annotation x is not served yet"),
		{Object: build.Object{Kind: "Ingress", Namespace: shop, Name: "a", UID: i.UID}, Field: "spec.tls[0]", Reason: build.SecretNotFound, Message: long},
		{Object: build.Object{Kind: "File", Origin: "shop.yaml:1"}, Reason: build.UnreadableInput, Message: "no UID, no Event"},
	}
	for range 5 {
		e.setProblems(problems...)
		c.Apply(t, ingress(shop, "other", "other.test")) // passes that change nothing for a
		c.Delete(t, ingress(shop, "other", "other.test"))
	}
	harness.Eventually(t, soon, func() error {
		got := events(t, c, shop, i.UID)
		slices.Sort(got)
		if len(got) != 2 || got[1] != "Warning Unsupported 1: annotation x is not served yet" ||
			!strings.HasPrefix(got[0], "Warning SecretNotFound 1: spec.tls[0]: üüü") || !strings.HasSuffix(got[0], "ü…") {
			return fmt.Errorf("events %.200q", got)
		}
		return nil
	})
	// The same kind of Problem with other words is another Problem, and not the end of the first.
	e.setProblems(problemOf(i, build.Unsupported, "annotation y is not served yet"), problems[1])
	harness.Eventually(t, soon, func() error {
		got := events(t, c, shop, i.UID)
		if len(got) != 3 || !slices.Contains(got, "Warning Unsupported 1: annotation y is not served yet") {
			return errors.New(strings.Join(got, "\n"))
		}
		return nil
	})
}

func TestARefusedWriteIsTold(t *testing.T) {
	c := harness.Start(t)
	shop := c.Namespace(t, "shop")
	c.Apply(t, ingress(shop, "a", "a.test"))
	kubeconfig := shippedRoles(t, c)
	c.Delete(t, "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: headgate-status}\n"+
		"---\napiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: headgate-lease, namespace: headgate-system}\n")
	e := newEdge(t, kubeconfig, "host-1", nil)
	logged := func(text string) {
		t.Helper()
		harness.Eventually(t, soon, func() error {
			if !strings.Contains(e.log.String(), text) {
				return fmt.Errorf("the log does not say %q", text)
			}
			return nil
		})
	}
	logged("resourceNames: [edge-status], verbs: [get, update]")
	shippedRoles(t, c)
	e.leads(t)
	logged("the Lease can be used")
	hasAddresses(t, c, shop, "a", "192.0.2.10", "edge.example.org")
	if strings.Count(e.log.String(), "the Lease cannot be used") != 1 {
		t.Error("one refusal must be logged once")
	}
	// The rest is refused after the fact.
	c.Delete(t, "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: headgate-status}\n")
	c.Apply(t, ingress(shop, "b", "b.test"))
	logged("resources: [ingresses/status], verbs: [patch]")
	shippedRoles(t, c)
	hasAddresses(t, c, shop, "b", "192.0.2.10", "edge.example.org")
}
