// Package spelling measures how far apart two words are, for messages that guess what was meant. It is pure.
package spelling

// Distance is the least number of bytes to insert, drop or change that turn a into b (Levenshtein). Its time grows
// with the product of the lengths: callers bound what outsiders wrote.
func Distance(a, b string) int {
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
