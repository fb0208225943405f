// Package kubewatch turns a Kubernetes API server into snapshots and keeps them equal to it: informers on the
// kinds that are read, trimmed copies, one immutable snapshot. It decides nothing, and writes nothing to the cluster. It is run
// by cmd; the loop reads Snapshot after Changed.
//
// # What may fail
//
// Nothing here ends the daemon. Without an API server, or with a kubeconfig that is missing, broken or refused, the source
// keeps trying and says so (Health, log); a snapshot that was complete once stays. A kubeconfig that is replaced on disk is
// tried with a second client and a second set of informers, which take over once they are complete; until then, and when the
// new one does not work, the old ones stay.
package kubewatch

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/kubernetes"

	"headgate/gateway/snapshot"
	"headgate/sync/folderwatch"
)

// Config says what to watch.
type Config struct {
	// Kubeconfig is the path of the kubeconfig file. It and the certificate files it names are watched.
	Kubeconfig string
	// Namespaces limits what is read of namespaced kinds; empty means all namespaces.
	Namespaces []string
	// Secrets are read besides those of Namespaces, such as the default certificate. With no Namespaces
	// they are read anyway, if they are of type kubernetes.io/tls.
	Secrets []snapshot.Key
	// Version stands in the User-Agent: "headgate/VERSION". "" means "dev".
	Version string
	// Logger gets what changes about the connection; nil discards.
	Logger *slog.Logger
}

// Source is the snapshot of a cluster. Its methods may be called from any goroutine.
type Source struct {
	config  Config
	log     *slog.Logger
	changed chan struct{} // capacity 1: a signal, not a queue
	memo    *memo         // owned by Run
	signs   *signs
	print   fingerprint             // of the newest session; owned by Run
	token   fingerprint             // of the tokenFile when the last session began; owned by Run
	current atomic.Pointer[session] // the one that answers; nil before the first complete one

	mu        sync.Mutex // guards what follows
	candidate *session
	renewing  bool           // candidate goes the same way as the session in use, anew
	sure      bool           // candidate was asked for by Relist: nothing is wrong
	wanted    []snapshot.Key // by Want
	trouble   string         // why the kubeconfig cannot be used, "" if it can
	since     time.Time
}

// New makes a Source; it reads nothing before Run. An error means a Config that cannot work.
func New(config Config) (*Source, error) {
	if config.Kubeconfig == "" {
		return nil, errors.New("no kubeconfig is named")
	}
	absolute, err := filepath.Abs(config.Kubeconfig)
	if err != nil {
		return nil, err
	}
	config.Kubeconfig = absolute
	if config.Version == "" {
		config.Version = "dev"
	}
	config.Namespaces = slices.Compact(slices.Sorted(slices.Values(config.Namespaces)))
	s := &Source{config: config, log: config.Logger, changed: make(chan struct{}, 1), memo: newMemo(), since: time.Now()}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.signs = &signs{changed: s.signalFrom}
	return s, nil
}

// Changed gets a value after Snapshot began to return something else.
func (s *Source) Changed() <-chan struct{} { return s.changed }

// Snapshot is what the cluster holds, as far as it is known. It is complete once every kind was listed and each listed
// object was taken in, and stays so. The result is never nil; an unchanged cluster gives the same pointer.
func (s *Source) Snapshot() (*snapshot.Snapshot, bool) {
	if current := s.current.Load(); current != nil {
		return current.tables.snapshot(), true
	}
	return &snapshot.Snapshot{}, false
}

// Client is the client of the API server that the snapshot comes from; nil before the snapshot is complete. It may be
// another one after the kubeconfig was replaced: ask again for each call.
func (s *Source) Client() kubernetes.Interface {
	if current := s.current.Load(); current != nil {
		return current.client
	}
	return nil
}

// APIServers are the addresses of the API server, sorted: the one in the kubeconfig or those that its name resolves to, and those that
// were connected to. No upstream may be one of them. Changed gets a value when there are others.
func (s *Source) APIServers() []netip.Addr {
	var all []netip.Addr
	for _, one := range s.sessions() {
		all = append(all, one.peers.list()...)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// Health is the state of the connection to the API server.
type Health struct {
	// Healthy is true while the API server says that it is ready and accepts our credentials.
	Healthy bool
	// Since is when Healthy last changed.
	Since time.Time
	// LastError is what went wrong last; "" while healthy.
	LastError string
	// LastContact is when the API server last answered anything; zero: never.
	LastContact time.Time
	// Forbidden says which reads the API server refuses, a sentence each, with what to add to the role.
	Forbidden []string
	// Synced is true once Snapshot is complete.
	Synced bool
	// Troubled is when something about the connection was last out of order, and Trouble says what: a request that failed, a
	// watch that broke off, an answer that means trouble, a list that had to be read anew, other
	// credentials. What the source loses soon afterwards may not be gone.
	Troubled time.Time
	Trouble  string
	// Listed is when the reading began that Snapshot comes from; zero before the first.
	Listed time.Time
	// Kubeconfig says why the file on disk cannot be used, or why what it says is not in use yet; "" if all is well.
	Kubeconfig string
}

// Health tells of the connection in use, or, before there is one, of the one being tried.
func (s *Source) Health() Health {
	current := s.current.Load()
	s.mu.Lock()
	trouble, candidate, renewing, since := s.trouble, s.candidate, s.renewing, s.since
	s.mu.Unlock()
	var h Health
	switch {
	case current != nil:
		h = current.health.condition()
		h.Synced, h.Listed = true, current.began
		if candidate != nil && !renewing && trouble == "" {
			trouble = "the new kubeconfig is being tried; the former connection stays until it works"
			if tried := candidate.health.condition(); tried.LastError != "" {
				trouble += ": " + tried.LastError
			}
		}
	case candidate != nil:
		h = candidate.health.condition()
	default:
		h = Health{Since: since, LastError: trouble}
	}
	h.Kubeconfig = trouble
	h.Troubled, h.Trouble = s.signs.last()
	return h
}

// Relist has everything read once more, with a new connection, as somebody wants to be sure. It does nothing before the
// first reading is complete.
func (s *Source) Relist() {
	if current := s.current.Load(); current != nil {
		current.ask(relist)
	}
}

// sessions are those in use and being tried.
func (s *Source) sessions() []*session {
	s.mu.Lock()
	candidate := s.candidate
	s.mu.Unlock()
	var list []*session
	if current := s.current.Load(); current != nil {
		list = append(list, current)
	}
	if candidate != nil {
		list = append(list, candidate)
	}
	return list
}

// Run watches until ctx ends, and returns nil then. It must run at most once.
func (s *Source) Run(ctx context.Context) error {
	credentials := folderwatch.Start(folderwatch.Config{Quiet: quiet, Patience: patience, Logger: s.log})
	defer credentials.Close()
	rescan := time.NewTicker(rescanInterval)
	defer rescan.Stop()
	defer s.stopAll()
	var used fingerprint
	for {
		used = s.adopt(ctx, credentials, used)
		select {
		case <-ctx.Done():
			return nil
		case <-rescan.C:
		case <-credentials.Changed():
			if !credentials.Settle(ctx) {
				return nil
			}
		case <-s.candidateSynced():
			s.swap()
		case why := <-s.renewal():
			used = fingerprint{}
			if why == rewind {
				s.memo = newMemo()
			}
			s.mu.Lock()
			s.sure = why == relist
			s.mu.Unlock()
		}
	}
}

// adopt reads the kubeconfig and, if it says something new, starts to try it in place of what was being tried.
func (s *Source) adopt(ctx context.Context, credentials *folderwatch.Watch, used fingerprint) fingerprint {
	loaded, err := loadKubeconfig(s.config)
	if credentials.Follow(loaded.files) {
		// What changed before the watch was set has sent no event.
		loaded, err = loadKubeconfig(s.config)
	}
	if err != nil {
		s.note(err.Error())
		return used
	}
	s.note("")
	if loaded.print == used && (loaded.token == s.token || !s.refused()) {
		return used
	}
	s.token = loaded.token
	fresh, err := newSession(s.config, loaded.config, s.memo, s.log, s.signs)
	if err != nil {
		s.note(err.Error())
		return used
	}
	if used != (fingerprint{}) {
		s.log.Info("the kubeconfig changed: trying it", "apiServer", loaded.config.Host)
	}
	s.mu.Lock()
	old := s.candidate
	s.candidate, s.renewing = fresh, loaded.print == s.print
	s.sure = s.sure && s.renewing
	fresh.named.want(s.wanted) //nolint:contextcheck // its watches live as long as its session
	s.mu.Unlock()
	s.print = loaded.print
	if old != nil {
		old.stop()
	}
	fresh.start(ctx)
	return loaded.print
}

// refused tells that the API server does not accept the credentials in use.
func (s *Source) refused() bool {
	return slices.ContainsFunc(s.sessions(), func(one *session) bool { return one.health.isRefused() })
}

// note keeps why the kubeconfig cannot be used, and logs it once.
func (s *Source) note(trouble string) {
	s.mu.Lock()
	before := s.trouble
	s.trouble = trouble
	s.mu.Unlock()
	if before == trouble {
		return
	}
	s.signs.mark("the kubeconfig changed")
	switch {
	case trouble == "":
		s.log.Info("the kubeconfig can be used")
	case s.current.Load() != nil:
		s.log.Warn("the kubeconfig cannot be used: the former connection stays", "err", trouble)
	default:
		s.log.Warn("the kubeconfig cannot be used: waiting for a better one", "err", trouble)
	}
}

// candidateSynced is nil, which blocks, while nothing is being tried.
func (s *Source) candidateSynced() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.candidate == nil {
		return nil
	}
	return s.candidate.synced
}

// renewal is nil, which blocks, while there is no session. One that is tried in place of another is not asked.
func (s *Source) renewal() <-chan renewal {
	if current := s.current.Load(); current != nil {
		return current.renew
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.candidate == nil {
		return nil
	}
	return s.candidate.renew
}

// swap puts the candidate, which is complete, in the place of the current session.
func (s *Source) swap() {
	s.mu.Lock()
	fresh, sure := s.candidate, s.sure
	s.candidate, s.sure = nil, false
	s.mu.Unlock()
	if !sure && s.current.Load() != nil {
		s.signs.mark("everything was read over a new connection")
	}
	old := s.current.Swap(fresh)
	s.log.Info("the cluster is read completely", "apiServer", fresh.host, "objects", fresh.tables.size())
	if old != nil {
		old.stop()
		s.memo.keep(fresh.tables.has)
	}
	s.signal()
}

// signalFrom is called by sessions when they changed. What one that is being tried learns changes nothing yet, but for the
// addresses of its API server; a signal too many does no harm.
func (s *Source) signalFrom() {
	if s.current.Load() != nil {
		s.signal()
	}
}

func (s *Source) signal() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *Source) stopAll() {
	for _, one := range s.sessions() {
		one.stop()
	}
}
