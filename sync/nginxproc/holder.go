package nginxproc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Holder is who listens on an address, as far as this process may see: the descriptors of other users' processes are hidden
// from it, the control group of a socket is not. The zero value is nobody known.
type Holder struct {
	PID  int    // 0: not known
	Name string // of the program; "": not known
	Unit string // of systemd, such as "apache2.service"; "": none, or not known
	User string // whose socket it is: a name, or a number without one
}

// String names the holder as well as it is known.
func (h Holder) String() string {
	var in []string
	if h.PID != 0 {
		in = append(in, "PID "+strconv.Itoa(h.PID))
	}
	if h.Unit != "" {
		in = append(in, "unit "+h.Unit)
	}
	name := h.Name
	switch {
	case name == "" && h.User != "":
		name = "a process of the user " + h.User
	case name == "":
		name = "another process"
	}
	if len(in) == 0 {
		return name
	}
	return name + " (" + strings.Join(in, ", ") + ")"
}

// Remedy is the command that frees the address.
func (h Holder) Remedy() string {
	switch {
	case strings.HasSuffix(h.Unit, ".service") && !strings.HasPrefix(h.Unit, "user@"):
		return "systemctl disable --now " + h.Unit
	case h.PID != 0:
		return "kill " + strconv.Itoa(h.PID)
	}
	return "ss -ltnp, as root, shows its process: stop that"
}

// Taken is an address that nginx cannot listen on because another process does.
type Taken struct {
	Address string // as nginx writes it: "0.0.0.0:80"
	By      Holder
}

// String says who has the address and how to free it.
func (t Taken) String() string {
	return t.Address + " is taken by " + t.By.String() + ": free it (" + t.By.Remedy() + ")"
}

// HolderOf finds who listens so that a cannot be had as well. ok is false where nobody does, or the kernel does not say.
func HolderOf(a netip.AddrPort) (h Holder, ok bool) {
	all, err := listening()
	if err != nil {
		return Holder{}, false
	}
	for _, s := range all {
		if s.excludes(a) {
			return s.holder(), true
		}
	}
	return Holder{}, false
}

// occupied are those of the addresses that others than our nginx listen on.
func (p *Proxy) occupied(addresses []netip.AddrPort) []Taken {
	if len(addresses) == 0 {
		return nil
	}
	all, err := listening()
	if err != nil {
		p.cfg.Log.Warn("who listens on which port is not known", "err", err)
		return nil
	}
	var found []Taken
	for _, a := range addresses {
		for _, s := range all {
			if !s.excludes(a) {
				continue
			}
			if h := s.holder(); !p.holds(h) {
				found = append(found, Taken{Address: a.String(), By: h})
				break
			}
		}
	}
	return found
}

// holds tells whether it is our nginx that listens. One whose process is not known counts as ours: nobody else is to be blamed
// for nothing.
func (p *Proxy) holds(h Holder) bool {
	if p.cfg.Unit != "" && h.Unit == p.cfg.Unit {
		return true
	}
	if h.PID == 0 {
		return h.Unit == ""
	}
	one, ok := inspect(h.PID)
	if !ok || one.runs(p.cfg.Conf) {
		return true
	}
	parent, ok := inspect(one.parent)
	return ok && parent.runs(p.cfg.Conf) || strings.HasPrefix(one.title, workerTitle) && holdsAny(one.pid, p.controlInodes())
}

// controlInodes are those of our control socket: whose workers outlived their master have it, too.
func (p *Proxy) controlInodes() map[string]bool {
	inodes, err := socketInodes(p.cfg.Sockets[0])
	if err != nil {
		return nil
	}
	return inodes
}

// listenDirective finds the addresses of a configuration (https://nginx.org/en/docs/http/ngx_http_core_module.html#listen).
var listenDirective = regexp.MustCompile(`(?m)^\s*listen\s+([^\s;]+)`)

// addresses are those that a configuration listens on, each once, without unix sockets.
func addresses(conf []byte) []netip.AddrPort {
	var all []netip.AddrPort
	for _, m := range listenDirective.FindAllSubmatch(conf, -1) {
		if a, err := netip.ParseAddrPort(string(m[1])); err == nil && !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}

// newIn are the addresses of a configuration that the one before does not listen on.
func newIn(conf, before []byte) []netip.AddrPort {
	known := addresses(before)
	return slices.DeleteFunc(addresses(conf), func(a netip.AddrPort) bool { return slices.Contains(known, a) })
}

// listener is a TCP socket that listens.
type listener struct {
	address netip.AddrPort
	only6   bool // IPV6_V6ONLY
	inode   uint32
	user    uint32
	cgroup  uint64 // 0: not told (Linux before 5.9)
}

// excludes tells whether nobody else can listen on a while the socket does (ip(7), ipv6(7); SO_REUSEPORT is not in use).
func (l listener) excludes(a netip.AddrPort) bool {
	have, want := l.address.Addr(), a.Addr()
	switch {
	case l.address.Port() != a.Port():
		return false
	case have.Is4() == want.Is4():
		return have == want || have.IsUnspecified() || want.IsUnspecified()
	case have.Is6():
		return have.IsUnspecified() && !l.only6 // it takes IPv4 as well; nginx sets IPV6_V6ONLY on its own
	}
	return false
}

// What inet_diag says, from include/uapi/linux/inet_diag.h: a request of 56 bytes, an answer of 72 with attributes behind.
const (
	diagRequestSize = 56
	diagAnswerSize  = 72
	diagOnly6       = 11 // INET_DIAG_SKV6ONLY
	diagCgroup      = 21 // INET_DIAG_CGROUP_ID
	stateListen     = 10 // TCP_LISTEN
)

// diagRequest is inet_diag_req_v2 for all sockets that listen.
type diagRequest uint8

// Serialize implements nl.NetlinkRequestData.
func (family diagRequest) Serialize() []byte {
	b := make([]byte, diagRequestSize)
	b[0], b[1] = byte(family), unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(b[4:], 1<<stateListen)
	return b
}

// Len implements nl.NetlinkRequestData.
func (diagRequest) Len() int { return diagRequestSize }

// listening lists the TCP sockets of this network namespace that listen (sock_diag(7)).
func listening() ([]listener, error) {
	var all []listener
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		request := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
		request.AddData(diagRequest(family))
		answers, err := request.Execute(unix.NETLINK_INET_DIAG, 0)
		if errors.Is(err, unix.ENOENT) && family == unix.AF_INET6 {
			continue // no IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("ask the kernel for sockets: %w", err)
		}
		for _, a := range answers {
			if l, ok := parseListener(a); ok {
				all = append(all, l)
			}
		}
	}
	return all, nil
}

// parseListener reads inet_diag_msg with its attributes.
func parseListener(b []byte) (listener, bool) {
	if len(b) < diagAnswerSize {
		return listener{}, false
	}
	ip, ok := netip.AddrFromSlice(b[8:24])
	if b[0] == unix.AF_INET {
		ip, ok = netip.AddrFromSlice(b[8:12])
	}
	l := listener{
		address: netip.AddrPortFrom(ip, binary.BigEndian.Uint16(b[4:])),
		user:    binary.NativeEndian.Uint32(b[64:]), inode: binary.NativeEndian.Uint32(b[68:]),
	}
	attributes, err := nl.ParseRouteAttr(b[diagAnswerSize:])
	if err != nil {
		return l, ok // the address is known all the same
	}
	for _, a := range attributes {
		switch {
		case a.Attr.Type == diagOnly6 && len(a.Value) >= 1:
			l.only6 = a.Value[0] != 0
		case a.Attr.Type == diagCgroup && len(a.Value) >= 8:
			l.cgroup = binary.NativeEndian.Uint64(a.Value)
		}
	}
	return l, ok
}

// holder finds the process: by its descriptors where we may see them, else by the control group that the socket was made in.
func (l listener) holder() Holder {
	h := Holder{User: strconv.FormatUint(uint64(l.user), 10)}
	if u, err := user.LookupId(h.User); err == nil {
		h.User = u.Username
	}
	if pid := openedBy(l.inode); pid != 0 {
		h.PID, h.Name, h.Unit = pid, programOf(pid), unitOf(pid)
		return h
	}
	dir := cgroupFolder(l.cgroup)
	if dir == "" {
		return h
	}
	h.Unit = unitIn(dir)
	if pids := members(dir); len(pids) > 0 && oneProgram(pids) {
		h.PID, h.Name = pids[0], programOf(pids[0])
	}
	return h
}

// openedBy is the process with the lowest ID that has the socket open: of an nginx the master. 0 where none is seen.
func openedBy(inode uint32) int {
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*") // the pattern is ours; what we may not see is not found
	wanted := "socket:[" + strconv.FormatUint(uint64(inode), 10) + "]"
	lowest := 0
	for _, link := range links {
		pid, err := strconv.Atoi(strings.Split(link, "/")[2])
		if err != nil || lowest != 0 && pid >= lowest {
			continue
		}
		if target, err := os.Readlink(link); err == nil && target == wanted {
			lowest = pid
		}
	}
	return lowest
}

func programOf(pid int) string {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

func unitOf(pid int) string {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		// 0::/system.slice/nginx.service
		if unit := unitIn(strings.TrimSpace(line)); unit != "" {
			return unit
		}
	}
	return ""
}

// unitIn is the outermost unit that a control group belongs to: a service, or the session of a user.
func unitIn(path string) string {
	for part := range strings.SplitSeq(path, "/") {
		if strings.HasSuffix(part, ".service") || strings.HasSuffix(part, ".scope") {
			return part
		}
	}
	return ""
}

// cgroupRoots are where the unified hierarchy may be mounted.
func cgroupRoots() []string { return []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} }

// cgroupFolder finds a control group by its ID, which is the inode of its folder; "" where it is not seen.
func cgroupFolder(id uint64) string {
	if id == 0 {
		return ""
	}
	found := ""
	for _, root := range cgroupRoots() {
		var system unix.Statfs_t
		if err := unix.Statfs(root, &system); err != nil || system.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.IsDir() {
				return nil //nolint:nilerr // what vanishes meanwhile is not what we look for
			}
			var stat unix.Stat_t
			if unix.Lstat(path, &stat) == nil && stat.Ino == id {
				found = path
				return fs.SkipAll
			}
			return nil
		})
	}
	return found
}

// members are the processes of a control group, in order.
func members(dir string) []int {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return nil
	}
	var pids []int
	for _, field := range strings.Fields(string(text)) {
		if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// oneProgram tells whether all of them run the same: then any of them names it.
func oneProgram(pids []int) bool {
	for _, pid := range pids {
		if programOf(pid) != programOf(pids[0]) {
			return false
		}
	}
	return true
}
