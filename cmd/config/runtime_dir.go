package config

import (
	"os"

	"go.yaml.in/yaml/v3"
)

// RuntimeDirOf finds runtimeDir where the configuration as a whole is refused, so that the daemon that runs with an older one
// can be asked: in overrides, the environment or the file, else the default. found is false when what stands there cannot be
// used either.
func RuntimeDirOf(file string, overrides []Override) (dir string, found bool) {
	const key = "runtimeDir"
	for _, o := range overrides {
		if text, isText := o.Value.(string); o.Key == key && isText {
			dir = text
		}
	}
	if dir == "" {
		dir = os.Getenv(EnvName(key))
	}
	if dir == "" && file != "" {
		dir = runtimeDirIn(file)
	}
	c := Default()
	if dir != "" {
		c.RuntimeDir = dir
	}
	for _, e := range validate(&c) {
		if e.Key == key {
			return "", false
		}
	}
	return c.RuntimeDir, true
}

// runtimeDirIn reads the one key of a file that may be wrong in every other, or no YAML at all: "".
func runtimeDirIn(file string) string {
	text, err := os.ReadFile(file) //nolint:gosec // the administrator's file
	if err != nil {
		return ""
	}
	var c struct {
		RuntimeDir string `yaml:"runtimeDir"`
	}
	_ = yaml.Unmarshal(text, &c) // what could be read of it counts
	return c.RuntimeDir
}
