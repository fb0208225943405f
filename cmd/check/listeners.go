package check

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"headgate/cmd/assemble"
	"headgate/cmd/config"
	"headgate/sync/nginxproc"
)

// listeners looks at each address: can it be had, may we take its port, is it free.
func (r *run) listeners(context.Context) {
	held, err := r.held()
	if err != nil {
		r.warn("", "who holds which port is not known: %v", err)
	}
	addresses := slices.Concat(r.Config.Listeners.HTTP, r.Config.Listeners.HTTPS)
	var free, ours []string
	for _, a := range addresses {
		err := r.Host.Bind(a)
		who := holderOf(a, held, r.ours)
		switch {
		case err == nil, errors.Is(err, unix.EACCES) && who == nil: // see privileges
			free = append(free, a.String())
		case !errors.Is(err, unix.EADDRINUSE) && !errors.Is(err, unix.EACCES):
			r.addressRefused(a, err)
		case who == nil:
			r.taken(a, holder{})
		case who.ours:
			ours = append(ours, a.String())
		default:
			r.taken(a, *who)
		}
	}
	if len(free) > 0 {
		r.ok("free: %s", strings.Join(free, ", "))
	}
	if len(ours) > 0 {
		r.ok("held by our own proxy: %s", strings.Join(ours, ", "))
	}
	r.privileges(addresses)
}

func (r *run) addressRefused(a netip.AddrPort, err error) {
	switch {
	case errors.Is(err, unix.EADDRNOTAVAIL):
		r.fail(fmt.Sprintf("ip address add %s dev INTERFACE, or write another address in listeners", a.Addr()), "%s: no interface has the address %s", a, a.Addr())
	case errors.Is(err, unix.EAFNOSUPPORT):
		r.fail("remove it from listeners", "%s: this kernel has no IPv6", a)
	default:
		r.fail("write another address in listeners", "%s: %v", a, err)
	}
}

func (r *run) taken(a netip.AddrPort, h holder) {
	switch {
	case h.pid == 0:
		r.takenUnseen(a)
	case h.unit != "":
		r.fail("systemctl disable --now "+h.unit, "%s is taken by %s (PID %d, unit %s)", a, h.name, h.pid, h.unit)
	default:
		r.fail(fmt.Sprintf("kill %d, or write another port in listeners", h.pid), "%s is taken by %s (PID %d)", a, h.name, h.pid)
	}
}

// takenUnseen asks the kernel, which tells everybody the unit of a socket.
func (r *run) takenUnseen(a netip.AddrPort) {
	h, ok := nginxproc.HolderOf(a)
	if r.Host.Root != "" || !ok {
		r.fail("run headgate check as root to see by whom", "%s is taken by another process", a)
		return
	}
	r.fail(h.Remedy(), "%s is taken by %s", a, h)
}

// bind has a socket that never listens take the address, with the options that nginx sets.
func bind(a netip.AddrPort) (err error) {
	family, address := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(a.Port()), Addr: as4(a.Addr())})
	if a.Addr().Is6() {
		family, address = unix.AF_INET6, &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make a socket: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return fmt.Errorf("prepare a socket: %w", err)
	}
	if family == unix.AF_INET6 {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return fmt.Errorf("prepare a socket: %w", err)
		}
	}
	return unix.Bind(fd, address)
}

func as4(a netip.Addr) [4]byte {
	if a.Unmap().Is4() {
		return a.Unmap().As4()
	}
	return [4]byte{}
}

// privileges are asked for the process that starts nginx: in external mode that is the proxy's own unit.
func (r *run) privileges(addresses []netip.AddrPort) {
	limit := 1024
	if text, err := os.ReadFile(r.path("/proc/sys/net/ipv4/ip_unprivileged_port_start")); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			limit = n
		}
	}
	var low []string
	for _, a := range addresses {
		if int(a.Port()) < limit {
			low = append(low, strconv.Itoa(int(a.Port())))
		}
	}
	slices.Sort(low)
	low = slices.Compact(low)
	switch {
	case len(low) == 0:
	case r.Host.UID == 0 || r.mayBind():
		r.ok("ports below %d (%s) may be taken", limit, strings.Join(low, ", "))
	case r.Config.Proxy.Mode == config.External:
		r.warn("run headgate check as root", "ports below %d (%s) need root or CAP_NET_BIND_SERVICE in the proxy's unit, which this user cannot look into", limit, strings.Join(low, ", "))
	default:
		r.fail("run headgate as root, or write ports from "+strconv.Itoa(limit)+" on in listeners",
			"ports below %d (%s) need root or CAP_NET_BIND_SERVICE, and this user (UID %d) has neither", limit, strings.Join(low, ", "), r.Host.UID)
	}
}

// mayBind reads the effective capabilities (capabilities(7)).
func (r *run) mayBind() bool {
	text, err := os.ReadFile(r.path("/proc/self/status"))
	set, found := effective(string(text))
	return err == nil && found && set&(1<<unix.CAP_NET_BIND_SERVICE) != 0
}

// ours tells whether a process is a proxy with our configuration file.
func (r *run) ours(commandLine string) bool {
	return strings.Contains(commandLine, " -c "+assemble.PathsOf(r.Config).Conf+" ")
}
