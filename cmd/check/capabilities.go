package check

import (
	"context"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"headgate/cmd/vip"
)

// capability is one of capabilities(7).
type capability struct {
	name string
	bit  uint
	why  string
	// must: without it nothing works; else something is worse.
	must bool
}

// vipCapabilities are what the VIP process needs.
func vipCapabilities() []capability {
	return []capability{
		{"CAP_NET_ADMIN", unix.CAP_NET_ADMIN, "it takes addresses", true},
		{"CAP_NET_RAW", unix.CAP_NET_RAW, "it speaks ARP and NDP", true},
		{"CAP_SYS_NICE", unix.CAP_SYS_NICE, "with the real-time scheduler a busy host is not taken for a dead one", false},
	}
}

// capabilities looks at those of the VIP process where it runs; elsewhere at those of whoever asks, who is about to run it.
func (r *run) capabilities(ctx context.Context) {
	if len(r.Config.VIP.All()) == 0 {
		r.ok("no VIP is configured: no capability beyond the proxy's is needed")
		return
	}
	process, whose := "self", "this user"
	if status, err := vip.Ask(ctx, vip.PathsOf(r.Config)); err == nil {
		process, whose = strconv.Itoa(status.PID), "the VIP process (PID "+strconv.Itoa(status.PID)+")"
	} else if r.Host.UID != 0 {
		r.warn("run headgate doctor as root", "no VIP process answers, and what its unit may do is not known to this user")
		return
	}
	text, err := os.ReadFile(r.path("/proc/" + process + "/status"))
	set, found := effective(string(text))
	if err != nil || !found {
		r.warn("run headgate doctor as root", "the capabilities of %s cannot be read", whose)
		return
	}
	r.judgeCapabilities(whose, set)
}

func (r *run) judgeCapabilities(whose string, set uint64) {
	var has []string
	for _, c := range vipCapabilities() {
		switch {
		case set&(1<<c.bit) != 0:
			has = append(has, c.name)
		case c.must:
			r.fail("write AmbientCapabilities="+c.name+" into headgate-vip.service (systemctl edit headgate-vip), and restart it", "%s lacks %s: %s", whose, c.name, c.why)
		case r.Config.VIP.Realtime:
			r.warn("write AmbientCapabilities="+c.name+" into headgate-vip.service, or vip.realtime: false", "%s lacks %s: %s", whose, c.name, c.why)
		}
	}
	if len(has) > 0 {
		r.ok("%s has %s", whose, strings.Join(has, ", "))
	}
}

// effective reads CapEff of /proc/PID/status (proc(5)).
func effective(status string) (uint64, bool) {
	for line := range strings.Lines(status) {
		if value, ok := strings.CutPrefix(line, "CapEff:"); ok {
			set, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			return set, err == nil
		}
	}
	return 0, false
}
