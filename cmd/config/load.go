package config

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/viper"
)

// Override is a value given on the command line; it wins over environment and file.
type Override struct {
	Flag  string // as written: "--manifests"; for messages
	Key   string // a Name of Keys
	Value any    // string or []string
}

// Need says whether a configuration without a source of objects is complete.
type Need int

// The needs: the daemon cannot start without kubeconfig or manifests; a client of its socket can.
const (
	Source Need = iota
	NoSource
)

// Load merges, from weak to strong, Default, the file, HEADGATE_… variables and overrides, and checks the
// result. file "" means DefaultFile, which may be missing; a file that is named must exist. The error joins
// one *FieldError for each thing that is wrong, so that one run shows them all.
func Load(file string, overrides []Override, need Need) (Config, error) {
	return Host{}.Load(file, overrides, need)
}

// Load is like the function, on a host that lacks something: defaults that cannot work here are left out, and
// the same written by the administrator is an error.
func (h Host) Load(file string, overrides []Override, need Need) (Config, error) {
	l := &loading{file: file, overrides: overrides, lines: map[string]int{}}
	text, err := l.read()
	if err != nil {
		return Config{}, err
	}
	errs := l.checkFile(text)
	if len(errs) > 0 && errs[0].Key == "" {
		return Config{}, join(errs) // no YAML: nothing else can be said
	}
	errs = append(errs, l.checkNames()...)
	c := h.defaults()
	errs = append(errs, unrelated(l.merge(text, &c), errs)...)
	later := append(validate(&c), h.lacks(&c)...)
	if need == Source {
		later = append(later, l.checkSource(&c)...)
	}
	for _, e := range later {
		e.Place = l.place(e.Key)
	}
	if err := join(append(errs, unrelated(later, errs)...)); err != nil {
		return Config{}, err
	}
	return c, nil
}

// unrelated leaves out the errors about keys of which others tell already: a value that could not be read is missing,
// and what follows from that is no mistake of its own. Where something is wrong already, an error about no key is
// viper's own word for it.
func unrelated(errs, told []*FieldError) []*FieldError {
	if len(told) == 0 {
		return errs
	}
	bare := func(key string) string {
		key, _, _ = strings.Cut(strings.ToLower(key), "[")
		return key + "."
	}
	return slices.DeleteFunc(slices.Clone(errs), func(e *FieldError) bool {
		return e.Key == "" || slices.ContainsFunc(told, func(t *FieldError) bool {
			a, b := bare(e.Key), bare(t.Key)
			return strings.HasPrefix(a, b) || strings.HasPrefix(b, a)
		})
	})
}

// loading is one Load: where each key was written, for messages.
type loading struct {
	file      string // "" once it turned out that the default file does not exist
	missing   bool
	overrides []Override
	lines     map[string]int // key, or key[index], in lower case → line of the file
}

func (l *loading) read() ([]byte, error) {
	named := l.file != ""
	if !named {
		l.file = DefaultFile
	}
	text, err := os.ReadFile(l.file)
	switch {
	case err == nil:
		return text, nil
	case errors.Is(err, fs.ErrNotExist) && !named:
		l.missing = true
		return nil, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s: the file does not exist: create it, or leave out --config to use %s", l.file, DefaultFile)
	}
	return nil, fmt.Errorf("read configuration: %w", err)
}

// testPrefix begins the variables of the project's own tests, which the daemons that they start inherit.
const testPrefix = EnvPrefix + "_TEST_"

// checkNames refuses variables and --set keys that no key answers to: a misspelt one would be ignored silently.
func (l *loading) checkNames() []*FieldError {
	known := map[string]bool{}
	variables := make([]string, 0, len(Keys()))
	for _, k := range Keys() {
		known[k.Name] = true
		variables = append(variables, EnvName(k.Name))
	}
	var errs []*FieldError
	for _, o := range l.overrides {
		if !known[o.Key] {
			errs = append(errs, &FieldError{Place: o.Flag, Key: o.Key, Message: "unknown key" + hint(o.Key, keyNames())})
		}
	}
	for _, pair := range os.Environ() {
		name, _, _ := strings.Cut(pair, "=")
		ours := strings.HasPrefix(name, EnvPrefix+"_") && !strings.HasPrefix(name, testPrefix)
		if ours && !contains(variables, name) {
			errs = append(errs, &FieldError{Place: "environment", Key: name, Message: "unknown variable" + hint(name, variables)})
		}
	}
	return errs
}

// EnvName gives the environment variable of a key: "proxy.mode" is HEADGATE_PROXY_MODE.
func EnvName(key string) string {
	return EnvPrefix + "_" + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// merge lets viper put the sources on top of each other and decodes the result into c, which holds the defaults.
func (l *loading) merge(text []byte, c *Config) []*FieldError {
	v := viper.NewWithOptions(
		viper.ExperimentalBindStruct(),
		viper.EnvKeyReplacer(strings.NewReplacer(".", "_")),
		viper.WithDecodeHook(decodeHook),
	)
	v.SetConfigType("yaml")
	v.SetEnvPrefix(EnvPrefix)
	v.AllowEmptyEnv(true)
	v.AutomaticEnv()
	if err := v.ReadConfig(bytes.NewReader(text)); err != nil {
		return []*FieldError{{Place: l.file, Message: err.Error()}}
	}
	for _, o := range l.overrides {
		v.Set(o.Key, o.Value)
	}
	err := v.UnmarshalExact(c, func(d *mapstructure.DecoderConfig) {
		d.WeaklyTypedInput = false
		d.ZeroFields = true // a shorter list replaces a default one whole
	})
	return l.decodeErrors(err, "")
}

// decodeErrors turns the tree of errors of mapstructure into a flat list with our key names.
func (l *loading) decodeErrors(err error, key string) []*FieldError {
	if err == nil {
		return nil
	}
	//nolint:errorlint // the tree is walked node by node; errors.As would skip the siblings
	switch e := err.(type) {
	case *mapstructure.DecodeError:
		return l.decodeErrors(e.Unwrap(), e.Name())
	case interface{ Unwrap() []error }:
		var all []*FieldError
		for _, child := range e.Unwrap() {
			all = append(all, l.decodeErrors(child, key)...)
		}
		return all
	}
	if inner := errors.Unwrap(err); inner != nil && isTree(inner) {
		return l.decodeErrors(inner, key)
	}
	return []*FieldError{{Place: l.place(key), Key: key, Message: err.Error()}}
}

func isTree(err error) bool {
	var d *mapstructure.DecodeError
	return errors.As(err, &d)
}

// place tells where a key got its value: a flag, a variable, a line of the file, or "" for a default.
func (l *loading) place(key string) string {
	bare, _, _ := strings.Cut(key, "[")
	for _, o := range l.overrides {
		if o.Key == bare {
			return o.Flag
		}
	}
	if _, set := os.LookupEnv(EnvName(bare)); set && bare != "" {
		return EnvName(bare)
	}
	section, _, _ := strings.Cut(bare, ".")
	for _, k := range []string{key, bare, section} {
		if line := l.lines[strings.ToLower(k)]; line > 0 {
			return fmt.Sprintf("%s:%d", l.file, line)
		}
	}
	return ""
}

// checkSource holds Kubeconfig and Manifests against each other.
func (l *loading) checkSource(c *Config) []*FieldError {
	switch {
	case c.Kubeconfig != "" && len(c.Manifests) > 0:
		return []*FieldError{{Key: "manifests", Message: "kubeconfig is set as well, and there is one source only: remove kubeconfig (" +
			place(l.place("kubeconfig")) + ") or manifests (" + place(l.place("manifests")) + ")"}}
	case len(c.Manifests) > 0 && len(c.Namespaces) > 0:
		return []*FieldError{{Key: "namespaces", Message: "it filters what is read from a cluster, and manifests is set: remove it"}}
	case c.Kubeconfig == "" && len(c.Manifests) == 0 && l.missing:
		return []*FieldError{{Key: "kubeconfig", Message: "no source of objects, and " + l.file +
			" does not exist: give --kubeconfig FILE for a cluster or --manifests DIR for a folder"}}
	case c.Kubeconfig == "" && len(c.Manifests) == 0:
		return []*FieldError{{Key: "kubeconfig", Message: "no source of objects: write \"kubeconfig: FILE\" for a cluster or \"manifests: [DIR]\" for a folder in " +
			l.file + ", or give --kubeconfig or --manifests"}}
	}
	return nil
}

func place(p string) string {
	if p == "" {
		return "default"
	}
	return p
}

// decodeHook reads strings of all three sources into the types of Config and leaves everything else alone.
func decodeHook(from, to reflect.Type, data any) (any, error) {
	if from.Kind() != reflect.String {
		return data, nil
	}
	text := reflect.ValueOf(data).String()
	if to.Kind() == reflect.Slice {
		return splitList(text), nil
	}
	return parseScalar(text, to)
}

// separators between the entries of a list in a variable or a --set.
var separators = regexp.MustCompile(`\s*,\s*`)

func splitList(text string) []string {
	text = strings.TrimSpace(text)
	if text == "" {
		return []string{}
	}
	return separators.Split(text, -1)
}
