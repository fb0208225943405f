package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"strings"
	"time"

	"headgate/sync/socket"
)

// ErrRunning tells that another daemon holds the runtime directory.
var ErrRunning = errors.New("another headgate runs on this runtime directory")

// SocketPath gives the path of the admin socket of a daemon with that runtime directory.
func SocketPath(runtimeDir string) string { return filepath.Join(runtimeDir, "admin", "admin.sock") }

// Socket is the claim of one daemon on a runtime directory, and the socket on which it answers.
type Socket struct{ socket *socket.Socket }

// Open claims runtimeDir for this process and listens on <runtimeDir>/admin/admin.sock. The folder is 0750:
// it is what protects the socket. A second daemon gets ErrRunning, with the PID of the first; a lock that a
// killed daemon held is free. Close gives both up.
func Open(ctx context.Context, runtimeDir string) (*Socket, error) {
	path := SocketPath(runtimeDir)
	dir := filepath.Dir(path)
	if err := os.MkdirAll(runtimeDir, 0o755); err != nil { //nolint:gosec // nginx's workers, another user, pass through
		return nil, fmt.Errorf("runtimeDir: the folder %s cannot be made: %w: write the path of a folder that this user may make and write", runtimeDir, err)
	}
	if err := os.Mkdir(dir, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make the folder of the admin socket: %w", err)
	}
	if err := os.Chmod(dir, 0o750); err != nil { //nolint:gosec // the group of the folder may ask for the status
		return nil, fmt.Errorf("protect the folder of the admin socket: %w", err)
	}
	s, err := socket.Open(ctx, path, lockPath(path))
	var held *socket.HeldError
	switch {
	case errors.As(err, &held):
		return nil, fmt.Errorf("%w: PID %s holds %s; stop it first, or give this one a runtimeDir of its own", ErrRunning, held.PID, runtimeDir)
	case err != nil:
		return nil, fmt.Errorf("the admin socket: %w", err)
	}
	return &Socket{s}, nil
}

func lockPath(socketPath string) string {
	return filepath.Join(filepath.Dir(socketPath), "daemon.lock")
}

// Answers are what the socket tells. Both are called by several goroutines at once.
type Answers struct {
	Status func() Status
	// Explain answers POST /v1/explain; nil: nothing is explained.
	Explain http.Handler
	// Applied answers GET /v1/applied: what `headgate diff` compares with; nil: nothing is compared.
	Applied http.Handler
	// Peers answers GET /v1/peers: what `headgate peers` shows; nil: nothing is shown.
	Peers http.Handler
	// Accept answers POST /v1/accept, which lets go of what is held against a loss; nil: nothing is.
	Accept http.Handler
	// Reload answers GET and POST /v1/reload, LogLevel GET and PUT /v1/log-level; nil: neither can be changed.
	Reload, LogLevel http.Handler
}

// Serve answers until ctx ends; then it lets running requests finish for a second and removes the socket.
func (s *Socket) Serve(ctx context.Context, a Answers) error {
	return s.socket.Serve(ctx, a.handler())
}

// Close gives the socket and the claim up.
func (s *Socket) Close() error { return s.socket.Close() }

// handler is read-only, but for what profiling costs, for accepting a loss, and for the configuration.
func (a Answers) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, a.Status().normal()) })
	mux.HandleFunc("GET /v1/problems", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, a.Status().normal().Problems) })
	if a.Explain != nil {
		mux.Handle("POST /v1/explain", a.Explain)
	}
	if a.Applied != nil {
		mux.Handle("GET /v1/applied", a.Applied)
	}
	if a.Peers != nil {
		mux.Handle("GET /v1/peers", a.Peers)
	}
	if a.Accept != nil {
		mux.Handle("POST /v1/accept", a.Accept)
	}
	if a.Reload != nil {
		mux.Handle("GET /v1/reload", a.Reload)
		mux.Handle("POST /v1/reload", a.Reload)
	}
	if a.LogLevel != nil {
		mux.Handle("/v1/log-level", a.LogLevel)
	}
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	return mux
}

func writeJSON(w http.ResponseWriter, v any) { socket.WriteJSON(w, http.StatusOK, v) }

// ErrUnreachable tells that no daemon answers on the socket.
var ErrUnreachable = errors.New("no headgate daemon answers")

// maxAnswerBytes bounds what Ask reads: a hundred thousand problems still fit.
const maxAnswerBytes = 64 << 20

// Ask gets the status of the daemon with that runtime directory. The error wraps ErrUnreachable when there
// is none, or when the caller may not talk to it.
func Ask(ctx context.Context, runtimeDir string) (Status, error) {
	var s Status
	status, body, err := call(ctx, runtimeDir, get("/v1/status"))
	if err != nil {
		return s, err
	}
	if status != http.StatusOK {
		return s, fmt.Errorf("%w on %s: status %d", ErrUnreachable, SocketPath(runtimeDir), status)
	}
	if err := json.Unmarshal(body, &s); err != nil {
		return s, fmt.Errorf("decode the status from %s: %w", SocketPath(runtimeDir), err)
	}
	return s, nil
}

// ErrRefused tells that a daemon answered, and could not do what it was asked for.
var ErrRefused = errors.New("the daemon cannot answer")

// AskExplain hands question, as JSON, to the daemon's Answers.Explain, and gives its answer's body. The error
// wraps ErrUnreachable like that of Ask, or ErrRefused with what the daemon says.
func AskExplain(ctx context.Context, runtimeDir string, question []byte) ([]byte, error) {
	q := socket.Question{Method: http.MethodPost, Path: "/v1/explain", Body: bytes.NewReader(question)}
	return ask(ctx, runtimeDir, q, "explains nothing")
}

// ask gives the body of a good answer. A daemon without an answer of the kind is of a version that, say, explains nothing.
func ask(ctx context.Context, runtimeDir string, q socket.Question, lack string) ([]byte, error) {
	status, body, err := call(ctx, runtimeDir, q)
	switch {
	case err != nil:
		return nil, err
	case status == http.StatusNotFound:
		return nil, fmt.Errorf("%w: it is of a version that %s; restart it with this one", ErrRefused, lack)
	case status != http.StatusOK:
		return nil, fmt.Errorf("%w: %s", ErrRefused, oneLine(strings.TrimSpace(string(body))))
	}
	return body, nil
}

func get(path string) socket.Question { return socket.Question{Method: http.MethodGet, Path: path} }

// call puts a question, whose Timeout is 10 s where it says none, to the daemon with that runtime directory.
func call(ctx context.Context, runtimeDir string, q socket.Question) (int, []byte, error) {
	const patience = 10 * time.Second
	q.Socket, q.Most = SocketPath(runtimeDir), maxAnswerBytes
	if q.Timeout == 0 {
		q.Timeout = patience
	}
	status, body, err := socket.Ask(ctx, q)
	if err != nil {
		return 0, nil, fmt.Errorf("%w on %s: %s", ErrUnreachable, q.Socket, advice(err, q.Socket))
	}
	return status, body, nil
}

// advice says what to do when nobody answers on path.
func advice(err error, path string) string {
	if errors.Is(err, fs.ErrNotExist) {
		if pid := socket.Holder(lockPath(path)); pid != "" {
			return "PID " + pid + " runs, but somebody removed its admin socket: restart the daemon; traffic goes on meanwhile"
		}
	}
	return socket.Reason(err, "it does not run, or it has another runtimeDir (give --config or --runtime-dir)")
}
