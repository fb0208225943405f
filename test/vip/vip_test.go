package vip

import (
	"testing"
	"time"

	"headgate/test/netns"
	"headgate/test/product"
	"headgate/test/vip/lab"
)

var binary string //nolint:gochecknoglobals // TestMain builds it once

func TestMain(m *testing.M) { product.Main(m, &binary) }

// edge is a lab with clients.
type edge struct {
	*lab.Lab
	kernel  *lab.Kernel
	clients []*lab.Client
	marked  time.Time
}

// open starts a lab with its hosts, and clients that ask for the VIP web.
func open(t *testing.T, c lab.Config) *edge {
	t.Helper()
	netns.Require(t)
	product.LookAt(t, "vip")
	c.Binary = binary
	if c.Proxy == nil {
		c.Proxy = lab.Assemble(t, binary)
	}
	e := &edge{Lab: lab.New(t, c)}
	e.kernel = e.Watch(t)
	return e
}

// pair is two hosts that share the VIP.
func pair(t *testing.T, settings string) *edge {
	t.Helper()
	e := open(t, lab.Config{Hosts: []string{"a", "b"}, VIPs: lab.Web(settings)})
	e.Start(t)
	e.ask(t)
	return e
}

func (e *edge) ask(t *testing.T) {
	t.Helper()
	e.clients = []*lab.Client{
		lab.NewClient(t, e.Client, lab.Web4(), time.Millisecond), lab.NewClient(t, e.Client, lab.Web6(), 2*time.Millisecond),
	}
	for _, c := range e.clients {
		served := 0
		netns.Eventually(t, lab.Patience, "clients are served", func() bool {
			for _, a := range c.Cut(t) {
				if a.Error == "" {
					served++
				}
			}
			return served > 10
		})
	}
	e.mark(t)
}

// mark begins a new look at what the clients notice.
func (e *edge) mark(t *testing.T) {
	t.Helper()
	pause(t, lab.Flying)
	for _, c := range e.clients {
		c.Cut(t)
	}
	e.marked = time.Now()
}

// pause lets the clients go on for a while.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	begun := time.Now()
	netns.Eventually(t, d+lab.Patience, "time passes", func() bool { return time.Since(begun) >= d })
}

// damage is what the clients have noticed since mark.
func (e *edge) damage(t *testing.T) (four, six lab.Damage) {
	t.Helper()
	pause(t, lab.Flying)
	return lab.Assess(e.clients[0].Cut(t)), lab.Assess(e.clients[1].Cut(t))
}
