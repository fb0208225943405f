package notify

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"headgate/sync/admin"
)

func ready() admin.Status {
	s := admin.Status{Ready: true, Revision: admin.Revision{Desired: 4, Applied: 4}, Counts: admin.Counts{Hosts: 2, Routes: 3}}
	s.Source.Synced, s.Source.Healthy, s.Proxy.Reachable = true, true, true
	return s
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var status atomic.Pointer[admin.Status]
		status.Store(&admin.Status{})
		var sent []string
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- Run(ctx, func() admin.Status { return *status.Load() }, hung, func(m string) error { sent = append(sent, m); return nil })
		}()
		time.Sleep(10 * interval) // the fake clock of synctest
		good := ready()
		status.Store(&good)
		time.Sleep(10 * interval) // likewise
		lost := ready()
		lost.Ready, lost.Source.Healthy, lost.Source.Error = false, false, "refused"
		status.Store(&lost)
		time.Sleep(interval) // likewise
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		want := []string{
			"STATUS=degraded: the source has not been read completely yet",
			"READY=1",
			"STATUS=revision 4: 2 hosts, 3 routes; 0 problems",
			"STATUS=degraded: the source cannot be read since 0001-01-01T00:00:00Z: refused",
			"STOPPING=1",
		}
		if !slices.Equal(sent, want) {
			t.Errorf("sent %q,\nwant %q", sent, want)
		}
	})
}

// hung are the beats of a loop that does nothing.
func hung() uint64 { return 0 }

func TestTheWatchdogIsFedByTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const alive, dead = 5, 20 // intervals
		started := time.Now()
		beats := func() uint64 { return min(uint64(time.Since(started)/interval), alive) }
		fed := 0
		ctx, cancel := context.WithTimeout(t.Context(), (alive+dead)*interval)
		defer cancel()
		send := func(m string) error {
			if m == "WATCHDOG=1" {
				fed++
			}
			return nil
		}
		if err := Run(ctx, ready, beats, send); err != nil {
			t.Error(err)
		}
		if fed != alive {
			t.Errorf("fed %d times, want %d: once an interval, and never once the loop hangs", fed, alive)
		}
	})
}

func TestTheLastKnownGoodStateIsReady(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var sent []string
	status := func() admin.Status { return admin.Status{LastKnownGood: true} }
	if err := Run(ctx, status, hung, func(m string) error { sent = append(sent, m); return nil }); err != nil || !slices.Contains(sent, "READY=1") {
		t.Errorf("sent %q, %v", sent, err)
	}
}

func TestRunEndsWithTheListener(t *testing.T) {
	gone := errors.New("gone")
	if err := Run(t.Context(), ready, hung, func(string) error { return gone }); !errors.Is(err, gone) {
		t.Errorf("error %v", err)
	}
}

func TestSend(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := Send("READY=1"); err != nil {
		t.Errorf("without a listener: %v", err)
	}
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	t.Setenv("NOTIFY_SOCKET", path)
	if err := Send("READY=1"); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 64)
	n, err := l.Read(buffer)
	if err != nil || string(buffer[:n]) != "READY=1" {
		t.Errorf("received %q, %v", buffer[:n], err)
	}
}
