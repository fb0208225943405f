package boot

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"headgate/test/netns"
)

// openRequest is one whose answer has begun.
type openRequest struct{ response *http.Response }

// open begins n requests, each over a connection of its own that ends with its answer.
func (p *pair) open(t *testing.T, n int) []openRequest {
	t.Helper()
	all := make([]openRequest, n)
	for i := range all {
		client := newClient(sharedAddress)
		client.Timeout = 0
		client.Transport.(*http.Transport).DisableKeepAlives = true
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+hostName+holdPath, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request) // the head has arrived then
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = response.Body.Close() })
		all[i] = openRequest{response}
	}
	return all
}

// ends reads the rest of the answer, which must be whole.
func (o openRequest) ends(t *testing.T) {
	t.Helper()
	word, err := io.ReadAll(o.response.Body)
	if err != nil || o.response.StatusCode != http.StatusOK || string(word) != backendWord {
		t.Errorf("a request that was open during the drain got %d %q, %v", o.response.StatusCode, word, err)
	}
}

// printed is what a command on a host has printed so far.
type printed struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

// Write implements io.Writer.
func (p *printed) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

func (p *printed) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// begin starts a command on the host.
func (h *host) begin(ctx context.Context, command ...string) (out *printed, ended <-chan error) {
	out = &printed{}
	result := make(chan error, 1)
	go func() { result <- h.runTo(ctx, out, command...) }()
	return out, result
}

// drainOpen: the VIP moves first, while connections are open through the old host; they go on to their end; drain counts
// them down, and returns when there are none.
func (p *pair) drainOpen(t *testing.T) {
	from, to := p.hosts[0], p.hosts[1]
	const connections = 3
	open := p.open(t, connections)
	out, ended := from.begin(t.Context(), "headgate", "drain", "--wait", "5m")
	says := func(words string) {
		t.Helper()
		netns.Eventually(t, bootLimit, fmt.Sprintf("drain to say %q", words), func() bool { return strings.Contains(out.String(), words) })
	}
	says(fmt.Sprintf("%d connections to the VIPs open\n", connections))
	if from.has(t) || !to.has(t) {
		t.Error("the VIP is not at the other host while drain waits for connections")
	}
	during(t, sharedAddress, "a drain that waits for connections", func() {
		p.pod.let(t, 1)
		says("2 connections to the VIPs open\n")
		select {
		case err := <-ended:
			t.Fatalf("drain ended with open connections: %v\n%s", err, out)
		default:
		}
	})
	p.pod.let(t, connections-1)
	for _, o := range open {
		o.ends(t)
	}
	says("no connection to the VIPs is open\n")
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("drain: %v\n%s", err, out)
		}
	case <-time.After(bootLimit):
		t.Fatal("drain does not end")
	}
	t.Logf("drain said:\n%s", out)
	from.must(t, "headgate undrain")
	p.settled(t, from)
}

// mistake: a VIP process with a mistake in its configuration gives its VIPs away, fails with a line that says why, and is not
// started again and again.
//
// It begins when the move before is old: of two moves within a second, one new connection in some runs hangs until its client
// gives up (docs/design/0005, "Known"), which is not what this is about.
func (p *pair) mistake(t *testing.T) {
	const old = 3 * time.Second // above the second in which a kernel keeps a neighbour (locktime), and the two of a takeover
	begun := time.Now()
	netns.Eventually(t, bootLimit, "the move before to be old", func() bool { return time.Since(begun) > old })
	owner := p.hosts[0]
	good := owner.read(t, "/etc/headgate/headgate.yaml")
	owner.write(t, "/etc/headgate/headgate.yaml", good+"\nmaxBodySize: plenty\n")
	during(t, sharedAddress, "restart of a VIP process with a mistake in its configuration", func() {
		owner.fails(t, "systemctl restart headgate-vip")
	})
	if s := owner.state(t, "headgate-vip"); s != "failed" {
		t.Errorf("headgate-vip is %s: it should have given up", s)
	}
	if n := strings.TrimSpace(owner.must(t, "systemctl show --value -p NRestarts headgate-vip")); n != "0" {
		t.Errorf("%s restarts of what cannot work", n)
	}
	if log := owner.must(t, "journalctl -u headgate-vip -o cat --no-pager -n 20"); !strings.Contains(log, "maxBodySize") {
		t.Errorf("the log does not name the key:\n%s", log)
	}
	owner.write(t, "/etc/headgate/headgate.yaml", good)
	owner.must(t, "systemctl restart headgate-vip")
	p.settled(t, owner)
}
