package figure_test

import (
	"strings"
	"testing"
	"time"

	"headgate/bench/figure"
)

func TestSpreadOf(t *testing.T) {
	for _, c := range []struct {
		name   string
		values []float64
		want   figure.Spread
	}{
		{"none", nil, figure.Spread{}},
		{"one", []float64{2}, figure.Spread{Min: 2, Median: 2, Max: 2}},
		{"odd, unsorted", []float64{3, 1, 2}, figure.Spread{Min: 1, Median: 2, Max: 3}},
		{"even", []float64{4, 1, 2, 3}, figure.Spread{Min: 1, Median: 2.5, Max: 4}},
	} {
		if got := figure.SpreadOf(c.values); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	values := []float64{3, 1, 2}
	if figure.SpreadOf(values); values[0] != 3 {
		t.Error("the values were sorted in place")
	}
}

func TestPercentile(t *testing.T) {
	values := make([]int, 100)
	for i := range values {
		values[i] = 100 - i
	}
	for q, want := range map[float64]int{0: 1, 0.5: 50, 0.99: 99, 0.991: 100, 1: 100} {
		if got := figure.Percentile(values, q); got != want {
			t.Errorf("of 1 to 100, %v: %d, want %d", q, got, want)
		}
	}
	if got := figure.Percentile([]int(nil), 0.5); got != 0 {
		t.Errorf("of none: %d, want 0", got)
	}
	if got := figure.Percentile([]int{7}, 0.99); got != 7 {
		t.Errorf("of one: %d, want 7", got)
	}
}

func TestNumbers(t *testing.T) {
	if got := figure.Milliseconds(1234567 * time.Nanosecond); got != 1.23 {
		t.Errorf("milliseconds %v, want 1.23", got)
	}
	if got := (figure.Spread{Min: 0.99949, Median: 1.0005, Max: 2}).Rounded(3); got != (figure.Spread{Min: 0.999, Median: 1.001, Max: 2}) {
		t.Errorf("rounded %v", got)
	}
}

func TestOutput(t *testing.T) {
	var b strings.Builder
	heading := figure.Heading{Command: "make bench-x", Machine: "a machine", Versions: "v1", Notes: []string{"a note"}}
	var table figure.Table
	table.Row("what", "median")
	table.Row("a longer name", "1.000")
	for _, err := range []error{heading.Write(&b), table.Write(&b), figure.Result(&b, map[string]any{"x": nil})} {
		if err != nil {
			t.Fatal(err)
		}
	}
	const want = `command   make bench-x
machine   a machine
versions  v1
          a note

what           median
a longer name  1.000
RESULT {"x":null}
`
	if b.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", b.String(), want)
	}
}
