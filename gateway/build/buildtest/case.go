// Package buildtest runs the golden cases of gateway/build. A case is a txtar file: its comment says what
// it shows, in.yaml holds the objects, every other file holds what must come out. gateway/build's own
// tests compare the model and the problems; test/golden compares what other rooms make of the same
// model. Only tests import it.
package buildtest

import (
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"sigs.k8s.io/yaml"

	"headgate/gateway/build"
	"headgate/gateway/model"
	"headgate/gateway/snapshot"
)

// Now is the time at which every case is built.
func Now() time.Time { return time.Date(2026, time.July, 1, 12, 0, 0, 0, time.UTC) }

// Case is one golden file.
type Case struct {
	Name    string
	Options build.Options
	// Verdicts are the answers of a proxy to regexes; one that is missing is accepted.
	Verdicts map[string]string
	// Hold leaves regexes without an answer.
	Hold  bool
	Steps []Step

	archive *txtar.Archive
}

// Step is one snapshot of a case; the Builder remembers the steps before it.
type Step struct {
	// Dir is "" for the first step, then "2/", "3/", …: the folder of its files in the archive.
	Dir     string
	objects *objects
}

// settings is the file options.yaml of a case.
type settings struct {
	TakeOver           bool              `json:"takeOver"`
	WatchWithoutClass  bool              `json:"watchWithoutClass"`
	NoSSLRedirect      bool              `json:"noSSLRedirect"`
	AllowLoopback      bool              `json:"allowLoopback"`
	MaxBodySize        *int64            `json:"maxBodySize"`
	AnnotationPrefix   string            `json:"annotationPrefix"`
	DefaultCertificate string            `json:"defaultCertificate"`
	ServiceUpstream    bool              `json:"serviceUpstream"`
	Verdicts           map[string]string `json:"verdicts"`
	Hold               bool              `json:"hold"`
}

// Load reads a case.
func Load(files fs.FS, name string) (*Case, error) {
	data, err := fs.ReadFile(files, name)
	if err != nil {
		return nil, fmt.Errorf("reading a golden case: %w", err)
	}
	c := &Case{Name: strings.TrimSuffix(filepath.Base(name), ".txtar"), archive: txtar.Parse(data)}
	var s settings
	if err := yaml.UnmarshalStrict(c.File("options.yaml"), &s); err != nil {
		return nil, fmt.Errorf("reading options.yaml of %s: %w", name, err)
	}
	c.Options, c.Verdicts, c.Hold = s.options(), s.Verdicts, s.Hold
	for n := 1; ; n++ {
		dir := ""
		if n > 1 {
			dir = fmt.Sprintf("%d/", n)
		}
		text := c.File(dir + "in.yaml")
		if text == nil {
			break
		}
		o, err := read(text)
		if err != nil {
			return nil, fmt.Errorf("reading %sin.yaml of %s: %w", dir, name, err)
		}
		c.Steps = append(c.Steps, Step{Dir: dir, objects: o})
	}
	if len(c.Steps) == 0 {
		return nil, fmt.Errorf("golden case %s has no file in.yaml", name)
	}
	return c, nil
}

// Defaults are the Options of a case that says nothing else: those of an empty headgate.yaml.
func Defaults() build.Options {
	var s settings
	return s.options()
}

func (s *settings) options() build.Options {
	maxBody := int64(1 << 20)
	if s.MaxBodySize != nil {
		maxBody = *s.MaxBodySize
	}
	return build.Options{
		IngressClass:        "headgate",
		ControllerNames:     []string{"headgate.io/ingress"},
		TakeOver:            s.TakeOver,
		WatchWithoutClass:   s.WatchWithoutClass,
		AnnotationPrefix:    s.AnnotationPrefix,
		SSLRedirect:         !s.NoSSLRedirect,
		AllowLoopback:       s.AllowLoopback,
		DefaultMaxBodyBytes: maxBody,
		Defaults:            build.Defaults{ServiceUpstream: s.ServiceUpstream},
		Settings: model.Settings{
			WorkerConnections:     16384,
			StateMemoryBytes:      32 << 20,
			RedirectPort:          443,
			NoTLSRedirectPrefixes: []string{"/.well-known/acme-challenge"},
			HSTS:                  model.HSTS{Enabled: true, MaxAge: 365 * 24 * time.Hour, IncludeSubdomains: true},
			DefaultCertificate:    model.CertificateID(s.DefaultCertificate),
			RequestMetrics:        true,
		},
	}
}

// Run builds the steps one after the other with one Builder and gives their results. With a source of
// chance the objects come in another order.
func (c *Case) Run(shuffle *rand.Rand) []*build.Result {
	b := build.New(c.Options)
	var results []*build.Result
	for _, step := range c.Steps {
		s := step.objects.snapshot(shuffle)
		r := b.Build(s, Now())
		if len(r.UnknownRegexes) > 0 && !c.Hold {
			verdicts := map[string]string{}
			for _, pattern := range r.UnknownRegexes {
				verdicts[pattern] = c.Verdicts[pattern]
			}
			b.LearnRegexes(verdicts)
			r = b.Build(s, Now())
		}
		results = append(results, r)
	}
	return results
}

// Snapshot reads objects from YAML, as in.yaml holds them.
func Snapshot(text []byte) (*snapshot.Snapshot, error) {
	o, err := read(text)
	if err != nil {
		return nil, err
	}
	return o.snapshot(nil), nil
}

// File gives a file of the case, or nil.
func (c *Case) File(name string) []byte {
	for _, f := range c.archive.Files {
		if f.Name == name {
			return f.Data
		}
	}
	return nil
}

// SetFile replaces or adds a file, for tests that rewrite their goldens.
func (c *Case) SetFile(name string, data []byte) {
	for i := range c.archive.Files {
		if c.archive.Files[i].Name == name {
			c.archive.Files[i].Data = data
			return
		}
	}
	// A step's files stand together.
	dir := name[:strings.LastIndex(name, "/")+1]
	at := len(c.archive.Files)
	for i, f := range slices.Backward(c.archive.Files) {
		if f.Name[:strings.LastIndex(f.Name, "/")+1] == dir {
			at = i + 1
			break
		}
	}
	c.archive.Files = slices.Insert(c.archive.Files, at, txtar.File{Name: name, Data: data})
}

// Bytes gives the whole case as it stands on disk.
func (c *Case) Bytes() []byte { return txtar.Format(c.archive) }

// Names lists the files of the case, sorted.
func (c *Case) Names() []string {
	names := map[string]bool{}
	for _, f := range c.archive.Files {
		names[f.Name] = true
	}
	return slices.Sorted(maps.Keys(names))
}
