package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"headgate/cmd/assemble"
	"headgate/cmd/config"
)

// keyFlag is a flag that stands for a key of the configuration.
type keyFlag struct{ name, key, usage string }

// keyFlags are those that are worth a name of their own; --set reaches every key.
func keyFlags() []keyFlag {
	return []keyFlag{
		{"kubeconfig", "kubeconfig", "`file` with the credentials of the cluster to read"},
		{"manifests", "manifests", "`folder` of manifests to read instead of a cluster; may be given several times"},
		{"namespaces", "namespaces", "`namespaces` to read, with commas; all others stay unread"},
		{"ingress-class", "ingressClass", "`name` of the class that is served"},
		{"proxy-mode", "proxy.mode", "external or managed: `who` runs nginx, systemd or this daemon"},
		{"stop-proxy-with-daemon", "proxy.stopWithDaemon", "managed only: stop nginx when the daemon stops"},
		{"state-dir", "stateDir", "`folder` of what must survive a reboot"},
		{"runtime-dir", "runtimeDir", "`folder` of sockets, nginx.conf and temporary files"},
		{"log-level", "log.level", "`level`: debug, info, warn or error"},
		{"log-format", "log.format", "`format`: text, json or journal"},
	}
}

// allConfigFlags adds --config, --set and all of keyFlags.
func allConfigFlags(cmd *cobra.Command) {
	names := make([]string, 0, len(keyFlags()))
	for _, f := range keyFlags() {
		names = append(names, f.name)
	}
	configFlags(cmd, names...)
}

// configFlags adds --config, --set and the named ones among keyFlags.
func configFlags(cmd *cobra.Command, names ...string) {
	flags := cmd.Flags()
	flags.String("config", "", "configuration `file` (default "+config.DefaultFile+", which may be missing)")
	flags.StringArray("set", nil, "set a key of the configuration: `key=value`, lists with commas; may be given several times")
	for _, f := range keyFlags() {
		switch {
		case !within(names, f.name):
		case f.name == "manifests":
			flags.StringArray(f.name, nil, f.usage)
		case f.name == "stop-proxy-with-daemon":
			flags.Bool(f.name, false, f.usage)
		default:
			flags.String(f.name, "", f.usage)
		}
	}
}

func within(list []string, word string) bool {
	for _, w := range list {
		if w == word {
			return true
		}
	}
	return false
}

// configFile is the file that loadConfig reads; "" when the default one does not exist.
func configFile(cmd *cobra.Command) (string, error) {
	file, err := cmd.Flags().GetString("config")
	if err != nil {
		return "", fmt.Errorf("read --config: %w", err)
	}
	if file == "" {
		file = config.DefaultFile
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
	}
	file, err = filepath.Abs(file)
	if err != nil {
		return "", fmt.Errorf("find %s: %w", file, err)
	}
	return file, nil
}

// loadConfig merges file, environment and the flags that were given.
func loadConfig(cmd *cobra.Command, need config.Need) (config.Config, error) {
	overrides, err := givenFlags(cmd)
	if err != nil {
		return config.Config{}, usageError(err)
	}
	file, err := cmd.Flags().GetString("config")
	if err != nil {
		return config.Config{}, fmt.Errorf("read --config: %w", err)
	}
	c, err := assemble.Host().Load(file, overrides, need)
	if err != nil {
		return config.Config{}, usageError(fmt.Errorf("configuration:\n%w", err))
	}
	return c, nil
}

func givenFlags(cmd *cobra.Command) ([]config.Override, error) {
	var overrides []config.Override
	flags := cmd.Flags()
	sets, err := flags.GetStringArray("set")
	if err != nil {
		return nil, fmt.Errorf("read --set: %w", err)
	}
	for _, s := range sets {
		key, value, found := strings.Cut(s, "=")
		if !found {
			return nil, fmt.Errorf("--set %s: write key=value, such as --set proxy.workerProcesses=2", s)
		}
		overrides = append(overrides, config.Override{Flag: "--set", Key: key, Value: value})
	}
	for _, f := range keyFlags() {
		if !flags.Changed(f.name) {
			continue
		}
		var value any = flags.Lookup(f.name).Value.String()
		if f.name == "manifests" {
			if value, err = flags.GetStringArray(f.name); err != nil {
				return nil, fmt.Errorf("read --manifests: %w", err)
			}
		}
		overrides = append(overrides, config.Override{Flag: "--" + f.name, Key: f.key, Value: value})
	}
	return overrides, nil
}
