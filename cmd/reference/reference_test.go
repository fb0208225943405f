package reference

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"headgate/cmd/config"
	"headgate/gateway/annotations"
	"headgate/sync/admin"
)

// tree is a small command line: cmd/headgate's own is package main.
func tree() *cobra.Command {
	root := &cobra.Command{Use: "headgate", Long: "What it is."}
	run := &cobra.Command{Use: "run", Short: "Run it", Long: "It runs.", Example: "  headgate run", Run: func(*cobra.Command, []string) {}}
	run.Flags().String("config", "", "configuration `file`")
	hidden := &cobra.Command{Use: "dev", Short: "secret", Hidden: true, Run: func(*cobra.Command, []string) {}}
	root.AddCommand(run, hidden)
	return root
}

func TestPagesHoldEveryEntryOfTheirList(t *testing.T) {
	pages := Pages(tree())
	for _, k := range config.Keys() {
		if !strings.Contains(pages["configuration.md"], "| `"+k.Name+"` |") {
			t.Errorf("configuration.md lacks %s", k.Name)
		}
	}
	for _, a := range slices.Concat(annotations.All(), annotations.OfService()) {
		if !strings.Contains(pages["annotations.md"], "| `"+a.Name+"` |") {
			t.Errorf("annotations.md lacks %s", a.Name)
		}
	}
	for _, name := range annotations.Names() {
		if n := strings.Count(pages["annotations.md"], "`"+name+"`"); n == 0 {
			t.Errorf("annotations.md says nothing of %s", name)
		}
	}
	for _, m := range admin.MetricDocs() {
		if !strings.Contains(pages["metrics.md"], "| `"+m.Name+"` |") {
			t.Errorf("metrics.md lacks %s", m.Name)
		}
	}
	cli := pages["cli.md"]
	for _, want := range []string{"## headgate run\n", "```sh\nheadgate run\n```", "--config file", "It runs."} {
		if !strings.Contains(cli, want) {
			t.Errorf("cli.md lacks %q", want)
		}
	}
	if strings.Contains(cli, "secret") {
		t.Error("cli.md shows a hidden command")
	}
}

func TestDefaults(t *testing.T) {
	for key, want := range map[string]string{
		"proxy.stateMemory": "32MiB", "hsts.maxAge": "31536000s", "kubeconfig": `""`, "manifests": "[]",
		"controllerNames": "[headgate.io/ingress]", "sslRedirect": "true", "publish.httpsPort": "443",
		"listeners.http": "[0.0.0.0:80, '[::]:80']",
	} {
		if got := defaultOf(key); got != want {
			t.Errorf("default of %s: %s, want %s", key, got, want)
		}
	}
}

// TestNotServedYet: what is not served stands in a row that says what becomes of its Ingress.
func TestNotServedYet(t *testing.T) {
	_, section, found := strings.Cut(Pages(tree())["annotations.md"], "\n## Not served yet\n")
	if !found {
		t.Fatal("annotations.md has no such section")
	}
	for _, p := range annotations.NotYet() {
		at := strings.Index(section, "`"+p.Name+"`")
		if at < 0 {
			t.Errorf("%s is missing", p.Name)
			continue
		}
		row, _, _ := strings.Cut(section[at:], "\n")
		if want := meanwhile(p.Meanwhile); !strings.Contains(row, "| "+want+" |") || !strings.Contains(row, p.Lacking) {
			t.Errorf("%s: %q says neither %q nor %q", p.Name, row, want, p.Lacking)
		}
	}
}

// TestDefaultsOfAnnotations: where an annotation leaves it to a setting, the page tells that setting's default.
func TestDefaultsOfAnnotations(t *testing.T) {
	setting := regexp.MustCompile(`the setting ([A-Za-z.]+) \(([^)]*)\)`)
	same := map[string]string{"on": "true", "0": "0s"}
	checked := 0
	for _, a := range slices.Concat(annotations.All(), annotations.OfService()) {
		for _, found := range setting.FindAllStringSubmatch(a.Default, -1) {
			want := found[2]
			if got := defaultOf(found[1]); got != want && got != same[want] {
				t.Errorf("%s says that %s is %s by default; it is %s", a.Name, found[1], want, got)
			}
			checked++
		}
	}
	if checked < 10 {
		t.Errorf("only %d annotations name a setting", checked)
	}
}

// TestTables: every row of a table has as many cells as its head.
func TestTables(t *testing.T) {
	for name, page := range Pages(tree()) {
		columns := 0
		for i, line := range strings.Split(page, "\n") {
			if !strings.HasPrefix(line, "|") {
				columns = 0
				continue
			}
			n := strings.Count(strings.ReplaceAll(line, `\|`, ""), "|")
			if columns == 0 {
				columns = n
			}
			if n != columns {
				t.Errorf("%s:%d: %d bars, want %d: %s", name, i+1, n, columns, line)
			}
		}
	}
}

// TestSamePagesEachTime: make generate must change nothing when nothing changed.
func TestSamePagesEachTime(t *testing.T) {
	first, second := Pages(tree()), Pages(tree())
	for name := range first {
		if first[name] != second[name] {
			t.Errorf("%s differs from one run to the next", name)
		}
	}
}
