package harness

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// EchoImage is an image that every cluster with pods knows, with any tag: an HTTP server on the pod's containerPorts that
// answers each request with an Echo. The test binary itself plays it; see Main.
const EchoImage = "headgate.test/echo"

// Echo is what a pod of EchoImage answers.
type Echo struct {
	Namespace string      `json:"namespace"`
	Pod       string      `json:"pod"`
	IP        string      `json:"ip"`
	Image     string      `json:"image"`
	Method    string      `json:"method"`
	Host      string      `json:"host"`
	URI       string      `json:"uri"`
	Header    http.Header `json:"header"`
}

// echo serves until SIGTERM and lets requests in flight finish.
func echo() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	for port := range strings.SplitSeq(os.Getenv("POD_PORTS"), ",") {
		server := &http.Server{
			Addr:              net.JoinHostPort(os.Getenv("POD_IP"), port),
			Handler:           http.HandlerFunc(serveEcho),
			ReadHeaderTimeout: time.Minute,
		}
		group.Go(func() error {
			if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		})
		group.Go(func() error {
			<-ctx.Done()
			return server.Shutdown(context.WithoutCancel(ctx))
		})
	}
	return group.Wait()
}

func serveEcho(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(Echo{
		Namespace: os.Getenv("POD_NAMESPACE"), Pod: os.Getenv("POD_NAME"), IP: os.Getenv("POD_IP"),
		Image: os.Getenv("POD_IMAGE"), Method: r.Method, Host: r.Host, URI: r.RequestURI, Header: r.Header,
	})
}
