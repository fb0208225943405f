package annotations

import (
	"fmt"
	"strconv"
)

// parseBool reads what ingress-nginx reads as a boolean: 1, t, true, 0, f, false and their capitals.
func parseBool(value string) (bool, error) {
	b, err := strconv.ParseBool(value)
	if err != nil {
		return false, fmt.Errorf("%s is not a boolean; write \"true\" or \"false\"", shown(value))
	}
	return b, nil
}

// inBooleans makes a parse function for a boolean.
func inBooleans(set func(*Values, bool)) func(string, *Values) error {
	return func(value string, into *Values) error {
		on, err := parseBool(value)
		if err == nil {
			set(into, on)
		}
		return err
	}
}

const boolValues = `"true" or "false"`
