package annotations

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"headgate/gateway/model"
)

// The limits of active health checks, and the defaults that the zero values of model.HealthCheck mean.
const (
	minCheckInterval     = time.Second
	maxCheckInterval     = time.Hour
	defaultCheckInterval = 10 * time.Second
	minCheckTimeout      = 50 * time.Millisecond
	maxCheckTimeout      = time.Minute
	defaultCheckTimeout  = time.Second
	maxCheckCount        = 100
	maxCheckPathBytes    = 1024
	maxStatusRanges      = 16
)

// check gives the check that the annotations of the family fill in. Without health-check itself it stays without a
// protocol, and is none.
func (v *Values) check() *model.HealthCheck {
	if b := v.balancing(); b.Check == nil {
		b.Check = &model.HealthCheck{}
	}
	return v.Balancing.Check
}

func withoutCheck(v *Values) string {
	if v.Balancing.Check.Protocol == "" {
		return `there is no headgate.io/health-check; write it, or remove this one`
	}
	return ""
}

// withoutHTTP is for what a check of TCP does not have.
func withoutHTTP(v *Values) string {
	if v.Balancing.Check.Protocol == model.ProtocolTCP {
		return `headgate.io/health-check is "tcp", which asks nothing over the connection`
	}
	return withoutCheck(v)
}

func healthCheck() Annotation {
	words := []string{string(model.ProtocolHTTP), string(model.ProtocolHTTPS), string(model.ProtocolTCP)}
	return Annotation{
		Name: "health-check",
		Doc: "Active health: headgate asks each peer of the Service again and again whether it is well. http and https send GET and look " +
			"at the status (certificates are not verified), tcp makes a connection. A peer that is ill gets no requests while another one is well.",
		Values:  wordValues(words),
		Default: "none",
		Example: "http",
		Risk:    Low,
		Scope:   Service,
		parse:   inWords(words, func(v *Values, word string) { v.check().Protocol = model.Protocol(word) }),
	}
}

func healthCheckPath() Annotation {
	return Annotation{
		Name:    "health-check-path",
		Doc:     "What health-check asks for.",
		Values:  fmt.Sprintf("a path with or without query that begins with \"/\", without spaces and control bytes; at most %d bytes", maxCheckPathBytes),
		Default: "/",
		Example: "/healthz",
		Risk:    Low,
		Scope:   Service,
		parse: func(value string, into *Values) error {
			if err := checkRequestTarget(value); err != nil {
				return err
			}
			into.check().Path = value
			return nil
		},
		idle: withoutHTTP,
	}
}

// checkRequestTarget accepts what may stand in a request line (RFC 9112 section 3.2.1).
func checkRequestTarget(value string) error {
	if !strings.HasPrefix(value, "/") {
		return fmt.Errorf("%s is not a path; begin it with \"/\"", shown(value))
	}
	if len(value) > maxCheckPathBytes {
		return fmt.Errorf("the path has %d bytes; write at most %d", len(value), maxCheckPathBytes)
	}
	for i := range len(value) {
		if c := value[i]; c <= ' ' || c > '~' || c == '#' {
			return fmt.Errorf("%s holds %q, which a request cannot; write it percent-encoded", shown(value), value[i:i+1])
		}
	}
	return nil
}

func healthCheckHost() Annotation {
	return Annotation{
		Name:    "health-check-host",
		Doc:     "Host header of health-check, and server name of its TLS.",
		Values:  "a DNS name",
		Default: "the address of the peer",
		Example: "shop.example.com",
		Risk:    Low,
		Scope:   Service,
		parse: func(value string, into *Values) error {
			name, err := parseSingleName(value)
			if err == nil {
				into.check().Host = string(name)
			}
			return err
		},
		idle: withoutHTTP,
	}
}

func healthCheckInterval() Annotation {
	return Annotation{
		Name:    "health-check-interval",
		Doc:     "Time between two health checks of a peer.",
		Values:  timeValues(minCheckInterval, maxCheckInterval),
		Default: duration(defaultCheckInterval),
		Example: "5s",
		Risk:    Low,
		Scope:   Service,
		parse:   inSeconds(minCheckInterval, maxCheckInterval, func(v *Values, d time.Duration) { v.check().Interval = d }),
		idle:    withoutCheck,
	}
}

func healthCheckTimeout() Annotation {
	return Annotation{
		Name:    "health-check-timeout",
		Doc:     "How long a health check may take, at most health-check-interval.",
		Values:  timeValues(minCheckTimeout, maxCheckTimeout),
		Default: duration(defaultCheckTimeout),
		Example: "2s",
		Risk:    Low,
		Scope:   Service,
		parse:   inSeconds(minCheckTimeout, maxCheckTimeout, func(v *Values, d time.Duration) { v.check().Timeout = d }),
		clash: func(v *Values) error {
			interval := v.Balancing.Check.Interval
			if interval == 0 {
				interval = defaultCheckInterval
			}
			if v.Balancing.Check.Timeout > interval {
				return fmt.Errorf("%s is more than health-check-interval, %s; write at most as much",
					duration(v.Balancing.Check.Timeout), duration(interval))
			}
			return nil
		},
		idle: withoutCheck,
	}
}

func healthCheckRise() Annotation {
	return Annotation{
		Name:    "health-check-rise",
		Doc:     "How many health checks in a row must succeed before a peer that was ill gets requests again.",
		Values:  numberValues(1, maxCheckCount),
		Default: "2",
		Example: "2",
		Risk:    Low,
		Scope:   Service,
		parse: inNumbers(1, maxCheckCount, func(v *Values, n int) {
			v.check().Rise = uint8(n) //nolint:gosec // at most 100
		}),
		idle: withoutCheck,
	}
}

func healthCheckFall() Annotation {
	return Annotation{
		Name:    "health-check-fall",
		Doc:     "How many health checks in a row must fail before a peer is ill.",
		Values:  numberValues(1, maxCheckCount),
		Default: "3",
		Example: "3",
		Risk:    Low,
		Scope:   Service,
		parse: inNumbers(1, maxCheckCount, func(v *Values, n int) {
			v.check().Fall = uint8(n) //nolint:gosec // at most 100
		}),
		idle: withoutCheck,
	}
}

func healthCheckStatus() Annotation {
	return Annotation{
		Name:    "health-check-status",
		Doc:     "Statuses of answers to a health check that are well.",
		Values:  fmt.Sprintf("a list with spaces or commas of statuses or ranges from 100 to 599, at most %d", maxStatusRanges),
		Default: "200-399",
		Example: "200-299,404",
		Risk:    Low,
		Scope:   Service,
		parse: func(value string, into *Values) error {
			ranges, err := parseStatusRanges(value)
			if err == nil {
				into.check().Statuses = ranges
			}
			return err
		},
		idle: withoutHTTP,
	}
}

func parseStatusRanges(value string) ([]model.StatusRange, error) {
	words := strings.FieldsFunc(value, separates)
	switch {
	case len(words) == 0:
		return nil, errors.New("the list is empty; write statuses such as \"200-299,404\", or remove the annotation")
	case len(words) > maxStatusRanges:
		return nil, fmt.Errorf("the list has %d ranges; write at most %d", len(words), maxStatusRanges)
	}
	var ranges []model.StatusRange
	for _, w := range words {
		first, last, isRange := strings.Cut(w, "-")
		if !isRange {
			last = first
		}
		from, errFrom := parseStatus(first)
		to, errTo := parseStatus(last)
		if errFrom != nil || errTo != nil || from > to {
			return nil, fmt.Errorf("%s is no range of statuses; write numbers from 100 to 599 such as \"200-299\" or \"404\"", shown(w))
		}
		ranges = append(ranges, model.StatusRange{From: from, To: to})
	}
	return ranges, nil
}

func parseStatus(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err == nil && (n < 100 || n > 599) {
		return 0, strconv.ErrRange
	}
	return uint16(n), err //nolint:wrapcheck // the caller says more
}
