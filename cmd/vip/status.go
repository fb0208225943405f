package vip

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"headgate/sync/gossip"
	"headgate/vip/detect"
	"headgate/vip/speaker"
)

// Status is what the process tells of itself; `headgate vip status -o json` prints it.
type Status struct {
	Version   string    `json:"version"`
	PID       int       `json:"pid"`
	Started   time.Time `json:"started"`
	Time      time.Time `json:"time"`
	Scheduler string    `json:"scheduler"`
	// Degraded says what keeps the VIPs from being as safe as they could be; empty when nothing does.
	Degraded []string `json:"degraded"`

	speaker.Status

	// Detectors tell how each peer is heard; empty when this host is alone, as are the next three.
	Detectors []detect.PeerStatus `json:"detectors"`
	Strangers []detect.Stranger   `json:"strangers"` // whose packets are not believed
	Gossip    *gossip.Status      `json:"gossip,omitempty"`
	Flows     []Flow              `json:"flows"` // second chances of open connections
	// DetectorStalls counts how often the detectors found this process stalled, and paused judging.
	DetectorStalls uint64  `json:"detectorStalls"`
	Counts         []Count `json:"counts"`
}

// Flow is a VIP whose open connections live on after a planned move.
type Flow struct {
	VIP   string    `json:"vip"`
	Role  string    `json:"role"` // "forwarding" or "keeping"
	To    string    `json:"to,omitempty"`
	Until time.Time `json:"until"`
}

// Count is how often a VIP became a state for a reason.
type Count struct {
	VIP    string         `json:"vip"`
	State  string         `json:"state"`
	Reason speaker.Reason `json:"reason"`
	Count  uint64         `json:"count"`
}

// account counts transitions.
type account struct {
	mu     sync.Mutex // guards counts
	counts map[Count]uint64
}

func newAccount() *account { return &account{counts: map[Count]uint64{}} }

func (a *account) count(t speaker.Transition) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.counts[Count{VIP: t.VIP, State: t.To.String(), Reason: t.Reason}]++
}

func (a *account) list() []Count {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := []Count{}
	for c, n := range a.counts {
		c.Count = n
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b Count) int {
		return slices.Compare([]string{a.VIP, a.State, string(a.Reason)}, []string{b.VIP, b.State, string(b.Reason)})
	})
	return list
}

func (p *Process) status() Status {
	now := time.Now()
	s := Status{
		Version: p.version, PID: os.Getpid(), Started: p.started, Time: now, Scheduler: p.scheduler, Status: p.speaker.Status(),
		Detectors: []detect.PeerStatus{}, Strangers: []detect.Stranger{}, Flows: p.flows.status(), Counts: p.account.list(),
	}
	if p.gossip != nil {
		g := p.gossip.Status()
		s.Gossip = &g
		s.Detectors = append(s.Detectors, p.detector.Status()...)
		s.Strangers = append(s.Strangers, p.detector.Strangers()...)
		s.DetectorStalls = p.detector.Stalls()
	}
	s.Degraded = append(s.degraded(), p.faults...)
	s.byClock(now)
	return s
}

// byClock tells all times by the clock as it is now. Whoever reads them has no monotonic clock to compare them with, and a clock
// that was set meanwhile, as at the first answer of NTP, would make an hour of a second.
func (s *Status) byClock(now time.Time) {
	wall := func(t *time.Time) {
		if !t.IsZero() {
			*t = now.Add(t.Sub(now))
		}
	}
	s.VIPs, s.Peers, s.Recent = slices.Clone(s.VIPs), slices.Clone(s.Peers), slices.Clone(s.Recent) // others read the speaker's
	wall(&s.Started)
	for i := range s.VIPs {
		wall(&s.VIPs[i].Since)
	}
	for i := range s.Peers {
		wall(&s.Peers[i].Since)
	}
	for i := range s.Recent {
		wall(&s.Recent[i].At)
	}
	for i := range s.Detectors {
		wall(&s.Detectors[i].Since)
		for j := range s.Detectors[i].Detectors {
			wall(&s.Detectors[i].Detectors[j].Heard)
		}
	}
	for i := range s.Strangers {
		wall(&s.Strangers[i].First)
		wall(&s.Strangers[i].Last)
	}
	for i := range s.Flows {
		wall(&s.Flows[i].Until)
	}
}

// degraded lists what somebody should look at, the gravest first.
func (s Status) degraded() []string {
	list := []string{}
	add := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	if s.Gossip != nil && s.Gossip.Clash != "" {
		add("%s", s.Gossip.Clash)
	}
	for _, v := range s.VIPs {
		switch {
		case v.Owner == "" && v.Occupant != "":
			add("%s has no owner: the machine with hardware address %s answers for it: remove the address there", v.Name, v.Occupant)
		case v.Owner == "" && v.State != speaker.Init:
			add("%s has no owner: this host %s", v.Name, v.Wants)
		case v.Why != "":
			add("this host cannot take %s: %s", v.Name, v.Why)
		}
	}
	if !s.Ready {
		add("the proxy of this host cannot serve: %s", s.Health)
	}
	if s.Draining {
		add("this host is drained: 'headgate undrain' ends that")
	}
	for _, p := range s.Peers {
		switch {
		case p.Error != "":
			add("%s is not understood: %s", p.Host, p.Error)
		case !p.Alive:
			add("%s is not there: %s", p.Host, p.Reason)
		case !p.Ready:
			add("%s lives, but its proxy cannot serve", p.Host)
		}
	}
	if s.Lasting && len(s.Peers) > 0 {
		add("no other host could take over")
	}
	return append(list, s.weak()...)
}

// weak lists what works only in part.
func (s Status) weak() []string {
	var list []string
	for _, p := range s.Detectors {
		for _, d := range p.Detectors {
			if d.Lost {
				list = append(list, fmt.Sprintf("%s is not heard by %s, only by others", p.Host, d.Detector))
			}
		}
	}
	if s.Gossip != nil {
		for _, c := range s.Gossip.Conditions {
			list = append(list, c.Message)
		}
	}
	return list
}
