// Command headgate is the edge gateway: the daemon and the tools around it. It ties the rooms together and
// holds no logic of its own; each sub-command is a file.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

//go:generate go run . dev docs --out ../../docs/reference
//go:generate go run . rbac --config /dev/null --out ../../packaging/rbac.yaml

// version is set by the linker.
var version = "unknown"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends us at once
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
