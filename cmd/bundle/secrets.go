package bundle

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"headgate/cmd/assemble"
	"headgate/cmd/config"
	"headgate/cmd/vip"
	"headgate/sync/gossip"
)

// learnSecrets tells the scrubber every secret of this host that can be read. What cannot be read by whoever makes the bundle
// cannot be in what he can read, either, but for what the processes tell; and those redact it themselves.
func learnSecrets(s *scrubber, c config.Config) {
	for _, path := range []string{c.Gossip.KeyFile, vip.PathsOf(c).Keyring} {
		secrets, err := gossip.ReadSecretFile(path)
		if err != nil {
			continue
		}
		for _, secret := range secrets {
			s.learn(secret.Reveal())
		}
	}
	learnFile(s, filepath.Join(c.StateDir, "default.key"))
	_ = filepath.WalkDir(assemble.PathsOf(c).TLS, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			learnKeys(s, path)
		}
		return nil // what cannot be read is left out
	})
	for n, argument := range c.VIP.Notify {
		if n > 0 && len(argument) >= leastArgument {
			s.learn(argument)
		}
	}
	learnKubeconfig(s, c.Kubeconfig)
}

// leastArgument is how long an argument of vip.notify must be to be taken for a secret: shorter ones are words.
const leastArgument = 8

func learnFile(s *scrubber, path string) {
	if text, err := os.ReadFile(path); err == nil { //nolint:gosec // the administrator's files
		s.learn(string(text))
	}
}

// learnKeys learns the private keys of a file that may hold certificates as well, which are no secret.
func learnKeys(s *scrubber, path string) {
	text, err := os.ReadFile(path) //nolint:gosec // the daemon's own files
	if err != nil {
		return
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if strings.Contains(block.Type, "PRIVATE KEY") {
			s.learn(string(pem.EncodeToMemory(block)))
		}
	}
}

func learnKubeconfig(s *scrubber, path string) {
	if path == "" {
		return
	}
	c, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return
	}
	for _, a := range c.AuthInfos {
		learnUser(s, a, path)
	}
	for _, cluster := range c.Clusters {
		if u, err := url.Parse(cluster.Server); err == nil {
			password, _ := u.User.Password()
			s.learn(password)
		}
	}
}

func learnUser(s *scrubber, a *api.AuthInfo, kubeconfig string) {
	s.learn(a.Token)
	s.learn(a.Password)
	s.learn(string(a.ClientKeyData))
	for _, file := range []string{a.TokenFile, a.ClientKey} {
		if file != "" && !filepath.IsAbs(file) {
			file = filepath.Join(filepath.Dir(kubeconfig), file)
		}
		if file != "" {
			learnFile(s, file)
		}
	}
	if a.Exec != nil {
		for _, e := range a.Exec.Env {
			s.learn(e.Value)
		}
	}
	if a.AuthProvider != nil {
		for _, value := range a.AuthProvider.Config {
			s.learn(value)
		}
	}
}

// kubeconfigSummary says what stands in a kubeconfig without any of its secrets.
func kubeconfigSummary(s *scrubber, path string) ([]byte, error) {
	c, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	var b strings.Builder
	if info, err := os.Stat(path); err == nil {
		fmt.Fprintf(&b, "file %s, mode %04o, changed %s\ncurrent-context %s\n", path, info.Mode().Perm(), info.ModTime().UTC().Format(time.RFC3339), c.CurrentContext)
	}
	for _, name := range sortedKeys(c.Clusters) {
		cluster := c.Clusters[name]
		fmt.Fprintf(&b, "cluster %s: server %s, CA of %d bytes %s, insecure %v\n", name, withoutUser(cluster.Server),
			len(cluster.CertificateAuthorityData), cluster.CertificateAuthority, cluster.InsecureSkipTLSVerify)
	}
	for _, name := range sortedKeys(c.AuthInfos) {
		fmt.Fprintf(&b, "user %s:%s\n", name, userSummary(s, c.AuthInfos[name]))
	}
	return []byte(b.String()), nil
}

func userSummary(s *scrubber, a *api.AuthInfo) string {
	var b strings.Builder
	secret := func(what, value string) {
		if value != "" {
			fmt.Fprintf(&b, " %s %s", what, s.hash(value))
		}
	}
	secret("token", a.Token)
	secret("password", a.Password)
	secret("client-key", string(a.ClientKeyData))
	if a.TokenFile != "" {
		fmt.Fprintf(&b, " tokenFile %s", a.TokenFile)
	}
	if block, _ := pem.Decode(a.ClientCertificateData); block != nil {
		if leaf, err := x509.ParseCertificate(block.Bytes); err == nil {
			fmt.Fprintf(&b, " certificate of %s until %s", leaf.Subject, leaf.NotAfter.UTC().Format(time.RFC3339))
		}
	}
	if a.Exec != nil {
		fmt.Fprintf(&b, " plug-in %s", a.Exec.Command)
	}
	return b.String()
}

func withoutUser(server string) string {
	u, err := url.Parse(server)
	if err != nil {
		return "(no URL)"
	}
	return u.Redacted()
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// configuration writes each key that differs from its default, and its value. Comments are not in it, and of a program's
// arguments only the program.
func configuration(s *scrubber, c config.Config, file string) ([]byte, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "# in force after file, environment and flags; file %s. Only what differs from the defaults.\n", file)
	for _, k := range config.Default().Changes(c) {
		value := c.Value(k.Name)
		if k.Name == "vip.notify" {
			value = program(s, c.VIP.Notify)
		}
		text, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("write %s: %w", k.Name, err)
		}
		fmt.Fprintf(&b, "%s = %s\n", k.Name, text)
	}
	return []byte(b.String()), nil
}

func program(s *scrubber, command []string) []string {
	out := slices.Clone(command)
	for i := 1; i < len(out); i++ {
		out[i] = s.hash(out[i])
	}
	return out
}
