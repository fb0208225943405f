package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes, written "512KiB", "32MiB", "2GiB", "100B" or "0".
type Size int64

// The units of a Size.
const (
	Byte Size = 1
	KiB  Size = 1 << 10
	MiB  Size = 1 << 20
	GiB  Size = 1 << 30
)

// sizeUnits are tried in this order: "B" is the end of the others.
func sizeUnits() []struct {
	suffix string
	unit   Size
} {
	return []struct {
		suffix string
		unit   Size
	}{{"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}, {"B", Byte}}
}

// ParseSize reads a Size. Only whole numbers and binary units are read, so that "1m" of nginx and "1M" of
// Kubernetes, which differ, are not guessed at.
func ParseSize(text string) (Size, error) {
	if text == "0" {
		return 0, nil
	}
	for _, u := range sizeUnits() {
		digits, found := strings.CutSuffix(text, u.suffix)
		if !found {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 63)
		if err != nil || n > math.MaxInt64/uint64(u.unit) { //nolint:gosec // units are positive
			break
		}
		return Size(n) * u.unit, nil //nolint:gosec // n fits 63 bits and was compared with the largest product
	}
	return 0, fmt.Errorf("%q is not a size: write a whole number and KiB, MiB or GiB, such as 32MiB", text)
}

// String gives the size in the largest unit that divides it.
func (s Size) String() string {
	if s == 0 {
		return "0"
	}
	for _, u := range sizeUnits() {
		if s%u.unit == 0 {
			return strconv.FormatInt(int64(s/u.unit), 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(s), 10) + "B"
}

// MarshalText implements encoding.TextMarshaler.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
