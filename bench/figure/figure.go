// Package figure turns measured values into what a benchmark prints: minimum, median and maximum, percentiles,
// the heading with the command and the machine, and the last line, RESULT and a JSON object. It is pure.
package figure

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Spread is how values lie.
type Spread struct {
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
}

// SpreadOf sorts a copy. Of an even number of values the median is the mean of the middle two; no values give
// the zero Spread.
func SpreadOf(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	s := slices.Sorted(slices.Values(values))
	n := len(s)
	return Spread{Min: s[0], Median: (s[(n-1)/2] + s[n/2]) / 2, Max: s[n-1]}
}

// Rounded keeps some digits behind the point.
func (s Spread) Rounded(digits int) Spread {
	return Spread{Min: Round(s.Min, digits), Median: Round(s.Median, digits), Max: Round(s.Max, digits)}
}

// Round keeps some digits behind the point.
func Round(value float64, digits int) float64 {
	unit := math.Pow(10, float64(digits))
	return math.Round(value*unit) / unit
}

// Percentile is the smallest value that at least q (0–1) of the values do not exceed; 0 without values.
func Percentile[T cmp.Ordered](values []T, q float64) T {
	var zero T
	if len(values) == 0 {
		return zero
	}
	s := slices.Sorted(slices.Values(values))
	return s[max(0, int(math.Ceil(q*float64(len(s))))-1)]
}

// Milliseconds gives a duration as a number with two digits behind the point.
func Milliseconds(d time.Duration) float64 { return Round(float64(d)/float64(time.Millisecond), 2) }

// Heading names what is printed below it.
type Heading struct {
	Command, Machine, Versions string
	Notes                      []string
}

// Write prints the heading.
func (h Heading) Write(w io.Writer) error {
	lines := []string{"command   " + h.Command, "machine   " + h.Machine, "versions  " + h.Versions}
	for _, note := range h.Notes {
		lines = append(lines, "          "+note)
	}
	_, err := io.WriteString(w, strings.Join(lines, "\n")+"\n\n")
	return err //nolint:wrapcheck // the writer's own words
}

// Table is rows below a head, cells filled up with spaces.
type Table struct{ rows [][]string }

// Row adds one; the first is the head.
func (t *Table) Row(cells ...string) { t.rows = append(t.rows, cells) }

// Write prints the table.
func (t *Table) Write(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range t.rows {
		if _, err := fmt.Fprintln(tw, strings.Join(row, "\t")); err != nil {
			return err //nolint:wrapcheck // the writer's own words
		}
	}
	return tw.Flush() //nolint:wrapcheck // the writer's own words
}

// Result prints the last line.
func Result(w io.Writer, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode the result: %w", err)
	}
	_, err = fmt.Fprintf(w, "RESULT %s\n", text)
	return err //nolint:wrapcheck // the writer's own words
}
