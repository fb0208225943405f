package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"headgate/test/testcluster/pods"
)

const (
	startTimeout = 2 * time.Minute // a loaded two-core machine has needed 9 s
	stopTimeout  = 3 * time.Second // open watches would hold a graceful stop for a minute
)

type clusterFlags struct {
	dir       string
	port      int
	ephemeral bool
	pods      bool
	images    *images
}

func parseClusterFlags(args []string) (clusterFlags, error) {
	var f clusterFlags
	flags := pflag.NewFlagSet("testcluster", pflag.ContinueOnError)
	flags.StringVar(&f.dir, "dir", "", "keep etcd data, keys and port in `DIR`, so that a later start resumes the same cluster (default: a temporary folder, removed at the end)")
	flags.IntVar(&f.port, "port", 0, "API server `port` on 127.0.0.1; 0 takes the one last used in --dir, else a free one")
	flags.BoolVar(&f.ephemeral, "ephemeral", false, "remove --dir when stdin closes; SIGTERM keeps it")
	flags.BoolVar(&f.pods, "pods", false, "run pods of known images as local processes")
	f.images = imageFlag(flags)
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			os.Exit(0)
		}
		return f, err
	}
	if flags.NArg() > 0 {
		return f, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return f, nil
}

func runCluster(ctx context.Context, args []string) (err error) {
	flags, err := parseClusterFlags(args)
	if err != nil {
		return err
	}
	dir, cleanup, err := dataDir(flags)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cleanup(ctx)) }()

	listener, err := listen(dir, flags.port)
	if err != nil {
		return err
	}
	keys, err := loadOrCreatePKI(filepath.Join(dir, "pki"))
	if err != nil {
		return err
	}
	url := "https://" + listener.Addr().String()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := writeKubeconfig(kubeconfig, url, keys); err != nil {
		return err
	}
	etcd, err := startEtcd(filepath.Join(dir, "etcd"))
	if err != nil {
		return err
	}
	defer within(stopTimeout, etcd.Close)

	return serve(ctx, flags, listener, keys, serveConfig{
		dir: dir, url: url, kubeconfig: kubeconfig, etcd: "http://" + etcd.Clients[0].Addr().String(),
	})
}

type serveConfig struct{ dir, url, kubeconfig, etcd string }

// serve runs API server, controllers and, if wanted, pods until ctx ends. Pods end first, the API server last.
func serve(ctx context.Context, flags clusterFlags, listener net.Listener, keys pki, cfg serveConfig) error {
	apiCtx, stopAPI := context.WithCancel(context.WithoutCancel(ctx))
	defer stopAPI()
	server, err := newAPIServer(apiCtx, listener, keys, cfg.etcd)
	if err != nil {
		return err
	}
	apiDone := make(chan error, 1) // one result; its reader may have given up waiting
	go func() { apiDone <- server.Run(apiCtx) }()
	defer func() {
		stopAPI()
		within(stopTimeout, func() { <-apiDone })
	}()

	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error {
		select {
		case err := <-apiDone:
			apiDone <- err
			return fmt.Errorf("API server ended: %w", err)
		case <-groupCtx.Done():
			return nil
		}
	})
	group.Go(func() error { return startLoops(groupCtx, group, flags, keys, cfg) })
	if err := group.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

// startLoops adds controllers and pods to group once the API server is ready, and tells the parent when all is usable.
func startLoops(ctx context.Context, group *errgroup.Group, flags clusterFlags, keys pki, cfg serveConfig) error {
	client, restConfig, err := adminClient(cfg.kubeconfig)
	if err != nil {
		return err
	}
	if err := waitReady(ctx, client); err != nil {
		return err
	}
	controllers, err := newControllers(ctx, restConfig, keys)
	if err != nil {
		return err
	}
	group.Go(func() error { return controllers.Run(ctx) })
	if flags.pods {
		group.Go(func() error { return pods.Run(ctx, podConfig(client, cfg.dir, *flags.images)) })
	}
	if err := controllers.WaitUsable(ctx); err != nil {
		return err
	}
	fmt.Println("READY", cfg.url, cfg.kubeconfig)
	return nil
}

func runPods(ctx context.Context, args []string) error {
	flags := pflag.NewFlagSet("testcluster pods", pflag.ContinueOnError)
	kubeconfig := flags.String("kubeconfig", "", "`FILE` with the cluster's admin credentials")
	dir := flags.String("dir", "", "keep pod logs below `DIR` (default: the kubeconfig's folder)")
	list := imageFlag(flags)
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *dir == "" {
		*dir = filepath.Dir(*kubeconfig)
	}
	client, _, err := adminClient(*kubeconfig)
	if err != nil {
		return err
	}
	cfg := podConfig(client, *dir, *list)
	cfg.Ready = func() { fmt.Println("READY pods") }
	return pods.Run(ctx, cfg)
}

func podConfig(client kubernetes.Interface, dir string, list images) pods.Config {
	return pods.Config{Client: client, Images: list, LogDir: filepath.Join(dir, "pods")}
}

// adminClient has no client-side rate limit: the tests measure the cluster, not client-go's default of 5 requests/s.
func adminClient(kubeconfig string) (kubernetes.Interface, *rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	cfg.QPS = -1
	client, err := kubernetes.NewForConfig(cfg)
	return client, cfg, err
}

// dataDir returns the folder to work in and what to do with it at the end.
func dataDir(flags clusterFlags) (dir string, cleanup func(context.Context) error, err error) {
	if flags.dir == "" {
		dir, err = os.MkdirTemp("", "testcluster-")
		return dir, func(context.Context) error { return os.RemoveAll(dir) }, err
	}
	if dir, err = filepath.Abs(flags.dir); err != nil {
		return "", nil, err
	}
	cleanup = func(ctx context.Context) error {
		if flags.ephemeral && errors.Is(context.Cause(ctx), errStdinClosed) {
			return os.RemoveAll(dir)
		}
		return nil
	}
	return dir, cleanup, os.MkdirAll(dir, 0o755)
}

// listen opens the API server's socket before anything else, so that a free port cannot be lost between choosing and
// using it, and notes the port for the next start in the same folder.
func listen(dir string, port int) (net.Listener, error) {
	note := filepath.Join(dir, "port")
	if port == 0 {
		if b, err := os.ReadFile(note); err == nil {
			if port, err = strconv.Atoi(strings.TrimSpace(string(b))); err != nil {
				return nil, fmt.Errorf("read %s: %w", note, err)
			}
		}
	}
	l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return nil, err
	}
	port = l.Addr().(*net.TCPAddr).Port
	return l, os.WriteFile(note, []byte(strconv.Itoa(port)+"\n"), 0o644)
}

// within calls f and waits for it, but no longer than d.
func within(d time.Duration, f func()) {
	done := make(chan struct{})
	go func() { f(); close(done) }()
	select {
	case <-done:
	case <-time.After(d):
	}
}
