package arch

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func isPage(path string) bool { return strings.HasSuffix(path, ".md") }

var (
	link      = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	target    = regexp.MustCompile(`(?m)^([a-z][a-z-]*):`)
	makeWords = regexp.MustCompile("(?m)(?:^\\s*|`)make ([a-z][a-z-]*)")
	codeSpan  = regexp.MustCompile("`([^`\n]+)`")
)

func TestLinksOfEveryPage(t *testing.T) {
	for _, page := range files(t, isPage) {
		for _, m := range link.FindAllStringSubmatch(withoutFences(page.text), -1) {
			to, _, _ := strings.Cut(m[1], "#")
			if to == "" || strings.Contains(to, "://") || strings.HasPrefix(to, "mailto:") {
				continue
			}
			if !exists(path.Join(path.Dir(page.path), to)) {
				t.Errorf("%s: the link to %s leads nowhere", page.path, m[1])
			}
		}
	}
}

func TestMakeTargetsOfEveryPage(t *testing.T) {
	known := targets(t)
	for _, page := range files(t, isPage) {
		for _, m := range makeWords.FindAllStringSubmatch(page.text, -1) {
			if !slices.Contains(known, m[1]) {
				t.Errorf("%s: says `make %s`, which the Makefile does not have", page.path, m[1])
			}
		}
	}
}

func targets(t *testing.T) []string {
	var names []string
	for _, m := range target.FindAllStringSubmatch(read(t, "Makefile"), -1) {
		names = append(names, m[1])
	}
	return names
}

// The start of a newcomer is exactly two commands, the first ones that the README shows.
func TestTheTwoCommands(t *testing.T) {
	var commands []string
	for _, line := range strings.Split(strings.Join(fences(read(t, "README.md")), "\n"), "\n") {
		command, _, _ := strings.Cut(line, "#")
		if command = strings.TrimSpace(command); strings.HasPrefix(command, "make ") {
			commands = append(commands, command)
		}
	}
	if want := []string{"make run", "make test"}; !slices.Equal(commands, want) {
		t.Errorf("the README's fenced make commands are %q, want %q", commands, want)
	}
	if text := read(t, ".ci/run"); !strings.Contains(text, "make test") {
		t.Error(".ci/run does not run the README's test command")
	}
}

// A path in a code span of the README is a path of this tree. Spans with a space are
// commands, those that start with / lie on the host.
func TestPathsOfTheReadme(t *testing.T) {
	top := regexp.MustCompile(`^(cmd|gateway|sync|vip|lua|test|bench|packaging|systemd|ansible|docs|examples|scripts|tools|changes|\.ci)/[\w./-]*$`)
	for _, m := range codeSpan.FindAllStringSubmatch(withoutFences(read(t, "README.md")), -1) {
		if top.MatchString(m[1]) && !exists(m[1]) {
			t.Errorf("README.md names %s, which does not exist", m[1])
		}
	}
}

// fences gives the insides of the ```-blocks.
func fences(text string) []string {
	parts := strings.Split(text, "\n```")
	var inside []string
	for i := 1; i < len(parts); i += 2 {
		_, body, _ := strings.Cut(parts[i], "\n") // the info string ends with the line
		inside = append(inside, body)
	}
	return inside
}

func withoutFences(text string) string {
	parts := strings.Split(text, "\n```")
	var outside []string
	for i := 0; i < len(parts); i += 2 {
		outside = append(outside, parts[i])
	}
	return strings.Join(outside, "\n")
}

func TestFences(t *testing.T) {
	text := "a\n```sh\nmake run\n```\nb\n```\nx\ny\n```\n"
	if got, want := fences(text), []string{"make run", "x\ny"}; !slices.Equal(got, want) {
		t.Errorf("fences: %q, want %q", got, want)
	}
	if got, want := withoutFences(text), "a\n\nb\n\n"; got != want {
		t.Errorf("withoutFences: %q, want %q", got, want)
	}
}
