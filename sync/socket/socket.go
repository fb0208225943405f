// Package socket is HTTP on a unix socket that one process at a time holds: Open claims it by a lock beside it, Ask is the
// client. The folder of both is what protects them; whoever makes it decides who may ask. It knows no path and no answer of
// its own.
package socket

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// HeldError tells that another process holds the lock.
type HeldError struct {
	Lock string // its path
	PID  string // as the holder wrote it down; "" when it has not yet
}

// Error implements error.
func (e *HeldError) Error() string { return fmt.Sprintf("PID %s holds %s", e.PID, e.Lock) }

// Claim takes the lock and writes this process's PID into it, for people. Closing the file gives it up; the file itself is to
// stay: removing it would let two processes hold two of the same name. A lock that a killed process held is free, the kernel
// saw to that. The error is a *HeldError, or wraps fs.ErrNotExist when there is no folder.
func Claim(path string) (*os.File, error) {
	lock, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o640) //nolint:gosec // the group may read who runs
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil { //nolint:gosec // a file descriptor fits
		pid := noted(lock)
		_ = lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, &HeldError{Lock: path, PID: pid}
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	err = lock.Truncate(0)
	if err == nil {
		_, err = lock.WriteAt([]byte(fmt.Sprintln(os.Getpid())), 0)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("write the PID into the lock: %w", err), lock.Close())
	}
	return lock, nil
}

// noted gives the PID that the lock's holder wrote into it.
func noted(lock *os.File) string {
	text := make([]byte, 20)
	n, _ := lock.ReadAt(text, 0) // the PID is a courtesy
	return strings.TrimSpace(string(text[:n]))
}

// Holder gives the PID of the process that holds the lock, or "" when none is known to.
func Holder(path string) string {
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

// Socket is a claim, and where its holder answers.
type Socket struct {
	lock     *os.File
	listener net.Listener
}

// Open claims the lock and listens at path. Both lie in a folder that is there. The socket is 0660: who may pass through the
// folder and is of its group may ask. Errors as those of Claim, and those of listening. Close gives both up.
func Open(ctx context.Context, path, lockPath string) (*Socket, error) {
	lock, err := Claim(lockPath)
	if err != nil {
		return nil, err
	}
	// What stands there belongs to a process that is dead: we hold the lock.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errors.Join(fmt.Errorf("remove the dead socket: %w", err), lock.Close())
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen on the socket: %w", err), lock.Close())
	}
	if err := os.Chmod(path, 0o660); err != nil { //nolint:gosec // see the folder
		return nil, errors.Join(fmt.Errorf("protect the socket: %w", err), listener.Close(), lock.Close())
	}
	return &Socket{lock, listener}, nil
}

// Serve answers on the socket as the function Serve does; then the socket is removed.
func (s *Socket) Serve(ctx context.Context, h http.Handler) error { return Serve(ctx, s.listener, h) }

// Close gives the socket and the claim up. It may be called again.
func (s *Socket) Close() error {
	return errors.Join(open(s.listener.Close()), open(s.lock.Close()))
}

// open is the error of closing what was not closed before.
func open(err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// Serve runs an HTTP server on l until ctx ends; then running requests have a second, and it returns nil. It has no write
// deadline: a CPU profile takes its time.
func Serve(ctx context.Context, l net.Listener, h http.Handler) error {
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
		_ = server.Close() // what still runs is cut off
	}
	<-ended
	return nil
}

// WriteJSON answers with v, indented: people read it, too.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // a client that left has nothing to be told
}

// Question is a request to the process that listens at Socket.
type Question struct {
	Socket  string
	Method  string
	Path    string        // with its query: "/v1/status"
	Body    io.Reader     // nil: none
	Timeout time.Duration // of the whole; 0: none but that of ctx
	Most    int64         // bytes of the answer that are read
}

// Ask puts the question, and gives the status and the body of the answer. Reason says why there was none.
func Ask(ctx context.Context, q Question) (int, []byte, error) {
	client := &http.Client{Timeout: q.Timeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", q.Socket)
		},
	}}
	request, err := http.NewRequestWithContext(ctx, q.Method, "http://headgate"+q.Path, q.Body)
	if err != nil {
		return 0, nil, fmt.Errorf("make request: %w", err)
	}
	res, err := client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = res.Body.Close() }() // read to its end
	body, err := io.ReadAll(io.LimitReader(res.Body, q.Most))
	return res.StatusCode, body, err
}

// Reason says for a person why Ask had no answer; absent is the sentence for a socket that is not there, or that nobody
// listens on.
func Reason(err error, absent string) string {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "permission denied: run this as root or as a member of the folder's group"
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		return absent
	}
	return err.Error()
}
