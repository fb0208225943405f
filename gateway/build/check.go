package build

import "headgate/gateway/model"

// Check asks for active health checks of the peers of one upstream.
type Check struct {
	Upstream model.UpstreamID
	Peers    []model.Peer // those of the model: not to be changed
	Check    model.HealthCheck
}

// checksOf lists the upstreams that ask for checks, in the order of the model.
func checksOf(upstreams []*model.Upstream) []Check {
	var checks []Check
	for _, u := range upstreams {
		if u.Check != nil {
			checks = append(checks, Check{u.ID, u.Peers, *u.Check})
		}
	}
	return checks
}
