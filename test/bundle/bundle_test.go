// Package bundle has a whole gateway at work, full of secrets, and looks for every one of them in its support bundle.
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
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"headgate/sync/gossip"
	"headgate/test/product"
)

var binary string

func TestMain(m *testing.M) { product.Main(m, &binary) }

const patience = 30 * time.Second

// pair makes a certificate and its key, in PEM, and the key in DER.
func pair(t *testing.T, name string) (certificate, key string, der []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	if der, err = x509.MarshalPKCS8PrivateKey(private); err != nil {
		t.Fatal(err)
	}
	certificate = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}))
	return certificate, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), der
}

func secretManifest(name, certificate, key string) string {
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: shop}\ntype: kubernetes.io/tls\ndata: {tls.crt: %s, tls.key: %s, ca.crt: %[2]s}\n---\n",
		name, encode([]byte(certificate)), encode([]byte(key)))
}

const objects = `
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: shop
  namespace: shop
  annotations:
    kubernetes.io/ingress.class: headgate
    nginx.ingress.kubernetes.io/ssl-redirect: "false"
    nginx.ingress.kubernetes.io/affinity: cookie
    nginx.ingress.kubernetes.io/affinity-mode: persistent
    nginx.ingress.kubernetes.io/backend-protocol: HTTPS
    nginx.ingress.kubernetes.io/proxy-ssl-secret: shop/to-peers
spec:
  tls: [{hosts: [shop.test], secretName: tls}]
  rules:
    - host: shop.test
      http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 443}}}}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {ports: [{port: 443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: %s}]
endpoints: [{addresses: [127.0.0.1]}]
`

// forms are the ways in which a secret might have got into a file.
func forms(secret []byte) []string {
	text := string(secret)
	list := []string{
		text, base64.StdEncoding.EncodeToString(secret), base64.RawURLEncoding.EncodeToString(secret), hex.EncodeToString(secret),
		strings.ReplaceAll(text, "\n", `\n`),
	}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); len(line) >= 20 && !strings.HasPrefix(line, "-----") {
			list = append(list, line)
		}
	}
	return list
}

func TestNoSecretOfAWholeGatewayIsInItsBundle(t *testing.T) {
	if _, err := os.Stat("/usr/sbin/nginx"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("nginx is missing, and CI skips nothing")
		}
		t.Skip("nginx is not installed")
	}
	product.LookAt(t, "vip")
	dir, err := os.MkdirTemp("/tmp", "headgate-bundle-") //nolint:usetesting // the paths of sockets are limited, and nginx passes through
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // nginx's workers pass through
		t.Fatal(err)
	}
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), mode)); err != nil { //nolint:gosec // see above
			t.Fatal(err)
		}
		return path
	}
	http1, https1, gone := product.FreeAddress(t), product.FreeAddress(t), product.FreeAddress(t)
	_, port, _ := net.SplitHostPort(gone)
	certificate, tlsKey, tlsDER := pair(t, "shop.test")
	toPeers, peerKey, peerDER := pair(t, "client")
	file("m/objects.yaml", secretManifest("tls", certificate, tlsKey)+secretManifest("to-peers", toPeers, peerKey)+fmt.Sprintf(objects, port), 0o600)
	secret := gossip.NewSecret()
	file("gossip.key", secret.Reveal()+"\n", 0o600)
	config := file("headgate.yaml", fmt.Sprintf(`
manifests: [%[1]s/m]
listeners: {http: [%[2]q], https: [%[3]q]}
proxy: {mode: managed, workerProcesses: 1, workerConnections: 256}
upstreams: {allowLoopback: true}
metrics: {listen: %[4]q}
gossip: {keyFile: %[1]s/gossip.key, peers: [127.0.0.1]}
vip: {interface: lo, addresses: [192.0.2.99], notify: [/bin/true, notify-password-xyz]}
stateDir: %[1]s/state
runtimeDir: %[1]s/run
# a comment with a password: hunter2-in-a-comment
`, dir, http1, https1, product.FreeAddress(t)), 0o600)
	run(t, config)

	const token, password = "token-in-a-query-1", "cGFzc3dvcmQtb2YtYS1jbGllbnQ="
	request(t, http1, token, password)
	defaultKey, err := os.ReadFile(filepath.Join(dir, "state", "default.key"))
	if err != nil {
		t.Fatal(err)
	}
	files := bundle(t, config, filepath.Join(dir, "bundle.tar.gz"))
	for what, secret := range map[string][]byte{
		"key of a TLS Secret": []byte(tlsKey), "key of a TLS Secret, DER": tlsDER, "key for peers": []byte(peerKey), "key for peers, DER": peerDER,
		"default key": defaultKey, "gossip secret": []byte(secret.Reveal()), "token in a query": []byte(token), "password of a client": []byte(password),
		"argument of a program": []byte("notify-password-xyz"), "comment": []byte("hunter2-in-a-comment"),
	} {
		for name, text := range files {
			for _, form := range forms(secret) {
				if strings.Contains(text, form) {
					t.Errorf("%s holds the %s", name, what)
				}
			}
		}
	}
	for name, want := range map[string]string{
		"state.json": `"key": "sha256:`, "status.json": `"ready": true`, "problems.json": "[", "nginx.conf": "worker_connections 256",
		"config.txt": "proxy.mode = \"managed\"", "metrics.txt": "headgate_", "peers.json": "shop/web", "doctor.json": `"verdict"`,
		"applied.json": `"pointers"`, "goroutines.txt": "goroutine ", "files.txt": "state.log", "network.txt": "== routes", "reload.json": `"reload": []`,
		"version.json": `"schema"`, "host.txt": "MemTotal", "error.log": "GET /cart?[secret ", "manifest.json": `"vip.json": "no VIP process answers`,
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s does not hold %q:\n%.1500s", name, want, files[name])
		}
	}
}

// run starts the daemon and waits until it serves.
func run(t *testing.T, config string) {
	t.Helper()
	var log bytes.Buffer
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), binary, "run", "--config", config, "--stop-proxy-with-daemon", "--log-level", "debug")
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		err := <-ended
		if err != nil || t.Failed() {
			t.Logf("the daemon (%v):\n%s", err, log.String())
		}
	})
	deadline := time.Now().Add(patience)
	for {
		out, err := exec.CommandContext(t.Context(), binary, "status", "--config", config).CombinedOutput()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the daemon is not ready: %v\n%s", err, out)
		}
	}
}

// request meets a peer that is not there, which nginx tells in its log with the request.
func request(t *testing.T, to, token, password string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+to+"/cart?token="+token, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "shop.test"
	r.Header.Set("Authorization", "Basic "+password)
	res, err := (&http.Client{Timeout: patience}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusBadGateway {
		t.Errorf("status %d", res.StatusCode)
	}
}

func bundle(t *testing.T, config, out string) map[string]string {
	t.Helper()
	said, err := exec.CommandContext(t.Context(), binary, "support-bundle", "--config", config, "--out", out).CombinedOutput()
	if err != nil {
		t.Fatalf("support-bundle: %v\n%s", err, said)
	}
	info, err := os.Stat(out)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the bundle: %v, %v", info, err)
	}
	f, err := os.Open(out) //nolint:gosec // ours
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	zipped, err := gzip.NewReader(f)
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
		files[strings.TrimPrefix(head.Name, "headgate-support/")] = string(text)
	}
}
