package vip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"headgate/cmd/assemble"
	"headgate/cmd/config"
	"headgate/sync/luapush"
	"headgate/vip/speaker"
)

// proxyCheck asks the proxy on this host, again and again, whether it can serve.
type proxyCheck struct {
	log     *slog.Logger
	state   func(ctx context.Context) (luapush.State, error)
	close   func()
	timeout time.Duration // until a proxy that says nothing counts as hung
	look    func(pids []int) condition
	veto    func() string // why this host must not serve although its proxy can; "" when it may

	pids []int // of the workers that were seen last
}

const (
	// checkEvery is the time between two questions. With the timeout it bounds how long a hung proxy goes unnoticed;
	// a dead one refuses the next question.
	checkEvery = 30 * time.Millisecond
	// patience is how many timeouts a proxy gets whose workers want the CPU and get none: with 30 processes that want two
	// cores 0.4 s were seen to be too short.
	patience = 10
	// late is how much later than asked for a timer fires in a process that was stopped or starved itself.
	late = 50 * time.Millisecond
	// questionLimit ends a question that nobody waits for any more.
	questionLimit = 10 * time.Second
)

func newProxyCheck(c config.Config, log *slog.Logger) *proxyCheck {
	client := luapush.New(luapush.Config{Socket: assemble.PathsOf(c).ControlSocket, Timeout: questionLimit})
	return &proxyCheck{
		log: log, state: client.State, close: client.Close, timeout: time.Duration(c.VIP.ProxyTimeout), look: lookAt,
		veto: func() string { return "" },
	}
}

// answer is what one question gave.
type answer struct {
	state luapush.State
	err   error
}

// run sends the proxy's health whenever it changes, until ctx ends.
func (p *proxyCheck) run(ctx context.Context, send func(speaker.Health)) error {
	last := speaker.Health{Reason: "not asked yet"}
	first := true
	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	for {
		now := p.ask(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if why := p.veto(); why != "" {
			now = speaker.Health{Reason: why}
		}
		if first || now != last {
			p.tell(now, last)
			first, last = false, now
			send(now)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (p *proxyCheck) tell(now, last speaker.Health) {
	if now.Ready != last.Ready {
		p.log.Info("the proxy's health changed", "ready", now.Ready, "reason", now.Reason)
	}
}

// ask asks once. A proxy that gets no CPU is starved, not hung, and gets more time: a busy host must not give its VIPs to
// one that is no less busy. A wait in which this process did not run itself does not count.
func (p *proxyCheck) ask(ctx context.Context) speaker.Health {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer, 1) // so that the goroutine ends when nobody waits any more
	go func() {
		state, err := p.state(ctx)
		answers <- answer{state, err}
	}()
	for waits := 0; waits < patience; {
		a, in, answered := p.wait(ctx, answers)
		switch {
		case answered:
			return p.judge(a)
		case ctx.Err() != nil:
			return speaker.Health{}
		case in:
			waits++
			if p.look(p.pids) == hung {
				waits = patience
			}
		}
	}
	return speaker.Health{Why: speaker.Silent, Reason: fmt.Sprintf("the proxy says nothing for %s", p.timeout)}
}

// wait waits one timeout for an answer. in tells that the timer fired in time.
func (p *proxyCheck) wait(ctx context.Context, answers <-chan answer) (a answer, in, answered bool) {
	begin := time.Now()
	timer := time.NewTimer(p.timeout)
	defer timer.Stop()
	select {
	case a = <-answers:
		return a, true, true
	case <-ctx.Done():
		return answer{}, true, false
	case <-timer.C:
		return answer{}, time.Since(begin) < p.timeout+late, false
	}
}

func (p *proxyCheck) judge(a answer) speaker.Health {
	switch {
	case errors.Is(a.err, luapush.ErrUnreachable):
		return speaker.Health{Why: speaker.Dead, Reason: "nobody answers on the proxy's control socket"}
	case a.err != nil:
		return speaker.Health{Why: speaker.Silent, Reason: "the proxy's control socket: " + a.err.Error()}
	}
	p.pids = p.pids[:0]
	for _, w := range a.state.Workers {
		p.pids = append(p.pids, w.PID)
	}
	switch {
	case a.state.Revision == 0:
		return speaker.Health{Why: speaker.Dead, Reason: "the proxy has no complete revision yet"}
	case len(a.state.Workers) == 0:
		return speaker.Health{Why: speaker.Dead, Reason: "no worker of the proxy reports"}
	case a.state.Listeners != nil && *a.state.Listeners == 0:
		// Whoever answers on the VIP's ports then is somebody else.
		return speaker.Health{Why: speaker.Dead, Reason: "the proxy has no listener yet: the configuration with the listeners was not loaded"}
	}
	return speaker.Health{Ready: true, Reason: "the proxy serves a complete revision"}
}

// condition is why a proxy may say nothing.
type condition int

const (
	hung    condition = iota // its workers are stopped, gone, or sleep although they are asked
	starved                  // they would run if they got the CPU, or wait for a disk
)

// lookAt looks at the workers' states (proc_pid_stat(5)) and, where they sleep, at how many processes want to run
// (proc_loadavg(5)): with many of them a worker that was woken may not have run yet.
func lookAt(pids []int) condition {
	asleep := false
	for _, pid := range pids {
		switch stateOf(pid) {
		case 'R', 'D':
			return starved
		case 'S', 'I':
			asleep = true
		}
	}
	const crowd = 2 // processes that want to run, for each CPU
	if asleep && wanting() > crowd*runtime.NumCPU() {
		return starved
	}
	return hung
}

// stateOf gives the letter of a process's state; 0 for none.
func stateOf(pid int) byte {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	// The name may hold anything; the state follows its last bracket.
	if at := bytes.LastIndexByte(text, ')'); err == nil && at >= 0 && len(text) > at+2 {
		return text[at+2]
	}
	return 0
}

// wanting is how many threads run or want to; 0 when that is unknown.
func wanting() int {
	text, err := os.ReadFile("/proc/loadavg")
	words := strings.Fields(string(text))
	if err != nil || len(words) < 4 {
		return 0
	}
	running, _, _ := strings.Cut(words[3], "/")
	n, err := strconv.Atoi(running)
	if err != nil {
		return 0
	}
	return n
}

// proxyHealth brings the proxy's health to the speaker.
func (p *Process) proxyHealth(ctx context.Context) error {
	return p.proxy.run(ctx, func(h speaker.Health) {
		select {
		case p.health <- h:
		case <-ctx.Done():
		}
	})
}
