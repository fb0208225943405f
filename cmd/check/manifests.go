package check

import (
	"context"
	"strings"

	"headgate/sync/manifests"
)

// manifests reads each folder once. What is wrong with an object in itself is told by `headgate render`.
func (r *run) manifests(context.Context) {
	if len(r.Config.Manifests) == 0 {
		return
	}
	snapshot, err := manifests.Read(manifests.Config{Folders: r.Config.Manifests}, r.Host.Now())
	if err != nil {
		r.fail("install -d "+strings.Join(r.Config.Manifests, " "), "%v", err)
		return
	}
	faults := 0
	for _, f := range snapshot.Faults {
		if f.Warning {
			r.warn("edit "+f.Origin, "%s: %s", f.Origin, f.Message)
			continue
		}
		faults++
		r.fail("edit "+f.Origin, "%s: %s", f.Origin, f.Message)
	}
	if faults == 0 {
		r.ok("%s: %d Ingresses, %d Services, %d Secrets", strings.Join(r.Config.Manifests, ", "),
			len(snapshot.Ingresses), len(snapshot.Services), len(snapshot.Secrets))
	}
}
