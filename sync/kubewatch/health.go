package kubewatch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
)

const (
	pollInterval  = 5 * time.Second
	retryInterval = time.Second
	pollTimeout   = 3 * time.Second
	// failuresToTell keeps one lost packet from being an outage.
	failuresToTell = 2

	readyPath = "/readyz"
)

// health knows the state of one connection. It looks at every answer, and asks /readyz besides: on refused connections
// client-go's informers tell nobody (measured), and an idle watch looks the same as a dead one.
type health struct {
	log        *slog.Logger
	kubeconfig string
	nudge      chan struct{} // capacity 1: something failed, look now
	// mark is called for each sign of trouble; settled is true once the session has read everything.
	mark    func(what string)
	settled atomic.Bool
	// back is called when it answers after something failed, until it says true.
	back func(ctx context.Context, outage bool) bool

	mu          sync.Mutex // guards what follows
	healthy     bool
	since       time.Time
	lastError   string
	refused     bool // the last poll was answered with 401
	lastContact time.Time
	failures    int
	forbidden   map[read]string // what to add to the role
}

func newHealth(log *slog.Logger, kubeconfig string) *health {
	return &health{mark: func(string) {}, back: func(context.Context, bool) bool { return true }, log: log, kubeconfig: kubeconfig, nudge: make(chan struct{}, 1), since: time.Now(), forbidden: map[read]string{}}
}

func (h *health) condition() Health {
	h.mu.Lock()
	defer h.mu.Unlock()
	return Health{
		Healthy: h.healthy, Since: h.since, LastError: h.lastError, LastContact: h.lastContact,
		Forbidden: slices.Sorted(maps.Values(h.forbidden)),
	}
}

// run polls until ctx ends.
func (h *health) run(ctx context.Context, client rest.Interface) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	broken, outage := false, false
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-h.nudge:
			broken = true
		}
		err := poll(ctx, client)
		if ctx.Err() != nil {
			return
		}
		wait := pollInterval
		if !h.take(err) {
			broken, outage = true, outage || !h.condition().Healthy
		} else if broken && h.back(ctx, outage) {
			broken, outage = false, false
		}
		if broken {
			wait = retryInterval
		}
		timer.Reset(wait)
		// What failed before this poll is answered by it.
		select {
		case <-h.nudge:
		default:
		}
	}
}

func poll(ctx context.Context, client rest.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	err := client.Get().AbsPath(readyPath).Do(ctx).Error()
	if apierrors.IsForbidden(err) {
		// It is there and knows us; reading /readyz is a right that was taken away from all.
		return nil
	}
	return err
}

// take judges one poll: true means well.
func (h *health) take(err error) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refused = apierrors.IsUnauthorized(err)
	if err == nil {
		h.failures, h.lastError = 0, ""
		if !h.healthy {
			h.healthy, h.since = true, time.Now()
			h.log.Info("the API server answers")
		}
		return true
	}
	h.failures++
	h.mark("the API server does not answer")
	first := h.lastError == ""
	h.lastError = h.explain(err)
	switch {
	case h.healthy && h.failures >= failuresToTell:
		h.healthy, h.since = false, time.Now()
		h.log.Warn("the API server cannot be used: what was read last stays", "err", h.lastError)
	case !h.healthy && first:
		h.log.Warn("the API server cannot be used: trying on", "err", h.lastError)
	}
	return false
}

func (h *health) explain(err error) string {
	var timed interface{ Timeout() bool }
	switch {
	case apierrors.IsUnauthorized(err):
		return "it refuses our credentials (401): renew the token or certificate in " + h.kubeconfig
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timed) && timed.Timeout():
		return "no answer in time"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return fmt.Sprintf("its name %s does not resolve: %s", dns.Name, dns.Err)
	}
	text := err.Error()
	// The address and the local port differ from one attempt to the next.
	if i := strings.LastIndex(text, readyPath+`": `); i >= 0 {
		text = text[i+len(readyPath)+3:]
	}
	return text
}

func (h *health) isRefused() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.refused
}

// wrap is a transport.WrapperFunc.
func (h *health) wrap(next http.RoundTripper) http.RoundTripper { return &observer{h, next} }

// observer looks at each answer.
type observer struct {
	health *health
	next   http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (o *observer) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := o.next.RoundTrip(request)
	if request.URL.Path == readyPath {
		if err == nil {
			o.health.contact()
		}
		return response, err
	}
	switch {
	case err == nil:
		o.health.answered(request, response.StatusCode)
		if response.Body != nil {
			ended := func() bool { return request.Context().Err() != nil }
			response.Body = &observedBody{response.Body, o.health, ended}
		}
	case request.Context().Err() == nil:
		o.health.mark("a request to the API server failed")
		o.health.look()
	}
	return response, err
}

// WrappedRoundTripper lets client-go find the transport, to close its connections.
func (o *observer) WrappedRoundTripper() http.RoundTripper { return o.next }

// observedBody tells when a watch breaks off, which is the first sign of an API server that goes away.
type observedBody struct {
	io.ReadCloser
	health *health
	ended  func() bool // by ourselves
}

func (b *observedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, context.Canceled) && !b.ended() {
		b.health.mark("a watch broke off")
		b.health.look()
	}
	return n, err
}

func (h *health) look() {
	select {
	case h.nudge <- struct{}{}:
	default:
	}
}

func (h *health) contact() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lastContact = time.Now()
}

// answered keeps which reads are refused.
func (h *health) answered(request *http.Request, status int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lastContact = time.Now()
	if troubling(status) {
		h.mark(fmt.Sprintf("the API server answered with status %d", status))
	}
	if status == http.StatusUnauthorized {
		h.look()
		return
	}
	r, ok := readOf(request)
	if !ok {
		return
	}
	if status < 300 && h.settled.Load() && anew(request, r) {
		h.mark("the " + r.resource + " were listed anew")
	}
	switch {
	case status == http.StatusForbidden && h.forbidden[r] == "":
		h.forbidden[r] = r.advice()
		h.log.Warn("the API server refuses a read", "verb", r.verb, "resource", r.resource, "group", r.group, "namespace", r.namespace, "advice", r.advice())
	case status < 300:
		h.allow(r)
	}
}

// anew tells whether a request reads everything there is of a list. What is asked for by its name may be wanted for the first time.
func anew(request *http.Request, r read) bool {
	query := request.URL.Query()
	if strings.Contains(query.Get("fieldSelector"), "metadata.name=") {
		return false
	}
	return r.verb == "list" || query.Get("sendInitialEvents") == "true"
}

// troubling tells which answers make what comes after them doubtful: the API server is not itself, does not know us, or
// has forgotten what a watch needs (410).
func troubling(status int) bool {
	return status >= http.StatusInternalServerError || status == http.StatusUnauthorized ||
		status == http.StatusTooManyRequests || status == http.StatusGone
}

// allow forgets a refusal. A watch comes after the list, or brings what a list would (KEP-3157): where it
// is allowed, a list that was refused is not needed.
func (h *health) allow(r read) {
	allowed := []read{r}
	if r.verb == "watch" {
		list := r
		list.verb = "list"
		allowed = append(allowed, list)
	}
	for _, r := range allowed {
		if h.forbidden[r] != "" {
			delete(h.forbidden, r)
			h.log.Info("the API server allows the read now", "verb", r.verb, "resource", r.resource, "group", r.group, "namespace", r.namespace)
		}
	}
}

// read is a list or watch of one resource.
type read struct {
	verb, group, resource, namespace string
}

// readOf takes a request of an informer apart: /api/v1/[namespaces/NS/]RESOURCE or
// /apis/GROUP/VERSION/[namespaces/NS/]RESOURCE.
func readOf(request *http.Request) (read, bool) {
	if request.Method != http.MethodGet || request.URL.Query().Get("limit") == strconv.Itoa(probeLimit) {
		return read{}, false
	}
	r := read{verb: "list"}
	if watch := request.URL.Query().Get("watch"); watch == "true" || watch == "1" {
		r.verb = "watch"
	}
	// A server behind a proxy may have a path of its own in front.
	parts := strings.Split(strings.Trim(request.URL.Path, "/"), "/")
	switch {
	case slices.Contains(parts, "apis"):
		parts = parts[slices.Index(parts, "apis")+1:]
		if len(parts) < 3 {
			return read{}, false
		}
		r.group, parts = parts[0], parts[2:]
	case slices.Contains(parts, "api"):
		parts = parts[slices.Index(parts, "api")+1:]
		if len(parts) < 2 {
			return read{}, false
		}
		parts = parts[1:]
	default:
		return read{}, false
	}
	if len(parts) == 3 && parts[0] == "namespaces" {
		r.namespace, parts = parts[1], parts[2:]
	}
	if len(parts) != 1 {
		return read{}, false
	}
	r.resource = parts[0]
	return r, true
}

// advice is the rule that is missing, ready to be put into a role.
func (r read) advice() string {
	role, where := "ClusterRole", ""
	if r.namespace != "" {
		role, where = "Role (or ClusterRole)", " in namespace "+r.namespace
	}
	return fmt.Sprintf("may not %s %s%s: add to the %s of headgate's ServiceAccount: {apiGroups: [%q], resources: [%s], verbs: [list, watch]}",
		r.verb, r.resource, where, role, r.group, r.resource)
}
