package detect

import (
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Stranger is a source of packets that were not believed.
type Stranger struct {
	Detector Via `json:"detector"`
	// From is the address that they came from.
	From string `json:"from"`
	// Claims is the name that they bear; nothing proves it. Empty for what is no packet of ours.
	Claims string `json:"claims,omitempty"`
	Reason string `json:"reason"`
	// Count is how many there were, First and Last when.
	Count uint64    `json:"count"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
}

const (
	// maxStrangers bounds what a flood of made-up sources can fill; beyond it the one that was quiet longest goes.
	maxStrangers = 32
	// strangerLog is the least time between two lines about one stranger.
	strangerLog = 10 * time.Minute
	// strangerBurst bounds the lines about new strangers in strangerLog.
	strangerBurst = 8
	// strangerPatience is how long an authentic host may stay unknown until it is told: it may have been started a
	// moment before SetPeers names it.
	strangerPatience = 10 * time.Second
)

const noPeer = "authentic, but no host of this name is among the peers"

type strangers struct {
	log *slog.Logger

	mu    sync.Mutex // guards the rest
	known []*known
	since time.Time
	lines int
}

type known struct {
	Stranger
	logged time.Time
}

func newStrangers(log *slog.Logger) *strangers { return &strangers{log: log} }

// note counts the packet, and tells a new stranger at once.
func (s *strangers) note(n Stranger, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.find(n, now)
	k.Count++
	k.Last = now
	if n.Reason == noPeer && now.Sub(k.First) < strangerPatience {
		return
	}
	if !k.logged.IsZero() && now.Sub(k.logged) < strangerLog {
		return
	}
	if now.Sub(s.since) >= strangerLog {
		s.since, s.lines = now, 0
	}
	k.logged = now
	if s.lines++; s.lines <= strangerBurst {
		s.log.Warn("packet not believed", "detector", string(k.Detector), "from", k.From, "claims", k.Claims, "reason", k.Reason, "count", k.Count)
	}
}

func (s *strangers) find(n Stranger, now time.Time) *known {
	for _, k := range s.known {
		if k.Detector == n.Detector && k.From == n.From && k.Claims == n.Claims && k.Reason == n.Reason {
			return k
		}
	}
	if len(s.known) >= maxStrangers {
		oldest := slices.MinFunc(s.known, func(a, b *known) int { return a.Last.Compare(b.Last) })
		s.known = slices.DeleteFunc(s.known, func(k *known) bool { return k == oldest })
	}
	n.First, n.Count = now, 0
	k := &known{Stranger: n}
	s.known = append(s.known, k)
	return k
}

func (s *strangers) list() []Stranger {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Stranger, 0, len(s.known))
	for _, k := range s.known {
		list = append(list, k.Stranger)
	}
	slices.SortFunc(list, func(a, b Stranger) int { return a.Last.Compare(b.Last) })
	return list
}
