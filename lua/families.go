package lua

import (
	"regexp"
	"strings"
)

// Family is a family of metrics that the proxy tells (GET /v1/metrics): headgate/families.lua is their list.
type Family struct {
	Name   string
	Kind   string // "counter", "gauge" or "histogram"
	Labels string // "host, ingress"; "" for a single series
	Help   string
}

var (
	familyEntry = regexp.MustCompile(`\{ "([^"]+)", "([^"]+)", "([^"]*)",\s+((?:"[^"]*"(?:\s*\.\.\s*)?)+) \}`)
	familyPiece = regexp.MustCompile(`"([^"]*)"`)
)

// Families reads the list of the proxy's metrics.
func Families() []Family {
	source, err := files.ReadFile("headgate/families.lua")
	if err != nil {
		panic("lua: reading an embedded file: " + err.Error())
	}
	var all []Family
	for _, m := range familyEntry.FindAllStringSubmatch(string(source), -1) {
		var help strings.Builder
		for _, piece := range familyPiece.FindAllStringSubmatch(m[4], -1) {
			help.WriteString(piece[1])
		}
		all = append(all, Family{Name: m[1], Kind: m[2], Labels: m[3], Help: help.String()})
	}
	return all
}
