package build

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"headgate/gateway/model"
	"headgate/gateway/snapshot"
)

// takeVerdicts marks the upstreams of which a peer went down or came back.
func (b *Builder) takeVerdicts(next []snapshot.Verdict) {
	in := &b.inputs
	last := in.last.Verdicts
	if len(last) == len(next) && (len(next) == 0 || &last[0] == &next[0]) {
		return
	}
	ill := map[model.UpstreamID][]netip.AddrPort{}
	for _, v := range sortedVerdicts(next) {
		if v.Down {
			ill[model.UpstreamID(v.Upstream)] = append(ill[model.UpstreamID(v.Upstream)], v.Address)
		}
	}
	mark := func(id model.UpstreamID) {
		if b.upstreams[id] != nil && !slices.Equal(ill[id], in.ill[id]) {
			b.dirtyUpstreams[id] = struct{}{}
		}
	}
	for id := range ill {
		mark(id)
	}
	for id := range in.ill {
		mark(id)
	}
	in.ill = ill
}

func sortedVerdicts(list []snapshot.Verdict) []snapshot.Verdict {
	compare := func(a, b snapshot.Verdict) int {
		return cmp.Or(cmp.Compare(a.Upstream, b.Upstream), a.Address.Compare(b.Address))
	}
	if !slices.IsSortedFunc(list, compare) {
		list = slices.Clone(list)
		slices.SortStableFunc(list, compare)
	}
	return list
}

// setDown brings the verdicts into the peers of an upstream that asks for checks. When all that could get new requests are
// down, its Service is told of: the proxy uses them all the same.
func (u *upstreamBuild) setDown(out *model.Upstream) {
	if out.Check == nil {
		return // a verdict from before the check was taken away
	}
	ill := u.inputs.ill[out.ID]
	candidates, downs := 0, 0
	for i := range out.Peers {
		p := &out.Peers[i]
		_, p.Down = slices.BinarySearchFunc(ill, p.Address, netip.AddrPort.Compare)
		if !p.Draining {
			candidates++
			if p.Down {
				downs++
			}
		}
	}
	if candidates == 0 || downs < candidates || u.service == nil {
		return
	}
	u.problems = append(u.problems, Problem{
		Object: objectOf("Service", &u.service.Meta), Reason: AllPeersDown, Warning: true,
		Message: fmt.Sprintf("the health check of %s fails for all of its peers: they are used all the same, as if they were well; mend the pods or the check", out.ID),
	})
}
