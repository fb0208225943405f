package check

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// rival is a service that does what headgate does.
type rival struct {
	process, unit string
	what          string
}

func rivals() []rival {
	return []rival{
		{"keepalived", "keepalived.service", "moves addresses of its own between hosts"},
		{"ucarp", "ucarp.service", "moves addresses of its own between hosts"},
		{"corosync", "corosync.service", "may move addresses of its own between hosts"},
		{"haproxy", "haproxy.service", "may take the ports of the listeners"},
	}
}

// services looks for others that get in the way. Who holds a port of the listeners is told there.
func (r *run) services(context.Context) {
	before := len(r.lines)
	names := r.processNames()
	for _, s := range rivals() {
		_, err := os.Lstat(r.path("/etc/systemd/system/multi-user.target.wants/" + s.unit))
		switch moves := strings.Contains(s.what, "moves addresses of its own"); {
		case names[s.process] != 0 && moves && len(r.Config.VIP.All()) > 0:
			r.fail("systemctl disable --now "+s.unit, "%s runs (PID %d) and %s: two of them fight over one VIP", s.process, names[s.process], s.what)
		case names[s.process] != 0:
			r.warn("systemctl disable --now "+s.unit+", unless it is meant", "%s runs (PID %d): it %s", s.process, names[s.process], s.what)
		case err == nil:
			r.warn("systemctl disable "+s.unit+", unless it is meant", "%s starts when this host boots: it %s", s.unit, s.what)
		}
	}
	if len(r.Config.VIP.All()) > 0 {
		r.networkd()
	}
	if len(r.lines) == before {
		r.ok("no other service gets in the way")
	}
}

// processNames are those of all processes, each with a PID.
func (r *run) processNames() map[string]int {
	names := map[string]int{}
	files, _ := filepath.Glob(r.path("/proc/[0-9]*/comm")) // the pattern is ours
	for _, file := range files {
		text, err := os.ReadFile(file)
		pid, pidErr := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err == nil && pidErr == nil {
			names[strings.TrimSpace(string(text))] = pid
		}
	}
	return names
}

// networkd looks whether systemd-networkd has the interface of a VIP, and leaves alone what others put there
// (networkd.conf(5), systemd.network(5)).
func (r *run) networkd() {
	for _, name := range r.Config.VIP.Interfaces() {
		link, err := net.InterfaceByName(name)
		if err != nil {
			continue // told with the VIP
		}
		text, err := os.ReadFile(r.path("/run/systemd/netif/links/" + strconv.Itoa(link.Index)))
		if err != nil || !strings.Contains(string(text), "NETWORK_FILE=") {
			continue
		}
		r.networkdSettings(name)
	}
}

func (r *run) networkdSettings(iface string) {
	for _, key := range []string{"ManageForeignRoutes", "ManageForeignRoutingPolicyRules"} {
		if no(r.networkdSetting(key)) {
			continue
		}
		r.warn(`install -d /etc/systemd/networkd.conf.d && printf '[Network]\n`+key+`=no\n' > /etc/systemd/networkd.conf.d/50-headgate-`+strings.ToLower(key)+`.conf && systemctl restart systemd-networkd`,
			"systemd-networkd has %s and removes routes and rules of others (%s is not no): connections that were open at a move are cut when it is reconfigured", iface, key)
	}
}

// no reads a boolean as systemd does (systemd.syntax(7)); "" is not no.
func no(value string) bool {
	return slices.Contains([]string{"no", "false", "off", "0", "n", "f"}, strings.ToLower(value))
}

// networkdSetting is the last value of a key in [Network] of networkd.conf and its drop-ins: those of /etc go before those of
// the same name in /run and /usr/lib, and all are read in the order of their names.
func (r *run) networkdSetting(key string) string {
	dropIns := map[string]string{}
	for _, dir := range []string{"/usr/lib", "/run", "/etc"} {
		files, _ := filepath.Glob(r.path(dir + "/systemd/networkd.conf.d/*.conf")) // the pattern is ours
		for _, f := range files {
			dropIns[filepath.Base(f)] = f
		}
	}
	names := make([]string, 0, len(dropIns))
	for name := range dropIns {
		names = append(names, name)
	}
	slices.Sort(names)
	files := []string{r.path("/etc/systemd/networkd.conf")}
	for _, name := range names {
		files = append(files, dropIns[name])
	}
	value := ""
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if found, ok := iniValue(string(text), "[Network]", key); ok {
			value = found
		}
	}
	return value
}

func iniValue(text, section, key string) (value string, found bool) {
	in := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			in = line
		}
		name, v, ok := strings.Cut(line, "=")
		if ok && in == section && strings.TrimSpace(name) == key {
			value, found = strings.TrimSpace(v), true
		}
	}
	return value, found
}
