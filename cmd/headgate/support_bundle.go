package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"headgate/cmd/assemble"
	"headgate/cmd/bundle"
	"headgate/cmd/check"
	"headgate/cmd/config"
	"headgate/gateway/luastate"
	"headgate/lua"
)

func newSupportBundle() *cobra.Command {
	out := ""
	cmd := &cobra.Command{
		Use:   "support-bundle",
		Short: "Gather what somebody needs who is to find out what is wrong here, without secrets",
		Long: `support-bundle writes a tar.gz with: the configuration in force, the pushed state, status and problems, what the proxy was
told (nginx.conf), the VIPs and the other hosts, the logs of the journal, versions, metrics, the addresses, routes and neighbours of
the kernel, and the report of 'headgate doctor'. What cannot be had is named in manifest.json in it.

Private keys, tokens, passwords, the secret of the hosts and keys of cookies appear as hashes, and there is no way to have them
otherwise. Names of hosts and objects, addresses and paths are in it, and queries of requests are not: look into it before you
hand it on.

Run it as root: others see less. The file is written with mode 0600.

Exit codes:
  0  written
  1  not written; the reason is printed
  3  wrong usage or configuration`,
		Example: `  headgate support-bundle
  headgate support-bundle --out /tmp/edge1.tar.gz && tar -tzf /tmp/edge1.tar.gz`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			subject, err := bundleSubject(cmd)
			if err != nil {
				return err
			}
			if out == "" {
				host, err := os.Hostname()
				if err != nil {
					host = "host"
				}
				out = fmt.Sprintf("headgate-support-%s-%s.tar.gz", host, subject.Now.UTC().Format("20060102T150405Z"))
			}
			return writeBundle(cmd, out, subject)
		},
	}
	configFlags(cmd, "runtime-dir", "state-dir", "kubeconfig", "manifests")
	cmd.Flags().StringVar(&out, "out", "", "new `file` to write (default headgate-support-HOST-TIME.tar.gz here)")
	return cmd
}

// bundleSubject takes the configuration of the command line. One that is refused is no reason to go without a bundle: then
// the defaults tell where things lie, and doctor says what is wrong with it.
func bundleSubject(cmd *cobra.Command) (bundle.Subject, error) {
	file, err := configFile(cmd)
	if err != nil {
		return bundle.Subject{}, err
	}
	overrides, err := givenFlags(cmd)
	if err != nil {
		return bundle.Subject{}, usageError(err)
	}
	c, err := assemble.Host().Load(file, overrides, config.NoSource)
	if err != nil {
		c = config.Default()
		if dir, found := config.RuntimeDirOf(file, overrides); found {
			c.RuntimeDir = dir
		}
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "the configuration is refused, the defaults tell where things lie: %v\n", err)
	}
	return bundle.Subject{
		Config: c, File: file, Now: time.Now(),
		Version: map[string]any{"version": version, "go": runtime.Version(), "luaBuild": lua.Build(), "schema": luastate.Schema},
		Doctor: func(context.Context) ([]byte, error) {
			report, err := runCheck(cmd, check.Doctor) //nolint:contextcheck // it takes the command's context
			if err != nil {
				return nil, err
			}
			return json.MarshalIndent(report, "", "  ")
		},
	}, nil
}

func writeBundle(cmd *cobra.Command, path string, subject bundle.Subject) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return &exitError{exitFailed, fmt.Errorf("write the bundle: %w", err)}
	}
	manifest, err := bundle.Write(cmd.Context(), f, subject)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		_ = os.Remove(path) // half of one helps nobody
		return &exitError{exitFailed, err}
	}
	for name, why := range manifest.Missing {
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "not, or not all, of %s: %s\n", name, why)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "wrote %s: %d files, with hashes for secrets\n", path, len(manifest.Files)+1)
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
