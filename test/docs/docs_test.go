// Package docs tests what the pages promise: each headgate command in them exists with its flags, each headgate.yaml in
// them is accepted by the binary, each link leads to a page and to a heading in it, and the index lists every page.
package docs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"headgate/test/product"
)

var binary string // of headgate

func TestMain(m *testing.M) { product.Main(m, &binary) }

// page is one Markdown file, its path relative to the root of the repository.
type page struct{ path, text string }

// pages gives those that people read: docs/, the README and the collection's.
func pages(t *testing.T) []page {
	t.Helper()
	product.LookAt(t, "docs", "ansible")
	root := os.DirFS("../..")
	list := []string{"README.md", "ansible/README.md"}
	err := fs.WalkDir(root, "docs", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && strings.HasSuffix(name, ".md") {
			list = append(list, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var all []page
	for _, name := range list {
		text, err := fs.ReadFile(root, name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, page{name, string(text)})
	}
	return all
}

// block is a fenced block: its language, its text without indentation, and where it begins.
type block struct {
	language, text string
	line           int
}

var fence = regexp.MustCompile("^( *)```(.*)$")

// split parts a page into its fenced blocks and the rest.
func split(text string) (blocks []block, rest string) {
	var outside strings.Builder
	var open *block
	indent := ""
	for i, line := range strings.Split(text, "\n") {
		found := fence.FindStringSubmatch(line)
		switch {
		case found != nil && open == nil:
			open, indent = &block{language: strings.TrimSpace(found[2]), line: i + 1}, found[1]
		case found != nil:
			blocks, open = append(blocks, *open), nil
		case open != nil:
			open.text += strings.TrimPrefix(line, indent) + "\n"
		default:
			outside.WriteString(line + "\n")
		}
	}
	return blocks, outside.String()
}

func TestSplit(t *testing.T) {
	blocks, rest := split("a\n```sh\nx\n```\nb\n- c\n  ```yaml\n  k: v\n    w: z\n  ```\n")
	want := []block{{"sh", "x\n", 2}, {"yaml", "k: v\n  w: z\n", 7}}
	if !slices.Equal(blocks, want) || rest != "a\nb\n- c\n\n" {
		t.Errorf("%+v and %q", blocks, rest)
	}
}

// A command of a page: in a fenced block of a shell or of a unit, or a code span.
var (
	span = regexp.MustCompile("`([^`\n]+)`")
	// word is where a call of the binary begins in a line: at its start, behind a shell's operator, a program that
	// runs another one, or a path.
	call = regexp.MustCompile(`(?:^|[|;&(=]\s*|\$ |\bssh \S+ '?|-exec )(?:/usr/bin/|bin/)?headgate((?:\s+[^|;&)<>#]+)?)`)
)

// calls gives the arguments of each call of headgate in a line of shell.
func calls(line string) [][]string {
	var all [][]string
	for _, found := range call.FindAllStringSubmatch(strings.TrimSpace(line), -1) {
		if words := shellWords(found[1]); len(words) > 0 {
			all = append(all, words)
		}
	}
	return all
}

var token = regexp.MustCompile(`'[^']*'|"[^"]*"|[^\s'"]+`)

// shellWords splits at spaces and keeps what is quoted together.
func shellWords(text string) []string {
	var words []string
	for _, w := range token.FindAllString(text, -1) {
		words = append(words, strings.Trim(w, `'"`))
	}
	return words
}

func TestCalls(t *testing.T) {
	for line, want := range map[string]string{
		"headgate rbac | kubectl apply -f -":                         "[[rbac]]",
		"headgate drain && systemctl restart x && headgate undrain":  "[[drain] [undrain]]",
		"headgate explain http://x/ -H 'Host: a b' -X POST":          "[[explain http://x/ -H Host: a b -X POST]]",
		"bin/headgate check   # looks":                               "[[check]]",
		"ssh edge1 headgate join --show | ssh edge2 headgate join -": "[[join --show] [join -]]",
		"systemctl restart headgate":                                 "[]",
		"apt purge headgate":                                         "[]",
		"headgate":                                                   "[]",
	} {
		if got := fmt.Sprint(calls(line)); got != want {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
}

func TestEveryCommandExistsWithItsFlags(t *testing.T) {
	known := &commands{t: t, help: map[string]string{}}
	count := 0
	for _, p := range pages(t) {
		if generated(p.path) {
			continue // made of the commands themselves
		}
		blocks, rest := split(p.text)
		var lines []string
		for _, b := range blocks {
			if b.language == "sh" || b.language == "console" {
				lines = append(lines, strings.Split(strings.ReplaceAll(b.text, "\\\n", " "), "\n")...)
			}
		}
		for _, s := range span.FindAllStringSubmatch(rest, -1) {
			lines = append(lines, s[1])
		}
		for _, line := range lines {
			for _, words := range calls(line) {
				count++
				if err := known.check(words); err != nil {
					t.Errorf("%s: %q: %v", p.path, line, err)
				}
			}
		}
	}
	if count < 50 {
		t.Errorf("only %d commands were found: is the pattern still right?", count)
	}
}

func generated(name string) bool { return strings.HasPrefix(name, "docs/reference/") }

// commands asks the binary for its help, once for each command.
type commands struct {
	t    *testing.T
	help map[string]string
}

// of gives the help of a command, "" where there is none such.
func (c *commands) of(words []string) string {
	key := strings.Join(words, " ")
	if text, asked := c.help[key]; asked {
		return text
	}
	out, err := exec.CommandContext(c.t.Context(), binary, append(slices.Clone(words), "--help")...).CombinedOutput() //nolint:gosec // the product
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		c.t.Fatal(err)
	}
	text := string(out)
	// The help of an unknown sub-command is that of the command above it.
	if err != nil || !strings.Contains(text, "\n  headgate "+key+" [") && !strings.Contains(text, "\n  headgate "+key+"\n") &&
		!regexp.MustCompile(`\n  headgate `+regexp.QuoteMeta(key)+` [A-Z]`).MatchString(text) {
		text = ""
	}
	c.help[key] = text
	return text
}

// check finds the command that the words name, and then each of its flags in its help.
func (c *commands) check(words []string) error {
	if words[0] == "help" || strings.HasPrefix(words[0], "-") {
		return nil
	}
	path := words[:1]
	text := c.of(path)
	if text == "" {
		return fmt.Errorf("there is no command %q", words[0])
	}
	for _, next := range words[1:] {
		// A command with sub-commands takes no other words.
		if !strings.Contains(text, "\nAvailable Commands:") || strings.HasPrefix(next, "-") {
			break
		}
		path = append(slices.Clone(path), next)
		if text = c.of(path); text == "" {
			return fmt.Errorf("there is no command %q", strings.Join(path, " "))
		}
	}
	for _, word := range words[len(path):] {
		if name, _, _ := strings.Cut(word, "="); strings.HasPrefix(name, "-") && name != "-" && !flagIn(text, name) {
			return fmt.Errorf("%s has no flag %s", strings.Join(path, " "), name)
		}
	}
	return nil
}

func flagIn(help, name string) bool {
	return regexp.MustCompile(`(?m)^ +(-\w, )?`+regexp.QuoteMeta(name)+`\b`).MatchString(help) ||
		regexp.MustCompile(`(?m)^ +`+regexp.QuoteMeta(name)+`, --`).MatchString(help)
}

func TestMistakesInCommandsAreFound(t *testing.T) {
	product.LookAt(t)
	known := &commands{t: t, help: map[string]string{}}
	for words, good := range map[string]bool{
		"status": true, "vip status --watch": true, "vip move 192.0.2.10 edge2": true, "peers shop/web -o json": true, "explain -X POST http://x/": true,
		"stat": false, "vip jump": false, "status --colour": false, "drain -x": false, "gossip rotate": false,
	} {
		if err := known.check(strings.Fields(words)); (err == nil) != good {
			t.Errorf("%s: %v", words, err)
		}
	}
}

// A YAML block whose first line names headgate.yaml is one, and the binary accepts it.
func TestEveryConfigurationIsAccepted(t *testing.T) {
	count := 0
	for _, p := range pages(t) {
		blocks, _ := split(p.text)
		for _, b := range blocks {
			first, _, _ := strings.Cut(b.text, "\n")
			if b.language != "yaml" || !strings.HasPrefix(first, "#") || !strings.Contains(first, "headgate.yaml") {
				continue
			}
			count++
			if out, err := accept(t, b.text); err != nil {
				t.Errorf("%s:%d: %v\n%s", p.path, b.line, err, out)
			}
		}
	}
	if count < 5 {
		t.Errorf("only %d configurations were found: is the pattern still right?", count)
	}
	if _, err := accept(t, "# headgate.yaml\nkubeConfig: /x\n"); err == nil {
		t.Error("a mistake was accepted")
	}
}

// accept runs the one command that reads the configuration and nothing else.
func accept(t *testing.T, text string) (string, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "headgate.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(context.WithoutCancel(t.Context()), binary, "rbac", "--config", file).CombinedOutput() //nolint:gosec // the product
	return string(out), err
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.+?) *$`)
	// dropped is what an anchor leaves out of its heading.
	dropped = regexp.MustCompile(`[^\p{L}\p{N}\- _]`)
)

func TestLinksLeadToPagesAndHeadings(t *testing.T) {
	all := map[string]string{}
	for _, p := range pages(t) {
		all[p.path] = p.text
	}
	for name, text := range all {
		_, rest := split(text)
		for _, m := range link.FindAllStringSubmatch(rest, -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			to := name
			if target != "" {
				to = path.Join(path.Dir(name), target)
			}
			if _, err := os.Stat(filepath.Join("../..", filepath.FromSlash(to))); err != nil {
				t.Errorf("%s: the link to %s leads nowhere", name, m[1])
			} else if there, isPage := all[to]; isPage && anchor != "" && !slices.Contains(anchors(there), anchor) {
				t.Errorf("%s: %s has no heading #%s", name, to, anchor)
			}
		}
	}
}

func anchors(text string) []string {
	_, rest := split(text)
	var list []string
	for _, m := range heading.FindAllStringSubmatch(rest, -1) {
		list = append(list, strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return list
}

func TestAnchors(t *testing.T) {
	if got := anchors("# What `it` does, here\n## 2. The same\n"); !slices.Equal(got, []string{"what-it-does-here", "2-the-same"}) {
		t.Errorf("%q", got)
	}
}

func TestTheIndexListsEveryPage(t *testing.T) {
	all := pages(t)
	index := all[slices.IndexFunc(all, func(p page) bool { return p.path == "docs/README.md" })].text
	for _, p := range all {
		if name, below := strings.CutPrefix(p.path, "docs/"); below && name != "README.md" && !strings.Contains(index, "("+name+")") {
			t.Errorf("docs/README.md does not name %s", name)
		}
	}
}
