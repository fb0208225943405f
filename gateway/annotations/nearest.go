package annotations

// nearest gives the known name that differs least from name, or "" when none is near. Ties go to the
// name that sorts first.
func (r *Reader) nearest(name string) string {
	if len(name) > 2*maxNameBytes {
		return ""
	}
	best, bestDistance := "", 1+min(3, len(name)/3)
	consider := func(candidate string) {
		d := editDistance(name, candidate)
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

// editDistance is the least number of bytes to insert, drop or change (Levenshtein).
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
