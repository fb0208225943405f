package hostile

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"headgate/test/product"
)

// children are the workers of nginx that live, those on their way out among them.
func (g *gateway) children() []int {
	g.t.Helper()
	return product.Children(g.t, g.status().Proxy.MasterPID)
}

// suspend stops a process as a debugger, a frozen cgroup or a host without memory does, and returns once it has stopped.
// What it gives lets it go on.
func (g *gateway) suspend(pid int) (resume func()) {
	g.t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		g.t.Fatal(err)
	}
	resume = func() { _ = syscall.Kill(pid, syscall.SIGCONT) }
	g.t.Cleanup(resume)
	g.await(fmt.Sprintf("process %d has stopped", pid), func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err == nil && bytes.Contains(stat, []byte(") T "))
	})
	return resume
}

// TestStoppedWorkers: while workers do not run, /metrics, the control socket and the commands answer within their time or
// say what is missing; pushes and reloads go on as long as one worker runs. When all run again nothing is lost: each request
// was counted once, and no counter ever goes backwards.
func TestStoppedWorkers(t *testing.T) {
	g := start(t, "")
	site(t, g)
	workers := g.children()
	if len(workers) != 2 {
		t.Fatalf("workers %v, want two", workers)
	}
	made := 0
	ask := func() {
		t.Helper()
		for range 25 {
			g.wants("two.test", "/only", "200 two")
			made++
		}
	}
	last := series{}
	scrape := func() series {
		t.Helper()
		now, err := g.scrape()
		if err != nil {
			t.Fatalf("scrape: %v", err)
		}
		// A proxy that does not answer has told nothing: what it tells next is compared with what it told last.
		if now["headgate_proxy_up"] == 1 {
			if back := now.back(last); len(back) > 0 {
				t.Errorf("counters go backwards: %q", back)
			}
			last = now
		}
		return now
	}
	counted := func(s series) float64 {
		return s.sum("headgate_proxy_requests_total", `host="two.test"`, `status="200"`)
	}
	ask()
	scrape()

	t.Run("one", func(t *testing.T) {
		g.t = t
		resume := g.suspend(workers[0])
		ask() // right behind what the stopped one has counted and not told yet
		for range 5 {
			if now := scrape(); now["headgate_proxy_up"] != 1 || counted(now) > float64(made) {
				t.Errorf("up %v, %v requests are counted of %d", now["headgate_proxy_up"], counted(now), made)
			}
		}
		g.write("pushed.yaml", ingress("pushed", "pushed.test", prefix("/", "one")))
		g.settle()
		g.wants("pushed.test", "/", "200 one")
		g.write("loaded.yaml", ingress("loaded", "loaded.test", prefix("/", "one"), annotated("proxy-buffer-size", "13k")))
		g.settle()
		g.wants("loaded.test", "/", "200 one")
		ask()
		scrape()
		if s := g.status(); !s.Proxy.Reachable || s.Error != "" || s.Proxy.Restarts != 0 {
			t.Errorf("the status while one worker is stopped: %+v", s)
		}
		if now := g.children(); !slices.Contains(now, workers[0]) || slices.Contains(now, workers[1]) {
			t.Errorf("workers %v: want the stopped one of %v there, and the other one gone", now, workers)
		}
		resume()
		g.await("the worker of before ends", func() bool { return !slices.Contains(g.children(), workers[0]) })
	})
	g.t = t
	g.await("each request is counted once", func() bool { return counted(scrape()) == float64(made) })

	t.Run("all", func(t *testing.T) {
		g.t = t
		var resume []func()
		for _, pid := range g.children() {
			resume = append(resume, g.suspend(pid))
		}
		waiting := make(chan string, 1)
		go func() { waiting <- g.get("two.test", "/only") }() // it waits in the backlog
		began := time.Now()
		now := scrape()
		if up, told := now["headgate_proxy_up"]; !told || up != 0 {
			t.Errorf("headgate_proxy_up is %v (%v) while no worker runs", up, told)
		}
		if took := time.Since(began); took >= scrapeBound {
			t.Errorf("a scrape took %s", took)
		}
		g.await("it is told that the proxy does not answer", func() bool { return !g.status().Proxy.Reachable })
		for _, f := range resume {
			f()
		}
		if got := <-waiting; got != "200 two" {
			t.Errorf("the request that waited got %s", got)
		}
		made++
		g.await("the proxy answers again", func() bool { return g.status().Proxy.Reachable && scrape()["headgate_proxy_up"] == 1 })
	})
	g.t = t
	ask()
	g.await("each request is counted once", func() bool { return counted(scrape()) == float64(made) })
	g.settle()
	g.stillWell(t, "one.test", "200 one")
}
