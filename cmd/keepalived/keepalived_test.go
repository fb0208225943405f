package keepalived

import (
	"errors"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/rogpeppe/go-internal/txtar"

	"headgate/cmd/config"
)

var update = flag.Bool("update", false, "rewrite the expected files")

// TestImport reads keepalived.conf of each archive, and wants its headgate.yaml and findings. Other files can be included;
// the comment may set options: "id: edge1", "include", "peer: 10.0.0.1".
func TestImport(t *testing.T) {
	names, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(names) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			result, err := Import(Source{"keepalived.conf", member(archive, "keepalived.conf")}, optionsOf(t, archive))
			got := map[string]string{"headgate.yaml": string(result.Text), "findings": told(result, err)}
			if *update {
				rewrite(t, name, archive, got)
				return
			}
			for file, text := range got {
				if diff := cmp.Diff(string(member(archive, file)), text); diff != "" {
					t.Errorf("%s (-want +got):\n%s", file, diff)
				}
			}
			if err == nil {
				accepted(t, result)
			}
		})
	}
}

func optionsOf(t *testing.T, archive *txtar.Archive) Options {
	t.Helper()
	var o Options
	for line := range strings.Lines(string(archive.Comment)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "id":
			o.ID = value
		case "peer":
			o.Peers = append(o.Peers, netip.MustParseAddr(value))
		case "include":
			o.Include = func(_, pattern string) ([]Source, error) {
				text := member(archive, pattern)
				if text == nil {
					return nil, errors.New("no such file")
				}
				return []Source{{pattern, text}}, nil
			}
		}
	}
	return o
}

func member(archive *txtar.Archive, name string) []byte {
	for _, f := range archive.Files {
		if f.Name == name {
			return f.Data
		}
	}
	return nil
}

func told(result Result, err error) string {
	var b strings.Builder
	for _, f := range result.Findings {
		b.WriteString(f.String() + "\n")
	}
	if err != nil {
		b.WriteString("error: " + err.Error() + "\n")
	}
	return b.String()
}

func rewrite(t *testing.T, name string, archive *txtar.Archive, got map[string]string) {
	t.Helper()
	var kept []txtar.File
	for _, f := range archive.Files {
		if _, ours := got[f.Name]; !ours {
			kept = append(kept, f)
		}
	}
	archive.Files = append(kept, txtar.File{Name: "headgate.yaml", Data: []byte(got["headgate.yaml"])}, txtar.File{Name: "findings", Data: []byte(got["findings"])})
	if err := os.WriteFile(name, txtar.Format(archive), 0o600); err != nil {
		t.Fatal(err)
	}
}

// accepted reads the text the way the daemon does: it must be accepted, and be what Import says that it is.
func accepted(t *testing.T, result Result) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "headgate.yaml")
	if err := os.WriteFile(file, result.Text, 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(file, nil, config.NoSource)
	if err != nil {
		t.Fatalf("the configuration is refused: %v\n%s", err, result.Text)
	}
	if diff := cmp.Diff(result.Config, c, cmpopts.EquateComparable(netip.AddrPort{}, netip.Prefix{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("the text does not say what the result does (-result +text):\n%s", diff)
	}
}

func TestSyntaxErrors(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"binary", "\x7fELF\x02\x00", "k.conf:1: the byte 0x7f stands in it"},
		{"zero byte", "global_defs {\n}\n\x00", "k.conf:3: the byte 0x00 stands in it"},
		{"another encoding outside of a comment", "vrrp_instance K\xf6ln {\n}", "k.conf:1: bytes that are no UTF-8"},
		{"not closed", "vrrp_instance A {\n  virtual_ipaddress {\n  192.0.2.1\n}\n", "k.conf:1: the block of vrrp_instance is not closed"},
		{"closed twice", "vrrp_instance A {\n}\n}\n", "k.conf:3: a } without its {"},
		{"no keyword", "\n{\n}", "k.conf:2: a { without a keyword"},
		{"two blocks", "a {\n} {\n}", "k.conf:2: a { without a keyword"},
		{"quote", "a {\n auth_pass \"secret\n}", "k.conf:2: a double quote (\") without its partner"},
		{"deep", strings.Repeat("a {\n", maxDepth+1), "k.conf:17: blocks are more than 16 deep"},
		{"large", strings.Repeat("#", MaxBytes+1), "k.conf: larger than 1048576 bytes"},
		{"parameter of itself", "$A=${A}${A}\nb ${A}", "k.conf:2: parameters ($) stand for more text than a configuration has"},
		{"many parameters", definitions(maxDefinition + 1), "more than 1000 parameters"},
		{"doubling", doubling(40), "parameters ($) stand for more text"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Import(Source{"k.conf", []byte(c.text)}, Options{})
			var syntax *SyntaxError
			if !errors.As(err, &syntax) || !strings.HasPrefix(err.Error(), c.want) && !strings.Contains(err.Error(), ": "+c.want) {
				t.Fatalf("got %v, want %s", err, c.want)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Error("the error shows what may be a password")
			}
		})
	}
}

func definitions(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString("$P")
		for ; i > 0; i /= 26 {
			b.WriteByte(byte('A' + i%26))
		}
		b.WriteString("_=x\n")
	}
	return b.String()
}

// doubling makes each parameter twice the one before.
func doubling(n int) string {
	var b strings.Builder
	b.WriteString("$A=x\n")
	for i := 1; i < n; i++ {
		last := "A" + strings.Repeat("A", i-1)
		b.WriteString("$" + last + "A=${" + last + "}${" + last + "}\n")
	}
	b.WriteString("b ${A" + strings.Repeat("A", n-1) + "}\n")
	return b.String()
}

func TestIncludesEnd(t *testing.T) {
	self := func(string, string) ([]Source, error) {
		return []Source{{"b.conf", []byte("include b.conf\n")}}, nil
	}
	_, err := Import(Source{"a.conf", []byte("include b.conf")}, Options{Include: self})
	if want := "b.conf: files include each other more than 8 deep: is there a circle?"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	wide := func(string, string) ([]Source, error) {
		return make([]Source, maxFiles), nil
	}
	if _, err := Import(Source{"a.conf", []byte("include *")}, Options{Include: wide}); err == nil || !strings.Contains(err.Error(), "more than 100 files") {
		t.Errorf("got %v, want an error about too many files", err)
	}
}

func TestManyFindingsAreBounded(t *testing.T) {
	var b strings.Builder
	for range 300 {
		b.WriteString("nonsense" + strings.Repeat("x", b.Len()%977) + "\n")
	}
	b.WriteString("vrrp_instance A {\nvirtual_router_id 1\nvirtual_ipaddress {\n192.0.2.1\n}\n}\n")
	result, err := Import(Source{"k.conf", []byte(b.String())}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(result.Findings); n > maxFindings+1 {
		t.Errorf("%d findings", n)
	}
	for _, f := range result.Findings {
		if n := len(f.String()); n > 600 {
			t.Errorf("a finding of %d characters", n)
		}
	}
}

// More than can be shared: the rest is told, and the configuration is still accepted.
func TestLimits(t *testing.T) {
	var b strings.Builder
	for i := range 70 {
		b.WriteString("vrrp_instance V" + strings.Repeat("i", i) + " {\n interface eth0\n virtual_ipaddress {\n")
		for j := range 40 {
			b.WriteString(netip.AddrFrom4([4]byte{10, byte(i), 0, byte(j + 1)}).String() + "\n")
		}
		b.WriteString("}\n}\n")
	}
	result, err := Import(Source{"k.conf", []byte(b.String())}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	addresses := 0
	for _, g := range result.Config.VIP.Groups {
		addresses += len(g.Addresses)
	}
	if addresses != maxAddresses || len(result.Config.VIP.Groups) > maxGroups {
		t.Errorf("%d groups, %d addresses", len(result.Config.VIP.Groups), addresses)
	}
	if !strings.Contains(told(result, nil), "more than 2000 addresses") {
		t.Errorf("what is missing is not told:\n%s", told(result, nil))
	}
	accepted(t, result)
}

// No text of the file gets into the YAML or a message unparsed.
func TestInjection(t *testing.T) {
	const evil = "x\\ny: [1]\\e[2J"
	file := `vrrp_instance "A\n  - name: evil: [}" {
  state "` + evil + `"
  interface "eth0, evil: true"
  virtual_router_id "51\n"
  priority "1 evil"
  virtual_ipaddress {
    192.0.2.1
    "192.0.2.2\", evil"
    192.0.2.3%eth0
    "::ffff:192.0.2.4" label "evil"
  }
  unicast_peer {
    "10.0.0.1, evil"
    fe80::1%eth0
  }
  notify "/bin/notify 'a b' \"c\\\": ${evil} \x1b[2J"
  authentication {
    auth_pass hunter2
  }
}
auth_pass hunter2
`
	result, err := Import(Source{"k.conf", []byte(file)}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	accepted(t, result)
	all := string(result.Text) + told(result, nil)
	if strings.Contains(all, "hunter2") {
		t.Errorf("the password is shown:\n%s", all)
	}
	if strings.ContainsFunc(all, func(c rune) bool { return c < ' ' && c != '\n' || c > '~' }) {
		t.Errorf("control characters:\n%q", all)
	}
	if got := result.Config.VIP.Groups; len(got) != 1 || len(got[0].Addresses) != 1 || got[0].Addresses[0] != "192.0.2.1" {
		t.Errorf("groups: %+v", got)
	}
}

func TestCommands(t *testing.T) {
	for _, c := range []struct {
		raw  string
		argv []string
		user []string
		err  error
	}{
		{raw: `notify /bin/x`, argv: []string{"/bin/x"}},
		{raw: `notify /bin/x nobody nogroup`, argv: []string{"/bin/x"}, user: []string{"nobody", "nogroup"}},
		{raw: `notify "/bin/x a 'b c' d''e" nobody`, argv: []string{"/bin/x", "a", "b c", "de"}, user: []string{"nobody"}},
		{raw: `notify '/bin/x a'`, argv: []string{"/bin/x", "a"}},
		{raw: `notify "/bin/x \"a\" \\ \x41\102\cA\t1"`, argv: []string{"/bin/x", `"a"`, `\`, "AB\x01", "1"}},
		{raw: `notify abc" efg h "jkl`, argv: []string{"abc", "efg", "h", "jkl"}},
		{raw: `notify`, err: errNone},
		{raw: `notify ""`, err: errNone},
		{raw: `notify "''"`, err: errNone},
		{raw: `notify 'x`, err: errQuote},
		{raw: `notify "x 'y"`, err: errQuote},
		{raw: `notify x\`, err: errEscape},
	} {
		got, err := readCommand(c.raw)
		if !errors.Is(err, c.err) {
			t.Errorf("%s: error %v, want %v", c.raw, err, c.err)
		}
		if diff := cmp.Diff(command{c.argv, c.user}, got, cmp.AllowUnexported(command{}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.raw, diff)
		}
	}
}

// Equal inputs give equal bytes, whatever maps are in between.
func TestDeterministic(t *testing.T) {
	archive, err := txtar.ParseFile("testdata/checks.txtar")
	if err != nil {
		t.Fatal(err)
	}
	var first string
	for range 20 {
		result, err := Import(Source{"keepalived.conf", member(archive, "keepalived.conf")}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := string(result.Text) + told(result, nil); first == "" {
			first = got
		} else if got != first {
			t.Fatalf("another result:\n%s\nthan\n%s", got, first)
		}
	}
}

// Whatever stands in a file: no panic, and what comes out is accepted.
func FuzzImport(f *testing.F) {
	names, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range names {
		archive, err := txtar.ParseFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(member(archive, "keepalived.conf"))
	}
	f.Add([]byte("vrrp_instance \"\\n- x\" {\nvirtual_ipaddress { 192.0.2.1/24 dev eth0\n 2001:db8::1 }\nnotify \"/x \\xff\" }"))
	f.Fuzz(func(t *testing.T, text []byte) {
		result, err := Import(Source{"k.conf", text}, Options{ID: "main"})
		var syntax *SyntaxError
		switch {
		case errors.As(err, &syntax), errors.Is(err, ErrNothing):
			return
		case err != nil:
			t.Fatal(err)
		}
		accepted(t, result)
		for _, finding := range result.Findings {
			if strings.ContainsFunc(finding.String(), func(c rune) bool { return c < ' ' || c == 0x7f }) {
				t.Errorf("control characters: %q", finding.String())
			}
		}
	})
}
