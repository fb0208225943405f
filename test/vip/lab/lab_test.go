package lab

import (
	"testing"
	"time"
)

func at(ms int) time.Time { return time.Unix(0, 0).Add(time.Duration(ms) * time.Millisecond) }

func TestAssess(t *testing.T) {
	for _, c := range []struct {
		name     string
		attempts []Attempt
		want     Damage
	}{
		{"nothing failed", []Attempt{{at(0), at(1), ""}}, Damage{Attempts: 1}},
		{"a hole", []Attempt{{at(0), at(1), ""}, {at(1), at(301), noAnswer}, {at(2), at(302), noConnection}, {at(3), at(290), ""}, {at(4), at(5), ""}},
			Damage{Attempts: 5, Failed: 2, Outage: 4 * time.Millisecond, First: noAnswer}},
		{"the first to end was not the first to begin", []Attempt{{at(5), at(6), "refused"}, {at(2), at(302), "lost"}, {at(7), at(8), ""}},
			Damage{Attempts: 3, Failed: 2, Refused: 2, Outage: 6 * time.Millisecond, First: "lost"}},
		{"an answer between two failures", []Attempt{{at(1), at(2), "x"}, {at(3), at(4), ""}, {at(5), at(6), "x"}, {at(7), at(9), ""}},
			Damage{Attempts: 4, Failed: 2, Refused: 2, Outage: 8 * time.Millisecond, First: "x"}},
		{"for good", []Attempt{{at(0), at(1), ""}, {at(1), at(301), "lost"}},
			Damage{Attempts: 2, Failed: 1, Refused: 1, Outage: 300 * time.Millisecond, Lasting: true, First: "lost"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Assess(c.attempts); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}
