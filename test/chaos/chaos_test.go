// Package chaos kills, cuts and breaks every part of a running gateway, one after the other and at random, while
// requests run all the time: real nginx, real API server, the headgate binary. What is asserted is always the same:
// no request fails but those that were in flight in the part that was killed, and in the end the right state is
// served everywhere.
package chaos

import (
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"headgate/test/cluster/harness"
	"headgate/test/product"
)

// patience is far beyond what a healthy gateway needs, also on a machine that is busy with other tests.
const patience = 60 * time.Second

func TestMain(m *testing.M) { harness.Main(m) }

// TestChaos runs its parts one after the other: they share an API server and a gateway, and each leaves both well.
func TestChaos(t *testing.T) {
	product.LookAt(t)
	binary := buildBinary(t)
	t.Run("files", func(t *testing.T) { files(t, binary) })

	w := newWorld(t, binary)
	for _, part := range []struct {
		name string
		run  func(*world)
	}{
		{"daemon killed", daemonKilled},
		{"WebSocket over ten reloads", webSocketOverReloads},
		{"nginx killed", nginxKilled},
		{"master killed", masterKilled},
		{"master killed while no daemon runs", masterKilledAlone},
		{"worker killed within a push", workerKilledInPush},
		{"push cut half-way", pushCut},
		{"two daemons", twoDaemons},
		{"nginx upgraded by USR2", binaryUpgraded},
		{"API server gone", apiGone},
		{"watch compacted", watchCompacted},
		{"API server restarted, etcd restored", apiRestarted},
		{"absurd loss", absurdLoss},
		{"endpoints lost", endpointsLost},
		{"watch hangs", watchHangs},
		{"too many requests", tooManyRequests},
		{"credentials replaced and expired", credentialsReplaced},
		{"clock skew", clockSkew},
		{"random kills", randomKills},
	} {
		ok := t.Run(part.name, func(t *testing.T) {
			before := w.t
			w.t = t
			defer func() { w.t = before }()
			part.run(w)
			w.settled()
		})
		if !ok {
			return // what follows would only tell the same once more, an hour later
		}
	}
}

// buildBinary builds headgate as it is shipped.
func buildBinary(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "headgate")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "headgate/cmd/headgate")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build headgate: %v\n%s", err, out)
	}
	return binary
}
