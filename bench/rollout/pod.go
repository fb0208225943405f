package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// podVariable is what the cluster sets for the program of a pod: it is this program then.
const podVariable = "POD_IP"

// pod serves its image's name until SIGTERM; requests in flight are finished, as a well-behaved server does, and new
// connections refused at once.
func pod() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM) //nolint:forbidigo // a main makes the one
	defer stop()
	image := os.Getenv("POD_IMAGE")
	server := &http.Server{
		Addr:              net.JoinHostPort(os.Getenv(podVariable), os.Getenv("POD_PORTS")),
		ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(image)) // a client that went away needs no answer
		}),
	}
	ended := make(chan error, 1)
	go func() {
		<-ctx.Done()
		ended <- server.Shutdown(context.WithoutCancel(ctx))
	}()
	err := server.ListenAndServe()
	if errors.Is(err, http.ErrServerClosed) {
		err = <-ended
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "pod:", err) // nobody is left to tell
		return 1
	}
	return 0
}
