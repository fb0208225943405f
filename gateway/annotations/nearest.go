package annotations

import "headgate/gateway/spelling"

// nearest gives the known name that differs least from name, or "" when none is near. Ties go to the
// name that sorts first.
func (r *Reader) nearest(name string) string {
	if len(name) > 2*maxNameBytes {
		return ""
	}
	best, bestDistance := "", 1+min(3, len(name)/3)
	consider := func(candidate string) {
		d := spelling.Distance(name, candidate)
		if d < bestDistance || (d == bestDistance && best != "" && candidate < best) {
			best, bestDistance = candidate, d
		}
	}
	for candidate := range r.known {
		consider(candidate)
	}
	for candidate := range r.later {
		consider(candidate)
	}
	return best
}

// maxNameBytes is the longest name part that Kubernetes accepts in an annotation.
const maxNameBytes = 63
