package main

import (
	"runtime"
	"testing"
)

func TestGrowth(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		live uint64
		want int
	}{
		{0, 800}, {mib, 800}, {4 * mib, 800}, {10 * mib, 320}, {32 * mib, 100}, {64 * mib, 50}, {65 * mib, 50}, {1 << 40, 50},
	} {
		if got := growth(c.live); got != c.want {
			t.Errorf("with %d bytes: %d percent, want %d", c.live, got, c.want)
		}
	}
}

func TestDiffers(t *testing.T) {
	for _, c := range []struct {
		now, before int
		want        bool
	}{
		{50, 50, false}, {55, 50, false}, {56, 50, true}, {300, 320, false}, {280, 320, true}, {800, 50, true}, {50, 800, true},
	} {
		if got := differs(c.now, c.before); got != c.want {
			t.Errorf("%d after %d: %t, want %t", c.now, c.before, got, c.want)
		}
	}
}

func TestLiveBytes(t *testing.T) {
	const much = 64 << 20
	kept := make([]byte, much)
	runtime.GC()
	if got := liveBytes(); got < much {
		t.Errorf("%d bytes live, %d are kept", got, len(kept))
	}
	runtime.KeepAlive(kept)
}
