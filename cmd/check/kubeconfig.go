package check

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"headgate/cmd/assemble"
	"headgate/cmd/shell"
	"headgate/sync/kubewatch"
)

// soon is when the end of credentials that nobody renews by itself is worth a warning.
const soon = 14 * 24 * time.Hour

// kubeconfig looks at the file, at the life of the credentials in it, and at the cluster behind it.
func (r *run) kubeconfig(ctx context.Context) {
	file := r.Config.Kubeconfig
	if file == "" {
		return
	}
	client, err := kubewatch.ClientConfig(kubewatch.Config{
		Kubeconfig: file, Namespaces: r.Config.Namespaces, Secrets: assemble.Secrets(r.Config), Version: r.Version,
	})
	if err != nil {
		r.fail(r.newKubeconfig(), "%v", err)
		return
	}
	r.ok("%s can be read: API server %s", file, client.Host)
	r.kubeconfigFiles(file, client)
	if client.Insecure {
		r.warn("write certificate-authority-data into "+file, "insecure-skip-tls-verify: whoever is between here and the API server can read Secrets")
	}
	r.credentials(client)
	r.area = "cluster"
	r.cluster(ctx, client)
}

// newKubeconfig is the command that puts another kubeconfig in its place.
func (r *run) newKubeconfig() string {
	owner := ""
	if _, ok := r.account(daemonName); ok {
		owner = "-o root -g " + daemonName + " "
	}
	return "install " + owner + "-m 0640 NEW " + shell.Word(r.Config.Kubeconfig) + " (/usr/share/doc/headgate/howto/first-cluster.md, step 2, makes one)"
}

// kubeconfigFiles looks who may read the kubeconfig and the files that it names.
func (r *run) kubeconfigFiles(file string, client *rest.Config) {
	named := r.filesIn(file)
	if client.BearerToken != "" && client.BearerTokenFile == "" || len(client.KeyData) > 0 && named.key == "" || client.Password != "" {
		r.secretFile(file, "credentials")
	} else if daemon, ok := r.daemon(); ok {
		r.readable(daemon, file, "the kubeconfig")
	}
	if client.BearerTokenFile != "" {
		r.secretFile(client.BearerTokenFile, "the token")
	}
	if named.key != "" {
		r.secretFile(named.key, "the key of the client certificate")
	}
	daemon, ok := r.daemon()
	if !ok {
		return
	}
	for _, open := range named.open {
		r.readable(daemon, open, "which the kubeconfig names")
	}
}

// namedFiles are those beside the token that a kubeconfig names, by their paths; "" and none where it holds them itself.
type namedFiles struct {
	key  string
	open []string // no secrets
}

// filesIn reads the current context of a kubeconfig that can be used.
func (r *run) filesIn(kubeconfig string) namedFiles {
	var n namedFiles
	c, err := clientcmd.LoadFromFile(kubeconfig)
	if err != nil || api.MinifyConfig(c) != nil || clientcmd.ResolveLocalPaths(c) != nil {
		return n
	}
	for _, u := range c.AuthInfos {
		n.key = u.ClientKey
		n.open = append(n.open, u.ClientCertificate)
	}
	for _, cluster := range c.Clusters {
		n.open = append(n.open, cluster.CertificateAuthority)
	}
	n.open = slices.DeleteFunc(n.open, func(path string) bool { return path == "" })
	return n
}

// credentials tells when they end. What a token holds beside is not looked at, and never shown.
func (r *run) credentials(client *rest.Config) {
	found := false
	if len(client.CertData) > 0 {
		found = true
		r.certificate(client)
	}
	token := client.BearerToken
	if client.BearerTokenFile != "" {
		found = true
		text, err := os.ReadFile(client.BearerTokenFile)
		if err != nil {
			r.fail("write a token to "+client.BearerTokenFile, "the token file cannot be read: %v", err)
			return
		}
		token = strings.TrimSpace(string(text))
	}
	if token != "" {
		found = true
		if end, ok := tokenExpiry(token); ok {
			within := soon
			if client.BearerTokenFile != "" {
				within = 0 // somebody renews it
			}
			r.expiry("token", end, within)
		} else {
			r.ok("the token does not say when it ends")
		}
	}
	switch {
	case client.ExecProvider != nil || client.AuthProvider != nil:
		r.ok("the credentials come from a plug-in, which renews them")
	case !found && client.Username == "":
		r.warn(r.newKubeconfig(), "the kubeconfig holds no credentials: the API server sees an anonymous user")
	}
}

func (r *run) certificate(client *rest.Config) {
	pair, err := tls.X509KeyPair(client.CertData, client.KeyData)
	if err != nil {
		r.fail("write the certificate and the key that belong together", "the client certificate cannot be used: %v", err)
		return
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		r.fail("write another client-certificate-data into "+r.Config.Kubeconfig, "the client certificate cannot be read: %v", err)
		return
	}
	if now := r.Host.Now(); now.Before(leaf.NotBefore) {
		r.fail("set the clock of this host (timedatectl set-ntp true)", "the client certificate is not valid before %s, and it is %s here", stamp(leaf.NotBefore), stamp(now))
		return
	}
	r.expiry("client certificate", leaf.NotAfter, soon)
}

// expiry judges an end: it is worth a warning within that time before.
func (r *run) expiry(what string, end time.Time, within time.Duration) {
	fix := r.newKubeconfig() + "; a running daemon takes it without a restart"
	left := end.Sub(r.Host.Now())
	switch {
	case left <= 0:
		r.fail(fix, "the %s expired on %s", what, stamp(end))
	case left < within:
		r.warn(fix, "the %s expires on %s, in %s", what, stamp(end), left.Round(time.Minute))
	default:
		r.ok("the %s is valid until %s", what, stamp(end))
	}
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// tokenExpiry reads the claim exp of a JSON Web Token (RFC 7519 section 4.1.4) without checking its signature, which is the
// API server's to do. ok is false for a token of another kind, or one without an end.
func tokenExpiry(token string) (time.Time, bool) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return time.Time{}, false
	}
	raw, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(parts[1], "="))
	var claims struct {
		Exp *float64 `json:"exp"`
	}
	if errors.Join(err, json.Unmarshal(raw, &claims)) != nil || claims.Exp == nil {
		return time.Time{}, false
	}
	seconds := *claims.Exp
	if math.IsNaN(seconds) || seconds < 0 || seconds > 1<<40 {
		return time.Time{}, false
	}
	return time.Unix(int64(seconds), 0), true
}
