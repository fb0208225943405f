package externalname

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"
)

// What an attempt may come to. The texts are stable from one attempt to the next (no local ports, no
// message IDs), so that a failure which lasts is one failure.
var (
	errNoSuchName  = errors.New("the name does not exist (NXDOMAIN)")
	errNoAddresses = errors.New("the name has neither A nor AAAA records")
	errChain       = errors.New("the CNAME chain is too long or runs in a circle")
	errEmptyName   = errors.New("the name is empty")
	errZone        = errors.New("an address with a zone cannot be an upstream: write it without the part after %")
	errForeign     = errors.New("the answer is for another question")
)

const (
	maxChain = 16 // CNAMEs followed for one name
	maxHops  = 8  // questions asked for one name, when a server does not follow the chain itself

	// udpSize is what we offer by EDNS(0): the size that DNS flag day 2020 found to avoid fragments.
	udpSize = 1232

	serverTimeout  = 2 * time.Second
	serverAttempts = 2
	// resolvConfAge is how long a read of resolv.conf counts, so that a thousand names read it once.
	resolvConfAge = 5 * time.Second
)

// exchanger sends one question to one server over one transport ("udp" or "tcp").
type exchanger interface {
	exchange(ctx context.Context, question *dns.Msg, server netip.AddrPort, network string) (*dns.Msg, error)
}

// client asks the configured servers.
type client struct {
	wire       exchanger
	fixed      []netip.AddrPort
	resolvConf string

	mu     sync.Mutex // guards cached
	cached servers
}

// servers are who to ask, how long to wait for one and how many rounds to make.
type servers struct {
	list     []netip.AddrPort
	timeout  time.Duration
	attempts int
	read     time.Time
}

func newClient(config Config) *client {
	return &client{wire: wire{}, fixed: config.Servers, resolvConf: config.ResolvConf}
}

// lookup resolves both families of a name, side by side.
func (c *client) lookup(ctx context.Context, name string) answer {
	if address, err := netip.ParseAddr(name); err == nil {
		return literal(address)
	}
	full, err := fqdn(name)
	if err != nil {
		return answer{family{err: err}, family{err: err}}
	}
	var both answer
	var six sync.WaitGroup
	six.Go(func() { both.v6 = c.family(ctx, full, dns.TypeAAAA) })
	both.v4 = c.family(ctx, full, dns.TypeA)
	six.Wait()
	return both
}

// literal answers an IP address by itself. It never changes, so it is asked as seldom as possible.
func literal(address netip.Addr) answer {
	if address.Zone() != "" {
		return answer{family{err: errZone}, family{err: errZone}}
	}
	address = address.Unmap()
	one := family{addresses: []netip.Addr{address}, ttl: time.Duration(1<<31-1) * time.Second}
	if address.Is4() {
		return answer{v4: one}
	}
	return answer{v6: one}
}

// family asks for one record type and follows CNAMEs, within an answer and, when a server stops halfway, by
// another question.
func (c *client) family(ctx context.Context, name string, qtype uint16) family {
	seen := map[string]bool{}
	ttl := ^uint32(0)
	for range maxHops {
		reply, err := c.ask(ctx, name, qtype)
		if err != nil {
			return family{err: err}
		}
		end, addresses, chainTTL, err := follow(reply, name, qtype, seen)
		if err != nil {
			return family{err: err}
		}
		ttl = min(ttl, chainTTL)
		switch {
		case len(addresses) > 0:
			return family{addresses: addresses, ttl: time.Duration(ttl) * time.Second}
		case reply.Rcode == dns.RcodeNameError:
			return family{err: errNoSuchName}
		case dns.CanonicalName(end) == dns.CanonicalName(name), hasSOA(reply):
			// NODATA (RFC 2308 section 2.2): an SOA says that the end of the chain has no such record.
			return family{}
		}
		name = end
	}
	return family{err: errChain}
}

// follow walks the CNAME chain of an answer from name. It returns the last name reached, the addresses found
// there, and the lowest TTL on the way.
func follow(reply *dns.Msg, name string, qtype uint16, seen map[string]bool) (string, []netip.Addr, uint32, error) {
	aliases := map[string]*dns.CNAME{}
	for _, record := range reply.Answer {
		if alias, ok := record.(*dns.CNAME); ok {
			aliases[dns.CanonicalName(alias.Hdr.Name)] = alias
		}
	}
	ttl := ^uint32(0)
	for {
		key := dns.CanonicalName(name)
		if seen[key] || len(seen) > maxChain {
			return name, nil, ttl, errChain
		}
		addresses, low := addressesOf(reply, key, qtype)
		if len(addresses) > 0 {
			return name, addresses, min(ttl, low), nil
		}
		alias := aliases[key]
		if alias == nil {
			return name, nil, ttl, nil
		}
		seen[key] = true
		ttl = min(ttl, alias.Hdr.Ttl)
		name = alias.Target
	}
}

func addressesOf(reply *dns.Msg, owner string, qtype uint16) ([]netip.Addr, uint32) {
	var addresses []netip.Addr
	ttl := ^uint32(0)
	for _, record := range reply.Answer {
		if dns.CanonicalName(record.Header().Name) != owner {
			continue
		}
		var raw net.IP
		switch r := record.(type) {
		case *dns.A:
			if qtype == dns.TypeA {
				raw = r.A.To4()
			}
		case *dns.AAAA:
			if qtype == dns.TypeAAAA {
				raw = r.AAAA.To16()
			}
		}
		if address, ok := netip.AddrFromSlice(raw); ok {
			addresses = append(addresses, address.Unmap())
			ttl = min(ttl, record.Header().Ttl)
		}
	}
	return addresses, ttl
}

func hasSOA(reply *dns.Msg) bool {
	for _, record := range reply.Ns {
		if record.Header().Rrtype == dns.TypeSOA {
			return true
		}
	}
	return false
}

// ask puts one question to the servers in order, in as many rounds as configured, and returns the first answer
// that says something of the name: NOERROR or NXDOMAIN. Other codes are that server's own trouble.
func (c *client) ask(ctx context.Context, name string, qtype uint16) (*dns.Msg, error) {
	who, err := c.servers()
	if err != nil {
		return nil, err
	}
	var last error
	for range who.attempts {
		for _, server := range who.list {
			reply, err := c.askServer(ctx, name, qtype, server, who.timeout)
			if err == nil {
				return reply, nil
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			last = err
		}
	}
	return nil, last
}

func (c *client) askServer(ctx context.Context, name string, qtype uint16, server netip.AddrPort, timeout time.Duration) (*dns.Msg, error) {
	question := new(dns.Msg).SetQuestion(name, qtype)
	question.SetEdns0(udpSize, false)
	reply, err := c.exchange(ctx, question, server, timeout)
	if err == nil && reply.Rcode == dns.RcodeFormatError {
		// A server from before EDNS (RFC 6891 section 7).
		question = new(dns.Msg).SetQuestion(name, qtype)
		reply, err = c.exchange(ctx, question, server, timeout)
	}
	if err != nil {
		return nil, fmt.Errorf("asking %s: %w", server, plain(err))
	}
	if reply.Rcode != dns.RcodeSuccess && reply.Rcode != dns.RcodeNameError {
		code := dns.RcodeToString[reply.Rcode]
		if code == "" {
			code = strconv.Itoa(reply.Rcode)
		}
		return nil, fmt.Errorf("asking %s: the server answers %s", server, code)
	}
	return reply, nil
}

// exchange asks by UDP, and by TCP when the answer did not fit (RFC 7766 section 5).
func (c *client) exchange(ctx context.Context, question *dns.Msg, server netip.AddrPort, timeout time.Duration) (*dns.Msg, error) {
	reply, err := c.exchangeBy(ctx, "udp", question, server, timeout)
	if err == nil && reply.Truncated {
		return c.exchangeBy(ctx, "tcp", question, server, timeout)
	}
	return reply, err
}

func (c *client) exchangeBy(ctx context.Context, network string, question *dns.Msg, server netip.AddrPort, timeout time.Duration) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	reply, err := c.wire.exchange(ctx, question, server, network)
	if err == nil && !sameQuestion(question, reply) {
		return nil, errForeign
	}
	return reply, err
}

// sameQuestion guards against answers to somebody else. Servers may leave the question out of errors.
func sameQuestion(question, reply *dns.Msg) bool {
	if !reply.Response || reply.Id != question.Id {
		return false
	}
	if len(reply.Question) == 0 {
		return reply.Rcode != dns.RcodeSuccess
	}
	asked, told := question.Question[0], reply.Question[0]
	return asked.Qtype == told.Qtype && dns.CanonicalName(asked.Name) == dns.CanonicalName(told.Name)
}

// plain reduces a network error to what stays the same from one attempt to the next.
func plain(err error) error {
	var network net.Error
	var number syscall.Errno
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return errors.New("no answer in time")
	case errors.As(err, &number):
		return number
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the server closed the connection")
	}
	return err
}

// servers gives the fixed servers or those of resolv.conf.
func (c *client) servers() (servers, error) {
	if len(c.fixed) > 0 {
		return servers{list: c.fixed, timeout: serverTimeout, attempts: serverAttempts}, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.cached.list) > 0 && time.Since(c.cached.read) < resolvConfAge {
		return c.cached, nil
	}
	fresh, err := readResolvConf(c.resolvConf)
	if err != nil {
		if len(c.cached.list) > 0 {
			return c.cached, nil
		}
		return servers{}, err
	}
	fresh.read = time.Now()
	c.cached = fresh
	return fresh, nil
}

// readResolvConf reads resolv.conf(5). A missing file, or one without a server, means the local host.
func readResolvConf(path string) (servers, error) {
	local := servers{list: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:53")}, timeout: serverTimeout, attempts: serverAttempts}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return local, nil
	}
	if err != nil {
		return servers{}, fmt.Errorf("reading the resolver configuration: %w", err)
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, 64<<10))
	if err != nil {
		return servers{}, fmt.Errorf("reading the resolver configuration: %w", err)
	}
	parsed, err := dns.ClientConfigFromReader(bytes.NewReader(content))
	if err != nil {
		return servers{}, fmt.Errorf("reading the resolver configuration %s: %w", path, err)
	}
	result := servers{
		timeout:  min(max(time.Duration(parsed.Timeout)*time.Second, time.Second), 30*time.Second),
		attempts: min(max(parsed.Attempts, 1), 5),
	}
	for _, text := range parsed.Servers {
		if address, err := netip.ParseAddr(text); err == nil {
			result.list = append(result.list, netip.AddrPortFrom(address, 53))
		}
	}
	if len(result.list) == 0 {
		return local, nil
	}
	return result, nil
}

// wire is the real network.
type wire struct{}

func (wire) exchange(ctx context.Context, question *dns.Msg, server netip.AddrPort, network string) (*dns.Msg, error) {
	transport := &dns.Client{Net: network, UDPSize: udpSize}
	conn, err := transport.DialContext(ctx, server.String())
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	defer conn.Close()
	// The library honours the deadline of ctx, not its end: closing the connection ends the read.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	reply, _, err := transport.ExchangeWithConnContext(ctx, question, conn)
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return reply, err
}
