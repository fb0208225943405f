package hostile

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// badInput is a file that nobody should have written, and what the daemon has to say about it. Beside it, the
// folder always holds good.yaml, whose host must go on being served.
type badInput struct {
	name, file, text string
	// origin is where the problem is said to be; words must stand in it.
	origin string
	words  []string
	// serves are "host path → outcome" besides good.test.
	serves []string
}

// neighbour is a good Ingress that shares a file with a bad object.
func neighbour() string { return ingress("beside", "beside.test", prefix("/", "good")) }

const besideServed = "beside.test / → 200 good"

func meta(kind, apiVersion, metadata, rest string) string {
	return fmt.Sprintf("---\napiVersion: %s\nkind: %s\nmetadata: %s\n%s", apiVersion, kind, metadata, rest)
}

func badInputs() []badInput {
	ing := func(metadata, rest string) string { return meta("Ingress", "networking.k8s.io/v1", metadata, rest) }
	rule := func(host, path string) string {
		return "spec: {ingressClassName: edge, rules: [{host: " + host + ", http: {paths: [{path: " + path + ", pathType: Prefix, backend: {service: {name: good, port: {number: 80}}}}]}}]}\n"
	}
	return []badInput{
		{name: "a broken file", file: "x.yaml", text: "apiVersion: v1\nkind: Service\nmetadata: {name: x\n  a: [\n", origin: "x.yaml:", words: []string{"not YAML"}},
		{name: "a tab", file: "x.yaml", text: "apiVersion: v1\nkind: Service\nmetadata:\n\tname: x\n", origin: "x.yaml:4", words: []string{"not YAML"}},
		{name: "broken JSON", file: "x.json", text: "{\"apiVersion\": \"v1\",\n \"kind\": \"a\" \"b\"}", origin: "x.json:2", words: []string{"not JSON"}},
		{name: "binary garbage", file: "x.yaml", text: "\x7fELF\x02\x01\x01\x00\x00\xff\xfe\xfd", origin: "x.yaml:1", words: []string{"not YAML"}},
		{name: "bytes that are no UTF-8", file: "x.yaml", text: "kind: \xff\xfe\x80\n", origin: "x.yaml:1", words: []string{"not YAML"}},
		{name: "a sentence", file: "x.yaml", text: "hello, world\n", origin: "x.yaml:1", words: []string{"not a Kubernetes object"}},
		{name: "an empty file", file: "x.yaml", text: ""},
		{name: "comments alone", file: "x.yaml", text: "# nothing\n---\n# here\n"},
		{name: "nothing but markers", file: "x.yaml", text: strings.Repeat("---\n", 10_000)},
		{name: "CRLF", file: "x.yaml", text: strings.ReplaceAll(neighbour(), "\n", "\r\n"), serves: []string{besideServed}},
		{name: "a byte order mark", file: "x.yaml", text: "\xef\xbb\xbf" + neighbour(), serves: []string{besideServed}},
		{name: "a key twice", file: "x.yaml", text: neighbour() + ing("{name: twice, name: thrice}", rule("twice.test", "/")), origin: "x.yaml:", words: []string{"name", "already"}},
		{name: "a kind of nobody", file: "x.yaml", text: neighbour() + meta("Sandwich", "v1", "{name: x}", ""), serves: []string{besideServed}},
		{name: "a misspelt kind", file: "x.yaml", text: neighbour() + meta("ingress", "networking.k8s.io/v1", "{name: x}", rule("x.test", "/")), origin: "x.yaml:", words: []string{"kind: Ingress"}, serves: []string{besideServed}},
		{name: "an unknown field", file: "x.yaml", text: neighbour() + ing("{name: x}", strings.Replace(rule("x.test", "/"), "pathType", "pathtype", 1)), origin: "x.yaml:", words: []string{"pathtype"}, serves: []string{besideServed}},

		// Values that YAML reads as something else than a text.
		{name: "a name that is a boolean", file: "x.yaml", text: neighbour() + ing("{name: off}", rule("x.test", "/")), origin: "x.yaml:", words: []string{"metadata.name", "quotes"}, serves: []string{besideServed}},
		{name: "a name that is a number", file: "x.yaml", text: neighbour() + ing("{name: 123}", rule("x.test", "/")), origin: "x.yaml:", words: []string{"metadata.name", "quotes"}, serves: []string{besideServed}},
		{name: "a name that is a float", file: "x.yaml", text: neighbour() + ing("{name: 1e3}", rule("x.test", "/")), origin: "x.yaml:", words: []string{"metadata.name", "quotes"}, serves: []string{besideServed}},
		{name: "a name that is null", file: "x.yaml", text: neighbour() + ing("{name: ~}", rule("x.test", "/")), origin: "x.yaml:", words: []string{"metadata.name"}, serves: []string{besideServed}},
		{name: "a name that is a list", file: "x.yaml", text: neighbour() + ing("{name: [a]}", rule("x.test", "/")), origin: "x.yaml:", words: []string{"metadata.name"}, serves: []string{besideServed}},
		{name: "a namespace that is a boolean", file: "x.yaml", text: neighbour() + ing("{name: x, namespace: yes}", rule("x.test", "/")), origin: "x.yaml:", words: []string{"metadata.namespace", "quotes"}, serves: []string{besideServed}},
		{name: "a host that is a number", file: "x.yaml", text: neighbour() + ing("{name: x}", rule("1.5", "/")), origin: "x.yaml:", words: []string{"host", "quotes"}, serves: []string{besideServed}},
		{name: "a path that is a boolean", file: "x.yaml", text: neighbour() + ing("{name: x}", rule("x.test", "no")), origin: "x.yaml:", words: []string{"path", "quotes"}, serves: []string{besideServed}},
		{name: "an annotation that is a boolean", file: "x.yaml", text: neighbour() + ing("{name: x, annotations: {nginx.ingress.kubernetes.io/ssl-redirect: false}}", rule("x.test", "/")), origin: "x.yaml:", words: []string{"annotations", "quotes"}, serves: []string{besideServed}},
		{name: "a kind that is a number", file: "x.yaml", text: neighbour() + meta("7", "v1", "{name: x}", ""), origin: "x.yaml:", words: []string{"kind"}, serves: []string{besideServed}},
		{name: "metadata is a list", file: "x.yaml", text: neighbour() + ing("[a]", rule("x.test", "/")), origin: "x.yaml:", words: []string{"metadata"}, serves: []string{besideServed}},
		{name: "a port in quotes", file: "x.yaml", text: neighbour() + meta("Service", "v1", "{name: x}", `spec: {ports: [{port: "80"}]}`+"\n"), origin: "x.yaml:", words: []string{"spec.ports.port", "without quotes"}, serves: []string{besideServed}},

		// Objects that mean nothing.
		{name: "a path without a slash", file: "x.yaml", text: neighbour() + ing("{name: x}", rule("x.test", "admin")), origin: "x.yaml:", words: []string{"paths[0].path", `"/admin"`}, serves: []string{besideServed}},
		{name: "a path with a control byte", file: "x.yaml", text: neighbour() + ing("{name: x}", rule("x.test", `"/a\nb"`)), origin: "x.yaml:", words: []string{"paths[0].path", "control byte"}, serves: []string{besideServed, "x.test /a → 404"}},
		{name: "a path of 5000 bytes", file: "x.yaml", text: neighbour() + ing("{name: x}", rule("x.test", "/"+strings.Repeat("a", 5000))), origin: "x.yaml:", words: []string{"paths[0].path", "5001 bytes"}, serves: []string{besideServed}},
		{name: "a host that is none", file: "x.yaml", text: neighbour() + ing("{name: x}", rule(`"a b;{}"`, "/")), origin: "x.yaml:", words: []string{"rules[0].host"}, serves: []string{besideServed}},
		{name: "a host that is an address", file: "x.yaml", text: neighbour() + ing("{name: x}", rule("127.0.0.1", "/")), origin: "x.yaml:", words: []string{"rules[0].host", "DNS name"}, serves: []string{besideServed, "127.0.0.1 / → 404"}},
		{name: "a regex that does not compile", file: "x.yaml",
			text:   neighbour() + ingress("x", "x.test", free("/a(", "good"), free("/b", "good"), annotated("use-regex", "true")),
			origin: "x.yaml:", words: []string{"InvalidRegex", `"/a("`}, serves: []string{besideServed, "x.test /b → 200 good"}},
		{name: "a regex that is too large", file: "x.yaml",
			text:   neighbour() + ingress("x", "x.test", free("/((a{1,999}){1,999}){1,999}", "good"), free("/b", "good"), annotated("use-regex", "true")),
			origin: "x.yaml:", words: []string{"InvalidRegex"}, serves: []string{besideServed, "x.test /b → 200 good"}},
		{name: "a regex that is too deep", file: "x.yaml",
			text:   neighbour() + ingress("x", "x.test", free("/"+strings.Repeat("(", 1500)+strings.Repeat(")", 1500), "good"), free("/b", "good"), annotated("use-regex", "true")),
			origin: "x.yaml:", words: []string{"InvalidRegex"}, serves: []string{besideServed, "x.test /b → 200 good"}},
		{name: "a service without ports", file: "x.yaml", text: neighbour() + ingress("x", "x.test", prefix("/", "portless")) + meta("Service", "v1", "{name: portless}", "spec: {clusterIP: None}\n"),
			origin: "x.yaml:", words: []string{"portless"}, serves: []string{besideServed, "x.test / → 503"}},
		{name: "a service without ports and without clusterIP", file: "x.yaml", text: neighbour() + meta("Service", "v1", "{name: portless}", "spec: {}\n"), origin: "x.yaml:", words: []string{"spec.ports"}, serves: []string{besideServed}},
		{name: "a class of nobody", file: "x.yaml", text: neighbour() + ing(`{name: x, annotations: {kubernetes.io/ingress.class: "; } server { listen 1; } {"}}`, "spec: {rules: [{host: x.test}]}\n"), serves: []string{besideServed, "x.test / → 404"}},
		{name: "addresses of the edge itself and of nobody", file: "x.yaml", text: neighbour() + ingress("x", "x.test", prefix("/", "own")) +
			service("own", "169.254.169.254:80", "224.0.0.1:80", "0.0.0.0:80", "255.255.255.255:80"), origin: "x.yaml:", words: []string{"169.254.169.254"}, serves: []string{besideServed, "x.test / → 503"}},
		{name: "an address that is none", file: "x.yaml", text: neighbour() + service("bad", "10.0.0.1;evil:80"), origin: "x.yaml:", words: []string{"endpoints[0].addresses[0]"}, serves: []string{besideServed}},
		{name: "external names that are none", file: "x.yaml", text: neighbour() + ingress("x", "x.test", prefix("/", "ext")) +
			meta("Service", "v1", "{name: ext}", `spec: {type: ExternalName, externalName: "a;b{}$x", ports: [{port: 80}]}`+"\n"), origin: "x.yaml:", words: []string{"a;b{}$x"}, serves: []string{besideServed, "x.test / → 503"}},
		{name: "a Secret that is no certificate", file: "x.yaml", text: neighbour() + ingress("x", "x.test", prefix("/", "good"), withTLS("junk", "x.test")) + secret("junk", []byte("; } server {"), []byte("\x00\xff")),
			origin: "x.yaml:", words: []string{"junk"}, serves: []string{besideServed, "x.test / → 308"}},
		{name: "a Secret whose data is no base64", file: "x.yaml", text: neighbour() + meta("Secret", "v1", "{name: junk}", "data: {a: '!!'}\n"), origin: "x.yaml:", words: []string{"junk"}, serves: []string{besideServed}},
		{name: "annotations that mean nothing", file: "x.yaml", text: neighbour() + ingress("x", "x.test", prefix("/", "good"), annotated("rewrite-target", "$uri; } evil {")), origin: "x.yaml:", words: []string{"rewrite-target"}, serves: []string{besideServed}},

		// Bombs.
		{name: "a billion laughs", file: "x.yaml", text: laughs(), origin: "x.yaml:"},
		{name: "an alias of itself", file: "x.yaml", text: "a: &a [*a]\n", origin: "x.yaml:1"},
		{name: "a merge of itself", file: "x.yaml", text: "a: &a\n  <<: *a\n", origin: "x.yaml:"},
		{name: "deep lists", file: "x.yaml", text: strings.Repeat("[", 200_000), origin: "x.yaml:1"},
		{name: "deep mappings", file: "x.yaml", text: "apiVersion: v1\nkind: Secret\nmetadata: {name: x}\ndata: " + strings.Repeat("{a: ", 9_000) + strings.Repeat("}", 9_000) + "\n", origin: "x.yaml:"},
		{name: "deep JSON", file: "x.json", text: `{"a":` + strings.Repeat("[", 200_000), origin: "x.json:1"},
		{name: "a file that is too large", file: "x.yaml", text: "# " + strings.Repeat("x", 17<<20) + "\n", origin: "x.yaml", words: []string{"16 MiB"}},
		{name: "an object that is too large", file: "x.yaml", text: neighbour() + meta("Secret", "v1", "{name: x}", "stringData: {a: "+strings.Repeat("x", 4<<20)+"}\n"), origin: "x.yaml:", words: []string{"3 MiB"}},
		{name: "a line that is long", file: "x.yaml", text: "# " + strings.Repeat("x", 5<<20) + "\n" + neighbour()},
		{name: "many small objects", file: "x.yaml", text: strings.Repeat("--- {apiVersion: v1, kind: Sandwich, metadata: {name: a}}\n", 20_000)},
	}
}

// laughs is an object whose aliases would be ten to the ninth strings.
func laughs() string {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: Service\nmetadata:\n  name: x\nspec:\n  a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]\n")
	for i := range 9 {
		fmt.Fprintf(&b, "  a%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i), 10), ", "))
	}
	return b.String()
}

func goodSite(g *gateway) {
	g.write("good.yaml", class+ingress("good", "good.test", prefix("/", "good"))+g.service("good"))
	g.settle()
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	g := start(t, "")
	goodSite(g)
	for _, c := range badInputs() {
		t.Run(c.name, func(t *testing.T) {
			outer := g.t
			g.t = t
			defer func() { g.t = outer }()
			began := time.Now()
			g.write(c.file, c.text)
			g.settle()
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("it held the others up for %s", took)
			}
			g.wants("good.test", "/", "200 good")
			for _, s := range c.serves {
				request, want, _ := strings.Cut(s, " → ")
				host, target, _ := strings.Cut(request, " ")
				g.wants(host, target, want)
			}
			if c.origin != "" {
				g.told(c.origin, c.words...)
			}
			// Gone for good: the next one must not inherit a last good version.
			g.remove(c.file)
			g.settle()
		})
	}
	g.stillWell(t, "good.test", "200 good")
	for _, p := range g.status().Problems {
		if strings.HasPrefix(p.Origin, "x.") {
			t.Errorf("the file is gone, its problem is not: %+v", p)
		}
	}
}

// A file that breaks keeps what it last held, and is named with its line; an object that breaks keeps its last
// good version while the rest of its file goes on.
func TestLastGood(t *testing.T) {
	g := start(t, "")
	goodSite(g)
	shop := ingress("shop", "shop.test", prefix("/", "good"))
	g.write("shop.yaml", shop+ingress("cart", "cart.test", prefix("/", "good")))
	g.settle()

	g.write("shop.yaml", shop+"---\napiVersion: v1\nkind: [\n")
	g.settle()
	g.told("shop.yaml:", "not YAML", "still served")
	g.wants("shop.test", "/", "200 good")
	g.wants("cart.test", "/", "200 good")

	g.write("shop.yaml", shop+ingress("cart", "cart.test", prefix("no-slash", "good"))+ingress("new", "new.test", prefix("/", "good")))
	g.settle()
	g.told("shop.yaml:", "cart", "paths[0].path", "still served")
	g.wants("cart.test", "/", "200 good")
	g.wants("new.test", "/", "200 good")

	g.write("shop.yaml", shop)
	g.settle()
	g.wants("shop.test", "/", "200 good")
	g.wants("cart.test", "/", "404")
	g.wants("good.test", "/", "200 good")
}

// What lies in a folder besides files: none of it is followed out of the folder, waited for or read for ever.
func TestOddFiles(t *testing.T) {
	g := start(t, "")
	goodSite(g)
	in := func(name string) string { return filepath.Join(g.manifests, name) }
	outside := filepath.Join(g.dir, "outside.yaml")
	if err := os.WriteFile(outside, []byte(ingress("outside", "outside.test", prefix("/", "good"))), 0o600); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", in("socket.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	for _, err := range []error{
		os.Mkdir(in("folder.yaml"), 0o755),
		os.WriteFile(in("folder.yaml/inner.yaml"), []byte(ingress("inner", "inner.test", prefix("/", "good"))), 0o600),
		syscall.Mkfifo(in("fifo.yaml"), 0o600),
		os.Symlink("loop2.yaml", in("loop1.yaml")),
		os.Symlink("loop1.yaml", in("loop2.yaml")),
		os.Symlink("self.yaml", in("self.yaml")),
		os.Symlink(".", in("dot.yaml")),
		os.Symlink("nowhere.yaml", in("dangling.yaml")),
		os.Symlink(outside, in("absolute.yaml")),
		os.Symlink("../outside.yaml", in("relative.yaml")),
		os.Symlink("/dev/zero", in("zero.yaml")),
		os.Symlink("/etc/passwd", in("passwd.yaml")),
		os.Symlink("/proc/self/environ", in("environ.yaml")),
		os.WriteFile(in("backup.yaml~"), []byte("}{"), 0o600),
		os.WriteFile(in(".hidden.yaml"), []byte("}{"), 0o600),
		os.WriteFile(in("a;b $x\n'\".yaml"), []byte("}{"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	g.settle()
	g.wants("good.test", "/", "200 good")
	g.wants("outside.test", "/", "404")
	g.wants("inner.test", "/", "404")
	for _, name := range []string{"fifo", "socket", "dot", "loop1", "self", "dangling", "absolute", "relative", "zero", "passwd", "environ"} {
		g.told(name + ".yaml")
	}
	for _, p := range g.status().Problems {
		if strings.Contains(p.Message, "root:") || strings.Contains(p.Message, "PATH=") {
			t.Errorf("a problem quotes what it must not read: %+v", p)
		}
	}
	if os.Geteuid() != 0 { // root reads everything
		if err := os.WriteFile(in("unreadable.yaml"), []byte(neighbour()), 0); err != nil {
			t.Fatal(err)
		}
		g.settle()
		g.told("unreadable.yaml", "readable")
	}
	g.stillWell(t, "good.test", "200 good")
}

// A regex may take its match limit on each request: then that request gets 503 within a bounded time, the
// worker tells which host it was, and no other is served something else.
func TestCatastrophicRegexes(t *testing.T) {
	g := start(t, "")
	goodSite(g)
	g.write("slow.yaml", ingress("slow", "slow.test", free("/(x+x+)+y", "good"), free("/", "good"), annotated("use-regex", "true"))+
		ingress("deep", "deep.test", free("/(a|b|ab)*(?R)?c", "good"), annotated("use-regex", "true"))+
		ingress("wide", "wide.test", free("/((a|.)*)*b$", "good"), annotated("use-regex", "true")))
	g.settle()
	for _, c := range []struct{ host, target string }{
		{"slow.test", "/" + strings.Repeat("x", 5000)},
		{"deep.test", "/" + strings.Repeat("ab", 3000)},
		{"wide.test", "/" + strings.Repeat("a", 6000)},
	} {
		for range 10 {
			began := time.Now()
			got := g.get(c.host, c.target)
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("%s took %s", c.host, took)
			}
			if got != "503" && got != "404" {
				t.Errorf("%s: got %s, want 503 or 404", c.host, got)
			}
		}
	}
	g.wants("slow.test", "/xxy", "200 good")
	g.wants("slow.test", "/other", "200 good")
	g.wants("good.test", "/", "200 good")
	g.await("the workers tell of the regex", func() bool {
		for _, w := range g.status().Proxy.Workers {
			for _, e := range w.Errors {
				if strings.Contains(e, "host/slow.test") && strings.Contains(e, "regex") {
					return true
				}
			}
		}
		return false
	})
}

func TestLargeObjects(t *testing.T) {
	g := start(t, "")
	goodSite(g)
	t.Run("duplicate hosts", func(t *testing.T) {
		g.t = t
		var b strings.Builder
		for i := range 50 {
			b.WriteString(ingress(fmt.Sprintf("same-%02d", i), "same.test", prefix("/", "good"), prefix(fmt.Sprintf("/%d", i), "good")))
		}
		g.write("same.yaml", b.String())
		g.settle()
		g.wants("same.test", "/", "200 good")
		g.wants("same.test", "/49", "200 good")
		g.told("same.yaml:", "PathConflict", "same.test")
		g.remove("same.yaml")
	})
	t.Run("an EndpointSlice with a thousand addresses", func(t *testing.T) {
		g.t = t
		anywhere := startBackendAt(t, "anywhere", "0.0.0.0:0")
		_, port, _ := net.SplitHostPort(anywhere.address)
		var addresses []string
		for i := range 1000 {
			addresses = append(addresses, fmt.Sprintf("127.1.%d.%d:%s", i/250, 1+i%250, port))
		}
		g.write("many.yaml", ingress("many", "many.test", prefix("/", "many"))+service("many", addresses...))
		g.settle()
		for range 100 {
			g.wants("many.test", "/", "200 anywhere")
		}
		g.remove("many.yaml")
		g.settle()
	})
	t.Run("a Secret of 1 MiB", func(t *testing.T) {
		g.t = t
		chain, key := tlsPair(t, "big.test")
		var long []byte
		for len(long) < 1<<20 {
			long = append(long, chain...)
		}
		g.write("big.yaml", ingress("big", "big.test", prefix("/", "good"), withTLS("big", "big.test"), annotated("ssl-redirect", "false"))+
			secret("big", long, key)+ingress("beside", "beside.test", prefix("/", "good"), withTLS("small", "beside.test"))+tlsSecret(t, "small", "beside.test"))
		g.settle()
		g.wants("big.test", "/", "200 good")
		if got := g.streamOutcome(t, stream{fields: pseudo("GET", "big.test", "/"), sni: "big.test"}); !strings.HasPrefix(got, "200 good") {
			t.Errorf("https: %s", got)
		}
		s := g.status()
		if len(s.TooLarge) == 0 {
			g.told("big.yaml:", "big")
		}
		g.remove("big.yaml")
		g.settle()
	})
	t.Run("an Ingress with 500 rules", func(t *testing.T) {
		g.t = t
		var rules strings.Builder
		rules.WriteString("spec:\n  ingressClassName: edge\n  rules:\n")
		for i := range 500 {
			fmt.Fprintf(&rules, "  - {host: r%d.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: good, port: {number: 80}}}}, {path: /%d, pathType: Exact, backend: {service: {name: good, port: {number: 80}}}}]}}\n", i, i)
		}
		g.write("rules.yaml", meta("Ingress", "networking.k8s.io/v1", "{name: rules}", rules.String()))
		g.settle()
		for _, i := range []int{0, 250, 499} {
			g.wants(fmt.Sprintf("r%d.test", i), "/x", "200 good")
		}
		g.remove("rules.yaml")
	})
	t.Run("a host with 3000 paths", func(t *testing.T) {
		g.t = t
		var parts []any
		for i := range 3000 {
			parts = append(parts, prefix(fmt.Sprintf("/p%d/%s", i, strings.Repeat("x", i%50)), "good"))
		}
		g.write("paths.yaml", ingress("paths", "paths.test", parts...))
		g.settle()
		g.wants("paths.test", "/p2999/"+strings.Repeat("x", 2999%50)+"/y", "200 good")
		g.wants("paths.test", "/p3000", "404")
		g.remove("paths.yaml")
	})
	t.Run("10,000 hosts in one file", func(t *testing.T) {
		g.t = t
		var b strings.Builder
		for i := range 10_000 {
			fmt.Fprintf(&b, "---\n{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: h%d}, spec: {ingressClassName: edge, rules: [{host: h%d.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: good, port: {number: 80}}}}]}}]}}\n", i, i)
		}
		g.write("hosts.yaml", b.String())
		g.settle()
		for _, i := range []int{0, 5000, 9999} {
			g.wants(fmt.Sprintf("h%d.test", i), "/", "200 good")
		}
		g.wants("h10000.test", "/", "404")
	})
	g.t = t
	g.stillWell(t, "good.test", "200 good")
	if n := g.status().Reloads["state-memory"]; n > 1 {
		t.Errorf("%d reloads for more memory", n)
	}
}
