package cluster

import (
	"fmt"
	"strings"
	"testing"

	"headgate/cmd/assemble"
	"headgate/gateway/snapshot"
	"headgate/sync/kubewatch"
	"headgate/sync/lossguard"
	"headgate/test/cluster/harness"
)

// guarding puts a guard before a source, as the daemon does.
func guarding(t *testing.T, source *kubewatch.Source) (*lossguard.Guard, *journal) {
	t.Helper()
	j := &journal{}
	g := lossguard.New(lossguard.Config{
		Source: source, Signs: func() lossguard.Signs { return assemble.ClusterSigns(source.Health()) }, Relist: source.Relist,
		Logger: j.logger(t),
	})
	start(t, g.Run)
	return g, j
}

// passes waits until the guard lets so many Ingresses through.
func passes(t *testing.T, g *lossguard.Guard, want int) {
	t.Helper()
	harness.Eventually(t, soon, func() error {
		if s, ok := g.Snapshot(); !ok || len(s.Ingresses) != want {
			return fmt.Errorf("%d Ingresses pass, want %d; %+v", len(s.Ingresses), want, g.Condition())
		}
		return nil
	})
}

// TestAnAbsurdLoss deletes everything twice: what goes in good order goes at once; what is missing after an outage is held
// until somebody says that it is true.
func TestAnAbsurdLoss(t *testing.T) {
	const many = 20
	c := harness.Start(t)
	shop := c.Namespace(t, "shop")
	c.Apply(t, "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: headgate}\nspec: {controller: headgate.io/ingress}\n")
	all := ""
	for i := range many {
		all += ingress(shop, fmt.Sprintf("i%02d", i), fmt.Sprintf("h%02d.test", i))
	}
	c.Apply(t, all)
	source, _ := watching(t, kubewatch.Config{Kubeconfig: c.KubeconfigPath, Namespaces: []string{shop}})
	complete(t, source)
	healthy(t, source, true)
	guard, log := guarding(t, source)
	passes(t, guard, many)

	c.Delete(t, all)
	passes(t, guard, 0)
	if got := guard.Condition(); got.Holds != 0 {
		t.Fatalf("a loss in good order was held: %+v", got)
	}
	c.Apply(t, all)
	passes(t, guard, many)

	// The API server is killed, and what was read last is kept; then the cluster is emptied while the source comes back.
	c.Kill(t)
	healthy(t, source, false)
	passes(t, guard, many)
	c.Resume(t)
	c.Delete(t, all)
	healthy(t, source, true)
	sees(t, source, func(s *snapshot.Snapshot) error {
		if n := len(s.Ingresses); n > 0 {
			return fmt.Errorf("%d Ingresses are left", n)
		}
		return nil
	})
	passes(t, guard, many)
	got := guard.Condition()
	if got.Held().Routes != many || got.Holds != 1 || got.Why == "" {
		t.Errorf("condition %+v", got)
	}
	if !strings.Contains(log.String(), "an absurd loss is not passed on") {
		t.Error("it is not told")
	}
	if let := guard.Accept(); let.Before.Routes != many || let.Now.Routes != 0 {
		t.Errorf("accepted %+v", let)
	}
	passes(t, guard, 0)
}

// TestRelistReadsEverythingOnceMore: the new reading is a later one, is no sign of trouble, and keeps what did not change.
func TestRelistReadsEverythingOnceMore(t *testing.T) {
	c := harness.Start(t)
	shop := c.Namespace(t, "shop")
	c.Apply(t, ingress(shop, "a", "a.test"))
	source, _ := watching(t, kubewatch.Config{Kubeconfig: c.KubeconfigPath, Namespaces: []string{shop}})
	before := complete(t, source)
	healthy(t, source, true)
	was := source.Health()
	if was.Listed.IsZero() {
		t.Fatalf("health %+v", was)
	}
	source.Relist()
	harness.Eventually(t, soon, func() error {
		if h := source.Health(); !h.Listed.After(was.Listed) || !h.Healthy {
			return fmt.Errorf("health %+v", h)
		}
		return nil
	})
	if h := source.Health(); h.Troubled != was.Troubled {
		t.Errorf("a reading that was asked for is a sign of trouble: %+v", h)
	}
	if after := complete(t, source); findIngress(after, shop, "a") != findIngress(before, shop, "a") {
		t.Error("what did not change must keep its pointer")
	}
}
