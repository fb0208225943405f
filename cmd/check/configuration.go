package check

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"headgate/cmd/shell"
	"headgate/sync/admin"
)

// The commands that bring a changed configuration into force. None of them costs a request.
const (
	byReload     = "headgate reload"
	byRestart    = "systemctl restart headgate (the proxy serves on meanwhile)"
	byVIPRestart = "systemctl restart headgate-vip, if that was not done since (the VIPs move to another host meanwhile)"
)

// configuration is called with one that is valid. What remains is whether a daemon runs with another one.
func (r *run) configuration(ctx context.Context) {
	file := r.File
	if _, err := os.Stat(file); err != nil {
		file = "no file"
	}
	r.ok("the configuration is valid (%s)", file)
	if _, packaged := r.daemon(); packaged {
		r.readableConfig()
	}
	asking, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	status, err := admin.Ask(asking, r.Config.RuntimeDir)
	if err != nil {
		r.ok("no daemon answers in %s", r.Config.RuntimeDir)
		return
	}
	if status.Version != r.Version {
		r.warn(byRestart, "the running daemon (PID %d) is version %s, this binary is %s", status.PID, status.Version, r.Version)
	} else {
		r.ok("a daemon of this version runs (PID %d)", status.PID)
	}
	if status.Source.Kind == "cluster" != (r.Config.Kubeconfig != "") {
		r.warn(byRestart, "the running daemon reads %s %s, and the configuration says otherwise", status.Source.Kind, status.Source.Detail)
	}
	r.changes(asking, status)
}

// readableConfig looks whether the daemon and the commands that start nginx can read the file. It holds no secret.
func (r *run) readableConfig() {
	for _, name := range []string{daemonName, proxyName} {
		user, ok := r.account(name)
		if !ok || !errors.Is(user.access(r.File, unix.R_OK), unix.EACCES) {
			continue
		}
		in, fix := user.obstacle(r.File), "chmod o+x "
		if info, err := os.Stat(in); err == nil && !info.IsDir() {
			fix = "chmod 0644 "
		}
		r.fail(fix+shell.Word(in), "the user %s, whom a unit of the package runs as, cannot read the configuration: %s is closed to it", name, in)
	}
}

// changes asks the daemon, which knows the flags and variables that it was started with, what of its file it does not know.
func (r *run) changes(ctx context.Context, status admin.Status) {
	changed, err := admin.AskCompare(ctx, r.Config.RuntimeDir)
	switch {
	case errors.Is(err, admin.ErrNotReloaded):
		r.warn(byRestart, "the running daemon (PID %d) cannot read its configuration again: %v", status.PID, err)
		return
	case err != nil:
		r.warn(byRestart, "the running daemon (PID %d) does not say whether it knows this configuration: %v", status.PID, err)
		return
	}
	if ours, err := filepath.Abs(r.File); err == nil && changed.File != "" && changed.File != ours {
		r.warn("headgate check --config "+shell.Word(changed.File), "the running daemon (PID %d) reads %s, not %s", status.PID, changed.File, ours)
	}
	if len(changed.Reload) > 0 {
		r.warn(byReload, "keys were changed since the running daemon (PID %d) read them: %s", status.PID, strings.Join(changed.Reload, ", "))
	}
	if len(changed.Restart) > 0 {
		r.warn(byRestart, "keys were changed that need a restart of the running daemon (PID %d): %s", status.PID, strings.Join(changed.Restart, ", "))
	}
	if len(changed.RestartVIP) > 0 {
		r.warn(byVIPRestart, "keys were changed that may need a restart of the VIP process: %s", strings.Join(changed.RestartVIP, ", "))
	}
}
