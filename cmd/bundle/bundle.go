// Package bundle gathers what somebody needs who is to find out what is wrong with a host: configuration, state, status,
// problems, logs, versions, nginx.conf, VIPs, the kernel's view of the network, metrics; as one tar.gz. Secrets appear as
// hashes, and nothing turns that off: each part is written without them, and everything is searched for them once more before
// it goes into the file. It changes nothing. What cannot be had is named in manifest.json, and the rest is there all the
// same. `headgate support-bundle` runs it.
package bundle

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"headgate/cmd/config"
)

// Subject is what the bundle is about.
type Subject struct {
	Config config.Config
	File   string // of the configuration; "" where there is none
	// Version is what `headgate version -o json` prints.
	Version any
	// Doctor makes the report of `headgate doctor`, as JSON.
	Doctor func(context.Context) ([]byte, error)
	// Now stands in the manifest and on the files.
	Now time.Time
}

// Manifest says what is in the bundle, and what is missing and why.
type Manifest struct {
	Made    time.Time         `json:"made"`
	Files   []string          `json:"files"`
	Missing map[string]string `json:"missing"`
}

// manifestName is the last file of the archive.
const manifestName = "manifest.json"

// part is a file of the bundle.
type part struct {
	name   string
	gather func(context.Context, *gathering) ([]byte, error)
	// scrub is chosen by who may have written into it.
	scrub func(*scrubber, []byte) []byte
}

// gathering is the making of one bundle.
type gathering struct {
	Subject
	scrubber *scrubber
}

// errNone tells that there is nothing of the kind on this host, which is no fault.
var errNone = errors.New("there is none")

// partTimeout bounds the gathering of a file; doctor waits for hosts that do not answer.
const partTimeout = 90 * time.Second

// Write gathers everything and writes the archive to w. The error is that of w alone.
func Write(ctx context.Context, w io.Writer, s Subject) (Manifest, error) {
	g := &gathering{Subject: s, scrubber: newScrubber()}
	learnSecrets(g.scrubber, s.Config)
	m := Manifest{Made: s.Now.UTC(), Files: []string{}, Missing: map[string]string{}}
	zipped := gzip.NewWriter(w)
	archive := tar.NewWriter(zipped)
	for _, p := range parts() {
		text, err := g.one(ctx, p)
		if errors.Is(err, errNone) {
			continue
		}
		if err != nil {
			m.Missing[p.name] = string(g.scrubber.text([]byte(err.Error())))
		}
		if len(text) == 0 {
			continue
		}
		if err := g.add(archive, p.name, text); err != nil {
			return m, err
		}
		m.Files = append(m.Files, p.name)
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return m, fmt.Errorf("encode the manifest: %w", err)
	}
	if err := g.add(archive, manifestName, append(text, '\n')); err != nil {
		return m, err
	}
	if err := errors.Join(archive.Close(), zipped.Close()); err != nil {
		return m, fmt.Errorf("write the bundle: %w", err)
	}
	return m, nil
}

func (g *gathering) one(ctx context.Context, p part) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, partTimeout)
	defer cancel()
	text, err := p.gather(ctx, g)
	return p.scrub(g.scrubber, text), err
}

// folder is what the archive unpacks into.
const folder = "headgate-support/"

func (g *gathering) add(archive *tar.Writer, name string, text []byte) error {
	head := &tar.Header{Name: folder + name, Mode: 0o600, Size: int64(len(text)), ModTime: g.Now, Format: tar.FormatPAX}
	if err := archive.WriteHeader(head); err != nil {
		return fmt.Errorf("write the bundle: %w", err)
	}
	if _, err := archive.Write(text); err != nil {
		return fmt.Errorf("write the bundle: %w", err)
	}
	return nil
}

func indented(v any, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return append(text, '\n'), nil
}
