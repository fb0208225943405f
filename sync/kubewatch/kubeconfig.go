package kubewatch

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	rescanInterval = 30 * time.Second
	// quiet is how long the folder must rest before the file is read: it may be written in several steps.
	quiet    = 100 * time.Millisecond
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

// fileWatch signals when something in the folders of some files may have changed. It may miss things: a rescan finds them.
type fileWatch struct {
	log     *slog.Logger
	watcher *fsnotify.Watcher // nil when there are no events here
	folders []string
	signal  chan struct{} // capacity 1: a signal, not a queue
	stop    chan struct{}
	ended   chan struct{}
	told    bool
}

func newFileWatch(path string, log *slog.Logger) *fileWatch {
	w := &fileWatch{log: log, signal: make(chan struct{}, 1), stop: make(chan struct{}), ended: make(chan struct{})}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("no file events: a new kubeconfig is seen by the slow rescan only", "err", err)
		close(w.ended)
		return w
	}
	w.watcher = watcher
	w.watch([]string{path})
	go w.listen()
	return w
}

// watch sets the files. Their folders are watched: a file that is replaced by a rename is another one.
func (w *fileWatch) watch(files []string) {
	if w.watcher == nil {
		return
	}
	var folders []string
	for _, file := range files {
		if folder := filepath.Dir(file); !slices.Contains(folders, folder) {
			folders = append(folders, folder)
		}
	}
	alive := w.watcher.WatchList()
	for _, folder := range w.folders {
		if !slices.Contains(folders, folder) {
			_ = w.watcher.Remove(folder)
		}
	}
	for _, folder := range folders {
		if slices.Contains(alive, folder) {
			continue
		}
		if err := w.watcher.Add(folder); err != nil && !w.told {
			w.told = true
			w.log.Warn("a folder sends no events: a new kubeconfig in it is seen by the slow rescan only", "folder", folder, "err", err)
		}
	}
	w.folders = folders
}

func (w *fileWatch) listen() {
	defer close(w.ended)
	for {
		select {
		case <-w.stop:
			return
		case _, ok := <-w.watcher.Events:
			if !ok {
				return
			}
		case _, ok := <-w.watcher.Errors:
			if !ok {
				return
			}
		}
		select {
		case w.signal <- struct{}{}:
		default:
		}
	}
}

func (w *fileWatch) events() <-chan struct{} { return w.signal }

// settle waits until the folder has been quiet for a moment. It is false when ctx ended.
func (w *fileWatch) settle(ctx context.Context) bool {
	rest := time.NewTimer(quiet)
	defer rest.Stop()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-rest.C:
			return true
		case <-limit.C:
			return true
		case <-w.signal:
			rest.Reset(quiet)
		}
	}
}

func (w *fileWatch) close() {
	close(w.stop)
	if w.watcher != nil {
		_ = w.watcher.Close()
	}
	<-w.ended
}
