// Package product helps the tests that build the headgate binary and run it as its users do.
package product

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// Main builds the binary, sets path to where it lies, runs the tests, removes it, and ends the process. It is what
// TestMain calls.
func Main(m *testing.M, path *string) {
	os.Exit(buildAndRun(m, path))
}

func buildAndRun(m *testing.M, path *string) int {
	dir, err := os.MkdirTemp("", "headgate-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	*path = filepath.Join(dir, "headgate")
	build := exec.CommandContext(context.Background(), "go", "build", "-o", *path, "headgate/cmd/headgate")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build headgate:", err)
		return 1
	}
	return m.Run()
}

// The ports of FreeAddress lie below those that the kernel gives to clients (net.ipv4.ip_local_port_range), which one of them
// would take before whoever was given the address listens on it.
const firstPort, ports = 10_000, 22_000

// FreeAddress gives an address of loopback whose port is free now.
func FreeAddress(tb testing.TB) string {
	tb.Helper()
	for {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(firstPort+rand.IntN(ports))) //nolint:gosec // not a secret
		l, err := net.Listen("tcp", address)                                               //nolint:noctx // returns at once
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err == nil {
			err = l.Close()
		}
		if err != nil {
			tb.Fatal(err)
		}
		return address
	}
}

// LookAt makes the result of the running test depend on what the binary is built from, and on the folders of the
// repository that are named besides: before go test takes a result from its cache it looks at the files that the test
// opened or asked for, and it does not see those of a go build that the test starts. It must be called within a test:
// what TestMain does before m.Run is not noted.
func LookAt(tb testing.TB, folders ...string) {
	tb.Helper()
	root, err := root()
	if err != nil {
		tb.Fatal(err)
	}
	for _, name := range append([]string{"go.mod", "go.sum", "cmd", "gateway", "sync", "lua"}, folders...) {
		if err := look(filepath.Join(root, name)); err != nil {
			tb.Fatal(err)
		}
	}
}

// root is the nearest folder, from the test's own upwards, with a go.mod.
func root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		_, err := os.Stat(filepath.Join(dir, "go.mod"))
		if err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", err
		}
		dir = filepath.Dir(dir)
	}
}

// look asks for every file of a tree, and lists every folder.
func look(path string) error {
	return filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			_, err = os.Stat(path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // an editor's temporary file
		}
		return err
	})
}
