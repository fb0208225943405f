package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strings"
	"testing"
)

func TestNamesOfPackages(t *testing.T) {
	refused := []string{"util", "utils", "common", "helper", "helpers", "types", "manager", "misc", "base", "shared", "sync"}
	for _, p := range packages(t) {
		if slices.Contains(refused, p.Name) {
			t.Errorf("%s: no package is called %q: name it after what it holds", p.path(), p.Name)
		}
		if strings.ContainsAny(p.Name, "_ABCDEFGHIJKLMNOPQRSTUVWXYZ") && !strings.HasSuffix(p.Name, "_test") {
			t.Errorf("%s: the package name %q is not one lower-case noun", p.path(), p.Name)
		}
	}
}

// So that import "sync" is always the standard one.
func TestSyncHoldsNoGoFile(t *testing.T) {
	for _, f := range files(t, isGo) {
		if path.Dir(f.path) == "sync" {
			t.Errorf("%s: sync/ holds no Go file of its own, only packages below it", f.path)
		}
	}
}

func TestEveryPackageHasAComment(t *testing.T) {
	for _, p := range packages(t) {
		if p.Doc == "" && len(p.GoFiles) > 0 {
			t.Errorf("%s: no package comment: what it turns into what, what it never does, who runs it", p.path())
		}
	}
}

func TestGoFiles(t *testing.T) {
	for _, f := range files(t, isGo) {
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, f.path, f.text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		for _, fault := range faults(fset, parsed) {
			t.Errorf("%s:%d: %s", f.path, fault.line, fault.why)
		}
	}
}

type fault struct {
	line int
	why  string
}

func faults(fset *token.FileSet, f *ast.File) []fault {
	var found []fault
	report := func(n ast.Node, why string) {
		found = append(found, fault{fset.Position(n.Pos()).Line, why})
	}
	commented := linesWithComments(fset, f)
	name := fset.Position(f.Pos()).Filename
	pure := strings.HasPrefix(name, "gateway/") && !strings.HasSuffix(name, "_test.go")
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Name.Name == "init" && n.Recv == nil {
				report(n, "no init(): constructors build, Run starts")
			}
		case *ast.CallExpr:
			called := selector(n.Fun)
			line := fset.Position(n.Pos()).Line
			if needsReason(called) && !commented[line] && !commented[line-1] {
				report(n, called+" without its reason in a comment beside it")
			}
			if pure && (called == "time.Now" || called == "time.Since") {
				report(n, called+" in gateway/: the clock is an argument")
			}
		}
		return true
	})
	return found
}

// needsReason names the calls that say nothing of their own; t.Skip and t.Skipf print their reason.
func needsReason(called string) bool {
	return slices.Contains([]string{"time.Sleep", "t.SkipNow", "b.SkipNow"}, called)
}

// selector gives "x.Sel" of a call, else "".
func selector(fun ast.Expr) string {
	s, ok := fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	x, ok := s.X.(*ast.Ident)
	if !ok {
		return ""
	}
	return x.Name + "." + s.Sel.Name
}

// linesWithComments holds every line on which a comment ends or stands.
func linesWithComments(fset *token.FileSet, f *ast.File) map[int]bool {
	lines := map[int]bool{}
	for _, group := range f.Comments {
		for _, c := range group.List {
			for line := fset.Position(c.Pos()).Line; line <= fset.Position(c.End()).Line; line++ {
				lines[line] = true
			}
		}
	}
	return lines
}

func TestFaults(t *testing.T) {
	for _, c := range []struct {
		name, file, source string
		want               int
	}{
		{"init", "sync/x/x.go", "package x\nfunc init() {}", 1},
		{"method called init", "sync/x/x.go", "package x\ntype T int\nfunc (T) init() {}", 0},
		{"bare sleep", "sync/x/x.go", "package x\nimport \"time\"\nfunc f() {\n\ttime.Sleep(1)\n}", 1},
		{"sleep with its reason", "sync/x/x.go", "package x\nimport \"time\"\nfunc f() {\n\t// The kernel tells nobody.\n\ttime.Sleep(1)\n}", 0},
		{"skip with its reason", "sync/x/x.go", "package x\nfunc f(t T) {\n\tt.Skip(\"no nginx\") // an editor's machine\n}", 0},
		{"clock in gateway", "gateway/x/x.go", "package x\nimport \"time\"\nvar _ = time.Now()", 1},
		{"clock in sync", "sync/x/x.go", "package x\nimport \"time\"\nvar _ = time.Now()", 0},
	} {
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, c.file, c.source, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if got := faults(fset, parsed); len(got) != c.want {
			t.Errorf("%s: %d faults, want %d: %v", c.name, len(got), c.want, got)
		}
	}
}

// What belongs to one machine, and where packages come from, is the builder's affair.
func TestNoFileNamesAMachine(t *testing.T) {
	// Put together here, so that this file does not name them either.
	refused := []string{
		"/" + "work/", "/" + "farm/", "/" + "home/",
		"proxy." + "golang.org", "sum." + "golang.org", "goproxy." + "io", "goproxy." + "cn",
		"deb." + "debian.org", "registry." + "npmjs.org", "security." + "debian.org",
	}
	text := func(path string) bool { return !strings.HasSuffix(path, ".png") && !strings.HasSuffix(path, ".gz") }
	for _, f := range files(t, text) {
		for number, line := range strings.Split(f.text, "\n") {
			for _, word := range refused {
				if strings.Contains(line, word) {
					t.Errorf("%s:%d: names %q", f.path, number+1, word)
				}
			}
		}
	}
}

// A key in the tree is a key that someone will trust one day: examples and tests make theirs when they run.
func TestNoKeyIsCommitted(t *testing.T) {
	marks := []string{"-----BEGIN " + "PRIVATE KEY", "-----BEGIN " + "RSA PRIVATE KEY", "-----BEGIN " + "EC PRIVATE KEY"}
	for _, f := range files(t, func(string) bool { return true }) {
		for _, mark := range marks {
			if strings.Contains(f.text, mark+"-----\n") {
				t.Errorf("%s: holds a private key", f.path)
			}
		}
	}
}
