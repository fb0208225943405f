package annotations

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// inSeconds makes a parse function for a time within low and high.
func inSeconds(low, high time.Duration, set func(*Values, time.Duration)) func(string, *Values) error {
	return func(value string, into *Values) error {
		d, err := parseSeconds(value, low, high)
		if err == nil {
			set(into, d)
		}
		return err
	}
}

// parseSeconds reads what ingress-nginx reads as a time, a number of seconds, and also a number with its
// unit: "500ms", "2m". A sign is refused.
func parseSeconds(value string, low, high time.Duration) (time.Duration, error) {
	d, err := parseTime(value)
	if errors.Is(err, strconv.ErrSyntax) {
		return 0, fmt.Errorf("%s is not a time; write a number of seconds, or a number with its unit such as \"500ms\"", shown(value))
	}
	if err != nil || d < low || d > high {
		return 0, fmt.Errorf("%s is out of range; write a time from %s to %s", shown(value), duration(low), duration(high))
	}
	return d, nil
}

// parseTime gives strconv's errors.
func parseTime(value string) (time.Duration, error) {
	if strings.Trim(value, "0123456789") == "" {
		n, err := strconv.ParseUint(value, 10, 32)
		return time.Duration(n) * time.Second, err //nolint:gosec,wrapcheck // 32 bits of seconds fit; the caller says more
	}
	d, err := time.ParseDuration(value)
	if err != nil || strings.HasPrefix(value, "-") || strings.HasPrefix(value, "+") {
		return 0, strconv.ErrSyntax
	}
	return d, nil
}

// timeValues documents the values of inSeconds.
func timeValues(low, high time.Duration) string {
	return fmt.Sprintf("a number of seconds, or one with its unit, from %s to %s", duration(low), duration(high))
}

// duration writes a time as people do: "24h", not "24h0m0s".
func duration(d time.Duration) string {
	for _, unit := range []struct {
		length time.Duration
		name   string
	}{{time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}} {
		if d >= unit.length && d%unit.length == 0 {
			return strconv.FormatInt(int64(d/unit.length), 10) + unit.name
		}
	}
	return d.String()
}
