package assemble

import (
	"strings"

	"headgate/sync/admin"
	"headgate/sync/kubewatch"
)

// ClusterHealth tells of a cluster in the words of the status. A kubeconfig that cannot be used, or a read
// that the role does not allow, counts as unhealthy: what is served may be old.
func ClusterHealth(kubeconfig string, h kubewatch.Health) admin.Source {
	var errs []string
	for _, e := range append([]string{h.LastError, h.Kubeconfig}, h.Forbidden...) {
		if e != "" {
			errs = append(errs, e)
		}
	}
	return admin.Source{
		Kind: "cluster", Detail: kubeconfig, Healthy: h.Healthy && len(h.Forbidden) == 0 && h.Kubeconfig == "",
		Since: h.Since, Error: strings.Join(errs, "; "),
	}
}
