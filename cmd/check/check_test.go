package check

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"

	"headgate/cmd/assemble"
	"headgate/cmd/config"
)

var morning = time.Date(2026, 11, 29, 6, 0, 0, 0, time.UTC)

// host makes a root of files; a name that ends in "@" is a link to the text.
func host(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		var err error
		if link, ok := strings.CutSuffix(path, "@"); ok {
			err = os.Symlink(text, link)
		} else {
			err = os.WriteFile(path, []byte(text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// subject has folders of its own and the configuration of an empty file.
func subject(t *testing.T, root string) *run {
	t.Helper()
	c := config.Default()
	c.StateDir, c.RuntimeDir = filepath.Join(t.TempDir(), "state"), filepath.Join(t.TempDir(), "run")
	c.Listeners.HTTP, c.Listeners.HTTPS = []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:80")}, nil
	return &run{Subject: Subject{Config: c, Host: Host{
		Root: root, UID: 0, Now: func() time.Time { return morning }, Bind: func(netip.AddrPort) error { return nil },
	}}}
}

// says holds the lines against wanted beginnings "verdict message", in order; a fix is looked for behind " -> ".
func says(t *testing.T, r *run, want ...string) {
	t.Helper()
	var got []string
	for _, l := range r.lines {
		line := string(l.Verdict) + " " + l.Message
		if l.Fix != "" {
			line += " -> " + l.Fix
		}
		if (l.Fix == "") != (l.Verdict == OK) && !strings.Contains(l.Message, "not known") {
			t.Errorf("%q and its fix %q", l.Message, l.Fix)
		}
		got = append(got, line)
	}
	if len(got) != len(want) {
		t.Errorf("%d lines, want %d:\n%s", len(got), len(want), strings.Join(got, "\n"))
		return
	}
	for i := range want {
		for part := range strings.SplitSeq(want[i], "…") {
			if !strings.Contains(got[i], part) {
				t.Errorf("line %d: %q does not hold %q", i, got[i], part)
			}
		}
	}
}

const tcp = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4001 1 0000000000000000 100 0 0 10 0
   1: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4002 1 0000000000000000 100 0 0 10 0
   2: 0100007F:0050 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 4003 1 0000000000000000 100 0 0 10 0
broken line
`

const tcp6 = `  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000000000000000000000000000:01BB 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4004 1 0000000000000000 100 0 0 10 0
   1: B80D0120000000000000000001000000:0050 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4005 1 0000000000000000 100 0 0 10 0
`

func TestParseSockets(t *testing.T) {
	got := map[string]string{}
	for _, s := range parseSockets(tcp+tcp6, listen) {
		got[s.address.String()] = s.inode
	}
	want := map[string]string{"0.0.0.0:80": "4001", "127.0.0.1:8080": "4002", "[::]:443": "4004", "[2001:db8::1]:80": "4005"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func FuzzParseSockets(f *testing.F) {
	f.Add(tcp)
	f.Add(tcp6)
	f.Add("0: 0:0 0 0A 0 0 0 0 0 1")
	f.Fuzz(func(t *testing.T, text string) {
		for _, s := range parseSockets(text, listen) {
			if !s.address.IsValid() || s.inode == "" {
				t.Errorf("%+v", s)
			}
		}
	})
}

func TestConflict(t *testing.T) {
	for _, c := range []struct {
		want, have string
		conflict   bool
	}{
		{"0.0.0.0:80", "0.0.0.0:80", true},
		{"0.0.0.0:80", "127.0.0.1:80", true},
		{"127.0.0.1:80", "0.0.0.0:80", true},
		{"127.0.0.1:80", "127.0.0.2:80", false},
		{"127.0.0.1:80", "127.0.0.1:81", false},
		{"0.0.0.0:80", "[::]:80", true},
		{"[::]:80", "0.0.0.0:80", false},
		{"[::1]:80", "[::]:80", true},
		{"[::1]:80", "[2001:db8::1]:80", false},
		{"127.0.0.1:80", "[::ffff:127.0.0.1]:80", true},
	} {
		if got := conflict(netip.MustParseAddrPort(c.want), netip.MustParseAddrPort(c.have)); got != c.conflict {
			t.Errorf("%s beside %s: %v", c.want, c.have, got)
		}
	}
}

func TestListeners(t *testing.T) {
	root := host(t, map[string]string{
		"proc/net/tcp": tcp, "proc/net/tcp6": tcp6,
		"proc/700/fd/6@": "socket:[4001]", "proc/700/comm": "nginx\n", "proc/700/cgroup": "0::/system.slice/nginx.service\n",
		"proc/700/cmdline": "nginx: master process /usr/sbin/nginx -g daemon on;",
		"proc/701/fd/6@":   "socket:[4001]", "proc/701/comm": "nginx\n",
		"proc/702/fd/9@": "socket:[4002]", "proc/702/comm": "python3\n", "proc/702/fd/1@": "/dev/null",
		"proc/702/cgroup": "0::/user.slice/user@1000.service\n",
	})
	r := subject(t, root)
	refuse := map[string]error{"0.0.0.0:80": unix.EADDRINUSE, "127.0.0.1:8080": unix.EADDRINUSE, "[::]:443": unix.EADDRINUSE, "192.0.2.1:80": unix.EADDRNOTAVAIL, "[::]:8443": unix.EAFNOSUPPORT}
	r.Host.Bind = func(a netip.AddrPort) error { return refuse[a.String()] }
	r.Config.Listeners.HTTP = nil
	for _, a := range []string{"0.0.0.0:80", "127.0.0.1:8080", "[::]:443", "192.0.2.1:80", "[::]:8443", "0.0.0.0:8081"} {
		r.Config.Listeners.HTTP = append(r.Config.Listeners.HTTP, netip.MustParseAddrPort(a))
	}
	r.listeners(t.Context())
	says(t, r,
		"fail 0.0.0.0:80 is taken by nginx (PID 700, unit nginx.service) -> systemctl disable --now nginx.service",
		"fail 127.0.0.1:8080 is taken by python3 (PID 702) -> kill 702, or",
		"fail [::]:443 is taken by another process -> run headgate check as root",
		"fail 192.0.2.1:80: no interface has the address 192.0.2.1 -> ip address add 192.0.2.1",
		"fail [::]:8443: this kernel has no IPv6 -> remove it",
		"ok free: 0.0.0.0:8081",
		"ok ports below 1024 (443, 80) may be taken",
	)

	ours := subject(t, root)
	ours.Host.Bind = r.Host.Bind
	if err := os.WriteFile(filepath.Join(root, "proc/700/cmdline"), []byte("nginx: master process /usr/sbin/nginx -p x -c "+ours.Config.RuntimeDir+"/nginx.conf"), 0o600); err != nil {
		t.Fatal(err)
	}
	ours.listeners(t.Context())
	says(t, ours, "ok held by our own proxy: 0.0.0.0:80", "ok ports below 1024")
}

func TestPrivileges(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		mode  config.ProxyMode
		want  []string
	}{
		"nothing":    {nil, config.Managed, []string{"fail ports below 1024 (80) need root or CAP_NET_BIND_SERVICE, and this user (UID 1000)… -> run headgate as root"}},
		"external":   {nil, config.External, []string{"warn ports below 1024 (80) need root"}},
		"sysctl":     {map[string]string{"proc/sys/net/ipv4/ip_unprivileged_port_start": "80\n"}, config.Managed, nil},
		"capability": {map[string]string{"proc/self/status": "Name:\tx\nCapEff:\t0000000000000400\n"}, config.Managed, []string{"ok ports below 1024"}},
		"another":    {map[string]string{"proc/self/status": "CapEff:\t0000000000000200\n"}, config.Managed, []string{"fail ports below 1024"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := subject(t, host(t, c.files))
			r.Host.UID, r.Config.Proxy.Mode = 1000, c.mode
			r.privileges(r.Config.Listeners.HTTP)
			says(t, r, c.want...)
		})
	}
}

func TestBindOnThisHost(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	taken := netip.MustParseAddrPort(l.Addr().String())
	if err := bind(taken); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("taken: %v", err)
	}
	_ = l.Close()
	if err := bind(taken); err != nil {
		t.Errorf("free: %v", err)
	}
	if err := bind(netip.MustParseAddrPort("192.0.2.1:80")); !errors.Is(err, unix.EADDRNOTAVAIL) {
		t.Errorf("another host's: %v", err)
	}
}

func TestProxyIsMissing(t *testing.T) {
	debian := subject(t, host(t, map[string]string{"usr/bin/apt-get": ""}))
	debian.proxy(t.Context())
	says(t, debian, "fail no nginx found… -> apt-get install nginx libnginx-mod-http-lua lua-resty-core lua-resty-lrucache lua-cjson")
	other := subject(t, host(t, nil))
	other.proxy(t.Context())
	says(t, other, "fail no nginx found… -> install OpenResty, or nginx with its Lua module")
}

func TestStockService(t *testing.T) {
	root := host(t, map[string]string{"etc/systemd/system/multi-user.target.wants/nginx.service@": "/lib/systemd/system/nginx.service"})
	r := subject(t, root)
	r.stockService()
	says(t, r, "warn nginx.service, the distribution's own nginx, is enabled and takes port 80… -> systemctl disable --now nginx.service")
	r = subject(t, root)
	r.Config.Listeners.HTTP = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:8080")}
	r.stockService()
	says(t, r)

	// Our package's drop-in keeps it off, unless somebody has masked that.
	const dropIn = "systemd/system/nginx.service.d/50-headgate.conf"
	enabled := map[string]string{"etc/systemd/system/multi-user.target.wants/nginx.service@": "/lib/systemd/system/nginx.service", "usr/lib/" + dropIn: ""}
	r = subject(t, host(t, enabled))
	r.stockService()
	says(t, r)
	enabled["etc/"+dropIn+"@"] = "/dev/null"
	r = subject(t, host(t, enabled))
	r.stockService()
	says(t, r, "warn nginx.service, the distribution's own nginx, is enabled")
}

func TestFolders(t *testing.T) {
	r := subject(t, "")
	r.folders(t.Context())
	missing := " does not exist; the daemon makes it"
	says(t, r, "ok "+r.Config.StateDir+missing, "ok "+r.Config.RuntimeDir+missing, "MiB are left for ")
	for _, dir := range []string{r.Config.StateDir, r.Config.RuntimeDir} {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s was made", dir)
		}
	}

	open := subject(t, "")
	for path, mode := range map[string]fs.FileMode{open.Config.StateDir: 0o755, open.Config.RuntimeDir: 0o700, open.Config.RuntimeDir + "/proxy": 0o750} {
		if err := errors.Join(os.MkdirAll(path, 0o700), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(open.Config.RuntimeDir+"/admin", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	open.folders(t.Context())
	says(t, open,
		"fail "+open.Config.StateDir+" is open to all users of this host (mode 0755)… -> chmod 0750 "+open.Config.StateDir,
		"warn "+open.Config.RuntimeDir+" is closed to the proxy's workers (mode 0700)… -> chmod 0755 "+open.Config.RuntimeDir,
		"ok "+open.Config.RuntimeDir+"/proxy is writable, mode 0750",
		"fail "+open.Config.RuntimeDir+"/admin is not a folder -> mv ",
		"MiB are left for ")

	below := subject(t, "")
	file := filepath.Join(host(t, map[string]string{"file": ""}), "file")
	below.folder(file+"/state", private)
	says(t, below, "fail "+file+"/state cannot be made: "+file+" is not a folder -> mv "+file)
}

func TestLimits(t *testing.T) {
	limits := func(soft, hard string) string {
		return "Limit                     Soft Limit           Hard Limit           Units     \n" +
			fmt.Sprintf("Max open files            %-20s %-20s files     \n", soft, hard)
	}
	for name, c := range map[string]struct {
		files map[string]string
		mode  config.ProxyMode
		want  string
	}{
		"managed":   {map[string]string{"proc/self/limits": limits("1024", "1048576")}, config.Managed, "ok this user may open 1048576 files"},
		"unlimited": {map[string]string{"proc/self/limits": limits("unlimited", "unlimited")}, config.Managed, "ok this user may open"},
		"too few":   {map[string]string{"proc/self/limits": limits("1024", "4096")}, config.Managed, "warn this user may open 4096 files… need 33792… -> write LimitNOFILE=33792 into headgate.service"},
		"external":  {map[string]string{"proc/77/limits": limits("1024", "1048576")}, config.External, "warn the running proxy may open 1024 files… -> write LimitNOFILE=33792 into headgate-proxy.service"},
		"broken":    {map[string]string{"proc/self/limits": "Max open files many\n"}, config.Managed, "ok 16384 connections a worker; the limit of open files of this user cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			r := subject(t, host(t, c.files))
			r.Config.Proxy.Mode = c.mode
			if c.mode == config.External {
				pid := assemble.PathsOf(r.Config).PID
				if err := errors.Join(os.MkdirAll(filepath.Dir(pid), 0o700), os.WriteFile(pid, []byte("77\n"), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			r.limits(t.Context())
			says(t, r, c.want)
		})
	}
}

// token makes a JWT whose signature nobody looks at.
func token(claims string) string {
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"RS256"}`)) + "." + encode([]byte(claims)) + "." + encode([]byte("signature"))
}

func TestTokenExpiry(t *testing.T) {
	for _, c := range []struct {
		token string
		want  int64 // 0: none
	}{
		{token(`{"exp":1795932000,"sub":"system:serviceaccount:a:b"}`), 1795932000},
		{token(`{"exp":1795932000.5}`), 1795932000},
		{token(`{"exp":"soon"}`), 0},
		{token(`{"exp":-5}`), 0},
		{token(`{"exp":1e300}`), 0},
		{token(`{}`), 0},
		{token(`[`), 0},
		{"opaque", 0},
		{"a.b", 0},
		{"..", 0},
		{"a.!!.c", 0},
	} {
		got, ok := tokenExpiry(c.token)
		if ok != (c.want != 0) || ok && got.Unix() != c.want {
			t.Errorf("%.60s: %v, %v; want %d", c.token, got, ok, c.want)
		}
	}
}

func FuzzTokenExpiry(f *testing.F) {
	f.Add(token(`{"exp":1795932000}`))
	f.Add(token(`{"exp":1e99}`))
	f.Add("a.b.c")
	f.Fuzz(func(t *testing.T, text string) {
		if end, ok := tokenExpiry(text); ok && (end.Unix() < 0 || end.Unix() > 1<<40) {
			t.Errorf("%s ends at %v", text, end)
		}
	})
}

func TestCredentials(t *testing.T) {
	at := func(d time.Duration) string { return token(fmt.Sprintf(`{"exp":%d}`, morning.Add(d).Unix())) }
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(at(time.Hour)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		config rest.Config
		want   string
	}{
		"good":       {rest.Config{BearerToken: at(90 * 24 * time.Hour)}, "ok the token is valid until 2027-02-27T06:00:00Z"},
		"soon":       {rest.Config{BearerToken: at(48 * time.Hour)}, "warn the token expires on 2026-12-01T06:00:00Z, in 48h0m0s -> install -m 0640 NEW "},
		"over":       {rest.Config{BearerToken: at(-time.Hour)}, "fail the token expired on 2026-11-29T05:00:00Z -> "},
		"renewed":    {rest.Config{BearerTokenFile: file}, "ok the token is valid until 2026-11-29T07:00:00Z"},
		"no file":    {rest.Config{BearerTokenFile: file + "x"}, "fail the token file cannot be read"},
		"opaque":     {rest.Config{BearerToken: "opaque"}, "ok the token does not say when it ends"},
		"anonymous":  {rest.Config{}, "warn the kubeconfig holds no credentials… -> install -m 0640 NEW "},
		"no key":     {rest.Config{TLSClientConfig: rest.TLSClientConfig{CertData: []byte("x"), KeyData: []byte("secret-key")}}, "fail the client certificate cannot be used"},
		"basic auth": {rest.Config{Username: "u", Password: "p"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := subject(t, "")
			r.credentials(&c.config)
			if c.want == "" {
				says(t, r)
				return
			}
			says(t, r, c.want)
			for _, l := range r.lines {
				if strings.Contains(l.Message+l.Fix, "secret-key") || c.config.BearerToken != "" && strings.Contains(l.Message+l.Fix, c.config.BearerToken) {
					t.Errorf("a secret is shown: %+v", l)
				}
			}
		})
	}
}

func TestClock(t *testing.T) {
	for skew, want := range map[time.Duration]string{
		0:                 "ok the clock agrees",
		4 * time.Second:   "ok the clock agrees",
		20 * time.Second:  "warn the clocks differ: this host is 20s ahead relative to the API server -> timedatectl",
		-20 * time.Second: "warn the clocks differ: this host is 20s behind",
		5 * time.Minute:   "fail the clocks differ: this host is 5m0s ahead",
	} {
		r := subject(t, "")
		r.clock(morning.Add(-skew).Format(http.TimeFormat), morning, morning.Add(time.Second))
		says(t, r, want)
	}
	r := subject(t, "")
	r.clock("yesterday", morning, morning)
	says(t, r)
}

func TestJudgeVersion(t *testing.T) {
	for body, want := range map[string]string{
		`{"major":"1","minor":"36","gitVersion":"v1.36.3"}`:  "ok the API server answers: Kubernetes v1.36.3",
		`{"major":"1","minor":"20+","gitVersion":"v1.20.1"}`: "fail Kubernetes v1.20.1 does not serve discovery.k8s.io/v1 -> upgrade",
		`<html>`: "warn what answers does not tell its version",
	} {
		r := subject(t, "")
		r.judgeVersion([]byte(body))
		says(t, r, want)
	}
}

func TestManifests(t *testing.T) {
	root := host(t, map[string]string{
		"good/a.yaml": "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ports: [{port: 80}]}\n",
		"bad/a.yaml":  "kind: Service\n  metadata: [",
	})
	for folder, want := range map[string]string{
		"good":   "ok …/good: 0 Ingresses, 1 Services, 0 Secrets",
		"bad":    "fail a.yaml… -> edit a.yaml",
		"absent": "fail …/absent… -> install -d ",
	} {
		r := subject(t, "")
		r.Config.Manifests = []string{filepath.Join(root, folder)}
		r.manifests(t.Context())
		says(t, r, want)
	}
}

// nameServer answers on loopback until the test ends.
func nameServer(t *testing.T) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan struct{})
	server := &dns.Server{PacketConn: conn, NotifyStartedFunc: func() { close(started) }, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		_ = w.WriteMsg(new(dns.Msg).SetRcode(q, dns.RcodeRefused))
	})}
	ended := make(chan error, 1)
	go func() { ended <- server.ActivateAndServe() }()
	<-started
	t.Cleanup(func() { _ = errors.Join(server.Shutdown(), <-ended) })
	return netip.MustParseAddrPort(conn.LocalAddr().String())
}

func TestNameServers(t *testing.T) {
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := netip.MustParseAddrPort(silent.LocalAddr().String())
	_ = silent.Close()
	answers := nameServer(t)

	r := subject(t, "")
	r.Config.DNS.Servers = []netip.AddrPort{gone, answers}
	r.nameServers(t.Context())
	says(t, r, "warn name server "+gone.String()+" does not answer", "ok name server "+answers.String()+" answers")

	r = subject(t, "")
	r.Config.DNS.Servers = []netip.AddrPort{gone}
	r.nameServers(t.Context())
	says(t, r, "warn name server", "fail none of dns.servers answers… -> correct dns.servers")

	r = subject(t, host(t, map[string]string{"etc/resolv.conf": "# nothing\n"}))
	r.nameServers(t.Context())
	says(t, r, "warn …/etc/resolv.conf names no server")
}

func TestRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "headgate.yaml")
	if err := os.WriteFile(file, []byte("typo: 1\nlog: {level: loud}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := config.Load(file, nil, config.NoSource)
	report := Refused(err)
	if report.Count(Fail) != 2 || report.Count(Warn) != 1 || report.Lines[0].Fix != "correct "+file+":1" {
		t.Errorf("%+v", report.Lines)
	}
	if report := Refused(errors.New("one")); report.Count(Fail) != 1 || report.Lines[0].Message != "one" {
		t.Errorf("%+v", report.Lines)
	}
}

func TestWriteText(t *testing.T) {
	var r run
	r.area = "proxy"
	r.ok("fine")
	r.fail("apt-get install x", "first\nsecond \x1b[31m")
	r.area = "listeners"
	r.warn("look", "hm")
	var out bytes.Buffer
	if err := (Report{Lines: r.lines}).WriteText(&out); err != nil {
		t.Fatal(err)
	}
	const want = `ok    proxy       fine
FAIL  proxy       first; second  [31m
                  -> apt-get install x
warn  listeners   hm
                  -> look

1 ok, 1 to look at, 1 to mend
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

// TestEveryAreaIsLookedAt runs the whole on a host that has nothing.
func TestEveryAreaIsLookedAt(t *testing.T) {
	r := subject(t, host(t, map[string]string{"proc/net/tcp": tcp}))
	r.Config.Kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	report := Run(context.WithoutCancel(t.Context()), r.Subject)
	var areas []string
	for _, l := range report.Lines {
		if !slices.Contains(areas, l.Area) {
			areas = append(areas, l.Area)
		}
	}
	want := []string{"config", "proxy", "listeners", "folders", "limits", "kubeconfig", "dns"}
	if !slices.Equal(areas, want) {
		t.Errorf("areas %v, want %v", areas, want)
	}
}

func TestSubnet(t *testing.T) {
	have := []netip.Prefix{netip.MustParsePrefix("10.0.0.5/24"), netip.MustParsePrefix("fe80::1/64"), netip.MustParsePrefix("192.0.2.10/32")}
	for vip, want := range map[string]string{
		"10.0.0.9":    "ok 10.0.0.9 is in the network 10.0.0.0/24 of eth0",
		"192.0.2.10":  "fail 192.0.2.10 is in no network of eth0 (IPv4: 10.0.0.0/24)… -> write an address of the interface's network",
		"2001:db8::1": "fail 2001:db8::1 is in no network of eth0 (IPv6: none)",
	} {
		r := subject(t, "")
		r.judgeSubnet(netip.MustParseAddr(vip), "eth0", have)
		says(t, r, want)
	}
}

func TestCapabilities(t *testing.T) {
	for set, want := range map[string][]string{
		"0000000000803000": {"ok x has CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_NICE"},
		"0000000000002000": {
			"fail x lacks CAP_NET_ADMIN: it takes addresses -> write AmbientCapabilities=CAP_NET_ADMIN into headgate-vip.service",
			"warn x lacks CAP_SYS_NICE… -> …vip.realtime: false", "ok x has CAP_NET_RAW",
		},
	} {
		r := subject(t, "")
		number, ok := effective("Name:\tx\nCapEff:\t" + set + "\n")
		if !ok {
			t.Fatal(set)
		}
		r.judgeCapabilities("x", number)
		says(t, r, want...)
	}
	if _, ok := effective("CapEff:\tmany\n"); ok {
		t.Error("a broken status was read")
	}
	r := subject(t, "")
	r.capabilities(t.Context())
	says(t, r, "ok no VIP is configured")
	r = subject(t, "")
	r.Config.VIP.Interface, r.Config.VIP.Addresses, r.Host.UID = "eth0", []string{"192.0.2.10"}, 1000
	r.capabilities(t.Context())
	says(t, r, "warn no VIP process answers… -> run headgate doctor as root")
}

func TestServices(t *testing.T) {
	const wants = "etc/systemd/system/multi-user.target.wants/"
	for name, c := range map[string]struct {
		files map[string]string
		vips  []string
		want  []string
	}{
		"nothing":          {nil, []string{"192.0.2.10"}, []string{"ok no other service gets in the way"}},
		"keepalived":       {map[string]string{"proc/44/comm": "keepalived\n"}, []string{"192.0.2.10"}, []string{"fail keepalived runs (PID 44)… -> systemctl disable --now keepalived.service"}},
		"without a VIP":    {map[string]string{"proc/44/comm": "keepalived\n"}, nil, []string{"warn keepalived runs (PID 44)"}},
		"only enabled":     {map[string]string{wants + "keepalived.service@": "/lib/systemd/system/keepalived.service"}, nil, []string{"warn keepalived.service starts when this host boots"}},
		"haproxy":          {map[string]string{"proc/45/comm": "haproxy\n"}, []string{"192.0.2.10"}, []string{"warn haproxy runs (PID 45)"}},
		"networkd":         {map[string]string{"run/systemd/netif/links/1": "NETWORK_FILE=/etc/systemd/network/x.network\n"}, []string{"192.0.2.10"}, []string{"warn systemd-networkd has lo… (ManageForeignRoutes is not no)… -> …ManageForeignRoutes=no", "warn systemd-networkd has lo"}},
		"networkd is told": {map[string]string{"run/systemd/netif/links/1": "NETWORK_FILE=x\n", "usr/lib/systemd/networkd.conf.d/50-headgate.conf": "[Network]\nManageForeignRoutes=no\nManageForeignRoutingPolicyRules = off\n"}, []string{"192.0.2.10"}, []string{"ok no other service"}},
		"it is overridden": {map[string]string{
			"run/systemd/netif/links/1": "NETWORK_FILE=x\n", "usr/lib/systemd/networkd.conf.d/50-headgate.conf": "[Network]\nManageForeignRoutes=no\nManageForeignRoutingPolicyRules=no\n",
			"etc/systemd/networkd.conf.d/90-site.conf": "[DHCP]\nManageForeignRoutes=no\n[Network]\nManageForeignRoutes=yes\n",
		}, []string{"192.0.2.10"}, []string{"warn systemd-networkd has lo… (ManageForeignRoutes is not no)"}},
		"networkd without it": {map[string]string{"run/systemd/netif/links/1": "ADMIN_STATE=unmanaged\n"}, []string{"192.0.2.10"}, []string{"ok no other service"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := subject(t, host(t, c.files))
			r.Config.VIP.Interface, r.Config.VIP.Addresses = "lo", c.vips
			r.services(t.Context())
			says(t, r, c.want...)
		})
	}
}

func TestPodsAreSampledAndTried(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	open := netip.MustParseAddrPort(l.Addr().String())
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := netip.MustParseAddrPort(gone.Addr().String())
	_ = gone.Close()
	defer func() { _ = l.Close() }()
	for want, pods := range map[string][]pod{
		"ok there is no ready pod": nil,
		"ok all of 2 pods":         {{open, "n1", "a/b"}, {open, "n2", "a/b"}},
		"warn 1 of 2 pods are not reached: " + closed.String() + " of a/c on node n2… -> route the pods' network": {{open, "n1", "a/b"}, {closed, "n2", "a/c"}},
		"fail no pod is reached from this host… -> route the pods' network":                                       {{closed, "n2", "a/c"}},
	} {
		r := subject(t, "")
		r.tryPods(t.Context(), pods)
		says(t, r, want)
	}
	var many []pod
	for node := range 12 {
		for range 3 {
			many = append(many, pod{open, strconv.Itoa(node), "a/b"})
		}
	}
	nodes := map[string]bool{}
	for _, p := range sample(many) {
		nodes[p.node] = true
	}
	if len(nodes) != samplePods {
		t.Errorf("%d nodes are tried", len(nodes))
	}
	if got := sample(many[:3]); len(got) != 3 {
		t.Errorf("%d pods of one node", len(got))
	}
}

func TestEstablished(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	at := netip.MustParseAddrPort(l.Addr().String())
	count := func() int {
		n, err := Established(func(local netip.AddrPort) bool { return local == at })
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := count(); n != 0 {
		t.Errorf("%d connections of a listener", n)
	}
	conn, err := net.Dial("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
	_ = conn.Close()
}
