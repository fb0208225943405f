package check

import (
	"context"
	"os"
	"time"

	"headgate/sync/admin"
)

// configuration is called with one that is valid. What remains is whether a daemon runs with an older one: it reads
// the configuration when it starts, and never again.
func (r *run) configuration(ctx context.Context) {
	file := r.File
	info, err := os.Stat(file)
	if err != nil {
		file = "no file"
	}
	r.ok("the configuration is valid (%s)", file)
	asking, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	status, err2 := admin.Ask(asking, r.Config.RuntimeDir)
	if err2 != nil {
		r.ok("no daemon answers in %s", r.Config.RuntimeDir)
		return
	}
	const restart = "systemctl restart headgate (the proxy serves on meanwhile)"
	switch {
	case err == nil && info.ModTime().After(status.Started):
		r.warn(restart, "the running daemon (PID %d) started before %s was last changed: it does not know the changes", status.PID, file)
	case status.Version != r.Version:
		r.warn(restart, "the running daemon (PID %d) is version %s, this binary is %s", status.PID, status.Version, r.Version)
	default:
		r.ok("a daemon of this version runs (PID %d)", status.PID)
	}
	if status.Source.Kind == "cluster" != (r.Config.Kubeconfig != "") {
		r.warn(restart, "the running daemon reads %s %s, and the configuration says otherwise", status.Source.Kind, status.Source.Detail)
	}
}
