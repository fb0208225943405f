package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
)

const serviceAccountIssuer = "https://kubernetes.default.svc"

// apiServer is the upstream server, configured by its own flags.
type apiServer struct{ run func(context.Context) error }

func (s apiServer) Run(ctx context.Context) error { return s.run(ctx) }

func newAPIServer(ctx context.Context, listener net.Listener, keys pki, etcd string) (apiServer, error) {
	// The server's own loopback clients would warn about the server's own deprecated objects.
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	opts := options.NewServerRunOptions()
	flags := pflag.NewFlagSet("kube-apiserver", pflag.ContinueOnError)
	for _, set := range opts.Flags().FlagSets {
		flags.AddFlagSet(set)
	}
	if err := flags.Parse(apiServerFlags(keys, etcd)); err != nil {
		return apiServer{}, err
	}
	opts.SecureServing.Listener = listener
	opts.SecureServing.BindPort = listener.Addr().(*net.TCPAddr).Port
	if err := opts.GenericServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
		return apiServer{}, err
	}
	completed, err := opts.Complete(ctx)
	if err != nil {
		return apiServer{}, fmt.Errorf("complete API server options: %w", err)
	}
	if errs := completed.Validate(); len(errs) > 0 {
		return apiServer{}, fmt.Errorf("validate API server options: %w", utilerrors.NewAggregate(errs))
	}
	return build(completed)
}

func apiServerFlags(keys pki, etcd string) []string {
	return []string{
		"--etcd-servers=" + etcd,
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		"--tls-cert-file=" + keys.serverCert,
		"--tls-private-key-file=" + keys.serverKey,
		"--client-ca-file=" + keys.caCert,
		"--service-account-issuer=" + serviceAccountIssuer,
		"--service-account-signing-key-file=" + keys.serviceAccountKey,
		"--service-account-key-file=" + keys.serviceAccountKey,
		"--kubelet-client-certificate=" + keys.kubeletCert,
		"--kubelet-client-key=" + keys.kubeletKey,
		"--kubelet-preferred-address-types=InternalIP",
		"--authorization-mode=RBAC",
		"--service-cluster-ip-range=10.96.0.0/16",
		"--endpoint-reconciler-type=none",
		"--allow-privileged=true",
		"--profiling=false",
	}
}

func build(opts options.CompletedOptions) (apiServer, error) {
	config, err := app.NewConfig(opts)
	if err != nil {
		return apiServer{}, fmt.Errorf("configure API server: %w", err)
	}
	completed, err := config.Complete()
	if err != nil {
		return apiServer{}, fmt.Errorf("complete API server configuration: %w", err)
	}
	chain, err := app.CreateServerChain(completed)
	if err != nil {
		return apiServer{}, fmt.Errorf("create API server: %w", err)
	}
	prepared, err := chain.PrepareRun()
	if err != nil {
		return apiServer{}, fmt.Errorf("prepare API server: %w", err)
	}
	return apiServer{run: prepared.Run}, nil
}

// waitReady polls /readyz, which also covers the RBAC bootstrap roles.
func waitReady(ctx context.Context, client kubernetes.Interface) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, startTimeout, true, func(ctx context.Context) (bool, error) {
		last = client.CoreV1().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("wait for the API server: %w", errors.Join(err, last))
	}
	return nil
}
