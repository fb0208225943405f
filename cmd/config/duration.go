package config

import (
	"fmt"
	"time"
)

// Duration is a time.Duration that is always written with its unit: "20ms", "5m", "31536000s".
type Duration time.Duration

// ParseDuration reads a Duration in the syntax of time.ParseDuration. Negative ones are refused.
func ParseDuration(text string) (Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not a duration: write a number and ms, s, m or h, such as 20ms", text)
	}
	return Duration(d), nil
}

// String gives whole seconds as "31536000s", because "8760h0m0s" is not what anybody writes.
func (d Duration) String() string {
	v := time.Duration(d)
	if v >= time.Second && v%time.Second == 0 {
		return fmt.Sprintf("%ds", int64(v/time.Second))
	}
	return v.String()
}

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }
