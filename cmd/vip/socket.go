package vip

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/pprof"
	"os"
	"strings"
	"time"

	"headgate/sync/socket"
	"headgate/vip/election"
	"headgate/vip/speaker"
)

// ErrRunning tells that another VIP process holds the runtime directory.
var ErrRunning = errors.New("another VIP process runs on this runtime directory")

// openSocket makes the folder, which is what protects the socket, claims it and listens.
func openSocket(ctx context.Context, p Paths) (*socket.Socket, error) {
	if err := os.MkdirAll(p.Dir, 0o750); err != nil {
		return nil, fmt.Errorf("runtimeDir: %w: write the path of a folder that this user may make and write", err)
	}
	s, err := socket.Open(ctx, p.Socket, p.Lock)
	if err != nil {
		return nil, p.running(err)
	}
	return s, nil
}

// claim takes the lock. The error wraps ErrRunning, or fs.ErrNotExist when there is no folder.
func claim(p Paths) (*os.File, error) {
	lock, err := socket.Claim(p.Lock)
	if err != nil {
		return nil, p.running(err)
	}
	return lock, nil
}

// running says whose the lock is, if that is what err is about.
func (p Paths) running(err error) error {
	if held := (*socket.HeldError)(nil); errors.As(err, &held) {
		return fmt.Errorf("%w: PID %s holds %s: stop it first, or give this one a runtimeDir of its own", ErrRunning, held.PID, p.Dir)
	}
	return fmt.Errorf("the VIP's socket: %w", err)
}

func (p *Process) serveSocket(ctx context.Context) error {
	return p.socket.Serve(ctx, p.handler())
}

// moveLimit is how long a move, a release or a drain is waited for.
const moveLimit = 10 * time.Second

// handler answers the commands. Whoever can open the socket may give them.
func (p *Process) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) { socket.WriteJSON(w, http.StatusOK, p.status()) })
	mux.HandleFunc("POST /v1/move", p.command(p.move))
	mux.HandleFunc("POST /v1/release", p.command(p.release))
	mux.HandleFunc("POST /v1/drain", p.command(p.drain))
	mux.HandleFunc("POST /v1/undrain", p.command(p.undrain))
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	if p.LogLevel != nil {
		mux.Handle("/v1/log-level", p.LogLevel)
	}
	if p.gossip != nil {
		mux.Handle("/v1/gossip", p.gossip.Handler())
		mux.Handle("/v1/gossip/", p.gossip.Handler())
	}
	return mux
}

// Order is the body of a command.
type Order struct {
	VIP  string `json:"vip,omitempty"`
	Host string `json:"host,omitempty"`
}

// Done is the answer to a command: what happened, or why it did not.
type Done struct {
	Message string `json:"message,omitempty"`
	Error   string `json:"error,omitempty"`
}

// maxOrderBytes bounds an Order.
const maxOrderBytes = 4096

func (p *Process) command(do func(context.Context, Order) (string, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var order Order
		if err := json.NewDecoder(io.LimitReader(r.Body, maxOrderBytes)).Decode(&order); err != nil {
			socket.WriteJSON(w, http.StatusBadRequest, Done{Error: "the body is no order: " + err.Error()})
			return
		}
		// A command that was interrupted is finished all the same.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), moveLimit)
		defer cancel()
		message, err := do(ctx, order)
		if err != nil {
			socket.WriteJSON(w, http.StatusConflict, Done{Error: err.Error()})
			return
		}
		socket.WriteJSON(w, http.StatusOK, Done{Message: message})
	}
}

func (p *Process) move(ctx context.Context, o Order) (string, error) {
	if err := p.speaker.Move(ctx, o.VIP, election.Host(o.Host)); err != nil {
		return "", err
	}
	owned := func(s Status) bool {
		v := s.find(o.VIP)
		return v != nil && string(v.Owner) == o.Host
	}
	if !p.await(ctx, owned) {
		return "", fmt.Errorf("%s did not take %s over within %s: 'headgate vip status' there may say why", o.Host, o.VIP, moveLimit)
	}
	return fmt.Sprintf("%s is at %s", o.VIP, o.Host), nil
}

// find gives a VIP by its name or one of its addresses.
func (s Status) find(name string) *speaker.VIPStatus {
	for i, v := range s.VIPs {
		if v.Name == name {
			return &s.VIPs[i]
		}
		for _, a := range v.Addresses {
			if ip, _, _ := strings.Cut(a, "/"); ip == name {
				return &s.VIPs[i]
			}
		}
	}
	return nil
}

func (p *Process) release(ctx context.Context, o Order) (string, error) {
	if err := p.speaker.Release(ctx, o.VIP); err != nil {
		return "", err
	}
	if !p.await(ctx, func(s Status) bool { v := s.find(o.VIP); return v != nil && string(v.Owner) != p.host }) {
		return "", fmt.Errorf("%s is still here after %s", o.VIP, moveLimit)
	}
	v := p.status().find(o.VIP)
	if v.Owner == "" {
		return o.VIP + " is released; no other host can serve it", nil
	}
	return fmt.Sprintf("%s is released; it is at %s", o.VIP, v.Owner), nil
}

func (p *Process) drain(ctx context.Context, _ Order) (string, error) {
	if err := os.WriteFile(p.paths.Drained, nil, 0o640); err != nil { //nolint:gosec // it says nothing
		return "", fmt.Errorf("note that the host is drained: %w", err)
	}
	if err := p.speaker.Drain(ctx); err != nil {
		return "", err
	}
	if p.await(ctx, func(s Status) bool { return len(s.owned()) == 0 || s.Draining && s.Lasting }) {
		if owned := p.status().owned(); len(owned) > 0 {
			return fmt.Sprintf("drained, but no other host can serve %s: it stays here until one can", strings.Join(owned, ", ")), nil
		}
		return "drained: this host owns no VIP", nil
	}
	return "", fmt.Errorf("drained, but %s is still here after %s: no other host took it", strings.Join(p.status().owned(), ", "), moveLimit)
}

// owned are the VIPs that this host owns.
func (s Status) owned() []string {
	var names []string
	for _, v := range s.VIPs {
		if v.Owner == s.Host {
			names = append(names, v.Name)
		}
	}
	return names
}

func (p *Process) undrain(ctx context.Context, _ Order) (string, error) {
	if err := os.Remove(p.paths.Drained); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("note that the host is not drained: %w", err)
	}
	if err := p.speaker.Undrain(ctx); err != nil {
		return "", err
	}
	return "undrained: this host takes VIPs again", nil
}

// await looks at the status until it is so; false when ctx ended before.
func (p *Process) await(ctx context.Context, so func(Status) bool) bool {
	const look = 10 * time.Millisecond
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
		if so(p.status()) {
			return true
		}
	}
}

// ErrUnreachable tells that no VIP process answers on the socket.
var ErrUnreachable = errors.New("no VIP process answers")

// ErrRefused tells that the process answered, and did not do what it was asked for.
var ErrRefused = errors.New("not done")

// maxAnswerBytes bounds what is read of an answer.
const maxAnswerBytes = 16 << 20

// Ask gets the status of the process. The error wraps ErrUnreachable when there is none, or when the caller may not ask it.
func Ask(ctx context.Context, p Paths) (Status, error) {
	var s Status
	code, body, err := call(ctx, p, http.MethodGet, "/v1/status", nil)
	if err != nil {
		return s, err
	}
	if code != http.StatusOK {
		return s, fmt.Errorf("%w on %s: status %d", ErrUnreachable, p.Socket, code)
	}
	if err := json.Unmarshal(body, &s); err != nil {
		return s, fmt.Errorf("decode the status from %s: %w", p.Socket, err)
	}
	return s, nil
}

// Command gives an order ("move", "release", "drain", "undrain") and returns what happened. The error wraps ErrUnreachable,
// or ErrRefused with what the process says.
func Command(ctx context.Context, p Paths, name string, o Order) (string, error) {
	body, err := json.Marshal(o)
	if err != nil {
		return "", fmt.Errorf("encode the order: %w", err)
	}
	code, text, err := call(ctx, p, http.MethodPost, "/v1/"+name, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	var done Done
	if err := json.Unmarshal(text, &done); err != nil {
		return "", fmt.Errorf("%w: status %d", ErrRefused, code)
	}
	if code != http.StatusOK {
		return "", fmt.Errorf("%w: %s", ErrRefused, done.Error)
	}
	return done.Message, nil
}

func call(ctx context.Context, p Paths, method, path string, body io.Reader) (int, []byte, error) {
	code, text, err := socket.Ask(ctx, socket.Question{
		Socket: p.Socket, Method: method, Path: path, Body: body, Timeout: moveLimit + 5*time.Second, Most: maxAnswerBytes,
	})
	if err != nil {
		why := socket.Reason(err, "'headgate vip run' does not run, or it has another runtimeDir (give --config or --runtime-dir)")
		return 0, nil, fmt.Errorf("%w on %s: %s", ErrUnreachable, p.Socket, why)
	}
	return code, text, nil
}
