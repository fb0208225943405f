package externalname

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// zone is a DNS server on loopback, UDP and TCP on one port, that answers from text records.
type zone struct {
	address  netip.AddrPort
	mu       sync.Mutex
	records  []dns.RR
	rcode    map[string]int // by name: answer with this code
	lame     map[string]bool
	truncate map[string]bool // by name: UDP answers are empty and truncated
	noEDNS   bool
	silent   atomic.Bool
	tcp, udp atomic.Int32
}

func newZone(t *testing.T, records ...string) *zone {
	t.Helper()
	z := &zone{rcode: map[string]int{}, lame: map[string]bool{}, truncate: map[string]bool{}}
	z.set(t, records...)
	listener, packets := listenBoth(t)
	z.address = netip.MustParseAddrPort(listener.Addr().String())
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	for _, server := range []*dns.Server{{Listener: listener, Handler: z}, {PacketConn: packets, Handler: z}} {
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		running.Go(func() { _ = server.ActivateAndServe() })
		<-started
		// Cleanups run last in, first out: running.Wait comes when both were told to end.
		t.Cleanup(func() { _ = server.Shutdown() })
	}
	return z
}

// listenBoth finds a port that is free for UDP and TCP.
func listenBoth(t *testing.T) (net.Listener, net.PacketConn) {
	t.Helper()
	for range 20 {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		packets, err := net.ListenPacket("udp", listener.Addr().String())
		if err == nil {
			return listener, packets
		}
		_ = listener.Close()
	}
	t.Fatal("no port is free for both UDP and TCP")
	return nil, nil
}

func (z *zone) set(t *testing.T, records ...string) {
	t.Helper()
	var parsed []dns.RR
	for _, record := range records {
		rr, err := dns.NewRR(record)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, rr)
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	z.records = parsed
}

// with changes how the server behaves.
func (z *zone) with(change func(z *zone)) {
	z.mu.Lock()
	defer z.mu.Unlock()
	change(z)
}

// ServeDNS follows CNAMEs as a resolver does, except at names that are lame.
func (z *zone) ServeDNS(w dns.ResponseWriter, question *dns.Msg) {
	if z.silent.Load() {
		return
	}
	udp := strings.HasPrefix(w.RemoteAddr().Network(), "udp")
	if udp {
		z.udp.Add(1)
	} else {
		z.tcp.Add(1)
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	reply := new(dns.Msg).SetReply(question)
	name := dns.CanonicalName(question.Question[0].Name)
	switch {
	case z.noEDNS && question.IsEdns0() != nil:
		reply.Rcode = dns.RcodeFormatError
	case z.rcode[name] != 0:
		reply.Rcode = z.rcode[name]
	case udp && z.truncate[name]:
		reply.Truncated = true
	default:
		z.answer(reply, name, question.Question[0].Qtype)
	}
	_ = w.WriteMsg(reply)
}

func (z *zone) answer(reply *dns.Msg, name string, qtype uint16) {
	for seen := map[string]bool{}; !seen[name]; {
		seen[name] = true
		exists, alias := false, ""
		for _, record := range z.records {
			if dns.CanonicalName(record.Header().Name) != name {
				continue
			}
			exists = true
			if cname, ok := record.(*dns.CNAME); ok {
				reply.Answer = append(reply.Answer, record)
				alias = dns.CanonicalName(cname.Target)
			} else if record.Header().Rrtype == qtype {
				reply.Answer = append(reply.Answer, record)
			}
		}
		if alias == "" {
			if !exists {
				reply.Rcode = dns.RcodeNameError
			}
			return
		}
		if z.lame[name] {
			return
		}
		name = alias
	}
}

func (z *zone) client() *client {
	return newClient(Config{Servers: []netip.AddrPort{z.address}})
}

func strings4(f family) []string {
	var list []string
	for _, a := range f.addresses {
		list = append(list, a.String())
	}
	slices.Sort(list)
	return list
}

func TestLookup(t *testing.T) {
	z := newZone(t,
		"both.test. 30 A 10.0.0.1", "both.test. 20 A 10.0.0.2", "both.test. 40 AAAA fd00::1",
		"alias.test. 9 CNAME middle.test.", "middle.test. 60 CNAME Both.Test.",
		"lame.test. 50 CNAME next.test.", "next.test. 70 A 10.0.0.7",
		"circle.test. 5 CNAME elcric.test.", "elcric.test. 5 CNAME circle.test.",
		"six.test. 5 AAAA fd00::6", "text.test. 5 TXT hello",
		"dangling.test. 5 CNAME nowhere.test.", "_under.score.test. 5 A 10.0.0.8",
		"big.test. 5 A 10.0.0.9")
	z.with(func(z *zone) {
		z.lame["lame.test."] = true
		z.truncate["big.test."] = true
		z.rcode["broken.test."] = dns.RcodeServerFailure
	})
	for _, c := range []struct {
		name   string
		v4, v6 []string
		ttl    time.Duration
		err    string
	}{
		{name: "both.test", v4: []string{"10.0.0.1", "10.0.0.2"}, v6: []string{"fd00::1"}, ttl: 20 * time.Second},
		{name: "BOTH.test.", v4: []string{"10.0.0.1", "10.0.0.2"}, v6: []string{"fd00::1"}, ttl: 20 * time.Second},
		{name: "alias.test", v4: []string{"10.0.0.1", "10.0.0.2"}, v6: []string{"fd00::1"}, ttl: 9 * time.Second},
		{name: "lame.test", v4: []string{"10.0.0.7"}, ttl: 50 * time.Second},
		{name: "six.test", v6: []string{"fd00::6"}},
		{name: "big.test", v4: []string{"10.0.0.9"}, ttl: 5 * time.Second},
		{name: "_under.score.test", v4: []string{"10.0.0.8"}, ttl: 5 * time.Second},
		{name: "text.test"},
		{name: "circle.test", err: errChain.Error()},
		{name: "nowhere.test", err: errNoSuchName.Error()},
		{name: "dangling.test", err: errNoSuchName.Error()},
		{name: "broken.test", err: fmt.Sprintf("asking %s: the server answers SERVFAIL", z.address)},
		{name: "10.1.2.3", v4: []string{"10.1.2.3"}},
		{name: "fd00::9", v6: []string{"fd00::9"}},
		{name: "::ffff:10.1.2.3", v4: []string{"10.1.2.3"}},
		{name: "fe80::1%lo", err: errZone.Error()},
		{name: "", err: errEmptyName.Error()},
		{name: ".", err: errEmptyName.Error()},
		{name: "a b", err: `"a b" is not a DNS name: write a name such as db.example.org`},
		{name: "a..b", err: `"a..b" is not a DNS name: write a name such as db.example.org`},
		{name: "http://x", err: `"http://x" is not a DNS name: write a name such as db.example.org`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := z.client().lookup(t.Context(), c.name)
			if !slices.Equal(strings4(got.v4), c.v4) || !slices.Equal(strings4(got.v6), c.v6) {
				t.Errorf("got %v and %v, want %v and %v", got.v4.addresses, got.v6.addresses, c.v4, c.v6)
			}
			if c.ttl != 0 && got.v4.ttl != c.ttl {
				t.Errorf("TTL %v, want %v", got.v4.ttl, c.ttl)
			}
			if c.err != "" && (got.v4.err == nil || got.v4.err.Error() != c.err) {
				t.Errorf("error %v, want %s", got.v4.err, c.err)
			}
			if c.err == "" && (got.v4.err != nil || got.v6.err != nil) {
				t.Errorf("errors %v, %v", got.v4.err, got.v6.err)
			}
		})
	}
	if z.tcp.Load() == 0 {
		t.Error("a truncated answer must be asked for by TCP")
	}
}

func TestALongChainIsRefused(t *testing.T) {
	var records []string
	for i := range 30 {
		records = append(records, fmt.Sprintf("n%d.test. 5 CNAME n%d.test.", i, i+1))
	}
	z := newZone(t, append(records, "n30.test. 5 A 10.0.0.1")...)
	if got := z.client().lookup(t.Context(), "n0.test"); !errors.Is(got.v4.err, errChain) {
		t.Errorf("got %v", got.v4)
	}
	if got := z.client().lookup(t.Context(), "n20.test"); got.v4.err != nil {
		t.Errorf("a chain of 10: %v", got.v4.err)
	}
}

func TestTheSecondServerAnswersWhenTheFirstDoesNot(t *testing.T) {
	dead, refusing, good := newZone(t), newZone(t), newZone(t, "a.test. 5 A 10.0.0.1")
	dead.silent.Store(true)
	refusing.with(func(z *zone) { z.rcode["a.test."] = dns.RcodeRefused })
	c := newClient(Config{Servers: []netip.AddrPort{refusing.address, good.address}})
	if got := c.lookup(t.Context(), "a.test"); !slices.Equal(strings4(got.v4), []string{"10.0.0.1"}) {
		t.Errorf("got %v", got.v4)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	c = newClient(Config{Servers: []netip.AddrPort{dead.address}})
	start := time.Now()
	if got := c.lookup(ctx, "a.test"); got.v4.err == nil || time.Since(start) > time.Second {
		t.Errorf("the end of the context must end the question, took %v, got %v", time.Since(start), got.v4)
	}
}

func TestAServerWithoutEDNS(t *testing.T) {
	z := newZone(t, "a.test. 5 A 10.0.0.1")
	z.with(func(z *zone) { z.noEDNS = true })
	if got := z.client().lookup(t.Context(), "a.test"); !slices.Equal(strings4(got.v4), []string{"10.0.0.1"}) {
		t.Errorf("got %v", got.v4)
	}
}

// forger answers another question than the one asked.
type forger struct{}

func (forger) exchange(_ context.Context, question *dns.Msg, _ netip.AddrPort, _ string) (*dns.Msg, error) {
	other := new(dns.Msg).SetQuestion("other.test.", question.Question[0].Qtype)
	reply := new(dns.Msg).SetReply(other)
	reply.Id = question.Id
	record, err := dns.NewRR("other.test. 5 A 10.0.0.66")
	reply.Answer = []dns.RR{record}
	return reply, err
}

func TestAForeignAnswerIsRefused(t *testing.T) {
	c := newClient(Config{Servers: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")}})
	c.wire = forger{}
	if got := c.lookup(t.Context(), "a.test"); !errors.Is(got.v4.err, errForeign) || len(got.v4.addresses) != 0 {
		t.Errorf("got %v", got.v4)
	}
}

func TestErrorsAreTheSameEachTime(t *testing.T) {
	listener, packets := listenBoth(t)
	address := netip.MustParseAddrPort(listener.Addr().String())
	_, _ = listener.Close(), packets.Close()
	c := newClient(Config{Servers: []netip.AddrPort{address}})
	want := fmt.Sprintf("asking %s: connection refused", address)
	for range 2 {
		if got := c.lookup(t.Context(), "a.test").v4.err; got == nil || got.Error() != want {
			t.Errorf("got %v, want %s", got, want)
		}
	}
	for err, want := range map[error]string{
		io.EOF:                   "the server closed the connection",
		context.DeadlineExceeded: "no answer in time",
		os.ErrDeadlineExceeded:   "no answer in time",
	} {
		if got := plain(err).Error(); got != want {
			t.Errorf("%v: got %q, want %q", err, got, want)
		}
	}
}

func TestResolvConf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	got, err := readResolvConf(path)
	if err != nil || got.list[0].String() != "127.0.0.1:53" {
		t.Errorf("a missing file means the local host, got %v, %v", got, err)
	}
	content := "search example.org\nnameserver 10.0.0.53\nnameserver nonsense\nnameserver fd00::53\noptions timeout:3 attempts:4 ndots:5\n"
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err = readResolvConf(path)
	if err != nil {
		t.Fatal(err)
	}
	want := []netip.AddrPort{netip.MustParseAddrPort("10.0.0.53:53"), netip.MustParseAddrPort("[fd00::53]:53")}
	if !slices.Equal(got.list, want) || got.timeout != 3*time.Second || got.attempts != 4 {
		t.Errorf("got %+v", got)
	}
	if _, err := readResolvConf(t.TempDir()); err == nil {
		t.Error("a folder is no resolv.conf")
	}
}

func TestServersOfResolvConfAreKeptWhenItCannotBeRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(path, []byte("nameserver 10.0.0.53\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := newClient(Config{ResolvConf: path})
	if _, err := c.servers(); err != nil {
		t.Fatal(err)
	}
	c.cached.read = time.Time{}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if got, err := c.servers(); err != nil || got.list[0].String() != "10.0.0.53:53" {
		t.Errorf("got %v, %v", got, err)
	}
}

// TestRunAgainstARealServer follows a record that changes, end to end.
func TestRunAgainstARealServer(t *testing.T) {
	z := newZone(t, "db.test. 0 A 10.0.0.1")
	r := New(Config{Servers: []netip.AddrPort{z.address}, MinTTL: 10 * time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	r.Want([]string{"db.test.", "192.0.2.7"})
	until(t, r, "192.0.2.7 192.0.2.7", "db.test. 10.0.0.1")
	z.set(t, "db.test. 0 A 10.0.0.2", "db.test. 0 AAAA fd00::2")
	until(t, r, "192.0.2.7 192.0.2.7", "db.test. 10.0.0.2 fd00::2")
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

func until(t *testing.T, r *Resolver, want ...string) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for !slices.Equal(text(r.Resolutions()), want) {
		select {
		case <-r.Changed():
		case <-deadline:
			t.Fatalf("got %q, want %q", text(r.Resolutions()), want)
		}
	}
}

// FuzzFollow feeds whatever a server may send to the walk along a chain.
func FuzzFollow(f *testing.F) {
	seed := func(records ...string) {
		reply := new(dns.Msg).SetQuestion("a.test.", dns.TypeA)
		reply.Response = true
		for _, record := range records {
			rr, err := dns.NewRR(record)
			if err != nil {
				f.Fatal(err)
			}
			reply.Answer = append(reply.Answer, rr)
		}
		packed, err := reply.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(packed)
	}
	seed("a.test. 5 A 10.0.0.1")
	seed("a.test. 5 CNAME b.test.", "b.test. 6 A 10.0.0.1")
	seed("a.test. 5 CNAME a.test.")
	seed("a.test. 5 CNAME b.test.", "b.test. 5 CNAME a.test.")
	f.Fuzz(func(t *testing.T, packed []byte) {
		reply := new(dns.Msg)
		if reply.Unpack(packed) != nil {
			return
		}
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
			_, addresses, _, err := follow(reply, "a.test.", qtype, map[string]bool{})
			if err != nil && len(addresses) > 0 {
				t.Error("an error comes without addresses")
			}
			for _, a := range addresses {
				if !a.IsValid() {
					t.Error("an invalid address")
				}
			}
		}
	})
}
