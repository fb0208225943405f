package annotations

import (
	"errors"
	"fmt"
	"math"
	"strconv"
)

// The units of sizes.
const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

// inSizes makes a parse function for a size within low and high, in bytes.
func inSizes(low, high int64, set func(*Values, int64)) func(string, *Values) error {
	return func(value string, into *Values) error {
		n, err := parseSize(value)
		if errors.Is(err, strconv.ErrSyntax) {
			return fmt.Errorf("%s is not a size; write a whole number of bytes, or one with k, m or g such as \"8m\"", shown(value))
		}
		if err != nil || n < low || n > high {
			return fmt.Errorf("%s is out of range; write a size from %s to %s", shown(value), size(low), size(high))
		}
		set(into, n)
		return nil
	}
}

// parseSize reads a size as nginx does: bytes, or a number with k, m or g in either case. It gives strconv's errors.
func parseSize(value string) (int64, error) {
	digits, unit := value, int64(1)
	if value != "" {
		switch value[len(value)-1] {
		case 'k', 'K':
			unit = kib
		case 'm', 'M':
			unit = mib
		case 'g', 'G':
			unit = gib
		}
		if unit > 1 {
			digits = value[:len(value)-1]
		}
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil {
		return 0, err //nolint:wrapcheck // the caller says more
	}
	if int64(n) > math.MaxInt64/unit { //nolint:gosec // 63 bits
		return 0, strconv.ErrRange
	}
	return int64(n) * unit, nil //nolint:gosec // 63 bits
}

// sizeValues documents the values of inSizes.
func sizeValues(low, high int64) string {
	return fmt.Sprintf("a size in bytes, or with k, m or g, from %s to %s", size(low), size(high))
}

// size writes a size as nginx reads it.
func size(n int64) string {
	for _, unit := range []struct {
		length int64
		name   string
	}{{gib, "g"}, {mib, "m"}, {kib, "k"}} {
		if n >= unit.length && n%unit.length == 0 {
			return strconv.FormatInt(n/unit.length, 10) + unit.name
		}
	}
	return strconv.FormatInt(n, 10)
}

// roundUp gives how many units hold n bytes.
func roundUp(n, unit int64) int64 { return (n + unit - 1) / unit }
