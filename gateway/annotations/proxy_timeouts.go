package annotations

import "time"

// The ranges of the time-outs. nginx counts milliseconds in 31 bits.
const (
	minProxyTimeout   = time.Millisecond
	maxConnectTimeout = time.Hour
	maxProxyTimeout   = 24 * 24 * time.Hour
)

func proxyConnectTimeout() Annotation {
	return Annotation{
		Name:    "proxy-connect-timeout",
		Doc:     "How long a connection to a peer may take to be made.",
		Values:  timeValues(minProxyTimeout, maxConnectTimeout),
		Default: "the setting upstreams.connectTimeout (5s)",
		Example: "5",
		Risk:    Low,
		Scope:   Paths,
		parse:   inSeconds(minProxyTimeout, maxConnectTimeout, func(v *Values, d time.Duration) { v.proxying().Connect = d }),
	}
}

func proxySendTimeout() Annotation {
	return Annotation{
		Name:    "proxy-send-timeout",
		Doc:     "How long a peer may take nothing of the request between two writes.",
		Values:  timeValues(minProxyTimeout, maxProxyTimeout),
		Default: "the setting upstreams.sendTimeout (60s)",
		Example: "60",
		Risk:    Low,
		Scope:   Paths,
		parse:   inSeconds(minProxyTimeout, maxProxyTimeout, func(v *Values, d time.Duration) { v.proxying().Send = d }),
	}
}

func proxyReadTimeout() Annotation {
	return Annotation{
		Name:    "proxy-read-timeout",
		Doc:     "How long a peer may say nothing between two reads of its answer. A WebSocket that is idle for longer is closed.",
		Values:  timeValues(minProxyTimeout, maxProxyTimeout),
		Default: "the setting upstreams.readTimeout (60s)",
		Example: "3600",
		Risk:    Low,
		Scope:   Paths,
		parse:   inSeconds(minProxyTimeout, maxProxyTimeout, func(v *Values, d time.Duration) { v.proxying().Read = d }),
	}
}
