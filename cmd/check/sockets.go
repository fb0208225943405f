package check

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// socket is one that listens.
type socket struct {
	address netip.AddrPort
	inode   string
}

// listening is a socket with its processes, the lowest PID first: of an nginx that is the master.
type listening struct {
	socket
	holders []holder
}

// holder is a process.
type holder struct {
	pid  int
	name string
	unit string // of systemd
	line string // command line, with a space behind each word
	ours bool
}

// The states of sockets, as the kernel writes them (include/net/tcp_states.h).
const (
	established = "01"
	listen      = "0A"
)

// parseSockets reads /proc/net/tcp or tcp6 (proc(5)): those in one state. A line that it does not understand is left out.
func parseSockets(text, wanted string) []socket {
	const local, state, inode = 1, 3, 9
	var all []socket
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) <= inode || fields[state] != wanted {
			continue
		}
		if address, ok := parseHexAddress(fields[local]); ok {
			all = append(all, socket{address, fields[inode]})
		}
	}
	return all
}

// parseHexAddress reads "0100007F:0050": words of 32 bits in the order of the machine, which is little-endian
// wherever we are built for.
func parseHexAddress(text string) (netip.AddrPort, bool) {
	host, port, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(host)
	number, err2 := strconv.ParseUint(port, 16, 16)
	if errors.Join(err, err2) != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for word := range slices.Chunk(raw, 4) {
		slices.Reverse(word)
	}
	address, ok := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(address, uint16(number)), ok
}

// held finds every listening socket of this network namespace, and whose it is as far as we may see.
func (r *run) held() ([]listening, error) {
	var all []listening
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(r.path(name))
		if errors.Is(err, os.ErrNotExist) && name == "/proc/net/tcp6" {
			continue // no IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("read the sockets: %w", err)
		}
		for _, s := range parseSockets(string(text), listen) {
			all = append(all, listening{socket: s})
		}
	}
	owners := r.owners()
	for i := range all {
		for _, pid := range owners[all[i].inode] {
			all[i].holders = append(all[i].holders, r.process(pid))
		}
	}
	return all, nil
}

// Established counts the TCP connections of this network namespace whose local end is wanted.
func Established(wanted func(local netip.AddrPort) bool) (int, error) {
	n := 0
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) && name == "/proc/net/tcp6" {
			continue // no IPv6
		}
		if err != nil {
			return 0, fmt.Errorf("read the connections: %w", err)
		}
		for _, s := range parseSockets(string(text), established) {
			if wanted(netip.AddrPortFrom(s.address.Addr().Unmap(), s.address.Port())) {
				n++
			}
		}
	}
	return n, nil
}

// owners maps the inodes of sockets to the processes that hold them, in order.
func (r *run) owners() map[string][]int {
	owners := map[string][]int{}
	links, _ := filepath.Glob(r.path("/proc/[0-9]*/fd/*")) // the pattern is ours; what we may not see is not found
	for _, link := range links {
		target, err := os.Readlink(link)
		inode, ok := strings.CutPrefix(target, "socket:[")
		if err != nil || !ok {
			continue
		}
		inode = strings.TrimSuffix(inode, "]")
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(link))))
		if err == nil && !slices.Contains(owners[inode], pid) {
			owners[inode] = append(owners[inode], pid)
		}
	}
	for _, pids := range owners {
		slices.Sort(pids)
	}
	return owners
}

// process reads what is known of one; what cannot be read stays empty.
func (r *run) process(pid int) holder {
	dir := r.path("/proc/" + strconv.Itoa(pid))
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return ""
		}
		return string(text)
	}
	h := holder{pid: pid, name: strings.TrimSpace(read("comm")), line: strings.ReplaceAll(read("cmdline"), "\x00", " ") + " "}
	if h.name == "" {
		h.name = "a process"
	}
	for line := range strings.Lines(read("cgroup")) {
		// 0::/system.slice/nginx.service
		if base := filepath.Base(strings.TrimSpace(line)); strings.HasSuffix(base, ".service") && !strings.HasPrefix(base, "user@") {
			h.unit = base
		}
	}
	return h
}

// holderOf gives who keeps a from being bound, or nil. Another's counts before our own.
func holderOf(a netip.AddrPort, all []listening, ours func(commandLine string) bool) *holder {
	var found *holder
	for _, l := range all {
		if !conflict(a, l.address) {
			continue
		}
		h := holder{}
		if len(l.holders) > 0 {
			h = l.holders[0]
		}
		h.ours = slices.ContainsFunc(l.holders, func(h holder) bool { return ours(h.line) })
		if found == nil || found.ours {
			found = &h
		}
	}
	return found
}

// conflict tells whether a socket on have keeps one off want. The wildcard of IPv6 may also take IPv4 (unless
// IPV6_V6ONLY, which /proc does not show; nginx sets it, and our own does not count).
func conflict(want, have netip.AddrPort) bool {
	if want.Port() != have.Port() {
		return false
	}
	w, h := want.Addr().Unmap(), have.Addr()
	if w.Is4() && h.Is6() {
		return h.IsUnspecified() || h.Unmap() == w
	}
	if w.Is4() != h.Is4() {
		return false
	}
	return w == h || w.IsUnspecified() || h.IsUnspecified()
}
