package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"headgate/cmd/config"
	"headgate/cmd/rbac"
	"headgate/cmd/setup"
	"headgate/cmd/shell"
)

// setupFlags are the questions of init and join that are answered by flags.
type setupFlags struct {
	config     string
	kubeconfig string
	access     setup.Access
	manifests  []string
	iface      string
	address    string
	force      bool
}

func (f *setupFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.config, "config", config.DefaultFile, "configuration `file` to write; what it names is written beside it")
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "`file` with the credentials of the cluster to read; a copy is made unless it lies beside the configuration")
	flags.StringVar(&f.access.Server, "api-server", "", "`URL` of the API server, instead of a kubeconfig; with --token-file and --ca")
	flags.StringVar(&f.access.TokenFile, "token-file", "", "`file` with the token of the ServiceAccount; it is read again when it changes")
	flags.StringVar(&f.access.CA, "ca", "", "`file` with the CA of the API server, in PEM")
	flags.StringArrayVar(&f.manifests, "manifests", nil, "`folder` of manifests to serve instead of a cluster; may be given several times")
	flags.StringVar(&f.iface, "interface", "", "`interface` that carries the VIPs (default the one in whose network they are)")
	flags.StringVar(&f.address, "address", "", "`address` by which the other hosts reach this one (default that of the interface)")
	flags.BoolVar(&f.force, "force", false, "replace a configuration that is there; a copy is kept")
}

func (f *setupFlags) how() setup.Writing {
	if f.force {
		return setup.Replace
	}
	return setup.New
}

// beside is the path of a file next to the configuration.
func (f *setupFlags) beside(name string) (string, error) {
	dir, err := filepath.Abs(filepath.Dir(f.config))
	if err != nil {
		return "", fmt.Errorf("find the folder of --config: %w", err)
	}
	return filepath.Join(dir, name), nil
}

// source says where objects come from: the path of the kubeconfig, with the text to write there unless it is nil. Whoever
// asks a person has asked already.
func (f *setupFlags) source() (path string, text []byte, err error) {
	access := f.access != setup.Access{}
	given := 0
	for _, is := range []bool{f.kubeconfig != "", access, len(f.manifests) > 0} {
		if is {
			given++
		}
	}
	if given > 1 {
		return "", nil, errors.New("there is one source only: give --kubeconfig, or --api-server with --token-file and --ca, or --manifests")
	}
	if path, err = f.beside("kubeconfig"); err != nil {
		return "", nil, err
	}
	switch {
	case access:
		if f.access.Server == "" || f.access.TokenFile == "" || f.access.CA == "" {
			return "", nil, errors.New("--api-server, --token-file and --ca belong together: give all three")
		}
		text, err = f.access.Kubeconfig()
	case f.kubeconfig != "":
		absolute, absErr := filepath.Abs(f.kubeconfig)
		if absErr != nil {
			return "", nil, fmt.Errorf("--kubeconfig: %w", absErr)
		}
		text, err = setup.CopyKubeconfig(absolute)
		if filepath.Dir(absolute) == filepath.Dir(path) {
			return absolute, nil, err // it was read to see that it can be
		}
	default:
		return "", nil, nil
	}
	return path, text, err
}

func (f *setupFlags) folders() ([]string, error) {
	list := make([]string, len(f.manifests))
	for i, dir := range f.manifests {
		var err error
		if list[i], err = filepath.Abs(dir); err != nil {
			return nil, fmt.Errorf("--manifests: %w", err)
		}
		info, err := os.Stat(list[i])
		if err != nil {
			return nil, fmt.Errorf("--manifests: %w: make the folder first, or name another", err)
		}
		if !info.IsDir() {
			return nil, fmt.Errorf("--manifests: %s is no folder: name one", list[i])
		}
	}
	return list, nil
}

// network fills in the interface and the own address where they follow from the VIPs.
func (f *setupFlags) network(vips []string) error {
	if len(vips) == 0 || f.iface != "" && f.address != "" {
		return nil
	}
	all, err := setup.Interfaces()
	if err != nil {
		return err
	}
	if f.iface == "" {
		if f.iface, err = setup.InterfaceOf(all, vips[0]); err != nil {
			return err
		}
	}
	if f.address == "" {
		f.address, err = setup.OwnAddress(all, f.iface, vips)
	}
	return err
}

type initFlags struct {
	setupFlags
	vips    []string
	peers   []string
	cluster string
}

func newInit() *cobra.Command {
	f := &initFlags{}
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Write the first configuration of this host",
		Long: `init writes a short, commented configuration. What no flag tells it asks on a terminal; without a terminal it says which
flags are missing. It never writes over a configuration that anybody has filled in, unless --force is given, and then keeps a
copy beside it.

With a VIP it also makes the secret that the hosts share (gossip.key, mode 0640), and prints the 'headgate join' line for the
next host. That line holds the secret: whoever reads it can take the VIPs.

Standard output is the manifest of what headgate may do in the cluster, for kubectl apply; everything else is printed to
standard error. The cluster is not asked: 'headgate doctor' does that.

Exit codes:
  0  written
  1  not written; the reason is printed
  3  wrong usage, or an answer that cannot be used`,
		Example: `  headgate init
  headgate init --kubeconfig /etc/headgate/kubeconfig > rbac.yaml
  headgate init --api-server https://10.0.0.1:6443 --token-file /etc/headgate/token --ca /etc/headgate/ca.crt \
      --interface eth0 --vip 192.0.2.10 --peer 192.0.2.12 > rbac.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	f.add(cmd)
	cmd.Flags().StringSliceVar(&f.vips, "vip", nil, "`address` that the hosts share, with or without /prefix; may be given several times")
	cmd.Flags().StringSliceVar(&f.peers, "peer", nil, "`address` or name of another host; may be given several times")
	cmd.Flags().StringVar(&f.cluster, "cluster", "", "`name` of the cluster of hosts (default headgate)")
	return cmd
}

func (f *initFlags) run(cmd *cobra.Command) error {
	if err := setup.Permit(f.config, f.how()); err != nil {
		return &exitError{exitFailed, err}
	}
	if setup.IsTerminal(cmd.InOrStdin()) {
		if err := f.ask(setup.NewTerminal(cmd.InOrStdin(), cmd.ErrOrStderr()), cmd); err != nil {
			return &exitError{exitFailed, err}
		}
	}
	if err := f.network(f.vips); err != nil {
		return usageError(err)
	}
	path, text, err := f.source()
	if err != nil {
		return usageError(err)
	}
	answers := setup.Answers{
		Kubeconfig: path, Interface: f.iface, VIPs: f.vips, Own: f.address, Peers: f.peers, Cluster: f.cluster,
	}
	if answers.Manifests, err = f.folders(); err != nil {
		return usageError(err)
	}
	if answers.KeyFile, err = f.beside("gossip.key"); err != nil {
		return usageError(err)
	}
	c, err := answers.Compose()
	if err != nil {
		return usageError(err)
	}
	if err := f.write(cmd.ErrOrStderr(), c, text); err != nil {
		return &exitError{exitFailed, err}
	}
	return nextSteps(cmd, c, f.config)
}

// ask asks for what no flag told.
func (f *initFlags) ask(t *setup.Terminal, cmd *cobra.Command) error {
	ctx := cmd.Context()
	if err := f.askSource(ctx, t); err != nil {
		return err
	}
	if cmd.Flags().Changed("vip") {
		return nil
	}
	_, err := t.Ask(ctx, "Addresses that the hosts share (VIPs), or nothing", "", func(answer string) error {
		f.vips = setup.Words(answer)
		return setup.CheckHosts(f.vips, nil)
	})
	if err != nil || len(f.vips) == 0 {
		return err
	}
	if err := f.askInterface(ctx, t, f.vips); err != nil {
		return err
	}
	if cmd.Flags().Changed("peer") {
		return nil
	}
	_, err = t.Ask(ctx, "Addresses of the other hosts, or nothing to add them later", "", func(answer string) error {
		f.peers = setup.Words(answer)
		return setup.CheckHosts(f.vips, f.peers)
	})
	return err
}

// askSource asks for a kubeconfig where no flag names a source.
func (f *setupFlags) askSource(ctx context.Context, t *setup.Terminal) error {
	if f.kubeconfig != "" || f.access != (setup.Access{}) || len(f.manifests) > 0 {
		return nil
	}
	otherwise, err := f.beside("kubeconfig")
	if err != nil {
		return err
	}
	if _, err := os.Stat(otherwise); err != nil {
		otherwise = ""
	}
	answer, err := t.Ask(ctx, "Kubeconfig of the cluster to read", otherwise, func(answer string) error {
		if answer == "" {
			return errors.New("write the path of a kubeconfig, or end this and give --manifests DIR")
		}
		_, err := setup.CopyKubeconfig(setup.Path(answer))
		return err
	})
	f.kubeconfig = setup.Path(answer)
	return err
}

// askInterface asks which interface carries the VIPs where no flag says so.
func (f *setupFlags) askInterface(ctx context.Context, t *setup.Terminal, vips []string) error {
	if f.iface != "" || len(vips) == 0 {
		return nil
	}
	all, err := setup.Interfaces()
	if err != nil {
		return err
	}
	names := make([]string, len(all))
	for i := range all {
		names[i] = all[i].Name
	}
	otherwise, err := setup.InterfaceOf(all, vips[0])
	if err != nil {
		otherwise = ""
	}
	f.iface, err = t.Ask(ctx, "Interface that carries them", otherwise, func(answer string) error {
		if !within(names, answer) {
			return fmt.Errorf("write one of %s", strings.Join(names, ", "))
		}
		return nil
	})
	return err
}

// write puts the files in their places, the configuration last: it counts only when what it names is there.
func (f *setupFlags) write(w io.Writer, c config.Config, kubeconfig []byte) error {
	if kubeconfig != nil {
		backup, err := setup.WriteSecret(c.Kubeconfig, kubeconfig, f.how())
		if err != nil {
			return err
		}
		if backup != "" {
			_, _ = fmt.Fprintf(w, "kept what was there as %s\n", backup) // the files count, not the words
		}
		_, _ = fmt.Fprintf(w, "wrote %s\n", c.Kubeconfig)
	}
	if len(c.VIP.All()) > 0 {
		_, made, err := setup.KeepSecret(c.Gossip.KeyFile)
		if err != nil {
			return err
		}
		if made {
			_, _ = fmt.Fprintf(w, "wrote %s, a new secret of the hosts\n", c.Gossip.KeyFile)
		}
	}
	return f.writeConfig(w, c)
}

func (f *setupFlags) writeConfig(w io.Writer, c config.Config) error {
	backup, err := setup.WriteConfig(f.config, setup.Text(c))
	if err != nil {
		return err
	}
	if backup != "" {
		_, _ = fmt.Fprintf(w, "kept what was there as %s\n", backup)
	}
	_, _ = fmt.Fprintf(w, "wrote %s\n", f.config)
	return nil
}

// nextSteps prints what is to be done: the roles to standard output, the rest to standard error.
func nextSteps(cmd *cobra.Command, c config.Config, file string) error {
	var b strings.Builder
	b.WriteString("\nNext:\n")
	step := 0
	next := func(format string, args ...any) {
		step++
		fmt.Fprintf(&b, "  %d. %s\n", step, fmt.Sprintf(format, args...))
	}
	if c.Kubeconfig != "" {
		next("apply the roles on standard output, with an administrator's kubeconfig: headgate rbac --config %s | kubectl apply -f -", shell.Word(file))
	}
	next("look whether everything is well: headgate doctor --config %s", shell.Word(file))
	if len(c.VIP.All()) > 0 {
		next("start it: systemctl enable --now headgate headgate-vip")
	} else {
		next("start it: systemctl enable --now headgate")
	}
	if len(c.VIP.All()) > 0 {
		next("on each further host, run the line below")
		secret, _, err := setup.KeepSecret(c.Gossip.KeyFile)
		if err != nil {
			return &exitError{exitFailed, err}
		}
		b.WriteString(joinWarning)
		fmt.Fprintf(&b, "headgate join %s\n", setup.JoinOf(c, secret).Reveal())
	}
	if _, err := io.WriteString(cmd.ErrOrStderr(), b.String()); err != nil {
		return &exitError{exitFailed, fmt.Errorf("print the next steps: %w", err)}
	}
	if c.Kubeconfig == "" {
		return nil
	}
	if _, err := cmd.OutOrStdout().Write(rbac.YAML(rbac.From(c), "headgate rbac")); err != nil {
		return &exitError{exitFailed, fmt.Errorf("print the roles: %w", err)}
	}
	return nil
}

const joinWarning = `
This line holds the SECRET of the hosts: whoever reads it can take the VIPs. Carry it as a password (ssh, not chat); with
'headgate join -' it comes from standard input and stays out of the shell's history.
`
