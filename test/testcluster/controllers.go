package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/deployment"
	"k8s.io/kubernetes/pkg/controller/endpointslice"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/namespace"
	"k8s.io/kubernetes/pkg/controller/replicaset"
	"k8s.io/kubernetes/pkg/controller/serviceaccount"
	tokens "k8s.io/kubernetes/pkg/serviceaccount"
)

const (
	workers              = 5
	maxEndpointsPerSlice = 100 // the controller manager's default, so that tests meet several slices a Service
	discoveryPeriod      = 10 * time.Second
)

// controllers are the unmodified upstream control loops that share one set of informers.
type controllers struct {
	client   kubernetes.Interface
	typed    informers.SharedInformerFactory
	metadata metadatainformer.SharedInformerFactory
	started  chan struct{} // closed when informers run; the garbage collector waits for it
	loops    []func(context.Context)
}

func newControllers(ctx context.Context, cfg *rest.Config, keys pki) (*controllers, error) {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	meta, err := metadata.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	c := &controllers{
		client:   client,
		typed:    informers.NewSharedInformerFactory(client, 0),
		metadata: metadatainformer.NewSharedInformerFactory(meta, 0),
		started:  make(chan struct{}),
	}
	c.addEndpointSlice(ctx)
	c.addReplicaSet(ctx)
	c.addNamespace(ctx, meta)
	for _, add := range []func() error{
		func() error { return c.addDeployment(ctx) },
		func() error { return c.addServiceAccounts(ctx) },
		func() error { return c.addTokens(ctx, keys) },
		func() error { return c.addGarbageCollector(ctx, meta) },
	} {
		if err := add(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Run starts informers and loops and returns when all loops have ended.
func (c *controllers) Run(ctx context.Context) error {
	c.typed.Start(ctx.Done())
	c.metadata.Start(ctx.Done())
	close(c.started)
	group, ctx := errgroup.WithContext(ctx)
	for _, loop := range c.loops {
		group.Go(func() error { loop(ctx); return nil })
	}
	err := group.Wait()
	c.typed.Shutdown()
	c.metadata.Shutdown()
	return err
}

// WaitUsable returns when pods can be created in the default namespace: admission refuses them until its ServiceAccount
// exists, and the controllers make that.
func (c *controllers) WaitUsable(ctx context.Context) error {
	err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, startTimeout, true, func(ctx context.Context) (bool, error) {
		_, err := c.client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("wait for the default ServiceAccount: %w", err)
	}
	return nil
}

func (c *controllers) add(loop func(context.Context)) { c.loops = append(c.loops, loop) }

func (c *controllers) addEndpointSlice(ctx context.Context) {
	core := c.typed.Core().V1()
	ctrl := endpointslice.NewController(ctx, core.Pods(), core.Services(), core.Nodes(),
		c.typed.Discovery().V1().EndpointSlices(), maxEndpointsPerSlice, c.client, 0)
	c.add(func(ctx context.Context) { ctrl.Run(ctx, workers) })
}

func (c *controllers) addReplicaSet(ctx context.Context) {
	ctrl := replicaset.NewReplicaSetController(ctx, c.typed.Apps().V1().ReplicaSets(), c.typed.Core().V1().Pods(),
		c.client, replicaset.BurstReplicas)
	c.add(func(ctx context.Context) { ctrl.Run(ctx, workers) })
}

func (c *controllers) addDeployment(ctx context.Context) error {
	ctrl, err := deployment.NewDeploymentController(ctx, c.typed.Apps().V1().Deployments(),
		c.typed.Apps().V1().ReplicaSets(), c.typed.Core().V1().Pods(), c.client)
	if err != nil {
		return err
	}
	c.add(func(ctx context.Context) { ctrl.Run(ctx, workers) })
	return nil
}

func (c *controllers) addNamespace(ctx context.Context, meta metadata.Interface) {
	ctrl := namespace.NewNamespaceController(ctx, c.client, meta, c.client.Discovery().ServerPreferredNamespacedResources,
		c.typed.Core().V1().Namespaces(), 5*time.Minute, corev1.FinalizerKubernetes)
	c.add(func(ctx context.Context) { ctrl.Run(ctx, workers) })
}

func (c *controllers) addServiceAccounts(ctx context.Context) error {
	core := c.typed.Core().V1()
	ctrl, err := serviceaccount.NewServiceAccountsController(klog.FromContext(ctx), core.ServiceAccounts(),
		core.Namespaces(), c.client, serviceaccount.DefaultServiceAccountsControllerOptions())
	if err != nil {
		return err
	}
	c.add(func(ctx context.Context) { ctrl.Run(ctx, 1) })
	return nil
}

// addTokens fills Secrets of type kubernetes.io/service-account-token, the kind a host outside the cluster may be given.
func (c *controllers) addTokens(ctx context.Context, keys pki) error {
	key, err := keyutil.PrivateKeyFromFile(keys.serviceAccountKey)
	if err != nil {
		return err
	}
	ca, err := os.ReadFile(keys.caCert)
	if err != nil {
		return err
	}
	generator, err := tokens.JWTTokenGenerator(tokens.LegacyIssuer, key)
	if err != nil {
		return err
	}
	core := c.typed.Core().V1()
	ctrl, err := serviceaccount.NewTokensController(klog.FromContext(ctx), core.ServiceAccounts(), core.Secrets(), c.client,
		serviceaccount.TokensControllerOptions{TokenGenerator: generator, RootCA: ca})
	if err != nil {
		return err
	}
	c.add(func(ctx context.Context) { ctrl.Run(ctx, workers) })
	return nil
}

func (c *controllers) addGarbageCollector(ctx context.Context, meta metadata.Interface) error {
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(c.client.Discovery()))
	ctrl, err := garbagecollector.NewGarbageCollector(ctx, c.client, meta, mapper, map[schema.GroupResource]struct{}{},
		informerfactory.NewInformerFactory(c.typed, c.metadata), c.started)
	if err != nil {
		return err
	}
	c.add(func(ctx context.Context) { ctrl.Run(ctx, workers, discoveryPeriod) })
	c.add(func(ctx context.Context) { ctrl.Sync(ctx, c.client.Discovery(), discoveryPeriod) })
	return nil
}
