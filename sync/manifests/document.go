package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	yaml "go.yaml.in/yaml/v3"
	kyaml "sigs.k8s.io/yaml"
)

// document is one value of a file, as JSON, with the tree that knows its lines.
type document struct {
	line int // of its first key, counted from 1
	json []byte
	node *yaml.Node // nil when only the line of the document is known
	base int        // lines before node's text
}

// syntaxError is a text that is neither YAML nor JSON.
type syntaxError struct {
	line int
	text string
}

func (e *syntaxError) Error() string { return e.text }

// documents takes the file of that name apart. An error is always a *syntaxError: then nothing of the file can be trusted, since a
// mistake in one document may swallow the marker of the next.
func documents(name string, content []byte) ([]document, error) {
	content = bytes.TrimPrefix(content, []byte("\xef\xbb\xbf"))
	var notJSON error
	if looksLikeJSON(content) {
		var list []document
		if list, notJSON = jsonDocuments(content); notJSON == nil {
			return list, nil
		}
	}
	var list []document
	for _, part := range split(content) {
		d, err := yamlDocument(part)
		if err != nil && notJSON != nil && meantAsJSON(name, content) {
			// JSON's parser knows the better line.
			return nil, notJSON
		}
		if err != nil {
			return nil, err
		}
		if d != nil {
			list = append(list, *d)
		}
	}
	return list, nil
}

// looksLikeJSON is true for an object whose first key is quoted; a flow mapping of YAML may begin so, too.
func looksLikeJSON(content []byte) bool {
	inner, ok := bytes.CutPrefix(bytes.TrimSpace(content), []byte("{"))
	return ok && bytes.HasPrefix(bytes.TrimSpace(inner), []byte(`"`))
}

// meantAsJSON tells what somebody who made a mistake wanted to write: a file that is named after YAML may hold JSON, but
// no mark between documents then.
func meantAsJSON(name string, content []byte) bool {
	return filepath.Ext(name) == ".json" || len(split(content)) == 1 && !onlyYAML.Match(content)
}

// onlyYAML is a key without quotes, or a comment, at the start of a line: in YAML only.
var onlyYAML = regexp.MustCompile(`(?m)^\s*(?:[A-Za-z][\w./-]*\s*:|#)`)

// part is the text between two markers, and the number of lines before it.
type part struct {
	text   []byte
	before int
}

// split cuts at the markers "---" and "..." (YAML 1.2 section 9.1.2): at the start of a line they are never content.
func split(content []byte) []part {
	var parts []part
	var text []byte
	before, line := 0, 0
	for raw := range bytes.Lines(content) {
		switch marker(raw) {
		case "---":
			parts = append(parts, part{text, before})
			// What follows a marker on its line belongs to the new document.
			text, before = append([]byte("   "), raw[3:]...), line
		case "...":
			parts = append(parts, part{text, before})
			text, before = nil, line+1
		default:
			text = append(text, raw...)
		}
		line++
	}
	return append(parts, part{text, before})
}

func marker(line []byte) string {
	if len(line) < 3 || (len(line) > 3 && !strings.ContainsRune(" \t\r\n", rune(line[3]))) {
		return ""
	}
	switch first := string(line[:3]); first {
	case "---", "...":
		return first
	}
	return ""
}

// yamlDocument gives nil for a part without content.
func yamlDocument(p part) (*document, error) {
	if isBlank(p.text) {
		return nil, nil
	}
	if len(p.text) > maxObjectBytes {
		return nil, &syntaxError{p.before + 1, fmt.Sprintf("the document is larger than %d MiB: no API server would take it", maxObjectBytes>>20)}
	}
	var tree yaml.Node
	if err := yaml.Unmarshal(p.text, &tree); err != nil {
		return nil, yamlError(err, p)
	}
	if len(tree.Content) == 0 || tree.Content[0].Tag == "!!null" {
		return nil, nil
	}
	// Values are read as kubectl reads them (YAML 1.1 booleans, duplicate keys refused).
	raw, err := kyaml.YAMLToJSONStrict(p.text)
	if err != nil {
		return nil, yamlError(err, p)
	}
	node := tree.Content[0]
	return &document{line: p.before + node.Line, json: raw, node: node, base: p.before}, nil
}

// isBlank is true when there is nothing but comments and directives.
func isBlank(text []byte) bool {
	for line := range bytes.Lines(text) {
		trimmed := bytes.TrimSpace(line)
		if len(trimmed) > 0 && trimmed[0] != '#' && line[0] != '%' {
			return false
		}
	}
	return true
}

var yamlLine = regexp.MustCompile(`^(?:yaml: )?(?:unmarshal errors:\s*)?(?:line (\d+): )?`)

// fromZero begins the messages of the library's parser, which counts lines from zero; its scanner counts from one.
const fromZero = "did not find expected "

// yamlError takes the line out of the library's message and puts it into place.
func yamlError(err error, p part) *syntaxError {
	text := strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")
	line := 1
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		text = text[len(m[0]):]
		if n, err := strconv.Atoi(m[1]); err == nil {
			line = n
			if strings.HasPrefix(text, fromZero) && line <= bytes.Count(bytes.TrimSpace(p.text), []byte("\n")) {
				line++ // but not beyond the end, at which it misses something
			}
		}
	}
	text, _, _ = strings.Cut(text, "\n")
	return &syntaxError{p.before + line, "this is not YAML: " + text}
}

// jsonDocuments reads JSON values that follow each other.
func jsonDocuments(content []byte) ([]document, error) {
	var list []document
	decoder := json.NewDecoder(bytes.NewReader(content))
	for {
		start := decoder.InputOffset()
		var raw json.RawMessage
		err := decoder.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return nil, jsonError(err, content)
		}
		text := content[start:decoder.InputOffset()]
		blank := len(text) - len(bytes.TrimLeft(text, " \t\r\n"))
		d := document{line: 1 + bytes.Count(content[:int(start)+blank], []byte("\n")), json: raw}
		if len(raw) > maxObjectBytes {
			return nil, &syntaxError{d.line, fmt.Sprintf("the object is larger than %d MiB: no API server would take it", maxObjectBytes>>20)}
		}
		// JSON is YAML, but for a few escapes: the tree is for line numbers only.
		var tree yaml.Node
		if yaml.Unmarshal(raw, &tree) == nil && len(tree.Content) > 0 {
			d.node, d.base = tree.Content[0], d.line-1
		}
		list = append(list, d)
	}
}

func jsonError(err error, content []byte) *syntaxError {
	var syntax *json.SyntaxError
	end := len(content)
	if errors.As(err, &syntax) && int(syntax.Offset) <= len(content) {
		end = int(syntax.Offset)
	}
	return &syntaxError{1 + bytes.Count(content[:end], []byte("\n")), "this is not JSON: " + err.Error()}
}

// item is the document at a place inside this one.
func (d document) item(i int, raw []byte) document {
	inner := document{line: d.line, json: raw, base: d.base}
	if list := child(d.node, "items"); list != nil && list.Kind == yaml.SequenceNode && i < len(list.Content) {
		inner.node = list.Content[i]
		inner.line = d.base + inner.node.Line
	}
	return inner
}

var pathStep = regexp.MustCompile(`[^.\[\]]+|\[\d+\]`)

// lineOf finds the line of a field such as "spec.rules[0].host", or of its nearest ancestor that is there.
func (d document) lineOf(field string) int {
	line, node := d.line, d.node
	for _, step := range pathStep.FindAllString(field, -1) {
		if index, ok := strings.CutPrefix(step, "["); ok {
			i, err := strconv.Atoi(strings.TrimSuffix(index, "]"))
			if err != nil || node == nil || node.Kind != yaml.SequenceNode || i >= len(node.Content) {
				return line
			}
			node = node.Content[i]
			line = d.base + node.Line
			continue
		}
		key, value := entry(node, step)
		if key == nil {
			return line
		}
		line, node = d.base+key.Line, value
	}
	return line
}

// lineOfKind finds the first value at a path without indices ("spec.ports.port") whose kind is the one that
// encoding/json complains about ("string", "number 70000", "bool", "object", "array").
func (d document) lineOfKind(field, kind string) int {
	kind, _, _ = strings.Cut(kind, " ")
	if found := search(d.node, strings.Split(field, "."), kind); found != nil {
		return d.base + found.Line
	}
	return d.lineOf(field)
}

func search(node *yaml.Node, path []string, kind string) *yaml.Node {
	if node == nil {
		return nil
	}
	if len(path) == 0 && jsonKind(node) == kind {
		return node
	}
	if node.Kind == yaml.SequenceNode {
		for _, element := range node.Content {
			if found := search(element, path, kind); found != nil {
				return found
			}
		}
		return nil
	}
	if len(path) == 0 {
		return nil
	}
	return search(child(node, path[0]), path[1:], kind)
}

func jsonKind(node *yaml.Node) string {
	switch node.Kind {
	case yaml.MappingNode:
		return "object"
	case yaml.SequenceNode:
		return "array"
	case yaml.ScalarNode:
		switch node.Tag {
		case "!!int", "!!float":
			return "number"
		case "!!bool":
			return "bool"
		}
		return "string"
	default:
		return ""
	}
}

func child(node *yaml.Node, key string) *yaml.Node {
	_, value := entry(node, key)
	return value
}

func entry(node *yaml.Node, key string) (*yaml.Node, *yaml.Node) {
	if node != nil && node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if node == nil || node.Kind != yaml.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == key {
			return node.Content[i], node.Content[i+1]
		}
	}
	return nil, nil
}
