package build_test

import (
	"net/netip"
	"testing"

	"headgate/gateway/build"
	"headgate/gateway/build/buildtest"
)

func TestRefuseAddresses(t *testing.T) {
	s := cluster(2)
	b := build.New(buildtest.Defaults())
	first := b.Build(s, buildtest.Now())
	if n := len(first.Model.Upstreams[0].Peers); n != 5 || len(first.Problems) != 0 {
		t.Fatalf("%d peers, problems %v", n, first.Problems)
	}
	own, server := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.1.2")
	b.RefuseAddresses([]netip.Addr{own}, []netip.Addr{server})
	second := b.Build(s, buildtest.Now())
	for i, upstream := range second.Model.Upstreams {
		if len(upstream.Peers) != 4 {
			t.Errorf("upstream %s has the peers %v", upstream.ID, upstream.Peers)
		}
		if problem := second.Problems[i]; problem.Reason != build.AddressRefused {
			t.Errorf("problem %v", problem)
		}
	}
	b.RefuseAddresses([]netip.Addr{own}, []netip.Addr{server})
	if third := b.Build(s, buildtest.Now()); third.Model.Upstreams[0] != second.Model.Upstreams[0] {
		t.Error("the same addresses again made an upstream anew")
	}
	b.RefuseAddresses(nil, nil)
	if last := b.Build(s, buildtest.Now()); len(last.Model.Upstreams[0].Peers) != 5 || len(last.Problems) != 0 {
		t.Errorf("allowed again: peers %v, problems %v", last.Model.Upstreams[0].Peers, last.Problems)
	}
}
