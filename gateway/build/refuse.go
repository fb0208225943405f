package build

import (
	"net/netip"
	"slices"

	"headgate/gateway/reach"
)

// RefuseAddresses replaces Options.OwnAddresses and Options.APIServers, which change while a daemon runs: an
// interface gets an address, the name of the API server resolves to another one. The next Build looks at the
// peers of every upstream again. Equal lists, in equal order, cost nothing.
func (b *Builder) RefuseAddresses(own, apiServers []netip.Addr) {
	if slices.Equal(own, b.options.OwnAddresses) && slices.Equal(apiServers, b.options.APIServers) {
		return
	}
	b.options.OwnAddresses, b.options.APIServers = slices.Clone(own), slices.Clone(apiServers)
	b.refuse = reach.New(reach.Config{
		AllowLoopback: b.options.AllowLoopback, Deny: b.options.Deny, Allow: b.options.Allow, Own: own, APIServers: apiServers,
	})
	for id := range b.upstreams {
		b.dirtyUpstreams[id] = struct{}{}
	}
}
