package check

import (
	"context"
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	"headgate/cmd/shell"
	"headgate/sync/manifests"
)

// manifests reads each folder once. What is wrong with an object in itself is told by `headgate render`.
func (r *run) manifests(context.Context) {
	if len(r.Config.Manifests) == 0 {
		return
	}
	snapshot, err := manifests.Read(manifests.Config{Folders: r.Config.Manifests}, r.Host.Now())
	if err != nil {
		r.fail("install -d "+words(r.Config.Manifests), "%v", err)
		return
	}
	if daemon, ok := r.daemon(); ok {
		for _, folder := range r.Config.Manifests {
			if err := daemon.access(folder, unix.R_OK|unix.X_OK); errors.Is(err, unix.EACCES) {
				r.fail("chmod o+rx "+shell.Word(daemon.obstacle(folder)), "the daemon (user %s) may not enter %s", daemon.name, daemon.obstacle(folder))
			}
		}
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

func words(list []string) string {
	quoted := make([]string, len(list))
	for i, text := range list {
		quoted[i] = shell.Word(text)
	}
	return strings.Join(quoted, " ")
}
