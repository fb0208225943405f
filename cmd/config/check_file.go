package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// checkFile looks at the YAML itself, because viper has forgotten lines, spelling and types: every key must
// be one of Config, spelt exactly, once, with a value of its type. It notes the lines for later messages.
func (l *loading) checkFile(text []byte) []*FieldError {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var doc yaml.Node
	if err := decoder.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil // an empty file is all defaults
		}
		return []*FieldError{l.notYAML(err, text)}
	}
	var second yaml.Node
	if err := decoder.Decode(&second); err != nil && !errors.Is(err, io.EOF) {
		return []*FieldError{l.notYAML(err, text)}
	} else if err == nil {
		return []*FieldError{{Place: fmt.Sprintf("%s:%d", l.file, second.Line), Message: "more than one YAML document: keep one, without ---"}}
	}
	if len(doc.Content) == 0 {
		return nil
	}
	return l.checkNode(doc.Content[0], reflect.TypeFor[Config](), "")
}

var yamlLine = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?`)

// notYAML puts the line of the library's message into the place. The library leaves out the first.
func (l *loading) notYAML(err error, content []byte) *FieldError {
	text, line := err.Error(), 1
	if found := yamlLine.FindStringSubmatch(text); found != nil {
		text = text[len(found[0]):]
		if n, err := strconv.Atoi(found[1]); err == nil {
			line = n
			if strings.HasPrefix(text, "did not find expected ") && line <= bytes.Count(bytes.TrimSpace(content), []byte("\n")) {
				line++ // the library's parser counts from zero, its scanner from one
			}
		}
	}
	return &FieldError{Place: fmt.Sprintf("%s:%d", l.file, line), Message: "not YAML: " + text}
}

func (l *loading) checkNode(node *yaml.Node, to reflect.Type, key string) []*FieldError {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if key != "" {
		l.lines[strings.ToLower(key)] = node.Line
	}
	fail := func(format string, args ...any) []*FieldError {
		return []*FieldError{{Place: fmt.Sprintf("%s:%d", l.file, node.Line), Key: key, Message: fmt.Sprintf(format, args...)}}
	}
	switch {
	case node.Kind == yaml.ScalarNode && node.ShortTag() == "!!null":
		if key == "" {
			return nil
		}
		return fail("no value: remove the key to get the default, or write %s", shape(to))
	case isSection(to):
		if node.Kind != yaml.MappingNode {
			return fail("%s where keys are expected: write %s", kindOf(node), shape(to))
		}
		return l.checkSection(node, to, key)
	case to.Kind() == reflect.Slice:
		if node.Kind != yaml.SequenceNode {
			return fail("%s where a list is expected: write [%s]", kindOf(node), valueOr(node, shape(to.Elem())))
		}
		var errs []*FieldError
		for i, entry := range node.Content {
			errs = append(errs, l.checkNode(entry, to.Elem(), fmt.Sprintf("%s[%d]", key, i))...)
		}
		return errs
	case node.Kind != yaml.ScalarNode || !fits(node, to):
		return fail("%s where %s is expected", kindOf(node), shape(to))
	}
	return nil
}

// isSection is true for a struct that is a part of Config, false for the structs of netip.
func isSection(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && t.PkgPath() == reflect.TypeFor[Config]().PkgPath()
}

func (l *loading) checkSection(node *yaml.Node, to reflect.Type, key string) []*FieldError {
	fields := map[string]reflect.Type{}
	for i := range to.NumField() {
		fields[to.Field(i).Tag.Get("mapstructure")] = to.Field(i).Type
	}
	var errs []*FieldError
	seen := map[string]int{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		name, value := node.Content[i], node.Content[i+1]
		full := strings.TrimPrefix(key+"."+name.Value, ".")
		at := fmt.Sprintf("%s:%d", l.file, name.Line)
		fieldType, known := fields[name.Value]
		switch {
		case name.Kind != yaml.ScalarNode || !known:
			errs = append(errs, &FieldError{Place: at, Key: full, Message: "unknown key" + hint(full, sectionNames(to, key))})
			continue
		case seen[name.Value] > 0:
			errs = append(errs, &FieldError{Place: at, Key: full, Message: fmt.Sprintf("written twice (first in line %d): keep one", seen[name.Value])})
			continue
		}
		seen[name.Value] = name.Line
		errs = append(errs, l.checkNode(value, fieldType, full)...)
	}
	return errs
}

// sectionNames are the keys that a misspelt one may have meant: those of its section first.
func sectionNames(section reflect.Type, key string) []string {
	var names []string
	for i := range section.NumField() {
		names = append(names, strings.TrimPrefix(key+"."+section.Field(i).Tag.Get("mapstructure"), "."))
	}
	return append(names, keyNames()...)
}

// fits tells whether a scalar has the YAML type that the field wants. Sizes and durations are text; the
// number 0 is a size, too.
func fits(node *yaml.Node, to reflect.Type) bool {
	tag := node.ShortTag()
	switch to {
	case reflect.TypeFor[Size]():
		return tag == "!!str" || node.Value == "0"
	case reflect.TypeFor[Duration]():
		return tag == "!!str"
	}
	switch to.Kind() {
	case reflect.Bool:
		return tag == "!!bool"
	case reflect.Int:
		return tag == "!!int"
	default:
		return tag == "!!str"
	}
}

// shape says in words what a value of the type looks like.
func shape(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[Size]():
		return "a size such as 32MiB"
	case reflect.TypeFor[Duration]():
		return "a duration such as 20ms or 60s"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a whole number"
	case reflect.Slice:
		return "[] or a list"
	case reflect.Struct:
		if isSection(t) {
			return "{" + t.Field(0).Tag.Get("mapstructure") + ": …}"
		}
	default:
	}
	return `text (in quotes, such as "x")`
}

func kindOf(node *yaml.Node) string {
	switch node.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	default:
		return fmt.Sprintf("%q", node.Value)
	}
}

func valueOr(node *yaml.Node, otherwise string) string {
	if node.Kind == yaml.ScalarNode {
		return node.Value
	}
	return otherwise
}
