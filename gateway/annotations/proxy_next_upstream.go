package annotations

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"headgate/gateway/model"
)

// UnlimitedTries is how many attempts "0" of proxy-next-upstream-tries allows: more than any upstream has peers
// that are worth to be asked.
const UnlimitedTries = 1000

const (
	maxTries      = 100
	maxRetryTotal = time.Hour
)

// condition is a word of proxy_next_upstream.
type condition struct {
	word string
	on   model.RetryOn
}

func conditions() []condition {
	return []condition{
		{"error", model.RetryError}, {"timeout", model.RetryTimeout}, {"invalid_header", model.RetryInvalidHeader},
		{"http_500", model.Retry500}, {"http_502", model.Retry502}, {"http_503", model.Retry503}, {"http_504", model.Retry504},
		{"http_403", model.Retry403}, {"http_404", model.Retry404}, {"http_429", model.Retry429},
	}
}

// nonIdempotent is the word that allows a retry of POST, LOCK and PATCH.
const nonIdempotent = "non_idempotent"

func proxyNextUpstream() Annotation {
	var words []string
	for _, c := range conditions() {
		words = append(words, c.word)
	}
	return Annotation{
		Name: "proxy-next-upstream",
		Doc: "When a request is sent to another peer: only before the first byte of an answer went to the client, and within the retry budget. " +
			"POST, LOCK and PATCH are sent again only when nothing of them was sent, unless non_idempotent stands in the list.",
		Values:  fmt.Sprintf("a list with spaces of %s and %s; or \"off\" alone", strings.Join(words, ", "), nonIdempotent),
		Default: "the setting upstreams.nextUpstream (error timeout)",
		Example: "error timeout http_502",
		Risk:    Medium,
		Scope:   Paths,
		parse: func(value string, into *Values) error {
			on, also, err := ParseNextUpstream(value)
			if err == nil {
				into.proxying().RetryOn, into.proxying().NonIdempotent = on, also
			}
			return err
		},
	}
}

// ParseNextUpstream reads a value of nginx's proxy_next_upstream. The second value tells whether requests of
// methods that are not idempotent may be sent again.
func ParseNextUpstream(value string) (model.RetryOn, bool, error) {
	var on model.RetryOn
	also := false
	words := strings.Fields(value)
	for _, word := range words {
		bit := conditionOf(word)
		switch {
		case word == nonIdempotent:
			also = true
		case word == "off" && len(words) == 1:
			return model.RetryNever, false, nil
		case word == "off":
			return 0, false, errors.New(`"off" stands beside other conditions; write it alone, or leave it out`)
		case bit == 0:
			return 0, false, fmt.Errorf("%s is no condition; write words such as \"error timeout http_502\", or \"off\"", shown(word))
		}
		on |= bit
	}
	switch {
	case len(words) == 0:
		return 0, false, errors.New(`the value is empty; write conditions such as "error timeout", or "off"`)
	case on == 0:
		return 0, false, fmt.Errorf("%q alone says not when; write conditions such as \"error timeout %s\"", nonIdempotent, nonIdempotent)
	}
	return on, also, nil
}

func conditionOf(word string) model.RetryOn {
	for _, c := range conditions() {
		if c.word == word {
			return c.on
		}
	}
	return 0
}

func proxyNextUpstreamTries() Annotation {
	return Annotation{
		Name:    "proxy-next-upstream-tries",
		Doc:     "How many peers a request is sent to at most, the first included; 0 is as many as there are.",
		Values:  numberValues(0, maxTries),
		Default: "the setting upstreams.nextUpstreamTries (3)",
		Example: "2",
		Risk:    Low,
		Scope:   Paths,
		parse: inNumbers(0, maxTries, func(v *Values, n int) {
			if n == 0 {
				n = UnlimitedTries
			}
			v.proxying().Tries = n
		}),
	}
}

func proxyNextUpstreamTimeout() Annotation {
	return Annotation{
		Name:    "proxy-next-upstream-timeout",
		Doc:     "How long after its start a request may still be sent to another peer; 0 is no bound.",
		Values:  timeValues(0, maxRetryTotal),
		Default: "the setting upstreams.nextUpstreamTimeout (0)",
		Example: "10",
		Risk:    Low,
		Scope:   Paths,
		parse:   inSeconds(0, maxRetryTotal, func(v *Values, d time.Duration) { v.proxying().RetryTotal = &d }),
	}
}
