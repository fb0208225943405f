package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"headgate/cmd/config"
	"headgate/cmd/explain"
	"headgate/gateway/build"
	"headgate/gateway/model"
	"headgate/gateway/nginxconf"
	"headgate/gateway/snapshot"
	"headgate/sync/admin"
	"headgate/sync/luapush"
	"headgate/sync/manifests"
)

type explainFlags struct {
	question explain.Question
	output   output
}

func newExplain() *cobra.Command {
	f := &explainFlags{output: textOutput}
	cmd := &cobra.Command{
		Use:   "explain URL",
		Short: "Show what becomes of a request, and why",
		Long: `explain tells which listener, host, rule, Ingress, Service, peers, certificate and filters a request meets, or
why it gets an error, with the problems that are known of the objects behind it. What happens stands first.

The running daemon is asked, over its admin socket. The decision is the proxy's own: the request runs through its
parser and its router, as HTTP/1.1, and only the peer is another one, so no backend sees it. With --manifests a
private proxy is started for the folder, asked and stopped again; nobody can reach it, and nothing is left behind.

The path and query of the URL are sent as they are written, a Host header (-H) takes the place of the URL's host,
and a Content-Length counts without a body. --client matters where trustedProxies are believed.

Exit codes:
  0  a backend answers, or the client is redirected
  1  the gateway answers with an error, or --manifests could not be served
  2  no daemon or no proxy answers (or this user may not ask it)
  3  wrong usage or configuration`,
		Example: `  headgate explain https://shop.example.com/cart
  headgate explain http://192.0.2.10/ -H 'Host: shop.example.com' -X POST -H 'Content-Length: 5000000'
  headgate explain https://shop.example.com/ --manifests ./site
  headgate explain http://shop.example.com/ -o json | jq -r .reason`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError(fmt.Errorf("write one URL, such as https://shop.example.com/cart; see '%s --help'", cmd.CommandPath()))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f.question.URL = args[0]
			return f.run(cmd)
		},
	}
	configFlags(cmd, "manifests", "ingress-class", "runtime-dir")
	flags := cmd.Flags()
	flags.StringArrayVarP(&f.question.Header, "header", "H", nil, "request header `'Name: value'`; may be given several times")
	flags.StringVarP(&f.question.Method, "method", "X", http.MethodGet, "request `method`")
	flags.StringVar(&f.question.Client, "client", "", "`address` of the client (default one that nobody has)")
	outputFlag(cmd, &f.output)
	return cmd
}

func (f *explainFlags) run(cmd *cobra.Command) error {
	c, err := loadConfig(cmd, config.NoSource)
	if err != nil {
		return err
	}
	if err := f.question.Check(); err != nil {
		return usageError(err)
	}
	ask := askDaemon
	if cmd.Flags().Changed("manifests") {
		ask = askPrivate
	}
	e, err := ask(cmd.Context(), c, f.question)
	if err != nil {
		return explainError(err)
	}
	if err := printAs(cmd.OutOrStdout(), f.output, e, e.WriteText); err != nil {
		return err
	}
	if e.Outcome == explain.Failure {
		return &exitError{code: exitFailed}
	}
	return nil
}

func explainError(err error) error {
	switch {
	case errors.Is(err, explain.ErrQuestion):
		return usageError(err)
	case errors.Is(err, admin.ErrUnreachable), errors.Is(err, admin.ErrRefused):
		return &exitError{exitUnreachable, err}
	}
	return &exitError{exitFailed, err}
}

func askDaemon(ctx context.Context, c config.Config, q explain.Question) (explain.Explanation, error) {
	var e explain.Explanation
	question, err := json.Marshal(q)
	if err != nil {
		return e, fmt.Errorf("encode the question: %w", err)
	}
	body, err := admin.AskExplain(ctx, c.RuntimeDir, question)
	if err != nil {
		return e, err
	}
	if err := json.Unmarshal(body, &e); err != nil {
		return e, fmt.Errorf("decode the daemon's answer: %w", err)
	}
	return e, nil
}

// privateTimeout bounds the life of a private gateway.
const privateTimeout = time.Minute

// askPrivate runs a whole gateway for one question: the same rooms as the daemon's, in a folder of its own,
// with a proxy that listens on unix sockets alone.
func askPrivate(ctx context.Context, c config.Config, q explain.Question) (e explain.Explanation, err error) {
	// The daemon would wait for a folder that is not there.
	if _, err := manifests.Read(manifests.Config{Folders: c.Manifests}, time.Now()); err != nil {
		return e, err
	}
	dir, err := os.MkdirTemp("", "headgate-explain-")
	if err != nil {
		return e, fmt.Errorf("make a folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // nginx's workers, another user, pass through
		return e, fmt.Errorf("open the folder to nginx: %w", err)
	}
	c.Kubeconfig, c.Metrics.Listen, c.Status.Enabled = "", "", false
	c.StateDir, c.RuntimeDir = filepath.Join(dir, "state"), filepath.Join(dir, "run")
	c.Proxy.Mode, c.Proxy.StopWithDaemon, c.Proxy.WorkerProcesses = config.Managed, true, 1

	ctx, cancel := context.WithTimeout(ctx, privateTimeout)
	defer cancel()
	d := makeDaemon(c, slog.New(slog.DiscardHandler))
	d.private = true
	if err := d.open(ctx); err != nil {
		return e, err
	}
	ended := make(chan error, 1) // so that it ends also when nobody waits
	running, stop := context.WithCancel(ctx)
	go func() { ended <- d.run(running) }()
	defer func() {
		stop()
		err = errors.Join(err, <-ended)
	}()
	if err := d.awaitReady(ctx); err != nil {
		return e, err
	}
	return d.explain.answer(ctx, q)
}

// awaitReady returns once everything that was read is served.
func (d *daemon) awaitReady(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		s := d.loop.Status()
		switch {
		case s.Ready:
			return nil
		case s.Err != nil:
			return fmt.Errorf("serve the manifests: %w", s.Err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("serve the manifests: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

// explainService answers questions from what this daemon knows and its proxy decides.
type explainService struct {
	luapush.Explainer
	control *luapush.Client
	inForce func() *inForce
	result  func() *build.Result
	built   atomic.Pointer[snapshot.Snapshot] // what the result was built from; nil before the first
}

func newExplainService(d *daemon, layout nginxconf.Layout) *explainService {
	return &explainService{
		Explainer: luapush.Explainer{HTTP: layout.ExplainSocket(model.HTTP), HTTPS: layout.ExplainSocket(model.HTTPS)},
		control:   d.control, inForce: d.inForce.Load,
		result: func() *build.Result { return d.loop.Status().Result },
	}
}

// Peers implements explain.Proxy.
func (s *explainService) Peers(ctx context.Context, upstream string) (json.RawMessage, error) {
	return s.control.Peers(ctx, upstream)
}

func (s *explainService) answer(ctx context.Context, q explain.Question) (explain.Explanation, error) {
	o := s.inForce().options
	return explain.Explain(ctx, q, s, explain.Knowledge{
		Listeners: o.Listeners, Settings: o.Settings, Result: s.result(), Snapshot: s.built.Load(), Now: time.Now(),
	})
}

// ServeHTTP implements http.Handler: a question as JSON, an explanation as JSON.
func (s *explainService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const mostBytes = 1 << 20
	var q explain.Question
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, mostBytes)).Decode(&q); err != nil {
		http.Error(w, "decode the question: "+err.Error(), http.StatusBadRequest)
		return
	}
	e, err := s.answer(r.Context(), q)
	switch {
	case errors.Is(err, explain.ErrQuestion):
		http.Error(w, err.Error(), http.StatusBadRequest)
	case err != nil:
		http.Error(w, "ask the proxy: "+err.Error(), http.StatusBadGateway)
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(e) // a client that left has nothing to be told
	}
}
