package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"headgate/cmd/config"
	"headgate/sync/gossip"
)

// unpack gives the files of a bundle by name.
func unpack(t *testing.T, in io.Reader) map[string]string {
	t.Helper()
	zipped, err := gzip.NewReader(in)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(zipped); ; {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		if head.Mode != 0o600 || !strings.HasPrefix(head.Name, folder) {
			t.Errorf("%s has mode %o", head.Name, head.Mode)
		}
		files[strings.TrimPrefix(head.Name, folder)] = string(text)
	}
}

func privateKey(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// secretsOf are the texts that must not be in a bundle because of a secret: itself, its lines, and how it is written elsewhere.
func secretsOf(secret string) []string {
	list := []string{secret, base64.StdEncoding.EncodeToString([]byte(secret)), strings.Trim(fmt.Sprintf("%q", secret), `"`)}
	for line := range strings.Lines(secret) {
		if line = strings.TrimSpace(line); len(line) > 16 && !strings.HasPrefix(line, "-----") {
			list = append(list, line)
		}
	}
	return list
}

// fixture is a host full of secrets.
func fixture(t *testing.T) (c config.Config, secrets []string) {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	key, defaultKey, peerKey := privateKey(t), privateKey(t), privateKey(t)
	secret, rotated := gossip.NewSecret(), gossip.NewSecret()
	c = config.Default()
	c.StateDir, c.RuntimeDir = filepath.Join(dir, "state"), filepath.Join(dir, "run")
	c.Metrics.Listen, c.VIP.MetricsListen = "", ""
	c.Gossip.KeyFile = write("gossip.key", secret.Reveal()+"\n")
	c.Gossip.Peers, c.VIP.Interface, c.VIP.Addresses = []string{"192.0.2.11"}, "eth0", []string{"192.0.2.10"}
	c.VIP.Notify = []string{"/usr/local/bin/notify", "--password", "notify-password-1"}
	write("state/gossip.keyring", rotated.Reveal()+"\nturn 1\n")
	write("state/default.key", defaultKey)
	write("run/tls/peer.pem", "-----BEGIN CERTIFICATE-----\nMIIBdDCCARqgAwIBAgIBATAKBggqhkjOPQQDAjANMQsw\n-----END CERTIFICATE-----\n"+peerKey)
	write("run/nginx.conf", "daemon off; # X\n")
	write("token", "token-of-a-file-77\n")
	c.Kubeconfig = write("kubeconfig", `
apiVersion: v1
kind: Config
current-context: a
contexts: [{name: a, context: {cluster: c, user: token}}]
clusters: [{name: c, cluster: {server: "https://admin:password-in-url@192.0.2.1:6443"}}]
users:
  - {name: token, user: {token: opaque-token-12345}}
  - {name: file, user: {tokenFile: token}}
  - {name: basic, user: {username: admin, password: correct-horse}}
  - {name: key, user: {client-certificate-data: "", client-key-data: `+base64.StdEncoding.EncodeToString([]byte(key))+`}}
  - {name: exec, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: get-token, interactiveMode: Never, env: [{name: X, value: secret-of-plugin}]}}}
`)
	return c, []string{
		key, defaultKey, peerKey, secret.Reveal(), rotated.Reveal(), "notify-password-1", "password-in-url",
		"opaque-token-12345", "token-of-a-file-77", "correct-horse", "secret-of-plugin",
	}
}

func TestNoSecretIsInABundle(t *testing.T) {
	c, secrets := fixture(t)
	unknownKey := privateKey(t)
	jwt := "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJoZWFkZ2F0ZSJ9.c2lnbmF0dXJlLXNpZ25hdHVyZQ"
	// A part that leaks everything, as the worst of our own errors would.
	leak := []byte(strings.Join(secrets, " ") + "\n" + unknownKey + jwt +
		"\nAuthorization: Basic YWRtaW46aHVudGVyMg==\nCookie: session=cookie-of-somebody\nheadgate join headgate-join-1.abcdef.0123\npassword=\"of-nobody\"\n")
	for _, s := range secrets {
		leak = append(leak, base64.StdEncoding.EncodeToString([]byte(s))+"\n"...)
		leak = append(leak, fmt.Sprintf("{%q: %q}\n", "leak", s)...)
	}
	secrets = append(secrets, unknownKey, jwt, "YWRtaW46aHVudGVyMg==", "cookie-of-somebody", "headgate-join-1.abcdef", "of-nobody")

	var out bytes.Buffer
	subject := Subject{
		Config: c, File: filepath.Join(t.TempDir(), "headgate.yaml"), Version: map[string]string{"version": "v1"}, Now: time.Unix(1e9, 0),
		Doctor: func(context.Context) ([]byte, error) { return leak, fmt.Errorf("it leaks, too: %s", secrets[3]) },
	}
	manifest, err := Write(t.Context(), &out, subject)
	if err != nil {
		t.Fatal(err)
	}
	files := unpack(t, &out)
	for name, text := range files {
		for _, secret := range secrets {
			for _, form := range secretsOf(secret) {
				if strings.Contains(text, form) {
					t.Errorf("%s holds %q", name, form)
				}
			}
		}
	}
	// What it is for is there, and what is not there is named.
	for name, want := range map[string]string{
		"version.json": `"version": "v1"`, "config.txt": `vip.notify = ["/usr/local/bin/notify","[secret `,
		"kubeconfig.txt": "user basic: password [secret ", "nginx.conf": "daemon off;", "files.txt": "default.key",
		"network.txt": "== neighbours", "host.txt": "== /proc/meminfo", "doctor.json": "[secret ",
		manifestName: `"status.json": "no headgate daemon answers`,
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s does not hold %q:\n%.2000s", name, want, files[name])
		}
	}
	var read Manifest
	if err := json.Unmarshal([]byte(files[manifestName]), &read); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(read.Files, manifest.Files) || len(read.Files)+1 != len(files) || !read.Made.Equal(subject.Now) {
		t.Errorf("the manifest names %v; there are %d files", read.Files, len(files))
	}
	if !strings.Contains(read.Missing["doctor.json"], "it leaks, too: [secret ") {
		t.Errorf("%q", read.Missing["doctor.json"])
	}
}

func TestHashesTellEqualFromUnequalAndNothingElse(t *testing.T) {
	s, other := newScrubber(), newScrubber()
	s.learn("first-secret")
	s.learn("second-secret")
	text := string(s.text([]byte("a first-secret, b second-secret, c first-secret")))
	words := strings.Split(text, ", ")
	if words[0][2:] != words[2][2:] || words[0][2:] == words[1][2:] {
		t.Errorf("%q", text)
	}
	if s.hash("first-secret") == other.hash("first-secret") {
		t.Error("two bundles have one key: a guess can be checked")
	}
}

func TestScrubbedTexts(t *testing.T) {
	for _, c := range []struct{ name, in, keeps, drops string }{
		{"query", `request: "GET /cart?token=abc&x=1 HTTP/1.1", host: "shop"`, `GET /cart?[secret `, "abc"},
		{"key in JSON", `{"key":"-----BEGIN EC PRIVATE KEY-----\nMHcCAQ\n-----END EC PRIVATE KEY-----\n"}`, `{"key":"[secret `, "MHcCAQ"},
		{"key cut off", "x -----BEGIN PRIVATE KEY-----\nMHcCAQ", "x [secret ", "MHcCAQ"},
		{"bearer", "authorization: Bearer abcdefghijkl", "authorization: Bearer [secret ", "abcdefghijkl"},
		{"URL", "proxy http://user:hunter2@10.0.0.1/", "http://user:[secret ", "hunter2"},
		{"token in a URL", "clone https://glpat-12345@git.example.com/x", "https://[secret ", "glpat"},
		{"no user in a URL", "see https://example.com/a@b", "https://example.com/a@b", "[secret"},
		{"cookie", `"Set-Cookie": "INGRESSCOOKIE=12345; Path=/"`, `"Set-Cookie": "[secret `, "12345"},
		{"password", `{"password": "hunter2", "user": "x"}`, `"user": "x"`, "hunter2"},
		{"words", "the token expires on Sunday, the secret shop/tls is missing", "the token expires on Sunday, the secret shop/tls is missing", "[secret"},
		{"certificate", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----", "MIIB", "[secret"},
	} {
		got := string(newScrubber().log([]byte(c.in)))
		if !strings.Contains(got, c.keeps) || strings.Contains(got, c.drops) {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}

// A program writes a secret as its language does.
func TestEveryFormOfASecretIsFound(t *testing.T) {
	const secret = `pä"ss\w<or>d&1 2/3+4%`
	s := newScrubber()
	s.learn(secret)
	quoted, err := json.Marshal(secret)
	if err != nil {
		t.Fatal(err)
	}
	for _, form := range []string{
		secret, string(quoted), fmt.Sprintf("%q", secret), fmt.Sprintf("%+q", secret), url.QueryEscape(secret), url.PathEscape(secret), url.UserPassword("u", secret).String(),
		base64.StdEncoding.EncodeToString([]byte(secret)), hex.EncodeToString([]byte(secret)),
	} {
		if got := string(s.text([]byte("before " + form + " after"))); !strings.HasPrefix(got, "before ") || !strings.Contains(got, "[secret ") || !strings.HasSuffix(got, " after") || strings.Contains(got, "d&1") {
			t.Errorf("%s became %s", form, got)
		}
	}
}

// FuzzScrub: a secret that was learned is in no output, whatever surrounds it, and nothing panics.
func FuzzScrub(f *testing.F) {
	f.Add("a ", "secret-1", " b")
	f.Add("-----BEGIN PRIVATE KEY-----", "aaaaaaaa", "?")
	f.Add("password=", "[secret 0", "x")
	f.Fuzz(func(t *testing.T, before, secret, after string) {
		secret = strings.TrimSpace(secret)
		// A text that our own marks are made of cannot be kept out of them.
		if len(secret) < 16 || strings.Contains("[secret 0123456789abcdef]", secret) {
			return
		}
		s := newScrubber()
		s.learn(secret)
		if out := string(s.log([]byte(before + secret + after))); strings.Contains(out, secret) {
			t.Errorf("%q holds %q", out, secret)
		}
	})
}
