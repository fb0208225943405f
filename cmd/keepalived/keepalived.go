// Package keepalived turns a keepalived.conf (keepalived.conf(5) of version 2.2.7) into the sections gossip and vip of a
// headgate.yaml, and tells everything that has no counterpart there or means something else. It reads no file, asks no
// kernel and runs no script: `headgate vip import` hands it the text, and a reader of included files if it may follow them.
// Every value is read as a type before it is written; no text of the file gets into the result as it stands.
package keepalived

import (
	"errors"
	"fmt"
	"net/netip"

	"headgate/cmd/config"
)

// Source is one file.
type Source struct {
	Name string // as messages show it
	Text []byte
}

// Options say how to read. The zero value follows no include and takes no line of a configuration id.
type Options struct {
	// ID is what lines that begin with @ are compared to, as keepalived's -i; "" fits none.
	ID string
	// Include gives the files that a pattern in the file from names, in their order. Nil: includes are told, not followed.
	Include func(from, pattern string) ([]Source, error)
	// Peers are the addresses of the hosts, this one among them, beside those that the file names.
	Peers []netip.Addr
}

// Result is what became of a file.
type Result struct {
	// Config is the default configuration with the imported sections; Config.Check accepts it.
	Config config.Config
	// Text is the same as YAML: the sections gossip and vip. Equal inputs give equal bytes.
	Text []byte
	// Findings are in the order of their first lines; those about the whole file come last.
	Findings []Finding
}

// ErrNothing tells that no vrrp_instance became a VIP; Result.Findings say why.
var ErrNothing = errors.New("no vrrp_instance with an address that headgate can share")

// Import translates a file. The error is a *SyntaxError for a file that cannot be read as keepalived's, or ErrNothing.
func Import(main Source, o Options) (Result, error) {
	r := newReader(o)
	if err := r.file(main, 0); err != nil {
		return Result{}, err
	}
	block, err := parse(r.lines)
	if err != nil {
		return Result{}, err
	}
	t := newTranslator(&r.findings, o.Peers)
	t.file(block)
	c := t.config()
	result := Result{Config: c, Findings: r.findings.sorted()}
	if len(c.VIP.Groups) == 0 {
		return result, ErrNothing
	}
	if err := c.Check(); err != nil {
		return Result{}, fmt.Errorf("what became of %s is refused: %w", main.Name, err)
	}
	result.Text = text(c, t.origins)
	return result, nil
}
