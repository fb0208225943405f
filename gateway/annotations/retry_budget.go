package annotations

import (
	"fmt"
	"strconv"
	"strings"

	"headgate/gateway/model"
)

func retryBudget() Annotation {
	return Annotation{
		Name: "retry-budget",
		Doc: "How many retries there may be for each hundred requests, so that retries cannot multiply an overload. A few a second " +
			"are always allowed.",
		Values:  `a percentage from "1%" to "100%", or "off" for no bound`,
		Default: "the setting upstreams.retryBudget (20%)",
		Example: "10%",
		Risk:    Low,
		Scope:   Service,
		parse: func(value string, into *Values) error {
			budget, err := ParseRetryBudget(value)
			if err == nil {
				into.balancing().RetryBudget = budget
			}
			return err
		},
	}
}

// ParseRetryBudget reads a percentage from 1 to 100, with or without "%", or "off". It never gives the zero value.
func ParseRetryBudget(value string) (model.RetryBudget, error) {
	if value == "off" {
		return model.RetryBudget{Unlimited: true}, nil
	}
	n, err := strconv.ParseUint(strings.TrimSuffix(value, "%"), 10, 8)
	if err != nil || n < 1 || n > 100 {
		return model.RetryBudget{}, fmt.Errorf("%s is no budget; write a percentage from \"1%%\" to \"100%%\", or \"off\"", shown(value))
	}
	return model.RetryBudget{Percent: uint8(n)}, nil
}
