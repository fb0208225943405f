package annotations

import (
	"fmt"
	"strconv"
)

// inNumbers makes a parse function for a whole number within low and high.
func inNumbers(low, high int, set func(*Values, int)) func(string, *Values) error {
	return func(value string, into *Values) error {
		n, err := strconv.Atoi(value)
		if err != nil {
			return fmt.Errorf("%s is not a whole number; write one from %d to %d", shown(value), low, high)
		}
		if n < low || n > high {
			return fmt.Errorf("%s is out of range; write a whole number from %d to %d", shown(value), low, high)
		}
		set(into, n)
		return nil
	}
}

// numberValues documents the values of inNumbers.
func numberValues(low, high int) string {
	return fmt.Sprintf("a whole number from %d to %d", low, high)
}
