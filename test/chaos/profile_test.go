package chaos

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// identity is an Ingress whose peers are spoken to with a certificate of its own: nginx.conf needs a profile for it, and that
// a file with a private key. The size of its buffers tells which one it is.
func (f *folder) identity(n int) []string {
	return []string{
		secret("peers", certificate(f.t, "peers.test", time.Now().Add(-time.Hour))),
		strings.Replace(ingress("peers", "peers.test", "f"), "metadata: {name: peers}", fmt.Sprintf(`metadata:
  name: peers
  annotations:
    nginx.ingress.kubernetes.io/backend-protocol: HTTPS
    nginx.ingress.kubernetes.io/proxy-ssl-secret: default/peers
    nginx.ingress.kubernetes.io/proxy-buffer-size: %dk`, bufferKiB(n)), 1),
	}
}

func bufferKiB(n int) int { return 16 + n }

// moment is one in which the daemon is killed.
type moment struct {
	name string
	come func() bool
}

// moments are told by what has just appeared in the runtime directory. Whoever looks too late for one of them sees the
// configuration, which comes last.
func (f *folder) moments(random *rand.Rand) []moment {
	conf := filepath.Join(f.runtimeDir, "nginx.conf")
	before, _ := os.Stat(conf)
	keys := len(f.list("tls"))
	at := time.Now().Add(time.Duration(random.IntN(200)) * time.Millisecond)
	candidate, tested := func() bool { return exists(conf + ".new") }, false
	installed := func() bool {
		now, err := os.Stat(conf)
		return err == nil && !os.SameFile(before, now)
	}
	return []moment{
		{"a file with a key", func() bool { return len(f.list("tls")) > keys || installed() }},
		{"the candidate", func() bool { return candidate() || installed() }},
		{"the end of the candidate", func() bool {
			now := candidate()
			tested = tested || now
			return tested && !now || installed()
		}},
		{"the configuration", installed},
		{"no file at all", func() bool { return time.Now().After(at) }},
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// list names what lies below a folder of the runtime directory, sorted.
func (f *folder) list(name string) []string {
	var found []string
	root := filepath.Join(f.runtimeDir, name)
	_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			rest, _ := filepath.Rel(f.runtimeDir, path)
			found = append(found, rest)
		}
		return nil // what vanishes meanwhile is not there
	})
	slices.Sort(found)
	return found
}

// killedBeforeReload: the daemon is killed between the first file of a new configuration and its reload. What lies on disk then
// is whole: nginx alone, started anew, serves the old state or the new one; and when a daemon was there again, nothing is left
// that only the dead one knew, keys least of all.
func killedBeforeReload(f *folder) {
	f.start()
	served, round := f.identity(0), 0
	f.write("peers.yaml", served...)
	l := f.load()
	f.awaitBuffer(round)
	f.tidy("a gateway that is well")
	s := f.awaitStatus("well", well)
	random := rand.New(rand.NewPCG(1, 0))
	for n := 1; n <= 20; n++ {
		moments := f.moments(random)
		moment := moments[n%len(moments)]
		next := f.identity(n)
		f.write("peers.yaml", next...)
		for end := time.Now().Add(patience); !moment.come(); pause(time.Millisecond) {
			if time.Now().After(end) {
				f.t.Fatalf("round %d: never saw %s", n, moment.name)
			}
		}
		f.kill9()
		if n%4 == 0 {
			l.outage(func() {
				l.kill(f.killNginx)
				f.startNginx()
			})
			if got, err := f.answers("http://always.test/"); err != nil || got != http.StatusOK {
				f.t.Errorf("round %d, killed at %s: nginx alone answers %d, %v", n, moment.name, got, err)
			}
		}
		if n%3 == 0 { // the author has thought better of it
			f.write("peers.yaml", served...)
		} else {
			served, round = next, n
		}
		f.start()
		s = f.awaitStatus("well again", well)
		f.awaitBuffer(round)
		f.tidy(fmt.Sprintf("round %d, killed at %s", n, moment.name))
	}
	f.t.Logf("reloads of the last daemon: %v", s.Reloads)
	l.stop()
}

// awaitBuffer waits until the profile of round n is the one in nginx.conf.
func (f *folder) awaitBuffer(n int) {
	f.t.Helper()
	harnessEventually(f.t, patience, func() error {
		text, err := os.ReadFile(filepath.Join(f.runtimeDir, "nginx.conf"))
		if want := fmt.Sprintf("proxy_buffer_size %dk;", bufferKiB(n)); err == nil && !strings.Contains(string(text), want) {
			err = fmt.Errorf("nginx.conf has no %q", want)
		}
		return err
	})
	f.awaitStatus("the profile is served", well)
}

// lasting are the files of a runtime directory that a gateway which is well has.
var lasting = regexp.MustCompile(`^(nginx\.conf(\.last)?|nginx\.pid|nginx\.out|error\.log|access\.log|admin/(admin\.sock|daemon\.lock)|proxy/[a-z-]+\.sock|lua/.*)$`)

// tidy waits until nothing is left over.
func (f *folder) tidy(what string) {
	f.t.Helper()
	harnessEventually(f.t, patience, func() error {
		if left := f.leftovers(); len(left) > 0 {
			return fmt.Errorf("%s: left behind are %q", what, left)
		}
		return nil
	})
}

// leftovers lists what lies in the runtime directory and belongs to nobody: neither to a gateway that is well, nor to one of
// the two configurations on disk, which name the files with keys that they need.
func (f *folder) leftovers() []string {
	f.t.Helper()
	var named string
	for _, name := range []string{"nginx.conf", "nginx.conf.last"} {
		text, err := os.ReadFile(filepath.Join(f.runtimeDir, name))
		if err != nil && name == "nginx.conf" {
			f.t.Fatal(err)
		}
		named += string(text)
	}
	var left []string
	for _, name := range f.list("") {
		if !lasting.MatchString(name) && !strings.Contains(named, `"`+filepath.Join(f.runtimeDir, name)+`"`) {
			left = append(left, name)
		}
	}
	return left
}
