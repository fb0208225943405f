// Package kubestatus tells the cluster what became of its objects: the addresses of the gateway in the status of
// every served Ingress, and an Event for every Problem. It decides nothing about what is served. Of all edge hosts, the one that
// holds a Lease writes; the others keep count, so that any of them can take over without repeating what was told.
//
// It is run by cmd where the source is a cluster and status is enabled. The loop calls Update after each pass. ProblemLog, which
// needs no cluster, writes the same Problems to the log on every host.
package kubestatus

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/flowcontrol"

	"headgate/gateway/build"
	"headgate/gateway/snapshot"
)

// Times of the Lease; a zero in Config means these. A dead writer is replaced after 30 s, one that stops after at most 9 s.
const (
	defaultLeaseDuration = 30 * time.Second
	defaultRenewDeadline = 20 * time.Second
	defaultRetryPeriod   = 4 * time.Second
)

// fieldManager stands in managedFields of what is written.
const fieldManager = "headgate"

// Config says what to write and who may.
type Config struct {
	// Client gives the client to use, asked for each call; it may return nil until there is one.
	Client func() kubernetes.Interface
	// Addresses are published: IP addresses and DNS names. Empty publishes nothing and touches no status.
	Addresses []string
	// ClearOnStop removes the addresses when the last host stops. By default they stay: a restart must not flap DNS.
	ClearOnStop bool
	// LeaseNamespace and LeaseName name the Lease; "" means headgate-system and edge-status.
	LeaseNamespace, LeaseName string
	// Identity names this process among the hosts; "" means the host name and a random part.
	Identity string
	// LeaseDuration, RenewDeadline and RetryPeriod are those of client-go's leader election; 0 means 30, 20 and 4 s.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	// Logger gets what changes about the writing, and what the API server refuses; nil discards.
	Logger *slog.Logger
}

// Desired is what one pass of the loop came to.
type Desired struct {
	Snapshot *snapshot.Snapshot
	Served   []snapshot.Key // sorted; Ingresses whose status is ours
	Problems []build.Problem
}

// Writer writes status and Events. Its methods may be called from any goroutine.
type Writer struct {
	config   Config // but for what Publish changes
	log      *slog.Logger
	wake     chan struct{} // capacity 1: a signal, not a queue
	latest   atomic.Pointer[Desired]
	leader   leadership
	statuses flowcontrol.RateLimiter
	events   flowcontrol.RateLimiter

	mu          sync.Mutex // guards what follows
	addresses   []networkingv1.IngressLoadBalancerIngress
	clearOnStop bool
	served      servedHistory
	notes       *notes
}

// New makes a Writer; it writes nothing before Run. An error means a Config that cannot work.
func New(config Config) (*Writer, error) {
	if config.Client == nil {
		return nil, errors.New("no client is given")
	}
	addresses, err := parseAddresses(config.Addresses)
	if err != nil {
		return nil, err
	}
	setDefault(&config.LeaseNamespace, "headgate-system")
	setDefault(&config.LeaseName, "edge-status")
	setDefault(&config.LeaseDuration, defaultLeaseDuration)
	setDefault(&config.RenewDeadline, defaultRenewDeadline)
	setDefault(&config.RetryPeriod, defaultRetryPeriod)
	if config.Identity == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("finding the host name: %w", err)
		}
		config.Identity = host + "_" + rand.Text()[:8]
	}
	w := &Writer{
		config: config, log: config.Logger, addresses: addresses, clearOnStop: config.ClearOnStop,
		wake: make(chan struct{}, 1),
		// The first status of 10,000 Ingresses takes 200 s; nobody waits for it, and the API server must not notice.
		statuses: flowcontrol.NewTokenBucketRateLimiter(50, 100),
		events:   flowcontrol.NewTokenBucketRateLimiter(10, 50),
		served:   servedHistory{},
		notes:    newNotes(),
	}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	if _, err := w.newElector(); err != nil {
		return nil, fmt.Errorf("lease times: %w", err)
	}
	return w, nil
}

func setDefault[T comparable](value *T, otherwise T) {
	var zero T
	if *value == zero {
		*value = otherwise
	}
}

// parseAddresses makes what stands in the status: an IP address becomes ip, a DNS name hostname.
func parseAddresses(list []string) ([]networkingv1.IngressLoadBalancerIngress, error) {
	var parsed []networkingv1.IngressLoadBalancerIngress
	for _, text := range list {
		if address, err := netip.ParseAddr(text); err == nil && address.Zone() == "" {
			parsed = append(parsed, networkingv1.IngressLoadBalancerIngress{IP: address.Unmap().String()})
			continue
		}
		if len(validation.IsDNS1123Subdomain(text)) > 0 {
			return nil, fmt.Errorf("publish.addresses: %q is neither an IP address nor a DNS name: write one such as 192.0.2.10 or edge.example.org", text)
		}
		parsed = append(parsed, networkingv1.IngressLoadBalancerIngress{Hostname: text})
	}
	return parsed, nil
}

// Update hands over what a pass came to. It never blocks; only the newest counts for what is written, but
// what changed from one to the next is counted on every host.
func (w *Writer) Update(d Desired) {
	w.mu.Lock()
	if before := w.latest.Load(); before == nil || !sameServed(before, &d) {
		w.served.update(&d)
	}
	w.notes.update(&d, time.Now())
	w.latest.Store(&d)
	w.mu.Unlock()
	w.signal()
}

// Publishing are the parts of Config that may change while a Writer runs.
type Publishing struct {
	Addresses   []string // as in Config; where it becomes empty, what is published stays
	ClearOnStop bool
}

// Publish replaces what New was told of it. The error is that of New; then nothing changes.
func (w *Writer) Publish(p Publishing) error {
	addresses, err := parseAddresses(p.Addresses)
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.addresses, w.clearOnStop = addresses, p.ClearOnStop
	w.mu.Unlock()
	w.signal()
	return nil
}

func (w *Writer) published() ([]networkingv1.IngressLoadBalancerIngress, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.addresses, w.clearOnStop
}

// Leader is the identity of the host that writes, as last seen ("" before that), and whether it is this process.
func (w *Writer) Leader() (identity string, mine bool) { return w.leader.state() }

// Identity is the name of this process among the hosts.
func (w *Writer) Identity() string { return w.config.Identity }

func (w *Writer) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Run takes part in the election and writes while elected, until ctx ends; it returns nil then. It must run at most once.
// It begins with the first Update for which there is a client. At the end the Lease is released.
func (w *Writer) Run(ctx context.Context) error {
	if !w.awaitClient(ctx) {
		return nil
	}
	var election sync.WaitGroup
	election.Go(func() { w.elect(ctx) })
	w.work(ctx)
	election.Wait()
	if addresses, clearThem := w.published(); w.leader.untilTheEnd() && clearThem && len(addresses) > 0 {
		w.clearUnlessSucceeded(context.WithoutCancel(ctx))
	}
	return nil
}

func (w *Writer) awaitClient(ctx context.Context) bool {
	for w.latest.Load() == nil || w.config.Client() == nil {
		select {
		case <-ctx.Done():
			return false
		case <-w.wake:
		}
	}
	w.signal()
	return true
}

// work writes what is due, again and again.
func (w *Writer) work(ctx context.Context) {
	tries := newTries()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-timer.C:
		}
		if _, mine := w.leader.state(); !mine {
			timer.Stop()
			continue
		}
		if next := w.pass(ctx, tries); next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(max(time.Until(next), 0))
		}
	}
}

// pass writes one batch and says when the next is due; zero: when something changes.
func (w *Writer) pass(ctx context.Context, tries *tries) time.Time {
	d := w.latest.Load()
	w.mu.Lock()
	jobs := append(w.statusJobs(d, tries), w.eventJobs()...)
	w.mu.Unlock()
	tries.forget(jobs)
	due, next := tries.due(jobs, time.Now())
	w.run(ctx, due, tries)
	return next
}
