package annotations

import (
	"errors"
	"fmt"
	"strconv"
)

// inNumbers makes a parse function for a whole number within low and high, both not below 0. A sign is refused: "-0"
// means nothing that "0" does not.
func inNumbers(low, high int, set func(*Values, int)) func(string, *Values) error {
	return func(value string, into *Values) error {
		n, err := strconv.ParseUint(value, 10, strconv.IntSize-1)
		switch {
		case errors.Is(err, strconv.ErrRange):
		case err != nil:
			return fmt.Errorf("%s is not a whole number; write one from %d to %d", shown(value), low, high)
		case n >= uint64(low) && n <= uint64(high): //nolint:gosec // not below 0
			set(into, int(n)) //nolint:gosec // at most high
			return nil
		}
		return fmt.Errorf("%s is out of range; write a whole number from %d to %d", shown(value), low, high)
	}
}

// numberValues documents the values of inNumbers.
func numberValues(low, high int) string {
	return fmt.Sprintf("a whole number from %d to %d", low, high)
}
