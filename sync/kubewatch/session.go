package kubewatch

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"headgate/gateway/snapshot"
)

// slowSync is when a list that is not complete is worth a line in the log.
const slowSync = 10 * time.Second

// session is one client with its informers and what they know.
type session struct {
	host   string
	log    *slog.Logger
	client kubernetes.Interface
	http   *http.Client
	tables *tables
	health *health
	peers  *peers
	named  *named

	factories []informers.SharedInformerFactory
	lists     []list
	renew     chan renewal  // capacity 1: a new session has to take over
	synced    chan struct{} // closed when every list is complete and taken in
	began     time.Time     // everything was read after that
	cancel    context.CancelFunc
	// lastFailure is why a list or watch failed last.
	lastFailure atomic.Pointer[error]
	running     sync.WaitGroup
	stopping    atomic.Bool
}

// list is one informer.
type list struct {
	name string
	done cache.DoneChecker // of its first list
	// version is the newest resourceVersion that the informer has seen; now asks for the one that the API server is at.
	version func() string
	now     func(context.Context) (string, error)
}

// newSession builds clients and informers; nothing is sent before start.
func newSession(config Config, cluster *rest.Config, memo *memo, log *slog.Logger, signs *signs) (*session, error) {
	s := &session{
		host:   cluster.Host,
		log:    log.With("apiServer", cluster.Host),
		tables: newTables(),
		synced: make(chan struct{}),
		renew:  make(chan renewal, 1),
		cancel: func() {},
		began:  time.Now(),
	}
	changed := signs.changed
	s.health = newHealth(s.log, config.Kubeconfig)
	s.health.back = s.lookBack
	s.health.mark = func(what string) {
		if !s.stopping.Load() {
			signs.mark(what)
		}
	}
	s.peers = newPeers(cluster.Host, changed)
	cluster = rest.CopyConfig(cluster)
	cluster.Dial = s.peers.dial
	cluster.Wrap(s.health.wrap)
	var err error
	if s.http, err = rest.HTTPClientFor(cluster); err != nil {
		return nil, fmt.Errorf("building an HTTP client from the kubeconfig %s: %w", config.Kubeconfig, err)
	}
	if s.client, err = kubernetes.NewForConfigAndClient(cluster, s.http); err != nil {
		return nil, fmt.Errorf("building a client from the kubeconfig %s: %w", config.Kubeconfig, err)
	}
	s.named = &named{
		client: s.client, log: s.log, tables: s.tables, memo: memo, changed: changed, failed: s.watchFailed,
		watches: map[snapshot.Key]*namedWatch{},
	}
	if err := s.addInformers(config, memo, changed); err != nil {
		return nil, err
	}
	return s, nil
}

// addInformers makes one factory for each combination of namespace and selector.
func (s *session) addInformers(config Config, memo *memo, changed func()) error {
	watch := func(kind, where string, informer cache.SharedIndexInformer, now func(context.Context) (string, error)) error {
		if err := informer.SetWatchErrorHandlerWithContext(s.watchFailed); err != nil {
			return fmt.Errorf("watching %s: %w", kind, err)
		}
		registration, err := informer.AddEventHandler(&handler{kind: kind, tables: s.tables, memo: memo, changed: changed})
		if err != nil {
			return fmt.Errorf("watching %s: %w", kind, err)
		}
		s.lists = append(s.lists, list{
			name: strings.TrimSpace(kind + " " + where), done: registration.HasSyncedChecker(),
			version: informer.LastSyncResourceVersion, now: now,
		})
		return nil
	}
	factory := func(options ...informers.SharedInformerOption) informers.SharedInformerFactory {
		options = append(options, informers.WithTransform(memo.transform))
		f := informers.NewSharedInformerFactoryWithOptions(s.client, 0, options...)
		s.factories = append(s.factories, f)
		return f
	}
	networking, core, discovery := s.client.NetworkingV1(), s.client.CoreV1(), s.client.DiscoveryV1()
	f := factory()
	errs := []error{watch(classKind, "", f.Networking().V1().IngressClasses().Informer(), version(networking.IngressClasses().List, ""))}
	namespaces := config.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	watchSecrets := func(where, namespace string, selector fields.Selector) error {
		f := factory(informers.WithNamespace(namespace), selecting(selector))
		return watch(secretKind, where, f.Core().V1().Secrets().Informer(), version(core.Secrets(namespace).List, selector.String()))
	}
	for _, namespace := range namespaces {
		f := factory(informers.WithNamespace(namespace))
		errs = append(errs,
			watch(ingressKind, namespace, f.Networking().V1().Ingresses().Informer(), version(networking.Ingresses(namespace).List, "")),
			watch(serviceKind, namespace, f.Core().V1().Services().Informer(), version(core.Services(namespace).List, "")),
			watch(sliceKind, namespace, f.Discovery().V1().EndpointSlices().Informer(), version(discovery.EndpointSlices(namespace).List, "")),
			// Other Secrets, such as helm's releases, stay out of memory, unless they are named (see Source.Want).
			watchSecrets(namespace, namespace, fields.OneTermEqualSelector("type", string(corev1.SecretTypeTLS))))
	}
	for _, key := range otherSecrets(config) {
		errs = append(errs, watchSecrets(key.String(), key.Namespace, fields.OneTermEqualSelector("metadata.name", key.Name)))
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func selecting(selector fields.Selector) informers.SharedInformerOption {
	return informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = selector.String() })
}

// otherSecrets are those of Config.Secrets that no list of a namespace brings.
func otherSecrets(config Config) []snapshot.Key {
	if len(config.Namespaces) == 0 {
		return nil
	}
	var others []snapshot.Key
	for _, key := range config.Secrets {
		if !slices.Contains(config.Namespaces, key.Namespace) && !slices.Contains(others, key) {
			others = append(others, key)
		}
	}
	return others
}

// watchFailed takes the place of client-go's own report: the transport sees the same and tells it once, in our words.
func (s *session) watchFailed(_ context.Context, _ *cache.Reflector, err error) {
	s.lastFailure.Store(&err)
	s.log.Debug("a watch ended", "err", err)
}

// start starts the informers. stop ends them.
func (s *session) start(ctx context.Context) {
	ctx, s.cancel = context.WithCancel(ctx)
	for _, f := range s.factories {
		f.StartWithContext(ctx)
	}
	s.running.Go(func() { s.awaitSync(ctx) })
	s.running.Go(func() { s.health.run(ctx, s.client.Discovery().RESTClient()) })
	s.running.Go(func() { s.peers.run(ctx) })
}

// stop returns when everything that start started has ended.
func (s *session) stop() {
	s.stopping.Store(true) // what breaks off now is no trouble
	s.cancel()
	for _, f := range s.factories {
		f.Shutdown()
	}
	s.named.stop()
	s.running.Wait()
	utilnet.CloseIdleConnectionsFor(s.http.Transport)
}

func (s *session) awaitSync(ctx context.Context) {
	slow := time.NewTimer(slowSync)
	defer slow.Stop()
	for _, l := range s.lists {
		for !cache.IsDone(l.done) {
			select {
			case <-ctx.Done():
				return
			case <-l.done.Done():
			case <-slow.C:
				why := slog.Any("err", nil)
				if err := s.lastFailure.Load(); err != nil {
					why = slog.Any("err", *err)
				}
				s.log.Warn("the cluster is not read completely yet", slog.Any("waitingFor", s.unsynced()), why)
			}
		}
	}
	s.named.begin(ctx)
	s.health.settled.Store(true)
	close(s.synced)
}

func (s *session) unsynced() []string {
	var names []string
	for _, l := range s.lists {
		if !cache.IsDone(l.done) {
			names = append(names, l.name)
		}
	}
	return names
}
