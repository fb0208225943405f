package gossip

import (
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// serveAdmin mounts the handler on a unix socket.
func serveAdmin(t *testing.T, h http.Handler) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close(); <-ended })
	return socket
}

func TestTheCommandsTalkToTheProcess(t *testing.T) {
	s := NewSecret()
	a := start(t, host{name: "a", secret: s})
	b := start(t, host{name: "b", secret: s}, a)
	together(t, "a b", a, b)
	socket := serveAdmin(t, a.Handler())
	status, err := Ask(t.Context(), socket)
	if err != nil || len(status.Members) != 2 {
		t.Fatalf("%+v, %v", status, err)
	}
	var text strings.Builder
	if err := status.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"host        a at 127.0.0.1:", "member      b at 127.0.0.1:", "key         " + s.ID() + " in use\n"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
	r, err := AskToRotate(t.Context(), socket)
	if err != nil || !r.Finished || len(r.Hosts) != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	b.cfg.Keyring = "/nowhere/keyring" // before the next exchange: nobody reads it now
	r, err = AskToRotate(t.Context(), socket)
	if !errors.Is(err, ErrRotation) || len(r.Hosts) != 1 || strings.Count(err.Error(), ErrRotation.Error()) != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	text.Reset()
	if err := r.WriteText(&text); err != nil || !strings.HasPrefix(text.String(), "MISSING  b: add: write the keyring") {
		t.Errorf("%v\n%s", err, text.String())
	}
	if r, err = AskToFinish(t.Context(), socket); err != nil || !r.Finished {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestNobodyAnswers(t *testing.T) {
	if _, err := Ask(t.Context(), filepath.Join(t.TempDir(), "s")); !errors.Is(err, ErrUnreachable) {
		t.Errorf("no socket: %v", err)
	}
	socket := serveAdmin(t, http.NotFoundHandler())
	if _, err := AskToRotate(t.Context(), socket); !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "does not gossip") {
		t.Errorf("a process without gossip: %v", err)
	}
}

func TestWhatIsWrongIsPrintedFirst(t *testing.T) {
	s := Status{Host: "a", Keys: []string{"11111111", "22222222"}, Retired: []RetiredKeyID{{"33333333", time.Unix(0, 0)}},
		Clash: "an older one", Conditions: []Condition{{Kind: WrongKey, Peer: "10.0.0.3", Message: "told", Since: time.Now()}}}
	var text strings.Builder
	if err := s.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	want := `REFUSED     an older one
problem     WrongKey 10.0.0.3 for 0s: told
host        a at , cluster 
key         11111111 in use
key         22222222 accepted: the rotation is not finished
key         33333333 retired at 1970-01-01T00:00:00Z
`
	if text.String() != want || !s.Degraded() {
		t.Errorf("printed\n%s\nwant\n%s", text.String(), want)
	}
}
