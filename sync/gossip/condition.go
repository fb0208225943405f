package gossip

import (
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Kind says what is wrong between this host and a peer.
type Kind string

// The kinds of conditions.
const (
	// Unreachable: no connection to a configured peer.
	Unreachable Kind = "Unreachable"
	// Unresolved: the name of a configured peer has no address.
	Unresolved Kind = "Unresolved"
	// WrongKey: the peer has another secret.
	WrongKey Kind = "WrongKey"
	// RetiredKey: one side was away during a key rotation, and the key that it has is accepted no more.
	RetiredKey Kind = "RetiredKey"
	// BehindKey: the peer has a key that is still accepted, and has yet to fetch the one in use.
	BehindKey Kind = "BehindKey"
	// OtherCluster: the peer belongs to a cluster of another name.
	OtherCluster Kind = "OtherCluster"
	// NameClash: two hosts have one name.
	NameClash Kind = "NameClash"
	// UDPBlocked: the peer answers by TCP but not by UDP.
	UDPBlocked Kind = "UDPBlocked"
	// JoinFailed: the peer was reached, and memberlist could not join it.
	JoinFailed Kind = "JoinFailed"
)

// Condition is something wrong that is still so.
type Condition struct {
	Kind Kind `json:"kind"`
	// Peer is the address, the configured name (Unresolved) or the host (UDPBlocked).
	Peer    string    `json:"peer"`
	Message string    `json:"message"`
	Since   time.Time `json:"since"`
	Last    time.Time `json:"last"`
	Count   uint64    `json:"count"`
}

const (
	// maxConditions bounds what made-up sources can fill.
	maxConditions = 32
	// conditionLog is the least time between two lines about one condition whose words change.
	conditionLog = time.Minute
	// conditionLife is how long a condition stays that nothing renews.
	conditionLife = time.Minute
)

type conditionKey struct {
	kind Kind
	peer string
}

// conditions tells each once when it begins and once when it ends, and counts.
type conditions struct {
	log *slog.Logger

	mu     sync.Mutex // guards the rest
	now    map[conditionKey]*kept
	counts map[Kind]uint64
}

type kept struct {
	Condition
	logged time.Time
}

func newConditions(log *slog.Logger) *conditions {
	return &conditions{log: log, now: map[conditionKey]*kept{}, counts: map[Kind]uint64{}}
}

func (c *conditions) note(k Kind, peer, message string) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[k]++
	key := conditionKey{k, peer}
	known := c.now[key]
	if known == nil {
		if len(c.now) >= maxConditions {
			return // counted
		}
		known = &kept{Condition: Condition{Kind: k, Peer: peer, Since: now}}
		c.now[key] = known
	}
	if known.Message != message && (known.logged.IsZero() || now.Sub(known.logged) >= conditionLog) {
		known.logged = now
		c.log.Warn("gossip with a peer", "condition", string(k), "peer", peer, "message", message)
	}
	known.Message, known.Last = message, now
	known.Count++
}

// clear ends the conditions of these kinds of a peer.
func (c *conditions) clear(peer string, kinds ...Kind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range kinds {
		c.drop(conditionKey{k, peer})
	}
}

// expire ends those that nothing renewed.
func (c *conditions) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, known := range c.now {
		if time.Since(known.Last) > conditionLife {
			c.drop(key)
		}
	}
}

func (c *conditions) drop(key conditionKey) {
	if known := c.now[key]; known != nil {
		delete(c.now, key)
		c.log.Info("gossip with a peer: over", "condition", string(key.kind), "peer", key.peer, "took", time.Since(known.Since).Round(time.Millisecond))
	}
}

func (c *conditions) list() []Condition {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]Condition, 0, len(c.now))
	now := time.Now()
	for _, known := range c.now {
		told := known.Condition
		// By the clock as it is now, which may have been set since.
		told.Since, told.Last = now.Add(told.Since.Sub(now)), now.Add(told.Last.Sub(now))
		list = append(list, told)
	}
	slices.SortFunc(list, func(a, b Condition) int {
		return strings.Compare(string(a.Kind)+" "+a.Peer, string(b.Kind)+" "+b.Peer)
	})
	return list
}

func (c *conditions) counted() map[Kind]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.counts)
}
