package check

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"headgate/cmd/config"
)

// The accounts of a host with the package, by numbers that nobody has.
const accounts = "root:x:0:0:root:/root:/bin/sh\nbroken\nheadgate:x:4711:4712:headgate daemon:/var/lib/headgate:/usr/sbin/nologin\nheadgate-proxy:x:4714:4714::/:/usr/sbin/nologin\n"

const groups = "root:x:0:\nheadgate:x:4712:\nheadgate-proxy:x:4714:ann,headgate\nwheel:x:10:ann\n"

// packaged is root on a host with the package.
func packaged(t *testing.T) *run {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("CI runs the tests as root")
		}
		t.Skip("only root may look as somebody else")
	}
	return subject(t, host(t, map[string]string{"etc/passwd": accounts, "etc/group": groups}))
}

// owned makes a file in a folder that everybody may enter.
func owned(t *testing.T, name string, mode fs.FileMode, uid, gid int) string {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil { //nolint:gosec // see above
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	give(t, path, mode, uid, gid)
	return path
}

func give(t *testing.T, path string, mode fs.FileMode, uid, gid int) {
	t.Helper()
	if err := os.Chown(path, uid, gid); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// Root can read everything: what counts is whether the daemon can, and whether nobody else can.
func TestSecretFiles(t *testing.T) {
	for name, c := range map[string]struct {
		mode     fs.FileMode
		uid, gid int
		want     string
	}{
		"as the package wants it":  {0o640, 0, 4712, ""},
		"the daemon's own":         {0o600, 4711, 0, ""},
		"root's alone":             {0o600, 0, 0, "fail the daemon (user headgate) cannot read FILE, credentials -> chgrp headgate FILE && chmod 0640 FILE"},
		"of a group of others":     {0o640, 0, 10, "fail the daemon (user headgate) cannot read FILE, credentials -> "},
		"open to nginx's group":    {0o640, 0, 4714, "warn FILE holds credentials and may be read by others (mode 0640) -> chgrp headgate FILE && chmod 0640 FILE"},
		"open to everybody":        {0o644, 0, 4712, "warn FILE holds credentials and may be read by others (mode 0644) -> chgrp headgate FILE && chmod 0640 FILE"},
		"open, but for the daemon": {0o604, 0, 4712, "fail the daemon (user headgate) cannot read FILE"},
	} {
		t.Run(name, func(t *testing.T) {
			r := packaged(t)
			file := owned(t, "kubeconfig", c.mode, c.uid, c.gid)
			r.secretFile(file, "credentials")
			if c.want == "" {
				says(t, r)
				return
			}
			says(t, r, strings.ReplaceAll(c.want, "FILE", file))
		})
	}
}

func TestAFolderKeepsTheDaemonOut(t *testing.T) {
	r := packaged(t)
	file := owned(t, "kubeconfig", 0o640, 0, 4712)
	give(t, filepath.Dir(file), 0o700, 0, 0)
	r.secretFile(file, "credentials")
	says(t, r, "fail the daemon (user headgate) cannot read "+file+", credentials: it may not enter "+filepath.Dir(file)+" -> install -o root -g headgate -m 0640 "+file+" /etc/headgate/")
}

// Without the package's account, or where the daemon runs nginx itself, whoever asks looks for himself.
func TestNobodyElseToLookFor(t *testing.T) {
	file := owned(t, "kubeconfig", 0o600, os.Geteuid(), os.Getegid())
	alone := subject(t, host(t, map[string]string{"etc/passwd": "root:x:0:0::/:/bin/sh\n"}))
	alone.secretFile(file, "credentials")
	says(t, alone)
	managed := subject(t, host(t, map[string]string{"etc/passwd": accounts, "etc/group": groups}))
	managed.Config.Proxy.Mode = config.Managed
	managed.secretFile(file, "credentials")
	says(t, managed)
	if err := os.Chmod(file, 0o644); err != nil { //nolint:gosec // it is what is looked for
		t.Fatal(err)
	}
	alone.secretFile(file, "credentials")
	says(t, alone, "warn "+file+" holds credentials and may be read by others (mode 0644) -> chmod 0600 "+file)
}

func TestFilesThatAKubeconfigNames(t *testing.T) {
	r := packaged(t)
	file := owned(t, "kubeconfig", 0o644, 0, 0)
	dir := filepath.Dir(file)
	for name, mode := range map[string]fs.FileMode{"token": 0o600, "client.key": 0o640, "client.crt": 0o600, "ca.crt": 0o644} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		give(t, path, mode, 0, 0)
	}
	text := `{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: "https://192.0.2.1", certificate-authority: ca.crt}}, {name: other, cluster: {server: "https://192.0.2.2", certificate-authority: /none}}],
users: [{name: u, user: {tokenFile: token, client-key: client.key, client-certificate: client.crt}}]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	give(t, file, 0o644, 0, 0)
	r.kubeconfigFiles(file, &rest.Config{BearerTokenFile: filepath.Join(dir, "token"), TLSClientConfig: rest.TLSClientConfig{KeyData: []byte("x")}})
	says(t, r,
		"fail the daemon (user headgate) cannot read "+dir+"/token, the token -> chgrp headgate",
		"fail the daemon (user headgate) cannot read "+dir+"/client.key, the key of the client certificate -> chgrp headgate",
		"fail the daemon (user headgate) cannot read "+dir+"/client.crt, which the kubeconfig names -> chgrp headgate",
	)
}

// The configuration is read by the commands that start nginx, too.
func TestTheConfigurationIsForBothUsers(t *testing.T) {
	r := packaged(t)
	r.File = owned(t, "headgate.yaml", 0o640, 0, 4712)
	r.readableConfig()
	says(t, r, "fail the user headgate-proxy, whom a unit of the package runs as, cannot read the configuration: "+r.File+" is closed to it -> chmod 0644 "+r.File)
}

func TestFoldersOfTheDaemon(t *testing.T) {
	r := packaged(t)
	dir := filepath.Join(filepath.Dir(owned(t, "x", 0o600, 0, 0)), "state")
	r.folder(dir, private)
	says(t, r, "fail "+dir+" does not exist and cannot be made in "+filepath.Dir(dir)+" by the daemon: permission denied -> install -d -m 0750 -o headgate "+dir)
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	r.lines = nil
	r.folder(dir, private)
	says(t, r, "fail "+dir+" cannot be written by the daemon (user headgate): permission denied -> chown headgate "+dir)
	give(t, dir, 0o750, 4711, 0)
	r.lines = nil
	r.folder(dir, private)
	says(t, r, "ok "+dir+" is writable, mode 0750")

	r.lines = nil
	r.Config.Manifests = []string{filepath.Join(dir, "site")}
	if err := os.Mkdir(r.Config.Manifests[0], 0o700); err != nil {
		t.Fatal(err)
	}
	r.manifests(t.Context())
	says(t, r, "fail the daemon (user headgate) may not enter "+dir+"/site -> chmod o+rx "+dir+"/site", "ok "+dir+"/site: 0 Ingresses")
}

func TestFilesThatWereReplaced(t *testing.T) {
	const maps = `55d0e0a00000-55d0e0b00000 r--p 00000000 fe:00 131 /usr/sbin/nginx (deleted)
55d0e0b00000-55d0e0c00000 r-xp 00100000 fe:00 131                        /usr/sbin/nginx (deleted)
7f0000000000-7f0000100000 r-xp 00000000 fe:00 132                        /usr/lib/x86_64-linux-gnu/libssl.so.3 (deleted)
7f0000100000-7f0000200000 r-xp 00000000 fe:00 132                        /usr/lib/x86_64-linux-gnu/libssl.so.3 (deleted)
7f0000200000-7f0000300000 r-xp 00000000 fe:00 133                        /usr/lib/x86_64-linux-gnu/libc.so.6
7f0000300000-7f0000400000 rw-s 00000000 00:01 9                          /dev/zero (deleted)
7ffd00000000-7ffd00100000 rw-p 00000000 00:00 0                          [stack]
`
	r := subject(t, host(t, map[string]string{"proc/700/maps": maps}))
	r.replacedFiles()
	says(t, r) // no nginx runs
	pid := filepath.Join(r.Config.RuntimeDir, "proxy", "nginx.pid")
	if err := os.MkdirAll(filepath.Dir(pid), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(pid, []byte("700\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.replacedFiles()
	says(t, r, "warn the running nginx (PID 700) uses files that were replaced on disk since it was started: /usr/sbin/nginx, /usr/lib/x86_64-linux-gnu/libssl.so.3 -> headgate proxy upgrade")
}
