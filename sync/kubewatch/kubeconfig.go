package kubewatch

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	rescanInterval = 30 * time.Second
	// quiet is how long the files must rest before they are read: they may be written in several steps.
	quiet = 100 * time.Millisecond
	// patience bounds the wait for rest.
	patience = time.Second
)

// fingerprint tells one set of credentials from another; zero: none yet.
type fingerprint [sha256.Size]byte

// loaded is what a kubeconfig says.
type loaded struct {
	config *rest.Config
	print  fingerprint
	token  fingerprint // of the tokenFile's content; zero without one
	files  []string    // the kubeconfig and the files it names
}

// loadKubeconfig reads the current context. Certificate files are read along with it: then they are replaced together, and
// client-go starts no watcher of its own for them. A tokenFile is left to client-go, which reads it each minute: a token
// that is renewed each hour is no reason to connect anew, unless the one before was refused.
func loadKubeconfig(config Config) (loaded, error) {
	result := loaded{files: []string{config.Kubeconfig}}
	raw, err := os.ReadFile(config.Kubeconfig)
	if errors.Is(err, fs.ErrNotExist) {
		return result, fmt.Errorf("the kubeconfig %s does not exist: create it, or name another one", config.Kubeconfig)
	}
	if err != nil {
		return result, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	parsed, err := (&clientcmd.ClientConfigLoadingRules{ExplicitPath: config.Kubeconfig}).Load()
	if err != nil {
		return result, fmt.Errorf("the kubeconfig %s cannot be read: %w", config.Kubeconfig, err)
	}
	if parsed.CurrentContext == "" {
		return result, fmt.Errorf("the kubeconfig %s has no current-context: write the name of one of its contexts", config.Kubeconfig)
	}
	cluster, err := clientcmd.NewDefaultClientConfig(*parsed, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return result, fmt.Errorf("the kubeconfig %s cannot be used: %w", config.Kubeconfig, err)
	}
	for _, file := range []string{cluster.CertFile, cluster.KeyFile, cluster.CAFile, cluster.BearerTokenFile} {
		if file != "" {
			result.files = append(result.files, file)
		}
	}
	if err := rest.LoadTLSFiles(cluster); err != nil {
		return result, fmt.Errorf("the kubeconfig %s names a file that cannot be read: %w", config.Kubeconfig, err)
	}
	cluster.CertFile, cluster.KeyFile, cluster.CAFile = "", "", ""
	if cluster.BearerTokenFile != "" {
		// One that cannot be read is refused later, and told then.
		if token, err := os.ReadFile(cluster.BearerTokenFile); err == nil {
			result.token = sha256.Sum256(token)
		}
	}
	hash := sha256.New()
	for _, part := range [][]byte{raw, cluster.CertData, cluster.KeyData, cluster.CAData} {
		_, _ = fmt.Fprintf(hash, "%d ", len(part))
		hash.Write(part)
	}
	result.print = fingerprint(hash.Sum(nil))
	cluster.UserAgent = "headgate/" + config.Version
	cluster.ContentType = runtime.ContentTypeProtobuf
	cluster.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	// The status writer has a limit of its own; informers need none.
	cluster.QPS, cluster.Burst = 100, 200
	result.config = cluster
	return result, nil
}
