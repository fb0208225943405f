package vip

import (
	"context"
	"fmt"
	"io"
	"time"
)

// Progress shows how many connections are still open. The zero value but for W is ready.
type Progress struct {
	W io.Writer
	// Overwrite tells that W is a terminal: one line is written over and over. Elsewhere each change is a line.
	Overwrite bool

	last int // what was shown last; 0: nothing
}

const (
	// countPeriod is the time between two counts.
	countPeriod = 500 * time.Millisecond
	// eraseLine is ECMA-48: to the begin of the line, and erase it.
	eraseLine = "\r\x1b[K"
)

// Wait counts again and again until nothing is left, and shows it. It gives what is left when ctx ends, and ctx's end is no
// error.
func (p *Progress) Wait(ctx context.Context, count func() (int, error)) (left int, err error) {
	ticker := time.NewTicker(countPeriod)
	defer ticker.Stop()
	for {
		if left, err = count(); err != nil || left == 0 {
			return left, err
		}
		p.show(left)
		select {
		case <-ctx.Done():
			return left, nil
		case <-ticker.C:
		}
	}
}

func (p *Progress) show(open int) {
	if open == p.last {
		return
	}
	p.last = open
	begin, end := "", "\n"
	if p.Overwrite {
		begin, end = eraseLine, ""
	}
	_, _ = fmt.Fprintf(p.W, "%s%s to the VIPs open%s", begin, connections(open), end) // End tells of a broken W
}

func connections(n int) string {
	if n == 1 {
		return "1 connection"
	}
	return fmt.Sprintf("%d connections", n)
}

// End writes the last line.
func (p *Progress) End(format string, args ...any) error {
	begin := ""
	if p.Overwrite && p.last > 0 {
		begin = eraseLine
	}
	if _, err := fmt.Fprintf(p.W, begin+format+"\n", args...); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
