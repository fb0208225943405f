package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrRunning tells that another daemon holds the runtime directory.
var ErrRunning = errors.New("another headgate runs on this runtime directory")

// SocketPath gives the path of the admin socket of a daemon with that runtime directory.
func SocketPath(runtimeDir string) string { return filepath.Join(runtimeDir, "admin", "admin.sock") }

// Socket is the claim of one daemon on a runtime directory, and the socket on which it answers.
type Socket struct {
	path     string
	lock     *os.File
	listener net.Listener
}

// Open claims runtimeDir for this process and listens on <runtimeDir>/admin/admin.sock. The folder is 0750:
// it is what protects the socket. A second daemon gets ErrRunning, with the PID of the first; a lock that a
// killed daemon held is free, the kernel saw to that. Close gives both up.
func Open(ctx context.Context, runtimeDir string) (*Socket, error) {
	dir := filepath.Dir(SocketPath(runtimeDir))
	if err := os.MkdirAll(runtimeDir, 0o755); err != nil { //nolint:gosec // nginx's workers, another user, pass through
		return nil, fmt.Errorf("runtimeDir: the folder %s cannot be made: %w: write the path of a folder that this user may make and write", runtimeDir, err)
	}
	if err := os.Mkdir(dir, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make the folder of the admin socket: %w", err)
	}
	if err := os.Chmod(dir, 0o750); err != nil { //nolint:gosec // the group of the folder may ask for the status
		return nil, fmt.Errorf("protect the folder of the admin socket: %w", err)
	}
	lock, err := claim(runtimeDir, filepath.Join(dir, "daemon.lock"))
	if err != nil {
		return nil, err
	}
	s := &Socket{path: SocketPath(runtimeDir), lock: lock}
	// What stands there belongs to a daemon that is dead: we hold the lock.
	if err := os.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(fmt.Errorf("remove the dead admin socket: %w", err), lock.Close())
	}
	s.listener, err = new(net.ListenConfig).Listen(ctx, "unix", s.path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen on the admin socket: %w", err), lock.Close())
	}
	if err := os.Chmod(s.path, 0o660); err != nil { //nolint:gosec // see the folder
		return nil, errors.Join(fmt.Errorf("protect the admin socket: %w", err), s.listener.Close(), lock.Close())
	}
	return s, nil
}

func claim(runtimeDir, path string) (*os.File, error) {
	lock, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o640) //nolint:gosec // the group may read who runs
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	fd := int(lock.Fd()) //nolint:gosec // a file descriptor fits
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		pid := noted(lock)
		_ = lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: PID %s holds %s; stop it first, or give this one a runtimeDir of its own",
				ErrRunning, pid, runtimeDir)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	err = errors.Join(lock.Truncate(0), writeAt(lock, fmt.Sprintf("%d\n", os.Getpid())))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("write the PID into the lock: %w", err), lock.Close())
	}
	return lock, nil
}

func writeAt(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
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
	return serve(ctx, s.listener, a.handler())
}

// Close gives the socket and the claim up. The files stay but for the socket: removing a lock file would let
// two daemons hold two of the same name.
func (s *Socket) Close() error {
	err := s.listener.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil // Serve did it
	}
	return errors.Join(err, s.lock.Close())
}

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

func writeJSON(w http.ResponseWriter, v any) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(body, '\n')) // a client that left has nothing to be told
}

// serve runs an HTTP server on l until ctx ends. No write deadline: a CPU profile takes its time.
func serve(ctx context.Context, l net.Listener, h http.Handler) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10}
	ended := make(chan error, 1) // so that the goroutine ends even when nobody reads
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if server.Shutdown(grace) != nil {
		_ = server.Close() // a profile that still runs is cut off
	}
	<-ended
	return nil
}

// ErrUnreachable tells that no daemon answers on the socket.
var ErrUnreachable = errors.New("no headgate daemon answers")

// maxAnswerBytes bounds what Ask reads: a hundred thousand problems still fit.
const maxAnswerBytes = 64 << 20

// Ask gets the status of the daemon with that runtime directory. The error wraps ErrUnreachable when there
// is none, or when the caller may not talk to it.
func Ask(ctx context.Context, runtimeDir string) (Status, error) {
	var s Status
	status, body, err := call(ctx, runtimeDir, http.MethodGet, "/v1/status", nil)
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
	status, body, err := call(ctx, runtimeDir, http.MethodPost, "/v1/explain", bytes.NewReader(question))
	switch {
	case err != nil:
		return nil, err
	case status == http.StatusNotFound:
		return nil, fmt.Errorf("%w: it is of a version that explains nothing; restart it with this one", ErrRefused)
	case status != http.StatusOK:
		return nil, fmt.Errorf("%w: %s", ErrRefused, oneLine(strings.TrimSpace(string(body))))
	}
	return body, nil
}

// noted gives the PID that the lock's holder wrote into it.
func noted(lock *os.File) string {
	text := make([]byte, 20)
	n, _ := lock.ReadAt(text, 0) // the PID is a courtesy
	return strings.TrimSpace(string(text[:n]))
}

// holder gives the PID of the daemon that holds the lock, or "" when none is known to.
func holder(path string) string {
	lock, err := os.Open(path) //nolint:gosec // the administrator's folder
	if err != nil {
		return ""
	}
	defer func() { _ = lock.Close() }()                                                                  // which gives up the lock, too, if it was free
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) { //nolint:gosec // a file descriptor fits
		return ""
	}
	return noted(lock)
}

// question is a request to the daemon with that runtime directory.
type question struct {
	runtimeDir, method, what string
	body                     io.Reader // nil: none
}

func call(ctx context.Context, runtimeDir, method, what string, body io.Reader) (int, []byte, error) {
	const patience = 10 * time.Second
	return callWithin(ctx, patience, question{runtimeDir, method, what, body})
}

func callWithin(ctx context.Context, patience time.Duration, q question) (int, []byte, error) {
	path := SocketPath(q.runtimeDir)
	client := &http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		},
	}}
	request, err := http.NewRequestWithContext(ctx, q.method, "http://admin"+q.what, q.body)
	if err != nil {
		return 0, nil, fmt.Errorf("make request: %w", err)
	}
	res, err := client.Do(request)
	if err != nil {
		return 0, nil, fmt.Errorf("%w on %s: %s", ErrUnreachable, path, advice(err, path))
	}
	defer func() { _ = res.Body.Close() }() // read to its end
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswerBytes))
	if err != nil {
		return 0, nil, fmt.Errorf("%w on %s: %w", ErrUnreachable, path, err)
	}
	return res.StatusCode, body, nil
}

// advice says what to do when nobody answers on path.
func advice(err error, path string) string {
	if pid := holder(filepath.Join(filepath.Dir(path), "daemon.lock")); pid != "" && errors.Is(err, fs.ErrNotExist) {
		return "PID " + pid + " runs, but somebody removed its admin socket: restart the daemon; traffic goes on meanwhile"
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "permission denied: run this as root or as a member of the folder's group"
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		return "it does not run, or it has another runtimeDir (give --config or --runtime-dir)"
	}
	return err.Error()
}
