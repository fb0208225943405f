package config

import (
	"strings"

	"headgate/gateway/spelling"
)

func keyNames() []string {
	names := make([]string, 0, len(Keys()))
	for _, k := range Keys() {
		names = append(names, k.Name)
	}
	return names
}

// hint gives ": did you mean …?" when one of the candidates is near, else "".
func hint(word string, candidates []string) string {
	best, distance := "", len(word)/3+1
	for _, c := range candidates {
		if strings.EqualFold(c, word) || strings.EqualFold(lastSegment(c), lastSegment(word)) {
			return ": write " + c
		}
		if d := spelling.Distance(strings.ToLower(word), strings.ToLower(c)); d <= distance && (best == "" || d < distance) {
			best, distance = c, d
		}
	}
	if best == "" {
		return ": 'headgate run --help' lists the keys"
	}
	return ": did you mean " + best + "?"
}

func lastSegment(key string) string { return key[strings.LastIndexByte(key, '.')+1:] }
