package reference

import (
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
