package vip

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// counts gives one number after the other, the last for ever.
func counts(list ...int) func() (int, error) {
	n := 0
	return func() (int, error) {
		n++
		return list[min(n, len(list))-1], nil
	}
}

func TestProgressWaitsUntilNothingIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		start := time.Now()
		p := Progress{W: &out}
		left, err := p.Wait(t.Context(), counts(3, 3, 1, 0))
		if err := errors.Join(err, p.End("no connection is open")); err != nil || left != 0 {
			t.Fatal(left, err)
		}
		if took := time.Since(start); took != 3*countPeriod {
			t.Errorf("it took %s", took)
		}
		if want := "3 connections to the VIPs open\n1 connection to the VIPs open\nno connection is open\n"; out.String() != want {
			t.Errorf("%q", out.String())
		}
	})
}

func TestProgressEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		p := Progress{W: &out, Overwrite: true}
		left, err := p.Wait(ctx, counts(9, 7))
		if err := errors.Join(err, p.End("%d left", left)); err != nil || left != 7 || time.Since(start) != time.Minute {
			t.Errorf("%d, %v after %s", left, err, time.Since(start))
		}
		if got := out.String(); strings.Count(got, "\n") != 1 || !strings.HasSuffix(got, eraseLine+"7 left\n") {
			t.Errorf("%q", got)
		}
	})
	broken := errors.New("no /proc")
	p := Progress{W: &bytes.Buffer{}}
	if _, err := p.Wait(t.Context(), func() (int, error) { return 0, broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
}
