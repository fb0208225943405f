package addr_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"headgate/test/netns"
	"headgate/vip/addr"
)

// childState tells the test's own binary to be the process that is killed; it holds the state file.
const childState = "HEADGATE_TEST_ADDR_STATE"

func TestMain(m *testing.M) {
	if state := os.Getenv(childState); state != "" {
		fmt.Println(child(state)) // it only returns with an error
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// child adds, refreshes and removes many addresses until it is killed.
func child(state string) error {
	set, err := addr.New(addr.Config{StateFile: state, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	fmt.Println(netns.ChildRuns)
	var all []addr.Address
	for v4, v6, i := vip4, vip6, 0; i < 20; i++ {
		v4, v6 = v4.Next(), v6.Next()
		all = append(all, on(v4), on(v6))
	}
	for {
		for _, some := range [][]addr.Address{all, all, all[:10], nil, all[5:30], all[20:]} {
			if err := set.Apply(some); err != nil {
				return err
			}
		}
	}
}

// Killed at any moment it leaves nothing that the state file does not name, and Cleanup or the next process
// finds all of it.
func TestKilledAtAnyMoment(t *testing.T) {
	h := newHost(t, host4, host6)
	const rounds = 20
	left := 0
	for round := range rounds {
		h.KillAfter(t, childState, h.state, time.Duration(5+rand.IntN(60))*time.Millisecond)
		for _, p := range h.Addresses(t, iface) {
			if p == host4 || p == host6 {
				continue
			}
			left++
			if !h.stateNames(p.Addr()) {
				t.Errorf("%s is in the kernel and not in the state file", p)
			}
		}
		switch round % 3 {
		case 0:
			if err := h.Do(func() error { return addr.Cleanup(h.state) }); err != nil {
				t.Fatal(err)
			}
			h.want(iface, "192.0.2.2/24", "2001:db8::2/64")
		case 1:
			set := h.open()
			if err := set.Apply(nil); err != nil {
				t.Fatal(err)
			}
			h.want(iface, "192.0.2.2/24", "2001:db8::2/64")
		default: // the next child finds it
		}
	}
	if left == 0 {
		t.Error("no round left an address: the child did nothing")
	}
}
