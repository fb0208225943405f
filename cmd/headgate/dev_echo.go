package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"headgate/cmd/echo"
)

func newDevEcho() *cobra.Command {
	var listen, name string
	cmd := &cobra.Command{
		Use:   "echo",
		Short: "Run a small backend that tells who it is and what it was asked",
		Long: `echo is an HTTP/1.1 backend for the quick start and for tests. It answers every path with JSON: its name, the
method, the request URI as received, the host and all headers. /status/NNN answers with that status, /delay?ms=N
after that time, and a request with "Upgrade: websocket" becomes a WebSocket that sends every message back.

It prints the address that it listens on, and stops on SIGINT or SIGTERM.`,
		Example: "  headgate dev echo --listen 127.0.0.1:18081 --name web-1",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := new(net.ListenConfig).Listen(cmd.Context(), "tcp", listen)
			if err != nil {
				return fmt.Errorf("listen: %w", err)
			}
			if _, err := fmt.Fprintf(cmd.OutOrStdout(), "echo %s listens on %s\n", name, l.Addr()); err != nil {
				return fmt.Errorf("print the address: %w", errors.Join(err, l.Close()))
			}
			return serveEcho(cmd.Context(), l, name)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "`address:port` to listen on; port 0 picks a free one")
	cmd.Flags().StringVar(&name, "name", "echo", "`name` that every answer tells")
	return cmd
}

func serveEcho(ctx context.Context, l net.Listener, name string) error {
	server := &http.Server{Handler: echo.Handler{Name: name}, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}
