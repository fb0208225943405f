package kubewatch

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	resolveInterval = time.Minute
	resolveTimeout  = 5 * time.Second
	// maxDialed bounds what is remembered of an API server that moves about.
	maxDialed = 64
)

// peers knows the addresses of one API server.
type peers struct {
	name    string // to be resolved; "" when the kubeconfig has an address
	dialer  net.Dialer
	changed func()

	mu       sync.Mutex // guards what follows
	resolved []netip.Addr
	dialed   map[netip.Addr]struct{}
}

// newPeers takes the host of a rest.Config: a URL, or a host with or without a port.
func newPeers(host string, changed func()) *peers {
	p := &peers{dialer: net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}, changed: changed, dialed: map[netip.Addr]struct{}{}}
	if !strings.Contains(host, "://") {
		host = "https://" + host
	}
	parsed, err := url.Parse(host)
	if err != nil {
		return p
	}
	if address, err := netip.ParseAddr(parsed.Hostname()); err == nil {
		p.resolved = []netip.Addr{address.Unmap().WithZone("")}
	} else {
		p.name = parsed.Hostname()
	}
	return p
}

// dial is rest.Config.Dial; it remembers where it came out.
func (p *peers) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := p.dialer.DialContext(ctx, network, address)
	if err == nil {
		if remote, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
			p.remember(remote.AddrPort().Addr())
		}
	}
	return conn, err
}

func (p *peers) remember(address netip.Addr) {
	address = address.Unmap().WithZone("")
	p.mu.Lock()
	_, known := p.dialed[address]
	if !known && len(p.dialed) < maxDialed {
		p.dialed[address] = struct{}{}
	}
	news := !known && !slices.Contains(p.resolved, address)
	p.mu.Unlock()
	if news {
		p.changed()
	}
}

// run resolves the name until ctx ends: an API server has more addresses than the one that a dialer picks.
func (p *peers) run(ctx context.Context) {
	if p.name == "" {
		return
	}
	ticker := time.NewTicker(resolveInterval)
	defer ticker.Stop()
	for {
		p.resolve(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// resolve keeps the former answer on an error: the dialer and the health check tell of it.
func (p *peers) resolve(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", p.name)
	if err != nil || len(found) == 0 {
		return
	}
	for i := range found {
		found[i] = found[i].Unmap().WithZone("")
	}
	slices.SortFunc(found, netip.Addr.Compare)
	p.mu.Lock()
	news := !slices.Equal(p.resolved, found)
	p.resolved = found
	p.mu.Unlock()
	if news {
		p.changed()
	}
}

func (p *peers) list() []netip.Addr {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append(slices.Clone(p.resolved), slices.Collect(maps.Keys(p.dialed))...)
}
