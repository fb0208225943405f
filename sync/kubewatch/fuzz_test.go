package kubewatch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// FuzzKubeconfig: any kubeconfig can be used or is refused with words; none is a panic.
func FuzzKubeconfig(f *testing.F) {
	for _, text := range []string{
		"apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]\nclusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\nusers: [{name: u, user: {token: x}}]\n",
		"current-context: a\n", "contexts: {a: b}\n", "- a\n", "", "\x00", "clusters: [{name: c, cluster: {server: '::', certificate-authority-data: '!'}}]\n",
		"apiVersion: v1\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: c}}]\nclusters: [{name: c, cluster: {server: 'unix:///x', certificate-authority: nowhere}}]\n",
	} {
		f.Add([]byte(text))
	}
	path := filepath.Join(f.TempDir(), "kubeconfig")
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := loadKubeconfig(Config{Kubeconfig: path})
		switch {
		case err != nil && !strings.Contains(err.Error(), "kubeconfig"):
			t.Errorf("the error does not say which file: %v", err)
		case err == nil && (got.config == nil || got.config.Host == ""):
			t.Errorf("accepted without a server: %+v", got.config)
		}
	})
}
