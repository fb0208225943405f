package annotations_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"headgate/gateway/annotations"
	"headgate/gateway/model"
)

func TestRegistry(t *testing.T) {
	for list, all := range map[string][]annotations.Annotation{"All": annotations.All(), "OfService": annotations.OfService()} {
		testRegistry(t, list, all)
	}
}

func testRegistry(t *testing.T, list string, all []annotations.Annotation) {
	t.Helper()
	var names []string
	for _, a := range all {
		names = append(names, a.Name)
		if a.Doc == "" || a.Values == "" || a.Default == "" || a.Risk == "" || a.Scope == "" {
			t.Errorf("%s: documentation is missing: %+v", a.Name, a)
		}
		if err := a.Parse(a.Example, &annotations.Values{}); err != nil {
			t.Errorf("%s: its example %q does not parse: %v", a.Name, a.Example, err)
		}
		if err := a.Parse("", &annotations.Values{}); err == nil {
			t.Errorf("%s: an empty value parses", a.Name)
		}
	}
	if !slices.IsSorted(names) {
		t.Errorf("%s is not sorted by name: %v", list, names)
	}
}

// TestKnowsIngressNginx counts the names of ingress-nginx v1.15: 136 and two older spellings.
func TestKnowsIngressNginx(t *testing.T) {
	unique := map[string]bool{}
	for _, name := range annotations.Names() {
		if risk, known := annotations.Known(name); !known || risk == "" {
			t.Errorf("Known(%q) = %q, %v", name, risk, known)
		}
		unique[name] = true
	}
	if len(unique) != 138 || len(annotations.Names()) != 138 {
		t.Errorf("%d names, %d of them different, want 138", len(annotations.Names()), len(unique))
	}
	for name, want := range map[string]annotations.Risk{
		"server-snippet": annotations.Critical, "server-alias": annotations.High, "whitelist-source-range": annotations.Medium,
		"ssl-redirect": annotations.Low,
	} {
		if risk, _ := annotations.Known(name); risk != want {
			t.Errorf("risk of %s is %q, want %q", name, risk, want)
		}
	}
	if _, known := annotations.Known("no-such-thing"); known {
		t.Error("an unknown name is known")
	}
}

func TestRead(t *testing.T) {
	values, faults := annotations.NewReader("").Read(map[string]string{
		"nginx.ingress.kubernetes.io/use-regex":               "true",
		"nginx.ingress.kubernetes.io/rewrite-target":          "/$1",
		"nginx.ingress.kubernetes.io/ssl-redirect":            "0",
		"nginx.ingress.kubernetes.io/force-ssl-redirect":      "T",
		"nginx.ingress.kubernetes.io/preserve-trailing-slash": "TRUE",
		"edge.example/use-regex":                              "nonsense",
		"nginx.ingress.kubernetes.io.evil/x":                  "nonsense",
		"kubernetes.io/ingress.class":                         "nginx",
	})
	off := false
	want := annotations.Values{
		RewriteTarget: annotations.RewriteTarget{Text: "/$1", Parts: []model.RewritePart{{Literal: "/"}, {Group: 1}}},
		UseRegex:      true, SSLRedirect: &off, ForceSSLRedirect: true, PreserveTrailingSlash: true,
	}
	if diff := cmp.Diff(want, values); diff != "" || faults != nil {
		t.Errorf("faults %v, values (-want +got):\n%s", faults, diff)
	}
}

func TestFaults(t *testing.T) {
	values, faults := annotations.NewReader("edge.example").Read(map[string]string{
		"edge.example/use-regex":                   "yes",
		"edge.example/auth-url":                    "http://x",
		"edge.example/rewrite_target":              "/",
		"edge.example/USE-REGEX":                   "true",
		"edge.example/":                            "",
		"edge.example/" + strings.Repeat("x", 500): "",
		"edge.example/ssl-redirect":                strings.Repeat("y", 100_000),
	})
	if diff := cmp.Diff(annotations.Values{}, values); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
	kinds := map[string]annotations.FaultKind{}
	for _, f := range faults {
		kinds[f.Name] = f.Kind
		if len(f.Message) > 1000 || !strings.Contains(f.Message, strings.TrimPrefix(f.Name, "edge.example/")) {
			t.Errorf("message %q", f.Message)
		}
	}
	want := map[string]annotations.FaultKind{
		"edge.example/use-regex": annotations.Invalid, "edge.example/ssl-redirect": annotations.Invalid,
		"edge.example/auth-url":       annotations.Unsupported,
		"edge.example/rewrite_target": annotations.Unknown, "edge.example/USE-REGEX": annotations.Unknown,
		"edge.example/": annotations.Unknown, "edge.example/" + strings.Repeat("x", 500): annotations.Unknown,
	}
	if diff := cmp.Diff(want, kinds); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
	if !slices.IsSortedFunc(faults, func(a, b annotations.Fault) int { return strings.Compare(a.Name, b.Name) }) {
		t.Error("faults are not sorted")
	}
}

func TestNearest(t *testing.T) {
	r := annotations.NewReader("")
	for wrong, hint := range map[string]string{
		"rewrite_target": "rewrite-target", "ssl-redirec": "ssl-redirect", "proxybodysize": "proxy-body-size",
		"cors-allow-origins": "cors-allow-origin", "x": "", "completely-different": "", "canary-wieght": "canary-weight",
	} {
		_, faults := r.Read(map[string]string{annotations.DefaultPrefix + "/" + wrong: "1"})
		_, after, found := strings.Cut(faults[0].Message, "did you mean "+annotations.DefaultPrefix+"/")
		if found != (hint != "") || strings.TrimSuffix(after, "?") != hint {
			t.Errorf("%s: %q, want the hint %q", wrong, faults[0].Message, hint)
		}
	}
}

func TestParseRewriteTarget(t *testing.T) {
	literal := func(s string) model.RewritePart { return model.RewritePart{Literal: s} }
	group := func(n int) model.RewritePart { return model.RewritePart{Group: n} }
	for in, want := range map[string][]model.RewritePart{
		"/":              {literal("/")},
		"/$2":            {literal("/"), group(2)},
		"$1":             {group(1)},
		"$1$2":           {group(1), group(2)},
		"/a/$1/b/$12":    {literal("/a/"), group(1), literal("/b/"), group(1), literal("2")},
		"/x?y=$1&z":      {literal("/x?y="), group(1), literal("&z")},
		"/ä b;}{\"'\\#%": {literal("/ä b;}{\"'\\#%")},
	} {
		got, err := annotations.ParseRewriteTarget(in)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%q: error %v, parts (-want +got):\n%s", in, err, diff)
		}
	}
	for in, want := range map[string]string{
		"":                        "empty",
		"x":                       "begin it with",
		"http://x/":               "begin it with",
		"/$":                      "capture group",
		"/$0":                     "capture group",
		"/$$1":                    "capture group",
		"/$host":                  "capture group",
		"/${1}":                   "capture group",
		"/a\nb":                   "control byte",
		"/a\x00":                  "control byte",
		"/\x7f":                   "control byte",
		strings.Repeat("/", 2049): "at most 2048",
		strings.Repeat("$1", 33):  "at most 32",
	} {
		if _, err := annotations.ParseRewriteTarget(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: error %v, want one with %q", in, err, want)
		}
	}
}

func FuzzParseRewriteTarget(f *testing.F) {
	for _, s := range []string{"/", "/$2", "$1", "/$1/x?y=$2", "/$", "/$host", "/a\nb", "/$12$3", "\xff", "/\xff$1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		parts, err := annotations.ParseRewriteTarget(s)
		if err != nil {
			return
		}
		var back strings.Builder
		for i, p := range parts {
			switch {
			case p.Group > 9 || p.Group < 0 || (p.Group == 0) == (p.Literal == ""):
				t.Errorf("%q: part %d is %+v", s, i, p)
			case p.Group > 0:
				back.WriteString("$" + string(rune('0'+p.Group)))
			case i > 0 && parts[i-1].Group == 0:
				t.Errorf("%q: two literals follow each other", s)
			default:
				back.WriteString(p.Literal)
			}
		}
		if back.String() != s {
			t.Errorf("%q became %q", s, back.String())
		}
	})
}

// FuzzRead gives every annotation every value: parsers never panic, and a value that is refused changes nothing.
func FuzzRead(f *testing.F) {
	for _, a := range annotations.All() {
		f.Add(a.Name, a.Example)
		f.Add(a.Name, "")
	}
	f.Add("rewrite-taget", "/")
	f.Add("auth-url", "http://$host")
	names := annotations.Names()
	f.Fuzz(func(t *testing.T, name, value string) {
		full := annotations.DefaultPrefix + "/" + name
		values, faults := annotations.NewReader("").Read(map[string]string{full: value})
		if len(faults) > 1 {
			t.Errorf("%q: %d faults for one annotation", name, len(faults))
		}
		if len(faults) == 1 && !readable(annotations.All(), name, value) {
			if diff := cmp.Diff(annotations.Values{}, values); diff != "" {
				t.Errorf("a refused annotation changed the values:\n%s", diff)
			}
			if known := slices.Contains(names, name); known == (faults[0].Kind == annotations.Unknown) {
				t.Errorf("%q: kind %s although known is %v", name, faults[0].Kind, known)
			}
		}
	})
}

func TestReadIsStable(t *testing.T) {
	in := map[string]string{}
	for _, name := range annotations.Names() {
		in[annotations.DefaultPrefix+"/"+name] = "nonsense"
	}
	_, want := annotations.NewReader("").Read(in)
	for range 20 {
		if _, got := annotations.NewReader("").Read(maps.Clone(in)); !slices.Equal(got, want) {
			t.Fatal("equal annotations give different faults")
		}
	}
}
