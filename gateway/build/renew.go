package build

import (
	"maps"

	"headgate/gateway/snapshot"
)

// Renew makes a Builder with other options that remembers what b remembers: last good versions, the proxy's verdicts,
// rejected profiles. Its first Build computes everything anew. b stays as it is, so that one can go back to it.
//
// The last good versions are read again, because the options say how; one that cannot be read any more is forgotten.
// OwnAddresses and APIServers of o are not used: what b was told of them holds.
func (b *Builder) Renew(o Options) *Builder {
	o.OwnAddresses, o.APIServers = b.options.OwnAddresses, b.options.APIServers
	next := New(o)
	next.memory = memory{
		lastGood:     map[string]*ingress{},
		certificates: maps.Clone(b.memory.certificates),
		verdicts:     maps.Clone(b.memory.verdicts),
		rejected:     maps.Clone(b.memory.rejected),
		peers:        maps.Clone(b.memory.peers),
		services:     maps.Clone(b.memory.services),
	}
	versions := make([]*snapshot.Ingress, 0, len(b.memory.lastGood))
	for _, version := range b.memory.lastGood {
		versions = append(versions, version.src)
	}
	next.Remember(Kept{Ingresses: versions})
	return next
}
