package config

import (
	"os"

	"go.yaml.in/yaml/v3"
)

// RuntimeDirOf finds runtimeDir where the configuration as a whole is refused, so that the daemon that runs with an older one
// can be asked: in overrides, the environment or the file, else the default. found is false when what stands there cannot be
// used either.
func RuntimeDirOf(file string, overrides []Override) (dir string, found bool) {
	return folderOf("runtimeDir", func(c *Config) *string { return &c.RuntimeDir }, file, overrides)
}

// StateDirOf is the same for stateDir, where the configuration that was accepted last lies.
func StateDirOf(file string, overrides []Override) (dir string, found bool) {
	return folderOf("stateDir", func(c *Config) *string { return &c.StateDir }, file, overrides)
}

// folderOf finds the value of a key, whose field of a Config field gives.
func folderOf(key string, field func(*Config) *string, file string, overrides []Override) (dir string, found bool) {
	for _, o := range overrides {
		if text, isText := o.Value.(string); o.Key == key && isText {
			dir = text
		}
	}
	if dir == "" {
		dir = os.Getenv(EnvName(key))
	}
	if dir == "" && file != "" {
		in := foldersIn(file)
		dir = *field(&in)
	}
	c := Default()
	if dir != "" {
		*field(&c) = dir
	}
	for _, e := range validate(&c) {
		if e.Key == key {
			return "", false
		}
	}
	return *field(&c), true
}

// foldersIn reads two keys of a file that may be wrong in every other, or no YAML at all: "".
func foldersIn(file string) Config {
	text, err := os.ReadFile(file) //nolint:gosec // the administrator's file
	if err != nil {
		return Config{}
	}
	var c struct {
		RuntimeDir string `yaml:"runtimeDir"`
		StateDir   string `yaml:"stateDir"`
	}
	_ = yaml.Unmarshal(text, &c) // what could be read of it counts
	return Config{RuntimeDir: c.RuntimeDir, StateDir: c.StateDir}
}
