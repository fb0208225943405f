package socket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// place is a folder with the two paths.
type place struct{ socket, lock string }

func newPlace(t *testing.T) place {
	t.Helper()
	dir := t.TempDir()
	return place{filepath.Join(dir, "s"), filepath.Join(dir, "lock")}
}

// serve answers with h, and gives what ends that.
func (p place) serve(t *testing.T, h http.HandlerFunc) (end func()) {
	t.Helper()
	s, err := Open(t.Context(), p.socket, p.lock)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, h) }()
	return func() {
		t.Helper()
		cancel()
		if err := errors.Join(<-ended, s.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	}
}

func (p place) ask(t *testing.T, path string) (int, string, error) {
	t.Helper()
	status, body, err := Ask(t.Context(), Question{Socket: p.socket, Method: http.MethodGet, Path: path, Timeout: 10 * time.Second, Most: 100})
	return status, string(body), err
}

func TestOneHolds(t *testing.T) {
	p := newPlace(t)
	if got := Holder(p.lock); got != "" {
		t.Errorf("without a lock: held by %q", got)
	}
	end := p.serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	if status, body, err := p.ask(t, "/"); err != nil || status != http.StatusOK || body != "hello" {
		t.Errorf("%d %q %v", status, body, err)
	}
	if info, err := os.Stat(p.socket); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("socket %v, %v; want 0660", info.Mode(), err)
	}
	me := fmt.Sprint(os.Getpid())
	if got := Holder(p.lock); got != me {
		t.Errorf("held by %q, want %s", got, me)
	}
	var held *HeldError
	if _, err := Open(t.Context(), p.socket, p.lock); !errors.As(err, &held) || held.PID != me || held.Lock != p.lock {
		t.Errorf("the second one: %v", err)
	}
	if _, _, err := p.ask(t, "/"); err != nil {
		t.Errorf("the first one answers no more: %v", err)
	}
	end()
	if _, err := os.Stat(p.socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	if got := Holder(p.lock); got != "" {
		t.Errorf("after the end: held by %q", got)
	}
	p.serve(t, http.NotFound)()
}

// What a killed process left does not keep the next one out.
func TestWhatADeadOneLeft(t *testing.T) {
	p := newPlace(t)
	l, err := net.Listen("unix", p.socket)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) //nolint:forcetypeassert // made just above
	_ = l.Close()
	if err := os.WriteFile(p.lock, []byte("999999999999\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.ask(t, "/"); err == nil || Reason(err, "nobody") != "nobody" {
		t.Errorf("a dead socket: %v", err)
	}
	end := p.serve(t, http.NotFound)
	defer end()
	if status, _, err := p.ask(t, "/"); err != nil || status != http.StatusNotFound {
		t.Errorf("%d, %v", status, err)
	}
	if text, err := os.ReadFile(p.lock); err != nil || string(text) != fmt.Sprintln(os.Getpid()) {
		t.Errorf("the lock says %q, %v", text, err)
	}
}

func TestOpenRefuses(t *testing.T) {
	p := newPlace(t)
	if _, err := Open(t.Context(), p.socket, filepath.Join(p.lock, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
	if _, err := Open(t.Context(), p.socket+strings.Repeat("x", 200), p.lock); err == nil {
		t.Error("a path that is too long for a socket")
	}
	if got := Holder(p.lock); got != "" {
		t.Errorf("the lock is still held by %q", got)
	}
}

// A request that runs when the end comes has a second, and no more.
func TestTheEndWaitsForRequestsNotForEver(t *testing.T) {
	for _, c := range []struct {
		name string
		work func(w http.ResponseWriter, r *http.Request)
		want string
	}{
		{"a short request", func(w http.ResponseWriter, _ *http.Request) {
			<-time.After(50 * time.Millisecond)
			_, _ = io.WriteString(w, "done")
		}, "done, answered true"},
		{"one without end", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, ", answered false"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlace(t)
			began := make(chan struct{})
			end := p.serve(t, func(w http.ResponseWriter, r *http.Request) {
				close(began)
				c.work(w, r)
			})
			answered := make(chan string, 1)
			go func() {
				_, body, err := p.ask(t, "/")
				answered <- fmt.Sprintf("%s, answered %t", body, err == nil)
			}()
			<-began
			start := time.Now()
			end()
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("the end took %s", took)
			}
			if got := <-answered; got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestAnswers(t *testing.T) {
	p := newPlace(t)
	defer p.serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/json":
			WriteJSON(w, http.StatusConflict, map[string]string{"query": r.URL.RawQuery})
		case "/wrong":
			WriteJSON(w, http.StatusOK, func() {})
		case "/large":
			_, _ = io.WriteString(w, strings.Repeat("x", 1000))
		}
	})()
	if status, body, err := p.ask(t, "/json?a=b%20c"); err != nil || status != http.StatusConflict || body != "{\n  \"query\": \"a=b%20c\"\n}\n" {
		t.Errorf("%d %q %v", status, body, err)
	}
	if status, _, err := p.ask(t, "/wrong"); err != nil || status != http.StatusInternalServerError {
		t.Errorf("%d %v", status, err)
	}
	if _, body, err := p.ask(t, "/large"); err != nil || len(body) != 100 {
		t.Errorf("%d bytes, %v", len(body), err)
	}
	if _, _, err := Ask(t.Context(), Question{Socket: p.socket, Method: "no method", Path: "/"}); err == nil {
		t.Error("a request that is none")
	}
}

func TestReason(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", fs.ErrPermission)}, "permission denied: run this as root or as a member of the folder's group"},
		{fs.ErrNotExist, "nobody"},
		{errors.New("other"), "other"},
	} {
		if got := Reason(c.err, "nobody"); got != c.want {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
}
