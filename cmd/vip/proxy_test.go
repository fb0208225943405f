package vip

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"headgate/sync/luapush"
	"headgate/vip/speaker"
)

// fakeProxy answers after a while, or never.
type fakeProxy struct {
	state luapush.State
	err   error
	after time.Duration // < 0: never
}

func (f *fakeProxy) ask(ctx context.Context) (luapush.State, error) {
	if f.after < 0 {
		<-ctx.Done()
		return luapush.State{}, ctx.Err()
	}
	select {
	case <-time.After(f.after):
		return f.state, f.err
	case <-ctx.Done():
		return luapush.State{}, ctx.Err()
	}
}

func serving() luapush.State {
	return luapush.State{Revision: 7, Workers: []luapush.Worker{{PID: 42}}}
}

func check(f *fakeProxy, look condition) *proxyCheck {
	return &proxyCheck{
		log: slog.New(slog.DiscardHandler), state: f.ask, close: func() {}, timeout: 100 * time.Millisecond,
		look: func([]int) condition { return look }, veto: func() string { return "" },
	}
}

func TestProxyHealth(t *testing.T) {
	for name, c := range map[string]struct {
		proxy fakeProxy
		look  condition
		want  speaker.Health
		took  time.Duration
	}{
		"serves":           {fakeProxy{state: serving()}, hung, speaker.Health{Ready: true, Reason: "the proxy serves a complete revision"}, 0},
		"slow":             {fakeProxy{state: serving(), after: 90 * time.Millisecond}, hung, speaker.Health{Ready: true, Reason: "the proxy serves a complete revision"}, 90 * time.Millisecond},
		"hung":             {fakeProxy{after: -1}, hung, speaker.Health{Why: speaker.Silent, Reason: "the proxy says nothing for 100ms"}, 100 * time.Millisecond},
		"starved":          {fakeProxy{state: serving(), after: 350 * time.Millisecond}, starved, speaker.Health{Ready: true, Reason: "the proxy serves a complete revision"}, 350 * time.Millisecond},
		"starved too long": {fakeProxy{after: -1}, starved, speaker.Health{Why: speaker.Silent, Reason: "the proxy says nothing for 100ms"}, time.Second},
		"dead":             {fakeProxy{err: fmt.Errorf("dial: %w", luapush.ErrUnreachable)}, hung, speaker.Health{Why: speaker.Dead, Reason: "nobody answers on the proxy's control socket"}, 0},
		"no revision":      {fakeProxy{state: luapush.State{Workers: []luapush.Worker{{PID: 1}}}}, hung, speaker.Health{Why: speaker.Dead, Reason: "the proxy has no complete revision yet"}, 0},
		"no listener":      {fakeProxy{state: luapush.State{Revision: 1, Workers: []luapush.Worker{{PID: 1}}, Listeners: new(int)}}, hung, speaker.Health{Why: speaker.Dead, Reason: "the proxy has no listener yet: the configuration with the listeners was not loaded"}, 0},
		"no worker":        {fakeProxy{state: luapush.State{Revision: 1}}, hung, speaker.Health{Why: speaker.Dead, Reason: "no worker of the proxy reports"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				got := check(&c.proxy, c.look).ask(t.Context())
				if got != c.want || time.Since(begin) != c.took {
					t.Errorf("%+v after %s, want %+v after %s", got, time.Since(begin), c.want, c.took)
				}
			})
		})
	}
}

// Only changes are told, and a host that must not serve is not ready.
func TestProxyRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		within := func(second int) bool { return int(time.Since(begin)/time.Second) == second }
		p := check(nil, hung)
		p.state = func(ctx context.Context) (luapush.State, error) {
			proxy := fakeProxy{state: serving()}
			if within(2) {
				proxy.after = -1
			}
			return proxy.ask(ctx)
		}
		p.veto = func() string {
			if within(1) {
				return "another host has this name"
			}
			return ""
		}
		ctx, cancel := context.WithCancel(t.Context())
		var told []string
		ended := make(chan error)
		go func() {
			ended <- p.run(ctx, func(h speaker.Health) { told = append(told, fmt.Sprint(h.Ready, " ", h.Reason)) })
		}()
		time.Sleep(4 * time.Second) // of the bubble
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		want := []string{
			"true the proxy serves a complete revision", "false another host has this name",
			"true the proxy serves a complete revision", "false the proxy says nothing for 100ms", "true the proxy serves a complete revision",
		}
		if got := told; !slices.Equal(got, want) && !slices.Equal(got, append(want[:2:2], want[3:]...)) {
			t.Errorf("told %q", got)
		}
	})
}

// A worker that was stopped is hung, whatever else happens on the host; one that runs is starved when it does not answer.
func TestLookAtProcesses(t *testing.T) {
	spin := exec.Command("/bin/sh", "-c", "while :; do :; done")
	if err := spin.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = spin.Process.Kill()
		_ = spin.Wait()
	}()
	is := func(want byte) bool { return stateOf(spin.Process.Pid) == want }
	eventually(t, "it runs", func() bool { return is('R') && lookAt([]int{spin.Process.Pid}) == starved })
	if err := spin.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is stopped", func() bool { return is('T') })
	if got := lookAt([]int{spin.Process.Pid}); got != hung {
		t.Error("a stopped worker counts as starved")
	}
	if got := lookAt(nil); got != hung {
		t.Error("no worker counts as starved")
	}
	if stateOf(os.Getpid()) == 0 || wanting() == 0 {
		t.Error("the states of this host cannot be read")
	}
}

func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !so() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 10 s", what)
		}
		time.Sleep(time.Millisecond) // nothing tells that it is so
	}
}
