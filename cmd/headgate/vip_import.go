package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"headgate/cmd/keepalived"
)

type vipImport struct {
	out     string
	include bool
	id      string
	peers   []string
}

func newVIPImport() *cobra.Command {
	i := &vipImport{}
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Translate a keepalived.conf into the sections gossip and vip",
		Long: `import reads a keepalived.conf (- is standard input) and writes the sections gossip and vip of headgate.yaml to standard
output. Every line that has no counterpart, or that means something else, is told on standard error, with what to do
instead. Nothing on this host is asked or changed, no script is run, and no password is shown.

An instance becomes a group that is called by its virtual_router_id (vrrp-51), because that is the same on all hosts;
those of a vrrp_sync_group become one. Import the file of each host on that host: priorities differ.

Exit codes:
  0  translated; what is told on standard error needs a look
  1  there is no VIP in the file, or it cannot be read or written
  3  wrong usage`,
		Example: `  headgate vip import /etc/keepalived/keepalived.conf
  headgate vip import /etc/keepalived/keepalived.conf --peer 10.0.0.11 --peer 10.0.0.12 --out vip.yaml
  ssh edge2 cat /etc/keepalived/keepalived.conf | headgate vip import - --config-id edge2`,
		Args: named("FILE"),
		RunE: i.run,
	}
	flags := cmd.Flags()
	flags.StringVar(&i.out, "out", "", "new `file` to write to, instead of standard output")
	flags.BoolVar(&i.include, "include", false, "read the files that are included, too")
	flags.StringVar(&i.id, "config-id", "", "`id` whose lines (@id) are read, as keepalived's -i (default the host name up to its first dot)")
	flags.StringArrayVar(&i.peers, "peer", nil, "`address` of a host, this one or another; may be given several times (default those that the file names)")
	return cmd
}

func (i *vipImport) run(cmd *cobra.Command, args []string) error {
	options, err := i.options()
	if err != nil {
		return usageError(err)
	}
	main, err := readSource(args[0], cmd.InOrStdin())
	if err != nil {
		return &exitError{exitFailed, err}
	}
	result, err := keepalived.Import(main, options)
	for _, f := range result.Findings {
		if _, err := fmt.Fprintln(cmd.ErrOrStderr(), f); err != nil {
			return &exitError{exitFailed, fmt.Errorf("print what was found: %w", err)}
		}
	}
	if errors.Is(err, keepalived.ErrNothing) {
		err = fmt.Errorf("%s: %w", args[0], err)
	}
	if err != nil {
		return &exitError{exitFailed, err}
	}
	if i.out == "" {
		_, err = cmd.OutOrStdout().Write(result.Text)
	} else {
		err = writeNew(i.out, result.Text)
	}
	if err != nil {
		return &exitError{exitFailed, fmt.Errorf("write the configuration: %w", err)}
	}
	return nil
}

func (i *vipImport) options() (keepalived.Options, error) {
	o := keepalived.Options{ID: i.id}
	if o.ID == "" {
		// keepalived goes without an id, too, where the host has no name.
		name, _ := os.Hostname()
		o.ID, _, _ = strings.Cut(name, ".")
	}
	if i.include {
		o.Include = includeFiles
	}
	for _, text := range i.peers {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" || a.Is4In6() || !a.IsGlobalUnicast() {
			return o, fmt.Errorf("--peer %s: write a unicast address by which the others reach the host, such as 10.0.0.12", text)
		}
		o.Peers = append(o.Peers, a)
	}
	return o, nil
}

// readSource reads a file, or standard input for -, up to one byte more than can be imported.
func readSource(name string, in io.Reader) (keepalived.Source, error) {
	if name != "-" {
		// A pipe would be waited for, and a folder says nothing of use.
		s, err := os.Stat(name)
		if err != nil {
			return keepalived.Source{}, fmt.Errorf("read what to import: %w", err)
		}
		if !s.Mode().IsRegular() {
			return keepalived.Source{}, fmt.Errorf("%s is no file: give a keepalived.conf", name)
		}
		f, err := os.Open(name) //nolint:gosec // the administrator's file
		if err != nil {
			return keepalived.Source{}, fmt.Errorf("read what to import: %w", err)
		}
		defer func() { _ = f.Close() }() // nothing was written
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, keepalived.MaxBytes+1))
	if err != nil {
		return keepalived.Source{}, fmt.Errorf("read what to import: %w", err)
	}
	return keepalived.Source{Name: name, Text: text}, nil
}

// includeFiles finds what an include names: relative to the file that includes it, sorted as glob(3) does.
func includeFiles(from, pattern string) ([]keepalived.Source, error) {
	if strings.ContainsAny(pattern, "{}") {
		return nil, errors.New("braces in a file name are not expanded: write an include for each")
	}
	if !filepath.IsAbs(pattern) {
		pattern = filepath.Join(filepath.Dir(from), pattern)
	}
	names, err := filepath.Glob(pattern)
	if err != nil {
		return nil, fmt.Errorf("this is no pattern of file names: %w", err)
	}
	slices.Sort(names)
	var files []keepalived.Source
	for _, name := range names {
		if s, err := os.Stat(name); err == nil && s.IsDir() {
			continue // as keepalived does
		}
		f, err := readSource(name, nil)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	if len(files) == 0 {
		return nil, errors.New("no such file")
	}
	return files, nil
}

// writeNew writes a file that is not there yet, whole or not at all.
func writeNew(name string, text []byte) error {
	const mode = 0o644                                                   // it holds no secret
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode) //nolint:gosec // the administrator's file
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	return nil
}
