package product

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

func TestComplaints(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "run", "error.log"), `[error] 7#7: *1 connect() failed (111: Connection refused)
[alert] 7#7: worker process 8 exited on signal 11
[crit] 7#7: *2 SSL_do_handshake() failed (SSL: error:0A00006C:SSL routines::bad key share)
[crit] 7#7: *3 open() "/x" failed
`)
	write(t, filepath.Join(dir, "error-2.log"), "[error] 7#7: *1 lua entry thread aborted: runtime error\nstack traceback:\n")
	write(t, filepath.Join(dir, "access.log"), "[alert] is part of a path\n")
	const want = `[error] 7#7: *1 lua entry thread aborted: runtime error
stack traceback:
[alert] 7#7: worker process 8 exited on signal 11
[crit] 7#7: *3 open() "/x" failed
`
	if got := Complaints(dir); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := Complaints(filepath.Join(dir, "none")); got != "" {
		t.Errorf("of a folder that is not there: %q", got)
	}
}

// What was started has ended when the test has, and was asked to.
func TestRunStops(t *testing.T) {
	dir := PublicDir(t)
	if info, err := os.Stat(filepath.Dir(dir)); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the folder above is %v, %v", info.Mode(), err)
	}
	stopped := filepath.Join(dir, "stopped")
	t.Run("inner", func(t *testing.T) {
		const script = `trap 'touch "$0"; exit 0' TERM; echo up; while :; do sleep 0.01; done`
		log := Run(t, exec.CommandContext(context.WithoutCancel(t.Context()), "/bin/sh", "-c", script, stopped), dir)
		deadline := time.After(patience)
		for log.String() != "up\n" {
			select {
			case <-deadline:
				t.Fatalf("it says %q", log)
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
	if _, err := os.Stat(stopped); err != nil {
		t.Error(err)
	}
}
