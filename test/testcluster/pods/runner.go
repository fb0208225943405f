// Package pods stands in for scheduler and kubelet: it registers one Node, binds pods of known images to it, runs each
// container as a local process and keeps the pod's status equal to what that process does.
//
// Every pod gets an address of its own from Prefix, which must be local to this network namespace
// (ip route add local 10.244.0.0/16 dev lo). All pods share that namespace, so a program has to listen on the address
// it finds in POD_IP, not on the wildcard.
//
// What it does not do: pull images, mount volumes, give a pod its own network, file system or user, honour limits, run
// init containers, exec and gRPC probes, liveness and startup probes or post-start hooks, serve logs and exec (logs are
// files in LogDir), or take environment from Secrets and ConfigMaps. A pod that needs an image nobody mapped, an init
// container or such an environment stays Pending, with the reason in its PodScheduled condition.
package pods

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

const (
	// NodeName is the one node's name.
	NodeName = "testcluster"
	hostIP   = "10.244.255.254"
	podCIDR  = "10.244.128.0/17" // the lower half of 10.244.0.0/16 is left to hand-written EndpointSlices
	resync   = 5 * time.Second   // repairs what a lost API server kept us from doing
)

// Image maps image names to the program that stands for them.
type Image struct {
	Pattern string // path.Match over the whole image name: "registry.example/echo:*"
	Binary  string // an executable that needs nothing but itself
}

// ParseImage reads PATTERN=BINARY.
func ParseImage(s string) (Image, error) {
	pattern, binary, ok := strings.Cut(s, "=")
	if !ok {
		return Image{}, fmt.Errorf("image %q: want PATTERN=BINARY", s)
	}
	if _, err := path.Match(pattern, ""); err != nil {
		return Image{}, fmt.Errorf("image %q: %w", s, err)
	}
	if _, err := os.Stat(binary); err != nil {
		return Image{}, fmt.Errorf("image %q: %w", s, err)
	}
	return Image{Pattern: pattern, Binary: binary}, nil
}

// Config says what to run where. All fields but Ready are needed.
type Config struct {
	Client kubernetes.Interface
	Images []Image
	LogDir string
	Ready  func() // called once the node is registered; nil: nobody is told
}

// Run runs pods until ctx ends; then it kills their processes and leaves the objects to a later start.
func Run(ctx context.Context, cfg Config) error {
	probe, err := net.Listen("tcp", net.JoinHostPort(hostIP, "0"))
	if err != nil {
		return fmt.Errorf("pods need local addresses (ip route add local 10.244.0.0/16 dev lo): %w", err)
	}
	_ = probe.Close()
	if err := os.MkdirAll(cfg.LogDir, 0o755); err != nil {
		return err
	}
	if err := registerNode(ctx, cfg.Client); err != nil {
		return err
	}
	r := &runner{
		cfg:     cfg,
		ips:     newAllocator(netip.MustParsePrefix(podCIDR)),
		workers: map[types.UID]*worker{},
		changed: make(chan struct{}, 1),
	}
	return r.run(ctx)
}

// runner owns the table of workers, one a pod; only its run goroutine touches it.
type runner struct {
	cfg     Config
	ips     *allocator
	workers map[types.UID]*worker
	changed chan struct{} // capacity 1: any number of events is one reason to look again
	wg      sync.WaitGroup
}

func (r *runner) run(ctx context.Context) error {
	factory := informers.NewSharedInformerFactory(r.cfg.Client, 0)
	podInformer := factory.Core().V1().Pods()
	mark := func(any) {
		select {
		case r.changed <- struct{}{}:
		default:
		}
	}
	if _, err := podInformer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: mark, UpdateFunc: func(_, o any) { mark(o) }, DeleteFunc: mark,
	}); err != nil {
		return err
	}
	starterCtx, stopStarter := context.WithCancel(context.WithoutCancel(ctx))
	defer stopStarter()
	start := newStarter(starterCtx)
	defer factory.Shutdown()
	defer r.wg.Wait()
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), podInformer.Informer().HasSynced) {
		return nil // ctx ended
	}
	r.reserve(podInformer.Informer().GetStore().List())
	if r.cfg.Ready != nil {
		r.cfg.Ready()
	}
	tick := time.NewTicker(resync)
	defer tick.Stop()
	for {
		r.pass(ctx, start, podInformer.Informer().GetStore().List())
		select {
		case <-ctx.Done():
			return nil
		case <-r.changed:
		case <-tick.C:
		}
	}
}

// reserve keeps the addresses of pods that an earlier runner had started, before any new pod asks for one.
func (r *runner) reserve(objects []any) {
	for _, o := range objects {
		if pod := o.(*corev1.Pod); pod.Status.PodIP != "" {
			r.ips.reserve(pod.Status.PodIP)
		}
	}
}

// pass makes the workers fit the pods: a worker for each pod that should run here, the newest object for each worker,
// and an end for workers whose pod is gone.
func (r *runner) pass(ctx context.Context, start starter, objects []any) {
	seen := make(map[types.UID]bool, len(objects))
	for _, o := range objects {
		pod := o.(*corev1.Pod)
		seen[pod.UID] = true
		if w := r.workers[pod.UID]; w != nil {
			w.update(pod)
			continue
		}
		if !ours(pod) {
			continue
		}
		w := newWorker(r.cfg, r.ips, start, pod)
		r.workers[pod.UID] = w
		r.wg.Go(func() { w.run(ctx) })
	}
	for uid, w := range r.workers {
		if !seen[uid] {
			w.gone()
			delete(r.workers, uid)
		}
	}
}

func ours(pod *corev1.Pod) bool {
	if pod.Spec.NodeName == "" {
		return pod.DeletionTimestamp == nil
	}
	finished := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	return pod.Spec.NodeName == NodeName && (!finished || pod.DeletionTimestamp != nil)
}
