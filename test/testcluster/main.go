// Command testcluster is a small but real Kubernetes cluster for tests: etcd, the unmodified kube-apiserver and the
// controllers that Services and Deployments need, in one process. With --pods it also stands in for scheduler and
// kubelet (see package pods).
//
//	testcluster [--dir DIR] [--port N] [--ephemeral] [--pods] [--image PATTERN=BINARY]...
//	testcluster pods --kubeconfig FILE [--dir DIR] [--image PATTERN=BINARY]...
//
// The first form prints "READY <url> <kubeconfig>" once it serves. The second is the pod runner alone, for tests in
// which pods must outlive the API server; it prints "READY pods". Both end when their stdin closes, and on SIGTERM.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"

	"headgate/test/testcluster/pods"
)

func main() {
	// The test that reads our output may die first; its broken pipe must not keep us from cleaning up.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel(errStdinClosed)
	}()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "testcluster:", err)
		os.Exit(1)
	}
}

// errStdinClosed is the cancel cause that tells "our test is gone" from "stop, you will be started again".
var errStdinClosed = errors.New("stdin closed")

func run(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == "pods" {
		return runPods(ctx, args[1:])
	}
	return runCluster(ctx, args)
}

// images is the --image flag: an ordered list, the first match wins.
type images []pods.Image

func (i *images) String() string { return fmt.Sprint(*i) }
func (i *images) Type() string   { return "PATTERN=BINARY" }

func (i *images) Set(s string) error {
	image, err := pods.ParseImage(s)
	if err != nil {
		return err
	}
	*i = append(*i, image)
	return nil
}

func imageFlag(flags *pflag.FlagSet) *images {
	list := new(images)
	flags.Var(list, "image", "run pods of images matching PATTERN (path.Match) as BINARY; repeatable, first match wins")
	return list
}
