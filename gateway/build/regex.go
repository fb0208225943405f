package build

import (
	"fmt"
	"maps"
	"slices"
)

// maxIdleVerdicts is how many verdicts on regexes that nobody writes any more are kept before they
// are swept.
const maxIdleVerdicts = 10_000

// regexProblems tells which regexes of the version the proxy has rejected.
func (b *Builder) regexProblems(in *ingress) []Problem {
	if len(in.patterns) == 0 {
		return nil
	}
	var problems []Problem
	for i := range in.hosts {
		for j := range in.hosts[i].paths {
			p := &in.hosts[i].paths[j]
			if verdict := b.memory.verdicts[p.value]; p.regex && verdict != "" {
				problems = append(problems, in.problem(p.field()+".path", InvalidRegex, fmt.Sprintf(
					"the regular expression %s is not accepted: %s; write a PCRE", shown(p.value), verdict)))
			}
		}
	}
	return problems
}

// heldBack tells why a path cannot be matched as the regex that its Ingress wants, or "".
func (b *Builder) heldBack(p *path) string {
	if !p.regex || plainPattern(p.value) {
		return ""
	}
	switch verdict, known := b.memory.verdicts[p.value]; {
	case !known:
		return "the proxy has not yet checked the regular expression of the path"
	case verdict != "":
		return "the regular expression of the path is not accepted: " + verdict
	}
	return ""
}

// unknownRegexes lists the patterns of our Ingresses without a verdict, sorted.
func (b *Builder) unknownRegexes() []string {
	unknown := map[string]struct{}{}
	b.eachPattern(func(pattern string) {
		if _, known := b.memory.verdicts[pattern]; !known {
			unknown[pattern] = struct{}{}
		}
	})
	return slices.Sorted(maps.Keys(unknown))
}

// eachPattern visits the regexes of the versions that are served or wait to be.
func (b *Builder) eachPattern(visit func(string)) {
	for e := range b.inputs.withPatterns {
		if !e.ours {
			continue
		}
		for _, pattern := range e.parsed.patterns {
			visit(pattern)
		}
		if e.served != nil && e.served != e.parsed {
			for _, pattern := range e.served.patterns {
				visit(pattern)
			}
		}
	}
}

// forget sweeps verdicts that nobody needs once there are many.
func (b *Builder) forget() {
	if len(b.memory.verdicts) <= maxIdleVerdicts {
		return
	}
	used := map[string]struct{}{}
	b.eachPattern(func(pattern string) { used[pattern] = struct{}{} })
	if len(b.memory.verdicts) <= 2*len(used)+maxIdleVerdicts {
		return
	}
	maps.DeleteFunc(b.memory.verdicts, func(pattern, _ string) bool {
		_, keep := used[pattern]
		return !keep
	})
}
