package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"headgate/cmd/assemble"
	"headgate/cmd/config"
)

// acceptedName is a copy of the configuration file in the state folder, as the daemon has taken it last. A host that boots with a
// mistake in its file serves by it what it served before.
const acceptedName = "headgate.yaml"

// The mode of the copy: the proxy's user reads it by the group of the folder.
const acceptedMode = 0o640

// keepAccepted copies the file that is in force now. Without it a mistake costs more at the next boot, and nothing before.
func (d *daemon) keepAccepted() {
	if d.file == "" || d.config.Proxy.Mode != config.External {
		return
	}
	text, err := os.ReadFile(d.file)
	if err == nil {
		err = renameio.WriteFile(filepath.Join(d.config.StateDir, acceptedName), text, acceptedMode, renameio.WithTempDir(d.config.StateDir))
	}
	if err != nil {
		d.log.Warn("no copy of the configuration is kept: should there be a mistake in it at the next boot, the proxy does not serve", "err", err)
	}
}

// unitConfig is the configuration for the commands of the proxy's unit. One with a mistake must not keep nginx from serving what
// it served: then it is the one that was accepted last, and refused says why. Where none was, it is the default one: nothing
// was served yet, and an nginx without listeners waits for the daemon.
func unitConfig(cmd *cobra.Command) (c config.Config, refused, err error) {
	c, refused = loadConfig(cmd, config.NoSource)
	if refused == nil {
		return c, nil, nil
	}
	file, fileErr := configFile(cmd)
	overrides, flagErr := givenFlags(cmd)
	if fileErr != nil || flagErr != nil {
		return c, nil, refused // wrong usage
	}
	runtimeDir, runtimeFound := config.RuntimeDirOf(file, overrides)
	stateDir, stateFound := config.StateDirOf(file, overrides)
	if !runtimeFound || !stateFound {
		return c, nil, refused
	}
	accepted := filepath.Join(stateDir, acceptedName)
	if _, err := os.Stat(accepted); err != nil {
		c = config.Default()
		c.RuntimeDir, c.StateDir = runtimeDir, stateDir
		return c, refused, nil
	}
	if c, err = assemble.Host().Load(accepted, overrides, config.NoSource); err != nil {
		return c, nil, fmt.Errorf("%w\nand the one that was accepted last is of no use either:\n%w", refused, err)
	}
	return c, refused, nil
}

// tellRefused says by what the proxy runs. refused may be nil.
func tellRefused(log *slog.Logger, refused error) {
	if refused != nil {
		log.Error("the configuration has a mistake: the proxy runs by the one that was accepted last", "err", refused)
	}
}
