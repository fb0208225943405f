package annotations

import "time"

// The ranges of the limits of a Service.
const (
	mostRequestsPerPeer = 1_000_000
	mostRequests        = 10_000_000
	mostQueued          = 100_000
	minQueueTimeout     = 10 * time.Millisecond
	maxQueueTimeout     = time.Minute
	maxSlowStart        = time.Hour
)

func maxRequestsPerPeer() Annotation {
	return Annotation{
		Name: "max-requests-per-peer",
		Doc: "How many requests may be in flight to one peer, from this host. A peer with so many is passed over; when all have so many, requests " +
			"wait (see queue) or are answered with 503.",
		Values:  numberValues(1, mostRequestsPerPeer),
		Default: "no limit",
		Example: "100",
		Risk:    Low,
		Scope:   Service,
		parse: inNumbers(1, mostRequestsPerPeer, func(v *Values, n int) {
			v.balancing().Limits.PeerRequests = uint32(n) //nolint:gosec // in range
		}),
	}
}

func queue() Annotation {
	return Annotation{
		Name:    "queue",
		Doc:     "How many requests may wait, in each worker of nginx, for a peer that has less than max-requests-per-peer in flight.",
		Values:  numberValues(0, mostQueued),
		Default: "0: 503 at once",
		Example: "200",
		Risk:    Low,
		Scope:   Service,
		parse: inNumbers(0, mostQueued, func(v *Values, n int) {
			v.balancing().Limits.Queue = uint32(n) //nolint:gosec // in range
		}),
		idle: func(v *Values) string {
			if v.Balancing.Limits.PeerRequests == 0 {
				return "there is no headgate.io/max-requests-per-peer to wait for; write it, or remove this one"
			}
			return ""
		},
	}
}

func queueTimeout() Annotation {
	return Annotation{
		Name:    "queue-timeout",
		Doc:     "How long a request waits in the queue before it is answered with 503.",
		Values:  timeValues(minQueueTimeout, maxQueueTimeout),
		Default: "1s",
		Example: "500ms",
		Risk:    Low,
		Scope:   Service,
		parse:   inSeconds(minQueueTimeout, maxQueueTimeout, func(v *Values, d time.Duration) { v.balancing().Limits.QueueTimeout = d }),
		idle: func(v *Values) string {
			if v.Balancing.Limits.PeerRequests == 0 || v.Balancing.Limits.Queue == 0 {
				return "there is no queue; write headgate.io/max-requests-per-peer and headgate.io/queue, or remove this one"
			}
			return ""
		},
	}
}

func maxRequests() Annotation {
	return Annotation{
		Name:    "max-requests",
		Doc:     "How many requests may be in flight to all peers of the Service together, from this host (circuit breaker). One more is answered with 503.",
		Values:  numberValues(1, mostRequests),
		Default: "no limit",
		Example: "1000",
		Risk:    Low,
		Scope:   Service,
		parse: inNumbers(1, mostRequests, func(v *Values, n int) {
			v.balancing().Limits.Requests = uint32(n) //nolint:gosec // in range
		}),
	}
}

func slowStart() Annotation {
	return Annotation{
		Name:    "slow-start",
		Doc:     "How long a peer that is new or came back takes to get its full share of the requests.",
		Values:  timeValues(0, maxSlowStart),
		Default: "0: at once",
		Example: "30s",
		Risk:    Low,
		Scope:   Service,
		parse:   inSeconds(0, maxSlowStart, func(v *Values, d time.Duration) { v.balancing().SlowStart = d }),
	}
}
