package main

import (
	"testing"
	"time"
)

func TestKept(t *testing.T) {
	b := &bed{plan: plan{stretch: 10 * time.Second}}
	for took, want := range map[time.Duration]bool{9950 * time.Millisecond: true, 11 * time.Second: true, 11*time.Second + 1: false, time.Minute: false} {
		if err := b.kept(200, took); (err == nil) != want {
			t.Errorf("200 changes in %s: error %v, want it kept: %t", took, err, want)
		}
	}
}
