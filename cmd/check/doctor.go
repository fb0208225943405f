package check

import (
	"context"
	"net"
	"net/netip"
)

// Doctor looks at everything that Run does, and at what only a host in its place can show: capabilities, the other hosts and the
// way to them, the VIPs, pods, other services that get in the way. It sends a few packets: probes for the VIPs, a greeting and
// pings to the other hosts, connections to some pods.
func Doctor(ctx context.Context, s Subject) Report {
	r := start(s)
	r.deep = true
	// Who is reached before has its hardware address in the kernel, by which a VIP at a peer is known.
	for _, p := range append(parts(), []part{
		{"privileges", (*run).capabilities},
		{"gossip", (*run).gossip},
		{"mtu", (*run).pathMTU},
		{"vip", (*run).vips},
		{"services", (*run).services},
	}...) {
		r.area = p.area
		p.look(r, ctx)
	}
	return Report{Lines: r.lines}
}

// own are the addresses of this host, each with the name of its interface.
func own() (map[netip.Addr]string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	list := map[netip.Addr]string{}
	for _, i := range all {
		addresses, err := i.Addrs()
		if err != nil {
			return nil, err
		}
		for _, a := range addresses {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				list[p.Addr().Unmap()] = i.Name
			}
		}
	}
	return list, nil
}
