// Package terminal has a person at a terminal answer what `headgate init` and `headgate join` ask: a pseudo-terminal, with the
// line discipline of the kernel, so that Ctrl-C and Ctrl-D mean what they mean.
package terminal

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"headgate/test/netns"
	"headgate/test/product"
)

var binary string

func TestMain(m *testing.M) { product.Main(m, &binary) }

// patience is far beyond what a question needs, also on a machine that is busy with other tests.
const patience = 30 * time.Second

// What a person types besides words: the kernel makes a signal of the one and an end of the input of the other.
const (
	ctrlC = "\x03"
	ctrlD = "\x04"
)

// session is a command with a person at its terminal.
type session struct {
	t      *testing.T
	cmd    *exec.Cmd
	master *os.File
	said   bytes.Buffer // all of it
	read   int          // how much of that the person has looked at
	roles  bytes.Buffer // standard output, which is no terminal
}

// openTerminal makes a pseudo-terminal (pts(4)).
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = master.Close() })
	conn, err := master.SyscallConn() // Fd would make it block
	if err != nil {
		t.Fatal(err)
	}
	number := 0
	var numberErr, unlockErr error
	err = conn.Control(func(fd uintptr) {
		number, numberErr = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)     //nolint:gosec // a descriptor
		unlockErr = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0) //nolint:gosec // likewise
	})
	if err := errors.Join(err, numberErr, unlockErr); err != nil {
		t.Fatal(err)
	}
	if slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	return master, slave
}

// start runs headgate on a host with the interface eth0.
func start(t *testing.T, host *netns.Namespace, home string, args ...string) *session {
	t.Helper()
	master, slave := openTerminal(t)
	s := &session{t: t, master: master}
	s.cmd = exec.CommandContext(t.Context(), binary, args...) //nolint:gosec // the product
	s.cmd.Env = append(os.Environ(), "HOME="+home)
	s.cmd.Dir = home
	s.cmd.Stdin, s.cmd.Stderr, s.cmd.Stdout = slave, slave, &s.roles
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := host.Start(s.cmd); err != nil {
		t.Fatal(err)
	}
	if err := slave.Close(); err != nil {
		t.Fatal(err)
	}
	return s
}

// waits until the command has said the words since the person last looked.
func (s *session) hears(words string) {
	s.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		if i := strings.Index(s.said.String()[s.read:], words); i >= 0 {
			s.read += i + len(words)
			return
		}
		if err := s.listen(deadline); err != nil {
			s.t.Fatalf("it never said %q: %v; it said:\n%s", words, err, s.said.String())
		}
	}
}

// listen reads once.
func (s *session) listen(deadline time.Time) error {
	if err := s.master.SetReadDeadline(deadline); err != nil {
		return err
	}
	buffer := make([]byte, 4096)
	n, err := s.master.Read(buffer)
	s.said.Write(bytes.ReplaceAll(buffer[:n], []byte("\r\n"), []byte("\n")))
	return err
}

// types answers.
func (s *session) types(text string) {
	s.t.Helper()
	if _, err := s.master.WriteString(text); err != nil {
		s.t.Fatal(err)
	}
}

// ends waits for the end, and wants the exit code.
func (s *session) ends(code int) {
	s.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := s.listen(deadline)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			_ = s.cmd.Process.Kill() // it is told below
			_ = s.cmd.Wait()
			s.t.Fatalf("it does not end; it said:\n%s", s.said.String())
		}
		if err != nil {
			break // EIO: nobody has the other end open any more (pts(4))
		}
	}
	_ = s.cmd.Wait() // the code says it all
	if got := s.cmd.ProcessState.ExitCode(); got != code {
		s.t.Fatalf("exit code %d, want %d; it said:\n%s", got, code, s.said.String())
	}
}

const kubeconfig = `apiVersion: v1
kind: Config
current-context: a
contexts: [{name: a, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://192.0.2.1:6443"}}]
users: [{name: u, user: {token: very-secret-token}}]
`

// edge is a host with one interface, and a person's home folder.
func edge(t *testing.T) (host *netns.Namespace, home string) {
	t.Helper()
	product.LookAt(t)
	netns.Require(t)
	host, home = netns.New(t), t.TempDir()
	netns.NewLAN(t).Join(t, host, "eth0", netip.MustParsePrefix("192.0.2.11/24"))
	if err := os.WriteFile(filepath.Join(home, "edge.kubeconfig"), []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	return host, home
}

func contains(t *testing.T, path string, lines ...string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lines {
		if !strings.Contains(string(text), l+"\n") {
			t.Errorf("%s has no line %q:\n%s", path, l, text)
		}
	}
}

func nothingIn(t *testing.T, dir string) {
	t.Helper()
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		t.Errorf("%s was written: %v", dir, entries)
	}
}

const (
	askKubeconfig = "Kubeconfig of the cluster to read: "
	askVIPs       = "Addresses that the hosts share (VIPs), or nothing: "
	askPeers      = "Addresses of the other hosts, or nothing to add them later: "
)

func TestTwoHostsAreSetUpByAnswers(t *testing.T) {
	host, home := edge(t)
	first := filepath.Join(home, "one", "headgate.yaml")
	s := start(t, host, home, "init", "--config", first)
	s.hears(askKubeconfig)
	for answer, refusal := range map[string]string{
		"":                       "write the path of a kubeconfig",
		"/no/such file":          "no such file or directory",
		"'edge.kubeconfig'":      "no such file or directory",
		"$(reboot)":              "no such file or directory",
		"kubeconfig-ünïcode-✓":   "no such file or directory",
		strings.Repeat("x", 300): "file name too long",
		home:                     "is a directory",
	} {
		s.types(answer + "\n")
		s.hears(refusal)
		s.hears(askKubeconfig)
	}
	s.types("  ~/edge.kubeconfig \n")
	s.hears(askVIPs)
	for answer, refusal := range map[string]string{
		"ten;reboot":              `"ten;reboot" is no address`,
		"192.0.2.10, \"192.0.2.1": `is no address`,
		"192.0.2.10 192.0.2.10":   "192.0.2.10",
		"127.0.0.1":               "127.0.0.1",
		"１９２.0.2.10":              "is no address",
	} {
		s.types(answer + "\n")
		s.hears(refusal)
		s.hears(askVIPs)
	}
	s.types("192.0.2.10\n")
	s.hears("Interface that carries them [eth0]: ")
	s.types("eth7\n")
	s.hears("write one of eth0")
	s.hears("Interface that carries them [eth0]: ")
	s.types("\n")
	s.hears(askPeers)
	s.types("not a name!\n")
	s.hears("is neither an address nor a DNS name")
	s.hears(askPeers)
	s.types("192.0.2.12, edge3.example.com\n")
	s.hears("Next:")
	s.hears("\nheadgate join headgate-join-1.")
	s.ends(0)
	contains(t, first, `  peers: ["192.0.2.11", "192.0.2.12", "edge3.example.com"]`, `  interface: "eth0"`, `  addresses: ["192.0.2.10"]`,
		fmt.Sprintf("kubeconfig: %q", filepath.Join(home, "one", "kubeconfig")))
	if !strings.Contains(s.roles.String(), "kind: ClusterRole\n") || strings.Contains(s.said.String()+s.roles.String(), "very-secret-token") {
		t.Errorf("the roles, or a secret:\n%s%s", s.roles.String(), s.said.String())
	}

	line := s.said.String()[strings.Index(s.said.String(), "headgate-join-1."):]
	line, _, _ = strings.Cut(line, "\n")
	second := filepath.Join(home, "two", "headgate.yaml")
	j := start(t, host, home, "join", line, "--config", second)
	j.hears(askKubeconfig)
	j.types(filepath.Join(home, "edge.kubeconfig") + "\n")
	j.hears("Interface that carries them [eth0]: ")
	j.types("\n")
	j.hears("This host is set up for the cluster headgate")
	j.ends(0)
	contains(t, second, `  addresses: ["192.0.2.10"]`, `  interface: "eth0"`)

	// What is there is known before anything is asked.
	again := start(t, host, home, "init", "--config", first)
	again.hears("exists already: give --force")
	again.ends(1)
	if strings.Contains(again.said.String(), askKubeconfig) {
		t.Errorf("it asked for nothing:\n%s", again.said.String())
	}
}

func TestAHostThatSharesNothing(t *testing.T) {
	host, home := edge(t)
	file := filepath.Join(home, "etc", "headgate.yaml")
	s := start(t, host, home, "init", "--config", file)
	s.hears(askKubeconfig)
	s.types("edge.kubeconfig\n")
	s.hears(askVIPs)
	s.types("\n")
	s.hears("start it: systemctl enable --now headgate\n")
	s.ends(0)
	contains(t, file, fmt.Sprintf("kubeconfig: %q", filepath.Join(home, "etc", "kubeconfig")))
}

// Whoever gives up is let go at once, and nothing is written.
func TestGivingUp(t *testing.T) {
	for name, key := range map[string]string{"Ctrl-C": ctrlC, "Ctrl-D": ctrlD} {
		t.Run(name, func(t *testing.T) {
			host, home := edge(t)
			dir := filepath.Join(home, "etc")
			s := start(t, host, home, "init", "--config", filepath.Join(dir, "headgate.yaml"))
			s.hears(askKubeconfig)
			s.types("edge.kubeconfig\n")
			s.hears(askVIPs)
			s.types(key)
			s.hears("no answer: nothing is written")
			s.ends(1)
			nothingIn(t, dir)
		})
	}
}
