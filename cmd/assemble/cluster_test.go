package assemble

import (
	"testing"
	"time"

	"headgate/sync/admin"
	"headgate/sync/kubewatch"
)

func TestClusterHealth(t *testing.T) {
	at := time.Date(2026, 11, 29, 3, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		health  kubewatch.Health
		healthy bool
		err     string
	}{
		"healthy":    {kubewatch.Health{Healthy: true, Since: at}, true, ""},
		"away":       {kubewatch.Health{LastError: "refused", Since: at}, false, "refused"},
		"forbidden":  {kubewatch.Health{Healthy: true, Since: at, Forbidden: []string{"add secrets", "add services"}}, false, "add secrets; add services"},
		"kubeconfig": {kubewatch.Health{Healthy: true, Since: at, Kubeconfig: "not YAML"}, false, "not YAML"},
	} {
		want := admin.Source{Kind: "cluster", Detail: "/k", Healthy: c.healthy, Since: at, Error: c.err}
		if got := ClusterHealth("/k", c.health); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}
