// Package externalname keeps the addresses of ExternalName services equal to what the DNS says: given the names that are
// wanted, it asks for A and AAAA, asks again when the TTL is over, and keeps the last good answer when
// an attempt fails. It judges no address (that is gateway/build) and touches no service.
//
// The resolver is run by cmd; the loop calls Want after a build and puts Resolutions into the next snapshot.
package externalname

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"headgate/gateway/snapshot"
)

// Bounds of the resolver; a zero in Config means these.
const (
	defaultMinTTL      = time.Second
	defaultMaxTTL      = 5 * time.Minute
	defaultMinRetry    = time.Second
	defaultMaxRetry    = time.Minute
	defaultConcurrency = 8

	// maxAddresses caps one answer: a peer list is no place for a zone dump. The lowest addresses stay.
	maxAddresses = 256
)

// Config says how to resolve. The zero value works: it asks the servers of /etc/resolv.conf.
type Config struct {
	// Servers are asked in this order. Empty means those of ResolvConf, which is read again when it changes.
	Servers []netip.AddrPort
	// ResolvConf is the path of the resolver configuration (resolv.conf(5)); "" means /etc/resolv.conf.
	// Its nameserver, timeout and attempts are honoured. Search domains are not: spec.externalName is a full name.
	ResolvConf string
	// MinTTL and MaxTTL clamp the time to the next question after a good answer; 0 means 1 s and 5 min.
	MinTTL, MaxTTL time.Duration
	// MinRetry and MaxRetry bound the exponential back-off after a failure or a negative answer;
	// 0 means 1 s and 1 min.
	MinRetry, MaxRetry time.Duration
	// Concurrency is the number of names that are resolved at the same time; 0 means 8.
	Concurrency int
	// Logger gets a line when a name starts or stops resolving; nil discards.
	Logger *slog.Logger
}

// Resolver answers the wanted names. Its methods may be called from any goroutine.
type Resolver struct {
	config Config
	log    *slog.Logger
	lookup func(ctx context.Context, name string) answer

	changed   chan struct{} // capacity 1: a signal, not a queue
	wake      chan struct{} // capacity 1: the newest wanted set counts
	published atomic.Pointer[[]*snapshot.Resolution]

	mu     sync.Mutex // guards wanted
	wanted []string
}

// answer is what one attempt found out about one name, a family at a time.
type answer struct {
	v4, v6 family
}

// family is the answer for A or for AAAA. err is nil for a usable answer, which may be empty (NODATA).
type family struct {
	addresses []netip.Addr
	ttl       time.Duration
	err       error
}

// state is what the owner goroutine knows of one wanted name.
type state struct {
	v4, v6     []netip.Addr // last good answers
	resolution *snapshot.Resolution
	due        time.Time
	failures   int
	running    bool
}

// New makes a Resolver; it asks nothing before Run.
func New(config Config) *Resolver {
	config.MinTTL = orDefault(config.MinTTL, defaultMinTTL)
	config.MaxTTL = max(orDefault(config.MaxTTL, defaultMaxTTL), config.MinTTL)
	config.MinRetry = orDefault(config.MinRetry, defaultMinRetry)
	config.MaxRetry = max(orDefault(config.MaxRetry, defaultMaxRetry), config.MinRetry)
	if config.Concurrency <= 0 {
		config.Concurrency = defaultConcurrency
	}
	if config.ResolvConf == "" {
		config.ResolvConf = "/etc/resolv.conf"
	}
	log := config.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	r := &Resolver{
		config:  config,
		log:     log,
		changed: make(chan struct{}, 1),
		wake:    make(chan struct{}, 1),
	}
	client := newClient(config)
	r.lookup = client.lookup
	r.published.Store(&[]*snapshot.Resolution{})
	return r
}

func orDefault(d, otherwise time.Duration) time.Duration {
	if d <= 0 {
		return otherwise
	}
	return d
}

// Want sets the names to keep resolved, replacing the former set. It never blocks. Names are spelled as in
// spec.externalName; a trailing dot is fine, and an IP literal is answered by itself.
func (r *Resolver) Want(names []string) {
	sorted := slices.Compact(slices.Sorted(slices.Values(names)))
	r.mu.Lock()
	same := slices.Equal(sorted, r.wanted)
	r.wanted = sorted
	r.mu.Unlock()
	if !same {
		signal(r.wake)
	}
}

// Changed gets a value after Resolutions began to answer something else: the set of addresses of a name, or
// whether and why it does not resolve.
func (r *Resolver) Changed() <-chan struct{} { return r.changed }

// Resolutions are the answers so far, sorted by name. A name that was not yet asked is missing. An
// answer that did not change keeps its pointer. The caller must not change the slice.
func (r *Resolver) Resolutions() []*snapshot.Resolution { return *r.published.Load() }

// result is one finished lookup on its way to the owner goroutine.
type result struct {
	name   string
	answer answer
}

// Run resolves until ctx ends, and returns nil then. It must run at most once.
func (r *Resolver) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var lookups sync.WaitGroup
	defer lookups.Wait()
	defer cancel()

	results := make(chan result)
	states := map[string]*state{}
	running := 0
	timer := time.NewTimer(0)
	defer timer.Stop()
	r.adopt(states)
	for {
		running += r.startDue(states, r.config.Concurrency-running, func(name string) {
			lookups.Go(func() {
				select {
				case results <- result{name, r.lookup(ctx, name)}:
				case <-ctx.Done():
				}
			})
		})
		if running < r.config.Concurrency {
			resetTo(timer, states)
		} else {
			timer.Stop() // with no free slot, a result must come first
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
			r.adopt(states)
		case <-timer.C:
		case found := <-results:
			running--
			if s := states[found.name]; s != nil && s.running {
				r.absorb(s, found)
				r.publish(states)
			}
		}
	}
}

// adopt makes the states those of the wanted names.
func (r *Resolver) adopt(states map[string]*state) {
	r.mu.Lock()
	wanted := r.wanted
	r.mu.Unlock()
	for name := range states {
		if _, ok := slices.BinarySearch(wanted, name); !ok {
			delete(states, name)
		}
	}
	for _, name := range wanted {
		if states[name] == nil {
			states[name] = &state{due: time.Now()}
		}
	}
	r.publish(states)
}

// startDue starts at most free lookups of names that are due, the longest overdue first, and returns how many.
func (r *Resolver) startDue(states map[string]*state, free int, start func(name string)) int {
	now := time.Now()
	var due []string
	for name, s := range states {
		if !s.running && !s.due.After(now) {
			due = append(due, name)
		}
	}
	slices.SortFunc(due, func(a, b string) int {
		if c := states[a].due.Compare(states[b].due); c != 0 {
			return c
		}
		return strings.Compare(a, b)
	})
	due = due[:min(len(due), max(free, 0))]
	for _, name := range due {
		states[name].running = true
		start(name)
	}
	return len(due)
}

// resetTo sets the timer to the next name that becomes due, and stops it when there is none.
func resetTo(timer *time.Timer, states map[string]*state) {
	next := time.Time{}
	for _, s := range states {
		if !s.running && (next.IsZero() || s.due.Before(next)) {
			next = s.due
		}
	}
	if next.IsZero() {
		timer.Stop()
		return
	}
	timer.Reset(max(time.Until(next), 0))
}

// absorb takes an answer in: each family on its own keeps its last good answer when its attempt failed.
func (r *Resolver) absorb(s *state, found result) {
	s.running = false
	v4, v6 := found.answer.v4, found.answer.v6
	wait, err := r.judge(s, v4, v6)
	if err == nil {
		if v4.err == nil {
			s.v4 = v4.addresses
		}
		if v6.err == nil {
			s.v6 = v6.addresses
		}
	}
	s.due = time.Now().Add(wait)
	next := &snapshot.Resolution{Name: found.name, Addresses: merge(s.v4, s.v6)}
	if err != nil {
		next.Err = err.Error()
	}
	r.tell(s.resolution, next)
	if s.resolution == nil || !equal(s.resolution, next) {
		s.resolution = next
	}
}

// judge says whether an attempt as a whole failed, and how long to wait for the next one. One family with
// addresses is a success: many servers fail on AAAA for names that have none.
func (r *Resolver) judge(s *state, v4, v6 family) (time.Duration, error) {
	var ttls []time.Duration
	for _, f := range []family{v4, v6} {
		if f.err == nil && len(f.addresses) > 0 {
			ttls = append(ttls, f.ttl)
		}
	}
	if len(ttls) > 0 {
		s.failures = 0
		return min(max(slices.Min(ttls), r.config.MinTTL), r.config.MaxTTL), nil
	}
	s.failures++
	wait := r.config.MinRetry << min(s.failures-1, 20)
	if wait > r.config.MaxRetry || wait <= 0 {
		wait = r.config.MaxRetry
	}
	switch {
	case v4.err != nil:
		return wait, v4.err
	case v6.err != nil:
		return wait, v6.err
	}
	return wait, errNoAddresses
}

func (r *Resolver) tell(before, after *snapshot.Resolution) {
	switch {
	case after.Err != "" && (before == nil || before.Err == ""):
		r.log.Warn("external name does not resolve", "name", after.Name, "err", after.Err, "kept", len(after.Addresses))
	case after.Err == "" && before != nil && before.Err != "":
		r.log.Info("external name resolves again", "name", after.Name, "addresses", len(after.Addresses))
	}
}

// publish makes the states readable, and signals when they say something new.
func (r *Resolver) publish(states map[string]*state) {
	list := make([]*snapshot.Resolution, 0, len(states))
	for _, s := range states {
		if s.resolution != nil {
			list = append(list, s.resolution)
		}
	}
	slices.SortFunc(list, func(a, b *snapshot.Resolution) int { return strings.Compare(a.Name, b.Name) })
	if before := r.published.Swap(&list); slices.Equal(*before, list) {
		return
	}
	signal(r.changed)
}

// merge joins both families, sorted, without duplicates, at most maxAddresses.
func merge(v4, v6 []netip.Addr) []netip.Addr {
	all := slices.Concat(v4, v6)
	slices.SortFunc(all, netip.Addr.Compare)
	all = slices.Compact(all)
	return slices.Clip(all[:min(len(all), maxAddresses)])
}

func equal(a, b *snapshot.Resolution) bool {
	return a.Name == b.Name && a.Err == b.Err && slices.Equal(a.Addresses, b.Addresses)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// ParseServer reads one entry of the setting dns.servers: an IP address, or an IP address and a port
// ("10.0.0.53", "10.0.0.53:5353", "[fd00::53]:53"). The port defaults to 53.
func ParseServer(s string) (netip.AddrPort, error) {
	if address, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")); err == nil {
		return netip.AddrPortFrom(address, 53), nil
	}
	server, err := netip.ParseAddrPort(s)
	if err != nil || server.Port() == 0 {
		return netip.AddrPort{}, fmt.Errorf("%q is not a DNS server: write an IP address, or an address and a port such as 10.0.0.53:53", s)
	}
	return server, nil
}

// fqdn checks a name and gives its absolute form for a question (RFC 1035 section 3.1). Underscores are let
// through, as the DNS does and Kubernetes does not.
func fqdn(name string) (string, error) {
	bare := strings.TrimSuffix(name, ".")
	if bare == "" {
		return "", errEmptyName
	}
	if _, ok := dns.IsDomainName(bare + "."); !ok || !hostLabels(bare) {
		return "", fmt.Errorf("%q is not a DNS name: write a name such as db.example.org", name)
	}
	return bare + ".", nil
}

func hostLabels(name string) bool {
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, c := range []byte(label) {
			switch {
			case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_':
			default:
				return false
			}
		}
	}
	return true
}
