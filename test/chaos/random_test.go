package chaos

import (
	"math/rand/v2"
	"os"
	"strconv"
	"time"
)

// randomKills kills a random part at a random moment, for 30 s or HEADGATE_CHAOS, while requests run and the cluster
// changes. HEADGATE_CHAOS_SEED repeats a run.
func randomKills(w *world) {
	length, seed := 30*time.Second, uint64(time.Now().UnixNano())
	var err error
	if text := os.Getenv("HEADGATE_CHAOS"); text != "" {
		if length, err = time.ParseDuration(text); err != nil {
			w.t.Fatalf("HEADGATE_CHAOS: %v; write a duration such as 5m", err)
		}
	}
	if text := os.Getenv("HEADGATE_CHAOS_SEED"); text != "" {
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			w.t.Fatalf("HEADGATE_CHAOS_SEED: %v; write the number that a run has printed", err)
		}
	}
	w.t.Logf("HEADGATE_CHAOS_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	l := w.load()
	killed := map[string]int{}
	apiUp := true
	for end := time.Now().Add(length); time.Now().Before(end); {
		if apiUp {
			w.change() // and nobody waits for it
		}
		// A random moment: within the push of the change, between, or long after it.
		pause(time.Duration(random.IntN(600)) * time.Millisecond)
		part := []string{"daemon", "daemon", "master", "master", "worker", "worker", "worker", "API server"}[random.IntN(8)]
		killed[part]++
		switch part {
		case "daemon":
			w.kill9()
			pause(time.Duration(random.IntN(300)) * time.Millisecond)
			w.start()
		case "master":
			killProcesses(w.t, w.anyMaster(random))
		case "worker":
			// With all workers of a dead master killed, too, nobody would be left to listen: that is another test.
			if workers := w.workers(); len(workers) > 1 {
				l.kill(func() { killProcesses(w.t, workers[random.IntN(len(workers))]) })
			}
		case "API server":
			if apiUp {
				w.cluster.Kill(w.t)
			} else {
				w.cluster.Resume(w.t)
			}
			apiUp = !apiUp
		}
	}
	if !apiUp {
		w.cluster.Resume(w.t)
	}
	w.change()
	w.changeServed()
	l.stop()
	w.published()
	w.t.Logf("killed %v within %v", killed, length)
}

// anyMaster waits until there is one: it may have been killed a moment ago.
func (w *world) anyMaster(random *rand.Rand) int {
	w.t.Helper()
	var masters []int
	harnessEventually(w.t, patience, func() error {
		if masters = w.masters(); len(masters) == 0 {
			return errNoMaster
		}
		return nil
	})
	return masters[random.IntN(len(masters))]
}
