package check

import (
	"context"
	"os"
	"strconv"
	"strings"

	"headgate/cmd/assemble"
	"headgate/cmd/config"
)

// limits compares the open files that nginx may have with the connections that it is told to take. A managed nginx
// raises its limit as far as the daemon's hard limit; an external one has the limit of its unit.
func (r *run) limits(context.Context) {
	wanted := uint64(assemble.WantedFiles(r.Config)) //nolint:gosec // config keeps it positive
	connections := r.Config.Proxy.WorkerConnections
	process, whose, unit, column := "self", "this user", "headgate.service", hardLimit
	if r.Config.Proxy.Mode == config.External {
		pid, err := os.ReadFile(assemble.PathsOf(r.Config).PID)
		if err != nil {
			r.ok("%d connections a worker: LimitNOFILE of the proxy's unit is looked at once it runs", connections)
			return
		}
		process, whose, unit, column = strings.TrimSpace(string(pid)), "the running proxy", "headgate-proxy.service", softLimit
	}
	text, err := os.ReadFile(r.path("/proc/" + process + "/limits"))
	limit, found := openFiles(string(text), column)
	if err != nil || !found {
		r.ok("%d connections a worker; the limit of open files of %s cannot be read", connections, whose)
		return
	}
	if limit >= wanted {
		r.ok("%s may open %d files, and %d connections a worker need %d", whose, limit, connections, wanted)
		return
	}
	r.warn("write LimitNOFILE="+strconv.FormatUint(wanted, 10)+" into "+unit+", or a smaller proxy.workerConnections",
		"%s may open %d files, and %d connections a worker (each with one to an upstream) need %d: the rest is refused", whose, limit, connections, wanted)
}

// The columns of /proc/PID/limits behind the name (proc(5)).
const (
	softLimit = iota
	hardLimit
)

// openFiles reads one of them.
func openFiles(text string, column int) (uint64, bool) {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, "Max open files")
		if !ok {
			continue
		}
		fields := strings.Fields(rest)
		if len(fields) <= column {
			return 0, false
		}
		if fields[column] == "unlimited" {
			return 1 << 62, true
		}
		n, err := strconv.ParseUint(fields[column], 10, 64)
		return n, err == nil
	}
	return 0, false
}
