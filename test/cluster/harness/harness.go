// Package harness gives a test a real Kubernetes API server: it builds and starts bin/testcluster as a child process,
// hands out clients and credentials, and stops, kills and resumes the server to play an outage.
//
// A test package uses it like this:
//
//	func TestMain(m *testing.M) { harness.Main(m) }
//
//	func TestX(t *testing.T) {
//		cluster := harness.Start(t, harness.WithPods())
//		cluster.Apply(t, manifests)
//		…
//	}
//
// Main moves the package's tests into a network namespace of their own in which all of 10.244.0.0/16 is local. Backends
// belong there: the API server refuses EndpointSlices with loopback addresses. Pods get addresses in 10.244.128.0/17,
// so hand-written slices use the lower half.
package harness

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	readyTimeout = 2 * time.Minute
	exitTimeout  = 20 * time.Second
)

// Cluster is one running API server. Its methods fail the test they are given; they are for one goroutine at a time.
type Cluster struct {
	// Client has full rights and no client-side rate limit.
	Client kubernetes.Interface
	// KubeconfigPath is a file with full rights; URL and file stay valid over Stop, Kill, Resume and Restart.
	KubeconfigPath string
	// URL is where the API server listens, on 127.0.0.1.
	URL string

	dir    string
	binary string
	images []string
	api    *process
	pods   *process
}

// Option changes what Start starts.
type Option func(*options)

type options struct {
	pods   bool
	images []string
}

// WithPods runs pods as local processes, in a child of their own so that they outlive the API server. Images
// EchoImage:<tag> are always known.
func WithPods() Option { return func(o *options) { o.pods = true } }

// WithImage runs pods of images that match pattern (path.Match over the whole name) as the executable binary.
func WithImage(pattern, binary string) Option {
	return func(o *options) {
		o.pods = true
		o.images = append(o.images, "--image", pattern+"="+binary)
	}
}

// Start starts a cluster that ends with the test, and returns once it is ready (about three seconds).
func Start(t testing.TB, opts ...Option) *Cluster {
	t.Helper()
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	binary, err := build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "testcluster-") //nolint:usetesting // the API server's unix paths must stay short, and a subtest's name is long
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{binary: binary, dir: dir}
	t.Cleanup(func() { c.close(t) })
	c.Resume(t)
	c.Client = kubernetes.NewForConfigOrDie(c.Config())
	if o.pods {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		c.images = append(o.images, "--image", EchoImage+":*="+self)
		c.startPods(t)
	}
	return c
}

// Config returns a fresh client configuration with full rights and no client-side rate limit.
func (c *Cluster) Config() *rest.Config {
	cfg, err := clientcmd.BuildConfigFromFlags("", c.KubeconfigPath)
	if err != nil {
		panic(fmt.Sprintf("read our own kubeconfig: %v", err))
	}
	cfg.QPS = -1
	return cfg
}

// Stop ends the API server (and its controllers and etcd) gracefully. Pods and data stay.
func (c *Cluster) Stop(t testing.TB) {
	t.Helper()
	c.halt(t, syscall.SIGTERM)
}

// Kill ends the API server (and its controllers and etcd) with SIGKILL. Pods and data stay.
func (c *Cluster) Kill(t testing.TB) {
	t.Helper()
	c.halt(t, syscall.SIGKILL)
}

func (c *Cluster) halt(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if c.api == nil {
		t.Fatal("the API server is not running")
	}
	if err := c.api.end(sig); err != nil {
		t.Fatal(err)
	}
	c.api = nil
}

// Resume starts the API server again at the same URL, with the same data, keys and credentials.
func (c *Cluster) Resume(t testing.TB) {
	t.Helper()
	if c.api != nil {
		t.Fatal("the API server is already running")
	}
	p, fields, err := startProcess(c.binary, filepath.Join(c.dir, "testcluster.log"), "--dir", c.dir, "--ephemeral")
	if err != nil {
		t.Fatalf("start API server: %v", err)
	}
	if len(fields) != 3 {
		t.Fatalf("testcluster said %q, want READY, URL and kubeconfig", fields)
	}
	c.api, c.URL, c.KubeconfigPath = p, fields[1], fields[2]
}

// Restart is Stop and Resume.
func (c *Cluster) Restart(t testing.TB) {
	t.Helper()
	c.Stop(t)
	c.Resume(t)
}

func (c *Cluster) startPods(t testing.TB) {
	t.Helper()
	args := append([]string{"pods", "--kubeconfig", c.KubeconfigPath}, c.images...)
	p, _, err := startProcess(c.binary, filepath.Join(c.dir, "pods.log"), args...)
	if err != nil {
		t.Fatalf("start pod runner: %v", err)
	}
	c.pods = p
}

// close ends all processes, shows their last words if the test failed, and proves that the folder is gone.
func (c *Cluster) close(t testing.TB) {
	if t.Failed() {
		for _, name := range []string{"testcluster.log", "pods.log"} {
			t.Logf("%s:\n%s", name, tail(filepath.Join(c.dir, name)))
		}
	}
	for _, p := range []*process{c.pods, c.api} {
		if p == nil {
			continue
		}
		if err := p.end(0); err != nil {
			t.Error(err)
		}
	}
	if err := os.RemoveAll(c.dir); err != nil {
		t.Error(err)
	}
}

// process is a child whose life hangs on a pipe: should this test die in any way, the child's stdin closes.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	done  chan error // the one result of Wait
}

// startProcess returns once the child has printed a line that begins with READY, with that line's fields.
func startProcess(binary, logPath string, args ...string) (*process, []string, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.CommandContext(context.Background(), binary, args...)
	cmd.Stderr = log
	// Its own group: Ctrl-C is for the test, whose end then ends the child.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	stdout, out, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	cmd.Stdout = out
	err = cmd.Start()
	_ = out.Close()
	if err != nil {
		_ = stdout.Close()
		return nil, nil, err
	}
	p := &process{cmd: cmd, stdin: stdin, done: make(chan error, 1)}
	go func() { p.done <- cmd.Wait() }()
	fields, err := awaitReady(stdout)
	if err != nil {
		return nil, nil, errors.Join(err, p.end(syscall.SIGKILL), errors.New(tail(logPath)))
	}
	return p, fields, nil
}

func awaitReady(stdout *os.File) ([]string, error) {
	defer func() { _ = stdout.Close() }()
	if err := stdout.SetReadDeadline(time.Now().Add(readyTimeout)); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if fields := strings.Fields(line); len(fields) > 0 && fields[0] == "READY" {
		return fields, nil
	}
	return nil, fmt.Errorf("wait for READY, got %q: %w", line, err)
}

// end sends sig, or closes stdin if sig is 0, and waits. Only a child asked nicely that did not end well is an error.
func (p *process) end(sig syscall.Signal) error {
	if sig == 0 {
		_ = p.stdin.Close()
	} else if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	defer func() { _ = p.stdin.Close() }()
	select {
	case err := <-p.done:
		if err != nil && sig != syscall.SIGKILL {
			return fmt.Errorf("testcluster ended badly: %w", err)
		}
		return nil
	case <-time.After(exitTimeout):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("testcluster did not end within %s and was killed", exitTimeout)
	}
}

// build brings bin/testcluster up to date and returns its path.
func build(ctx context.Context) (string, error) {
	root, err := repositoryRoot()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(root, "test", "testcluster", "build.sh"))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, io.MultiWriter(&out, os.Stderr)
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("build testcluster: %w\n%s", err, out.String())
	}
	return filepath.Join(root, "bin", "testcluster"), nil
}

// repositoryRoot walks up from the package under test to the folder of this module.
func repositoryRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		b, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(b, []byte("module headgate\n")) {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("no go.mod of module headgate above the working directory")
		}
	}
}

// tail returns the last lines of a log, without the server's informational chatter.
func tail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	var kept []string
	for line := range strings.Lines(string(b)) {
		if !strings.HasPrefix(line, "I") && !strings.Contains(line, "addrConn.createTransport") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept[max(0, len(kept)-30):], "")
}
