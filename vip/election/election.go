// Package election turns candidates into the owner of a VIP: a table in, a name out. Every host that is given the
// same table names the same owner, so that nobody has to be asked. It keeps no state, knows no clock and no network;
// vip/speaker calls it whenever one of the candidates changes.
package election

import (
	"hash/fnv"
	"slices"
	"strings"
)

// Host is the name of a host, unique in its cluster.
type Host string

// The priorities of VRRP (RFC 5798 section 5.2.4) without its two special ones: 0 says that a router leaves, 255 that
// it owns the address by configuration.
const (
	MinPriority     = 1
	MaxPriority     = 254
	DefaultPriority = 100
)

// Candidate is a host that lives and has the VIP in its configuration.
type Candidate struct {
	Host Host
	// Priority is from MinPriority to MaxPriority; the highest one wins. 0 counts as DefaultPriority.
	Priority uint8
	// Ready tells that the host can serve the VIP: its proxy is ready with a complete revision, its link is up.
	Ready bool
	// Draining tells that the administrator wants the host empty. It owns a VIP only when nobody else can.
	Draining bool
	// Settled tells that the candidate has been ready for the VIP's preempt delay. The present owner gives the VIP
	// to a better candidate only when that one is settled; a VIP without an owner waits for nobody to settle.
	Settled bool
}

// Policy is how one VIP is given away.
type Policy struct {
	// VIP is the name by which every host knows it; it takes part in the hash that spreads VIPs among equals.
	VIP string
	// NoPreempt leaves the VIP with its owner for as long as that one can serve it.
	NoPreempt bool
}

// Owner names the host that should own the VIP, given who owns it now ("" for nobody). The answer is "" when no
// candidate is ready. The order of candidates does not matter.
func Owner(p Policy, candidates []Candidate, current Host) Host {
	ranked := Rank(p.VIP, candidates)
	if len(ranked) == 0 {
		return ""
	}
	at := slices.IndexFunc(ranked, func(c Candidate) bool { return c.Host == current })
	if at < 0 {
		return ranked[0].Host
	}
	owner := ranked[at]
	for _, c := range ranked[:at] {
		leaves := owner.Draining && !c.Draining
		if leaves || c.Settled && !p.NoPreempt {
			return c.Host
		}
	}
	return current
}

// Rank gives the candidates that are ready, the best one first: those that are not draining, then the higher
// priority, then the order that the hash of host and VIP gives, so that several VIPs spread over equals and a host
// that comes or goes moves only what is its own (rendezvous hashing).
func Rank(vip string, candidates []Candidate) []Candidate {
	ready := slices.DeleteFunc(slices.Clone(candidates), func(c Candidate) bool { return !c.Ready })
	slices.SortFunc(ready, func(a, b Candidate) int { return compare(vip, a, b) })
	return slices.CompactFunc(ready, func(a, b Candidate) bool { return a.Host == b.Host })
}

// Better tells whether a comes before b for the VIP. It looks at neither readiness nor draining: two hosts that both
// own the VIP resolve it by what does not change while they talk.
func Better(vip string, a, b Candidate) bool {
	a.Draining, b.Draining = false, false
	return compare(vip, a, b) < 0
}

func compare(vip string, a, b Candidate) int {
	if a.Draining != b.Draining {
		if a.Draining {
			return 1
		}
		return -1
	}
	if pa, pb := priority(a), priority(b); pa != pb {
		return pb - pa
	}
	if ha, hb := weight(a.Host, vip), weight(b.Host, vip); ha != hb {
		if ha > hb {
			return -1
		}
		return 1
	}
	return strings.Compare(string(a.Host), string(b.Host))
}

func priority(c Candidate) int {
	if c.Priority == 0 {
		return DefaultPriority
	}
	return int(c.Priority)
}

// weight hashes host and VIP. FNV-1a alone keeps names that differ in their last letter close together in the high
// bits, which decide here; the finalizer of SplitMix64 spreads them.
func weight(host Host, vip string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(host)) // documented never to fail
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(vip))
	x := h.Sum64()
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
