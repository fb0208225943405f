package luastate

import (
	"net/netip"
	"time"

	"headgate/gateway/model"
)

// encodeUpstream leaves out what is the default, everything but the peers:
//
//	{"algorithm", "hash": [[kind, name]], "subset": n, "cookie": {…}, "clientIP": seconds, "limits": {…},
//	 "ejection": {…}, "budget": {…}, "slowStartMs": ms, "peers": ["10.0.0.1:80"], "weights": [w] (left out when
//	 all are 1), "draining": ["10.0.0.2:80"], "down": ["10.0.0.3:80"]}
//
// Peers are flat strings, which decode five times faster than objects. "down" names some of the others.
func encodeUpstream(u *model.Upstream) []byte {
	var j jsonWriter
	j.object(func() {
		encodeAlgorithm(&j, u)
		encodeCookie(&j, u.Cookie)
		j.seconds("clientIP", u.ClientIP)
		encodeLimits(&j, u.Limits)
		encodeEjection(&j, u.Ejection)
		encodeBudget(&j, u.Budget)
		j.milliseconds("slowStartMs", u.SlowStart)
		encodePeers(&j, u.Peers)
	})
	return j.buf
}

func encodeAlgorithm(j *jsonWriter, u *model.Upstream) {
	if u.Algorithm != model.RoundRobin && u.Algorithm != "" {
		j.field("algorithm").text(string(u.Algorithm))
	}
	if len(u.Hash) > 0 {
		j.field("hash").array(len(u.Hash), func(i int) {
			part := []string{string(u.Hash[i].Kind), u.Hash[i].Name}
			j.array(len(part), func(k int) { j.text(part[k]) })
		})
	}
	j.positive("subset", int64(u.Subset))
}

func encodeCookie(j *jsonWriter, c *model.Cookie) {
	if c == nil {
		return
	}
	j.field("cookie").object(func() {
		j.nonEmpty("name", c.Name)
		if c.Persistent {
			j.yes("persistent")
		}
		j.nonEmpty("key", c.Key)
		j.nonEmpty("path", c.Path)
		j.nonEmpty("domain", c.Domain)
		j.seconds("expires", c.Expires)
		j.seconds("maxAge", c.MaxAge)
		j.nonEmpty("sameSite", string(c.SameSite))
		if c.ConditionalSameSiteNone {
			j.yes("conditionalNone")
		}
		if c.Secure != nil {
			j.field("secure").bool(*c.Secure)
		}
		if c.ChangeOnFailure {
			j.yes("changeOnFailure")
		}
	})
}

func encodeLimits(j *jsonWriter, l model.Limits) {
	if l == (model.Limits{}) {
		return
	}
	j.field("limits").object(func() {
		j.positive("peer", int64(l.PeerRequests))
		j.positive("queue", int64(l.Queue))
		j.milliseconds("queueMs", l.QueueTimeout)
		j.positive("requests", int64(l.Requests))
	})
}

func encodeEjection(j *jsonWriter, e model.Ejection) {
	switch {
	case e.Off:
		j.field("ejection").object(func() { j.yes("off") })
	case e.Failures > 0 || e.Base > 0 || e.Max > 0 || len(e.Statuses) > 0:
		j.field("ejection").object(func() {
			j.positive("failures", int64(e.Failures))
			j.milliseconds("baseMs", e.Base)
			j.milliseconds("maxMs", e.Max)
			if len(e.Statuses) > 0 {
				j.field("statuses").array(len(e.Statuses), func(i int) { j.number(int64(e.Statuses[i])) })
			}
		})
	}
}

func encodeBudget(j *jsonWriter, b model.RetryBudget) {
	if b == (model.RetryBudget{}) {
		return
	}
	j.field("budget").object(func() {
		if b.Unlimited {
			j.yes("unlimited")
			return
		}
		j.positive("percent", int64(b.Percent))
		j.positive("min", int64(b.MinPerSecond))
	})
}

func encodePeers(j *jsonWriter, peers []model.Peer) {
	var ready, draining, down []model.Peer
	weighted := false
	for _, p := range peers {
		if p.Down {
			down = append(down, p)
		}
		if p.Draining {
			draining = append(draining, p)
			continue
		}
		ready = append(ready, p)
		weighted = weighted || p.Weight > 1
	}
	j.field("peers").addresses(ready)
	if weighted {
		j.field("weights").array(len(ready), func(i int) { j.number(max(1, int64(ready[i].Weight))) })
	}
	if len(draining) > 0 {
		j.field("draining").addresses(draining)
	}
	if len(down) > 0 {
		j.field("down").addresses(down)
	}
}

func (j *jsonWriter) addresses(peers []model.Peer) {
	j.array(len(peers), func(i int) { j.text(peer(peers[i].Address)) })
}

// seconds writes a field of whole seconds, at least 1; nothing for zero.
func (j *jsonWriter) seconds(name string, d time.Duration) {
	if d > 0 {
		j.field(name).number(max(1, int64(d/time.Second)))
	}
}

// milliseconds writes a field of whole milliseconds, at least 1; nothing for zero.
func (j *jsonWriter) milliseconds(name string, d time.Duration) {
	if d > 0 {
		j.field(name).number(max(1, d.Milliseconds()))
	}
}

// peer writes an address as nginx reads it: an IPv4 address in IPv6 clothes is an IPv4 address.
func peer(a netip.AddrPort) string {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()).String()
}
