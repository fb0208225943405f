package nginxproc

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestHolderOf(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		at := netip.MustParseAddrPort(l.Addr().String())
		h, ok := HolderOf(at)
		if !ok || h.PID != os.Getpid() || h.Name != programOf(os.Getpid()) || h.User == "" {
			t.Errorf("%s: %+v, %t", address, h, ok)
		}
		wildcard := netip.AddrPortFrom(netip.IPv4Unspecified(), at.Port())
		if at.Addr().Is6() {
			wildcard = netip.AddrPortFrom(netip.IPv6Unspecified(), at.Port())
		}
		if h, ok := HolderOf(wildcard); !ok || h.PID != os.Getpid() {
			t.Errorf("%s: %+v, %t", wildcard, h, ok)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if h, ok := HolderOf(at); ok {
			t.Errorf("%s is free, and %+v has it", at, h)
		}
	}
}

func TestExcludes(t *testing.T) {
	for _, c := range []struct {
		have  string
		only6 bool
		want  string
		same  bool
	}{
		{"0.0.0.0:80", false, "127.0.0.1:80", true},
		{"127.0.0.1:80", false, "0.0.0.0:80", true},
		{"127.0.0.1:80", false, "127.0.0.2:80", false},
		{"127.0.0.1:80", false, "127.0.0.1:81", false},
		{"127.0.0.1:80", false, "[::]:80", false}, // nginx sets IPV6_V6ONLY
		{"[::]:80", false, "127.0.0.1:80", true},
		{"[::]:80", true, "127.0.0.1:80", false},
		{"[::]:80", true, "[::1]:80", true},
		{"[::1]:80", false, "127.0.0.1:80", false},
	} {
		l := listener{address: netip.MustParseAddrPort(c.have), only6: c.only6}
		if got := l.excludes(netip.MustParseAddrPort(c.want)); got != c.same {
			t.Errorf("%s (only IPv6: %t) keeps others off %s: %t", c.have, c.only6, c.want, got)
		}
	}
}

func TestHolderIsNamedAsFarAsItIsKnown(t *testing.T) {
	for _, c := range []struct {
		holder         Holder
		called, remedy string
	}{
		{Holder{812, "apache2", "apache2.service", "root"}, "apache2 (PID 812, unit apache2.service)", "systemctl disable --now apache2.service"},
		{Holder{0, "", "docker.service", "root"}, "a process of the user root (unit docker.service)", "systemctl disable --now docker.service"},
		{Holder{900, "python3", "session-3.scope", "root"}, "python3 (PID 900, unit session-3.scope)", "kill 900"},
		{Holder{901, "caddy", "user@1000.service", "ann"}, "caddy (PID 901, unit user@1000.service)", "kill 901"},
		{Holder{0, "", "", "33"}, "a process of the user 33", "ss -ltnp, as root, shows its process: stop that"},
		{Holder{}, "another process", "ss -ltnp, as root, shows its process: stop that"},
	} {
		if got := c.holder.String(); got != c.called {
			t.Errorf("%+v is called %q, want %q", c.holder, got, c.called)
		}
		if got := c.holder.Remedy(); got != c.remedy {
			t.Errorf("%+v: %q, want %q", c.holder, got, c.remedy)
		}
	}
}

func TestUnitIn(t *testing.T) {
	for path, want := range map[string]string{
		"0::/system.slice/nginx.service":                           "nginx.service",
		"/sys/fs/cgroup/system.slice/docker.service/sub":           "docker.service",
		"0::/user.slice/user-0.slice/session-3.scope":              "session-3.scope",
		"0::/user.slice/user-1000.slice/user@1000.service/x.scope": "user@1000.service",
		"0::/": "",
	} {
		if got := unitIn(path); got != want {
			t.Errorf("%s is of %q, want %q", path, got, want)
		}
	}
}

func TestAddressesOfAConfiguration(t *testing.T) {
	const before = "http {\n    server {\n        listen 0.0.0.0:80 default_server;\n    }\n}\n"
	const after = before + "server {\n listen [::]:443 ssl;\n listen 0.0.0.0:80;\n listen \"unix:/run/x.sock\";\n listen unix:/y;\n # listen 1.2.3.4:5;\n}\n"
	if got := fmt.Sprint(addresses([]byte(after))); got != "[0.0.0.0:80 [::]:443]" {
		t.Errorf("%s", got)
	}
	if got := fmt.Sprint(newIn([]byte(after), []byte(before))); got != "[[::]:443]" {
		t.Errorf("%s", got)
	}
}

// In external mode no log tells why nginx did not take an address. It is told by whom, and before the time-out.
func TestAnotherHasTheAddressOfAnExternalProxy(t *testing.T) {
	b := newBench(t)
	c := b.config()
	c.Mode, c.ErrorLog, c.ReloadTimeout = External, "", time.Minute
	p := New(c)
	b.startElsewhere(b.conf("one", "", ""))
	b.eventually("the proxy", func() bool {
		running, err := p.Resume(t.Context())
		return running && err == nil
	})
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	more := b.conf("two", "", "")
	more.Text = []byte(strings.Replace(string(more.Text), "listen 127.0.0.1:", "listen "+l.Addr().String()+";\n        listen 127.0.0.1:", 1))
	from := time.Now()
	err = p.Apply(t.Context(), more)
	var failure *ReloadError
	if !errors.As(err, &failure) || len(failure.Taken) != 1 || failure.Taken[0].Address != l.Addr().String() || failure.Taken[0].By.PID != os.Getpid() {
		t.Fatalf("%v", err)
	}
	if took := time.Since(from); took > c.ReloadTimeout/2 {
		t.Errorf("it was told after %s", took)
	}
	if got, err := b.get("/"); got != "one" {
		t.Errorf("%q, %v", got, err)
	}
}

// Where no nginx runs, whoever holds its addresses is why.
func TestAnotherHasTheAddressOfAProxyThatDoesNotRun(t *testing.T) {
	b := newBench(t)
	c := b.config()
	c.Mode = External
	p := New(c)
	if err := p.Apply(t.Context(), b.conf("one", "", "")); err != ErrNotRunning { //nolint:errorlint // it alone
		t.Errorf("%v", err)
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", b.port))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	err = p.Apply(t.Context(), b.conf("one", "", ""))
	var failure *ReloadError
	if !errors.Is(err, ErrNotRunning) || !errors.As(err, &failure) || len(failure.Taken) != 1 || failure.Taken[0].By.PID != os.Getpid() {
		t.Errorf("%v", err)
	}
}

// What our own nginx listens on is nobody else's: neither of a master, nor of workers that outlived theirs.
func TestOurOwnListenersAreNotAnothers(t *testing.T) {
	b := newBench(t)
	p := New(b.config())
	b.run(p)
	b.apply(p, b.conf("one", "", ""))
	at := []netip.AddrPort{netip.MustParseAddrPort(fmt.Sprintf("127.0.0.1:%d", b.port))}
	if found := p.occupied(at); len(found) > 0 {
		t.Errorf("%v", found)
	}
	other := b.config()
	other.Conf += ".another"
	other.Sockets = []string{b.path("another.sock")}
	if found := New(other).occupied(at); len(found) != 1 || !slices.Contains([]string{"nginx", "openresty"}, found[0].By.Name) {
		t.Errorf("%v", found)
	}
}
