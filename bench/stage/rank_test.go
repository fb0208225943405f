package stage_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"headgate/bench/stage"
)

// Whatever starts it, a process has its own rank: with all of its threads, in all of its session.
func TestRanks(t *testing.T) {
	needRoot(t)
	s, err := stage.New()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, rank := range []stage.Rank{stage.First, stage.Beside, stage.Elsewhere} {
		// This program, as a process of many threads.
		p, err := s.StartAt(t.Context(), rank, fmt.Sprint("child", rank), nil, "env", waits+"=1", self)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Await(t.Context(), 10*time.Second, func(context.Context) error {
			if _, ok := p.Said("READY"); !ok {
				return errors.New("not ready")
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.PID()))
		if err != nil || len(threads) < 2 {
			t.Fatalf("%d threads, %v", len(threads), err)
		}
		for _, thread := range threads {
			checkThread(t, thread.Name(), rank)
		}
		session, err := os.ReadFile(fmt.Sprintf("/proc/%d/autogroup", p.PID()))
		if err == nil && !strings.HasSuffix(strings.TrimSpace(string(session)), fmt.Sprint(" nice ", int(rank))) {
			t.Errorf("rank %d: the session is %q", rank, session)
		}
	}
}

func checkThread(t *testing.T, name string, rank stage.Rank) {
	t.Helper()
	const short = 100_000 // ns
	id, err := strconv.Atoi(name)
	if err != nil {
		t.Fatal(err)
	}
	attr, err := unix.SchedGetAttr(id, 0)
	if err != nil {
		t.Fatal(err)
	}
	// Before Linux 6.12 there are no slices to be seen.
	if attr.Nice != int32(rank) || attr.Runtime != 0 && (attr.Runtime == short) != (rank == stage.First) {
		t.Errorf("rank %d: thread %d has %+v", rank, id, attr)
	}
}

func TestAnEndedProcessHasNoRank(t *testing.T) {
	const nobody = 1<<22 + 1 // above the highest process ID
	if err := stage.Put(nobody, stage.Beside); err != nil {
		t.Errorf("error %v, want none", err)
	}
}

// waits is set for a process that is no test but the child of one.
const waits = "BENCH_TEST_WAITS"

func TestMain(m *testing.M) {
	if os.Getenv(waits) == "" {
		os.Exit(m.Run())
	}
	_, _ = os.Stdout.WriteString("READY now\n")
	_, _ = os.Stdin.Read(make([]byte, 1)) // it lives until its input ends: nothing comes
}

// needRoot skips a test that starts processes: to go before others needs root.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a niceness below that of the shell needs root")
	}
}
