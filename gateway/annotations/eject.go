package annotations

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The limits of ejection.
const (
	maxEjectFailures = 1000
	minEjectTime     = 100 * time.Millisecond
	maxEjectTime     = time.Hour
	maxEjectMaxTime  = 24 * time.Hour
	maxEjectStatuses = 32
)

func eject() Annotation {
	return Annotation{
		Name: "eject",
		Doc: "Passive health: a peer that fails again and again gets no requests for a while, which grows with each time. Never more than " +
			"half of the peers are out: beyond that all are used.",
		Values:  onOffValues,
		Default: "the setting upstreams.eject (on)",
		Example: "off",
		Risk:    Low,
		Scope:   Service,
		parse:   onOff(func(v *Values, on bool) { v.balancing().Eject = &on }),
	}
}

func ejectedNever(v *Values) string {
	if e := v.Balancing.Eject; e != nil && !*e {
		return `there is headgate.io/eject: "off"; remove one of the two`
	}
	return ""
}

func ejectFailures() Annotation {
	return Annotation{
		Name:    "eject-failures",
		Doc:     "How many failures in a row eject a peer. Connections that fail and time-outs are failures, and answers of eject-statuses.",
		Values:  numberValues(1, maxEjectFailures),
		Default: "the setting upstreams.ejectFailures (3)",
		Example: "5",
		Risk:    Low,
		Scope:   Service,
		parse: inNumbers(1, maxEjectFailures, func(v *Values, n int) {
			v.balancing().EjectFailures = uint16(n) //nolint:gosec // at most 1000
		}),
		idle: ejectedNever,
	}
}

func ejectStatuses() Annotation {
	return Annotation{
		Name:    "eject-statuses",
		Doc:     "Statuses of answers that count as failures.",
		Values:  fmt.Sprintf("a list with spaces or commas of statuses from 400 to 599, at most %d", maxEjectStatuses),
		Default: "none",
		Example: "502 503",
		Risk:    Low,
		Scope:   Service,
		parse: func(value string, into *Values) error {
			statuses, err := parseStatuses(value)
			if err == nil {
				into.balancing().EjectStatuses = statuses
			}
			return err
		},
		idle: ejectedNever,
	}
}

// parseStatuses gives the statuses sorted, each once.
func parseStatuses(value string) ([]uint16, error) {
	words := strings.FieldsFunc(value, separates)
	var statuses []uint16
	for _, w := range words {
		n, err := strconv.ParseUint(w, 10, 16)
		if err != nil || n < 400 || n > 599 {
			return nil, fmt.Errorf("%s is no status of a failure; write numbers from 400 to 599", shown(w))
		}
		statuses = append(statuses, uint16(n))
	}
	slices.Sort(statuses)
	statuses = slices.Compact(statuses)
	switch {
	case len(statuses) == 0:
		return nil, errors.New("the list is empty; write statuses such as \"502 503\", or remove the annotation")
	case len(statuses) > maxEjectStatuses:
		return nil, fmt.Errorf("the list has %d statuses; write at most %d", len(statuses), maxEjectStatuses)
	}
	return statuses, nil
}

// separates tells whether a byte stands between the items of a list.
func separates(r rune) bool { return r == ' ' || r == ',' || r == '\t' || r == '\n' }

func ejectTime() Annotation {
	return Annotation{
		Name:    "eject-time",
		Doc:     "How long a peer is out the first time. Each further time is twice as long, up to eject-max-time.",
		Values:  timeValues(minEjectTime, maxEjectTime),
		Default: "the setting upstreams.ejectTime (5s)",
		Example: "10s",
		Risk:    Low,
		Scope:   Service,
		parse:   inSeconds(minEjectTime, maxEjectTime, func(v *Values, d time.Duration) { v.balancing().EjectTime = d }),
		idle:    ejectedNever,
	}
}

func ejectMaxTime() Annotation {
	return Annotation{
		Name:    "eject-max-time",
		Doc:     "How long a peer is out at most. Each time is up to a fifth longer, so that peers that failed together do not return together.",
		Values:  timeValues(minEjectTime, maxEjectMaxTime),
		Default: "the setting upstreams.ejectMaxTime (300s), or eject-time where that is longer",
		Example: "120s",
		Risk:    Low,
		Scope:   Service,
		parse:   inSeconds(minEjectTime, maxEjectMaxTime, func(v *Values, d time.Duration) { v.balancing().EjectMaxTime = d }),
		clash: func(v *Values) error {
			if first := v.Balancing.EjectTime; first > v.Balancing.EjectMaxTime {
				return fmt.Errorf("%s is less than eject-time, %s; write at least as much", duration(v.Balancing.EjectMaxTime), duration(first))
			}
			return nil
		},
		idle: ejectedNever,
	}
}
