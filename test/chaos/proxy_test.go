package chaos

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"headgate/gateway/luastate"
	"headgate/sync/admin"
	"headgate/sync/luapush"
)

// daemonKilled: the proxy goes on, and the next daemon takes it over as it is.
func daemonKilled(w *world) {
	l := w.load()
	l.awaitRequests(20)
	master := w.master()
	w.kill9()
	l.awaitRequests(100)
	if now := w.master(); now != master {
		w.t.Errorf("the master was %d and is %d now that the daemon is dead", master, now)
	}
	w.change() // while nobody watches
	w.start()
	w.changeServed()
	s := w.awaitStatus("adopted", well)
	if s.Proxy.MasterPID != master || len(s.Reloads) > 0 {
		w.t.Errorf("master %d, reloads %v; want the master %d taken over without one", s.Proxy.MasterPID, s.Reloads, master)
	}
	l.stop()
}

func webSocketOverReloads(w *world) {
	l := w.load()
	socket := openWebSocket(w.t, w.http, "plain.test")
	master := w.master()
	for n := range 10 {
		before := w.workers()
		if err := syscall.Kill(master, syscall.SIGHUP); err != nil {
			w.t.Fatal(err)
		}
		harnessEventually(w.t, patience, func() error {
			now := w.workers()
			if len(now) != 2 || slices.ContainsFunc(now, func(pid int) bool { return slices.Contains(before, pid) }) {
				return fmt.Errorf("workers %v, before the reload %v", now, before)
			}
			return nil
		})
		if err := socket.says(fmt.Sprintf("reload %d", n+1)); err != nil {
			w.t.Fatalf("the WebSocket after %d reloads: %v", n+1, err)
		}
	}
	w.change()
	w.changeServed()
	if err := socket.says("and a push"); err != nil {
		w.t.Fatal(err)
	}
	l.stop()
	_ = socket.conn.Close() // the worker that holds it may end now
	harnessEventually(w.t, patience, func() error {
		if all := w.nginx(); len(all) != 3 {
			return fmt.Errorf("a master and two workers should be left: %v", all)
		}
		return nil
	})
}

// nginxKilled: nginx alone serves what it served last, before any daemon has said anything.
func nginxKilled(w *world) {
	w.change()
	w.changeServed()
	w.stop()
	before := w.mustProxyState()
	l := w.load()
	l.awaitRequests(20)
	l.outage(func() {
		l.kill(w.killNginx)
		w.startNginx()
	})
	if now := w.mustProxyState(); now.Loaded.From != "log" || now.Revision != before.Revision || now.Boot == before.Boot {
		w.t.Errorf("nginx came up with %+v, want revision %d from the state log", now, before.Revision)
	}
	w.changeServed()
	l.awaitRequests(50)
	master := w.master()
	w.start()
	s := w.awaitStatus("adopted", well)
	if s.Proxy.MasterPID != master || len(s.Reloads) > 0 || s.Pushes > 0 {
		w.t.Errorf("master %d, reloads %v, %d pushes; want %d taken over as it is", s.Proxy.MasterPID, s.Reloads, s.Pushes, master)
	}
	l.stop()
}

// masterKilled: the workers serve on until another master has their listeners.
func masterKilled(w *world) {
	l := w.load()
	l.awaitRequests(20)
	master := w.master()
	killed := time.Now()
	killProcesses(w.t, master)
	s := w.awaitStatus("a new master", func(s admin.Status) bool { return well(s) && s.Proxy.MasterPID != master })
	w.t.Logf("master replaced in %v", time.Since(killed).Round(time.Millisecond))
	w.onlyOf(s.Proxy.MasterPID)
	l.stop()
}

// onlyOf waits until no nginx process is left but of that master.
func (w *world) onlyOf(master int) {
	w.t.Helper()
	harnessEventually(w.t, patience, func() error {
		for _, p := range w.nginx() {
			if p.pid != master && p.parent != master {
				return fmt.Errorf("of another master than %d: %v", master, p)
			}
		}
		return nil
	})
}

// masterKilledAlone: the daemon that comes finds a dead socket and workers without a master.
func masterKilledAlone(w *world) {
	l := w.load()
	l.awaitRequests(20)
	w.kill9()
	killProcesses(w.t, w.master())
	l.awaitRequests(50)
	w.change()
	w.start()
	w.changeServed()
	s := w.awaitStatus("a new master", well)
	w.onlyOf(s.Proxy.MasterPID)
	l.stop()
}

// rawPush speaks the protocol of the control socket by hand.
type rawPush struct {
	net.Conn
	answer *bufio.Reader
}

func (w *world) rawPush() *rawPush {
	w.t.Helper()
	conn, err := net.Dial("unix", filepath.Join(w.runtimeDir, "proxy", "control.sock"))
	if err != nil {
		w.t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		w.t.Fatal(err)
	}
	return &rawPush{conn, bufio.NewReader(conn)}
}

// head writes the headers of a part whose body has n bytes.
func (p *rawPush) head(pusher string, revision, base uint64, part string, n int) error {
	_, err := fmt.Fprintf(p, "PUT /v1/state HTTP/1.1\r\nHost: control\r\nContent-Length: %d\r\nX-Headgate-Schema: %d\r\n"+
		"X-Headgate-Pusher: %s\r\nX-Headgate-Revision: %d\r\nX-Headgate-Base: %d\r\nX-Headgate-Part: %s\r\n\r\n",
		n, luastate.Schema, pusher, revision, base, part)
	return err
}

// begin sends the first of two parts: the lock is taken, a body is added that nothing refers to yet.
func (w *world) begin(pusher string) *rawPush {
	w.t.Helper()
	revision := w.mustProxyState().Revision
	p, body := w.rawPush(), strayBody()
	if err := errors.Join(p.head(pusher, revision+1, revision, "1/2", len(body)), write(p, body)); err != nil {
		w.t.Fatal(err)
	}
	res, err := http.ReadResponse(p.answer, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	if _ = res.Body.Close(); res.StatusCode != http.StatusAccepted {
		w.t.Fatalf("the first part got %d", res.StatusCode)
	}
	return p
}

func write(p *rawPush, b []byte) error {
	_, err := p.Write(b)
	return err
}

// strayBody is a record of a body.
func strayBody() []byte {
	key, value := strings.Repeat("ab", 16), bytes.Repeat([]byte("x"), 8<<10)
	record := binary.BigEndian.AppendUint16([]byte{'B'}, uint16(len(key)))
	record = binary.BigEndian.AppendUint32(record, uint32(len(value)))
	return append(append(record, key...), value...)
}

// workerKilledInPush: the other half of the push never comes; the next push does not care.
func workerKilledInPush(w *world) {
	l := w.load()
	l.awaitRequests(20)
	revision := w.mustProxyState().Revision
	p, body := w.begin("half"), strayBody()
	defer func() { _ = p.Close() }()
	if err := errors.Join(p.head("half", revision+1, revision, "2/2", len(body)), write(p, body[:9])); err != nil {
		w.t.Fatal(err)
	}
	l.kill(func() { killProcesses(w.t, w.workers()...) })
	if now := w.mustProxyState().Revision; now != revision {
		w.t.Errorf("half a push made revision %d of %d", now, revision)
	}
	w.change()
	w.changeServed()
	l.stop()
	w.awaitStatus("the push after", well)
}

func pushCut(w *world) {
	l := w.load()
	l.awaitRequests(20)
	revision := w.mustProxyState().Revision
	for _, part := range []string{"1/1", "1/2"} {
		p, body := w.rawPush(), strayBody()
		if err := errors.Join(p.head("cut", revision+1, revision, part, len(body)), write(p, body[:len(body)/2]), p.Close()); err != nil {
			w.t.Fatal(err)
		}
	}
	if now := w.mustProxyState().Revision; now != revision {
		w.t.Errorf("a cut push made revision %d of %d", now, revision)
	}
	w.change()
	w.changeServed()
	l.stop()
	w.awaitStatus("the push after", well)
}

// twoDaemons: a second one is told to go away; one that pushes all the same is seen, and does not break anything.
func twoDaemons(w *world) {
	l := w.load()
	second := w.run(w.t.Context())
	out, err := second.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), "PID "+strconv.Itoa(w.daemon.Process.Pid)) ||
		!strings.Contains(string(out), "stop it first") {
		w.t.Errorf("a second daemon says %q and ends with %v; it should be told which PID to stop", out, err)
	}

	// One that is pushing at this moment.
	mark := w.log.mark()
	p := w.begin("rival")
	w.change()
	w.awaitStatus("the rival is shown", func(s admin.Status) bool { return s.Rival == "rival" })
	w.told(mark, "another daemon pushes to this proxy")
	_ = p.Close()
	w.changeServed()
	w.awaitStatus("alone again", well)

	// One that has pushed: its state is not ours, ours comes back.
	rival := luapush.New(luapush.Config{Socket: filepath.Join(w.runtimeDir, "proxy", "control.sock"), Pusher: "usurper"})
	defer rival.Close()
	state := w.mustProxyState()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	next := state.Revision + 1
	_, err = rival.Push(ctx, luapush.Push{Base: state.Revision, Revision: next, Records: []luastate.Record{
		{Op: luastate.OpRevision, Value: strconv.AppendUint(nil, next, 10)},
		{Op: luastate.OpDelete, Key: "host/" + w.changeHost()},
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.awaitStatus("the usurper is shown", func(s admin.Status) bool { return s.Rival == "usurper" })
	w.changeServed()
	l.stop()
	w.awaitStatus("alone again", well)
}

// binaryUpgraded: nginx is replaced the way its documentation says, with a daemon that goes along: it retires the workers
// of the old master and pushes to the new one.
func binaryUpgraded(w *world) {
	l := w.load()
	// nginx takes no USR2 from a parent that lives: a daemon of before has started this one.
	w.kill9()
	w.start()
	l.awaitRequests(20)
	before := w.master()
	began := time.Now()
	if err := syscall.Kill(before, syscall.SIGUSR2); err != nil {
		w.t.Fatal(err)
	}
	var after int
	harnessEventually(w.t, patience, func() error {
		masters := w.masters()
		if len(masters) != 2 {
			return fmt.Errorf("masters %v", masters)
		}
		after = masters[0] + masters[1] - before
		return nil
	})
	w.change() // in the middle of it
	s := w.awaitStatus("handed over", func(s admin.Status) bool { return well(s) && s.Proxy.MasterPID == after })
	w.t.Logf("handed over in %v", time.Since(began).Round(time.Millisecond))
	w.changeServed()
	harnessEventually(w.t, patience, func() error {
		for _, p := range w.nginx() {
			if p.worker() && p.parent == before {
				return fmt.Errorf("the old master has a worker that takes requests: %v", p)
			}
		}
		return nil
	})
	if err := syscall.Kill(before, syscall.SIGQUIT); err != nil {
		w.t.Fatal(err)
	}
	w.onlyOf(after)
	l.awaitRequests(50)
	l.stop()
	if s = w.awaitStatus("upgraded", well); s.Proxy.Restarts != 0 || s.Proxy.MasterPID != after {
		w.t.Errorf("the proxy was restarted: master %d, want %d", s.Proxy.MasterPID, after)
	}
}
