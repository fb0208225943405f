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
