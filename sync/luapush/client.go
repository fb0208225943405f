// Package luapush is the client of the proxy's control socket (docs/design/0001-seams.md): it reads
// what the proxy holds and hands it pushes. It turns records into HTTP requests over a unix socket
// and the answers into values and sentinel errors. It decides nothing: which records a push holds is
// gateway/plan's business, when it is sent sync/reconcile's, who runs the client.
package luapush

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

// Config says where the control socket is and how long a call may take.
type Config struct {
	// Socket is the path of the unix socket; required. It need not exist yet.
	Socket string
	// Pusher names this process to the proxy, so that two daemons can be told apart. "" makes a
	// random name.
	Pusher string
	// Timeout bounds each request, a part of a push included; 0 means 5 s.
	Timeout time.Duration
}

// Client speaks to one control socket. It is safe for concurrent use; Close ends its idle connections.
type Client struct {
	pusher  string
	timeout time.Duration
	http    *http.Client
}

// The bounds of what is read of an answer: a proxy gone mad must not eat the daemon's memory.
const (
	maxAnswerBytes = 1 << 20
	maxKeysBytes   = 256 << 20
)

// New makes a client; it opens no connection.
func New(c Config) *Client {
	if c.Timeout <= 0 {
		c.Timeout = 5 * time.Second
	}
	if c.Pusher == "" {
		c.Pusher = randomName()
	}
	dialer := &net.Dialer{Timeout: c.Timeout}
	socket := c.Socket
	return &Client{
		pusher:  c.Pusher,
		timeout: c.Timeout,
		http: &http.Client{
			Transport: &http.Transport{
				DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
					return dialer.DialContext(ctx, "unix", socket)
				},
				MaxIdleConnsPerHost: 1,
				// Shorter than nginx's keepalive_timeout (75 s): the client closes first, so no
				// request is written into a connection that nginx is closing.
				IdleConnTimeout:    15 * time.Second,
				DisableCompression: true,
			},
		},
	}
}

func randomName() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // documented never to fail
	return hex.EncodeToString(b[:])
}

// Pusher is the name under which this client pushes.
func (c *Client) Pusher() string { return c.pusher }

// Close ends the idle connections. The client stays usable.
func (c *Client) Close() { c.http.CloseIdleConnections() }

type answer struct {
	status int
	body   []byte
}

// retiredPause is the time between two tries while workers of the past answer: around a reload they
// accept for about a tenth of a second.
const retiredPause = 10 * time.Millisecond

// call makes one request and reads the whole answer, both within the client's timeout. A worker that
// is on its way out has done nothing: another one is asked.
func (c *Client) call(ctx context.Context, req request) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var refused answer // what is known when the time is up
	for {
		a, err := c.once(ctx, req)
		switch {
		case err != nil && refused.status != 0 && ctx.Err() != nil:
			return refused, nil
		case err != nil || !a.retired():
			return a, err
		}
		refused = a
		again := time.NewTimer(retiredPause)
		select {
		case <-ctx.Done():
			again.Stop()
			return refused, nil
		case <-again.C:
		}
	}
}

// retired tells that a worker of the past refused ("exiting" in the contract).
func (a answer) retired() bool {
	if a.status != http.StatusServiceUnavailable {
		return false
	}
	var body struct {
		Error string `json:"error"`
	}
	return json.Unmarshal(a.body, &body) == nil && body.Error == "exiting"
}

func (c *Client) once(ctx context.Context, req request) (answer, error) {
	r, err := http.NewRequestWithContext(ctx, req.method, "http://control"+req.path, bytes.NewReader(req.body))
	if err != nil {
		return answer{}, fmt.Errorf("make request %s %s: %w", req.method, req.path, err)
	}
	for k, v := range req.header {
		r.Header[k] = v
	}
	res, err := c.http.Do(r)
	if err != nil {
		return answer{}, fmt.Errorf("%s %s: %w", req.method, req.path, unreachable(err))
	}
	defer func() { _ = res.Body.Close() }() // read to its end or given up: nothing to learn from it
	limit := req.limit
	if limit == 0 {
		limit = maxAnswerBytes
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, limit+1))
	if err != nil {
		return answer{}, fmt.Errorf("read answer of %s %s: %w", req.method, req.path, unreachable(err))
	}
	if int64(len(body)) > limit {
		return answer{}, fmt.Errorf("read answer of %s %s: more than %d bytes", req.method, req.path, limit)
	}
	return answer{status: res.StatusCode, body: body}, nil
}

type request struct {
	method, path string
	header       http.Header
	body         []byte
	limit        int64 // of the answer, in bytes; 0 means maxAnswerBytes
}

// unreachable strips the URL that net/http repeats, and marks the error as ErrUnreachable.
func unreachable(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return fmt.Errorf("%w: %w", ErrUnreachable, err)
}

func decode(a answer, what string, v any) error {
	if a.status != http.StatusOK {
		return fmt.Errorf("%s: %w", what, refusal(a))
	}
	if err := json.Unmarshal(a.body, v); err != nil {
		return fmt.Errorf("decode the answer of %s: %w", what, err)
	}
	return nil
}
