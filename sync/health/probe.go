package health

import (
	"container/heap"
	"net/netip"
	"time"

	"headgate/gateway/model"
)

// key is what is checked: a peer, in one way. Upstreams that check a peer in the same way share a probe.
type key struct {
	address netip.AddrPort
	policy  string
}

// probe is what is known of one key.
type probe struct {
	address netip.AddrPort
	policy  *policy
	users   map[model.UpstreamID]struct{}

	due     time.Time
	place   int // in the queue; -1: not in it
	running bool
	asked   int // checks that were counted

	state  state
	streak uint8 // answers in a row against state
	reason error // of the last failure
}

// state is the verdict on a peer.
type state int

// The states. What is unknown is taken for well.
const (
	unknown state = iota
	up
	down
)

// count takes one answer in and tells whether the verdict is another one now.
func (p *probe) count(failure error) bool {
	p.asked++
	ill := failure != nil
	if ill {
		p.reason = failure
	}
	if ill == (p.state == down) {
		p.streak = 0
		if !ill {
			p.state = up
		}
		return false
	}
	if p.state == unknown && !ill {
		p.state, p.streak = up, 0
		return false
	}
	p.streak++
	need, next := p.policy.Fall, down
	if !ill {
		need, next = p.policy.Rise, up
	}
	if p.streak < need {
		return false
	}
	p.state, p.streak = next, 0
	return true
}

// queue is a heap of probes, the longest due first (container/heap).
type queue []*probe

// Len implements heap.Interface.
func (q queue) Len() int { return len(q) }

// Less implements heap.Interface.
func (q queue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }

// Swap implements heap.Interface.
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	p, _ := x.(*probe)
	p.place = len(*q)
	*q = append(*q, p)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := (*q)[len(*q)-1]
	last.place = -1
	(*q)[len(*q)-1] = nil
	*q = (*q)[:len(*q)-1]
	return last
}

func (q *queue) add(p *probe) { heap.Push(q, p) }

func (q *queue) remove(p *probe) {
	if p.place >= 0 {
		heap.Remove(q, p.place)
	}
}

// next takes out the probe that is due, or gives nil.
func (q *queue) next(now time.Time) *probe {
	if len(*q) == 0 || (*q)[0].due.After(now) {
		return nil
	}
	p, _ := heap.Pop(q).(*probe)
	return p
}
