package setup

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// Access is how to reach a cluster without a kubeconfig.
type Access struct {
	// Server is the URL of the API server.
	Server string
	// TokenFile holds the token of a ServiceAccount; whoever renews it renews this file. CA holds the certificates to
	// verify the API server with, in PEM.
	TokenFile, CA string
}

// Kubeconfig makes the kubeconfig of an Access: the CA stands in it, the token stays in its file.
func (a Access) Kubeconfig() ([]byte, error) {
	u, err := url.Parse(a.Server)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("--api-server %q: write the URL of the API server, such as https://10.0.0.1:6443", redactUser(a.Server))
	}
	ca, err := os.ReadFile(a.CA)
	if err != nil {
		return nil, fmt.Errorf("--ca: %w", err)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("--ca: %s holds no certificate in PEM: write the file with the CA of the cluster", a.CA)
	}
	token, err := os.ReadFile(a.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("--token-file: %w", err)
	}
	if len(bytes.TrimSpace(token)) == 0 {
		return nil, fmt.Errorf("--token-file: %s is empty: write the token of the ServiceAccount into it", a.TokenFile)
	}
	path, err := filepath.Abs(a.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("--token-file: %w", err)
	}
	return encode(&api.Config{
		Clusters:       map[string]*api.Cluster{kubeName: {Server: u.String(), CertificateAuthorityData: ca}},
		AuthInfos:      map[string]*api.AuthInfo{kubeName: {TokenFile: path}},
		Contexts:       map[string]*api.Context{kubeName: {Cluster: kubeName, AuthInfo: kubeName}},
		CurrentContext: kubeName,
	})
}

// redactUser keeps a password that somebody wrote into a URL out of the message.
func redactUser(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "…"
	}
	return u.Redacted()
}

// kubeName is the one name in a kubeconfig of ours.
const kubeName = "headgate"

// CopyKubeconfig gives a kubeconfig as text that can lie elsewhere: certificates and keys that it names by file stand in it,
// the paths of token files and plug-ins are absolute.
func CopyKubeconfig(path string) ([]byte, error) {
	c, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	if c.CurrentContext == "" || c.Contexts[c.CurrentContext] == nil {
		return nil, fmt.Errorf("--kubeconfig: %s has no current-context: choose one with kubectl config use-context", path)
	}
	if err := api.MinifyConfig(c); err != nil {
		return nil, fmt.Errorf("--kubeconfig: %s: %w", path, err)
	}
	if err := errors.Join(clientcmd.ResolveLocalPaths(c), api.FlattenConfig(c)); err != nil {
		return nil, fmt.Errorf("--kubeconfig: %s: %w", path, err)
	}
	return encode(c)
}

func encode(c *api.Config) ([]byte, error) {
	text, err := clientcmd.Write(*c)
	if err != nil {
		return nil, fmt.Errorf("write the kubeconfig: %w", err)
	}
	return text, nil
}
