package nginxproc

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// oldLoads is the number of former loads of the configuration whose workers may serve on beside those of the present one. Requests
// end soon, WebSockets may last for days, and each worker that they hold keeps its memory: without a bound, somebody
// whose objects force a reload again and again would fill the host.
const oldLoads = 8

// signalReload has a master read its configuration (nginx: SIGHUP). Where that leaves more than oldLoads old loads, the
// workers of the oldest ones are ended with the connections that they have.
func (p *Proxy) signalReload(m process) error {
	surplus := beyond(children(m.pid))
	if err := m.signal(unix.SIGHUP); err != nil {
		return err
	}
	for _, w := range surplus {
		if err := w.signal(unix.SIGTERM); err != nil {
			if !errors.Is(err, os.ErrProcessDone) {
				p.cfg.Log.Warn("a worker of a former configuration lasts", "pid", w.pid, "err", err)
			}
			continue
		}
		p.cfg.Log.Warn("worker of a former configuration ended with its connections: too many reloads while they were open",
			"pid", w.pid, "bound", oldLoads)
	}
	return nil
}

// beyond lists the old workers that are too many as soon as those that take requests are old as well.
func beyond(workers []process) []process {
	var old []process
	present := 0
	for _, w := range workers {
		switch {
		case w.title == workerTitle:
			present++
		case strings.HasPrefix(w.title, workerTitle): // it is shutting down
			old = append(old, w)
		}
	}
	slices.SortFunc(old, func(a, b process) int { return cmp.Compare(a.started, b.started) })
	// Each load has as many workers as the present one; what is left of an older one may be fewer.
	surplus := len(old) - (oldLoads-1)*max(1, present)
	return old[:max(0, surplus)]
}
