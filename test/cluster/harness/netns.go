package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// inside marks the re-executed test binary.
const inside = "HEADGATE_TEST_NETNS"

// Main is for TestMain. It builds bin/testcluster while there is still a network to fetch modules from, then runs the
// tests in a network namespace of their own with loopback up and 10.244.0.0/16 local. It needs root and iproute2;
// without root the package is skipped, which CI=true turns into a failure. It does not return.
func Main(m *testing.M) {
	if image := os.Getenv("POD_IMAGE"); strings.HasPrefix(image, EchoImage+":") {
		os.Exit(report(echo()))
	}
	if os.Getenv(inside) != "" {
		os.Exit(m.Run())
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "skipped: a network namespace of its own needs root")
		if os.Getenv("CI") == "true" {
			os.Exit(1)
		}
		os.Exit(0)
	}
	if _, err := build(context.Background()); err != nil {
		os.Exit(report(err))
	}
	os.Exit(reexecute())
}

func report(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// reexecute runs this binary again in a new network namespace and returns its exit code. A shell sets the namespace up
// and becomes the test, so that nothing of this process needs to enter it.
func reexecute() int {
	const setup = `ip link set lo up && ip route add local 10.244.0.0/16 dev lo && exec "$0" "$@"`
	self, err := os.Executable()
	if err != nil {
		return report(err)
	}
	// Pdeathsig follows the thread that starts the child, so this one has to stay.
	runtime.LockOSThread()
	cmd := exec.CommandContext(context.Background(), "/bin/sh", append([]string{"-c", setup, self}, os.Args[1:]...)...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	if err := cmd.Start(); err != nil {
		return report(err)
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	err = cmd.Wait()
	if exit := new(exec.ExitError); errors.As(err, &exit) && exit.ExitCode() >= 0 {
		return exit.ExitCode()
	}
	return report(err)
}
