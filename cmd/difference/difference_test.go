package difference

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"headgate/cmd/assemble"
	"headgate/cmd/config"
	"headgate/cmd/defaultcert"
	"headgate/gateway/build"
	"headgate/gateway/luastate"
	"headgate/gateway/model"
	"headgate/gateway/nginxconf"
	"headgate/gateway/plan"
	"headgate/gateway/snapshot"
	"headgate/sync/admin"
	"headgate/sync/manifests"
)

var now = time.Date(2026, 11, 29, 6, 0, 0, 0, time.UTC)

// daemon is one that has applied a folder, asked over the wire.
type daemon struct {
	t       *testing.T
	moment  Moment
	regexes error
}

func (d *daemon) Object(_ context.Context, pointer string) ([]byte, error) {
	return d.get("/v1/applied?pointer=" + url.QueryEscape(pointer)), nil
}

func (d *daemon) CheckRegexes(_ context.Context, patterns []string) (map[string]string, error) {
	verdicts := map[string]string{}
	for _, p := range patterns {
		verdicts[p] = ""
		if strings.Contains(p, "(") && !strings.Contains(p, ")") {
			verdicts[p] = "missing )"
		}
	}
	return verdicts, d.regexes
}

func (d *daemon) get(path string) []byte {
	d.t.Helper()
	w := httptest.NewRecorder()
	Handler(func(context.Context) (Moment, error) { return d.moment, nil }).ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	return w.Body.Bytes()
}

// answer is what arrives at the caller.
func (d *daemon) answer() Answer {
	d.t.Helper()
	var a Answer
	if err := json.Unmarshal(d.get("/v1/applied"), &a); err != nil {
		d.t.Fatal(err)
	}
	return a
}

// serves makes a daemon that has applied the folder.
func serves(t *testing.T, folder string) *daemon {
	t.Helper()
	c := config.Default()
	c.StateDir, c.RuntimeDir = t.TempDir(), "/run/headgate"
	options := assemble.Build(c)
	options.ProfileName = nginxconf.ProfileName
	s, err := manifests.Read(manifests.Config{Folders: []string{folder}}, now)
	if err != nil {
		t.Fatal(err)
	}
	result := build.New(options).Build(s, now)
	layout := assemble.Layout(c, assemble.PathsOf(c), assemble.Machine{
		NginxVersion: "1.22.1", LuaDir: "/lua", LuaBuild: "abc", Certificate: defaultcert.Files{Certificate: "/c", Key: "/k"},
	})
	conf, err := nginxconf.Render(result.Model, layout)
	if err != nil {
		t.Fatal(err)
	}
	conf.Text = nil
	state := luastate.NewEncoder().Encode(result.Model)
	a := Answer{
		Version: "v1", Revision: 7, Known: true, Config: conf, LuaBuild: "abc", Schema: luastate.Schema, StateBytes: 32 << 20,
		Pointers: map[string]string{}, Bodies: map[string]int{}, Options: Options{Options: options}, Layout: layout,
		StateDir: c.StateDir, LastGood: filepath.Join(c.StateDir, "last-good.json"),
	}
	for _, o := range state.Objects {
		a.Pointers[o.Pointer], a.Bodies[o.Hash] = o.Hash, len(o.Body)
	}
	for _, p := range result.Problems {
		a.Problems = append(a.Problems, assemble.Problem(p))
	}
	return &daemon{t: t, moment: Moment{Answer: a, State: state}}
}

const site = `
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web, namespace: shop, annotations: {kubernetes.io/ingress.class: headgate}}
spec:
  rules:
  - host: shop.test
    http:
      paths:
      - {path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}
      - {path: /gone, pathType: Exact, backend: {service: {name: nobody, port: {number: 80}}}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints: [{addresses: [192.0.2.10]}]
`

func folder(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "site.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func compare(t *testing.T, d *daemon, text string) Report {
	t.Helper()
	report, err := Compare(t.Context(), d.answer(), []string{folder(t, text)}, d, now)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// TestTheSameIsNothing also proves that all that matters crosses the wire.
func TestTheSameIsNothing(t *testing.T) {
	report := compare(t, serves(t, folder(t, site)), site)
	var out bytes.Buffer
	if err := report.WriteText(&out); err != nil || !report.Empty() || out.String() != "nothing would change at revision 7\n" {
		t.Errorf("%v\n%s", err, out.String())
	}
}

func TestWords(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(string) string
		want string
	}{
		"peer": {
			func(s string) string { return strings.Replace(s, "192.0.2.10", "192.0.2.11", 1) },
			"~ upstream shop/web/80\n    + peer 192.0.2.11:8080\n    - peer 192.0.2.10:8080\n",
		},
		"path": {
			func(s string) string { return strings.Replace(s, "path: /gone", "path: /away", 1) },
			"~ host shop.test\n    + path exact /away: 503, no backend, from Ingress shop/web\n    - path exact /gone: 503, no backend, from Ingress shop/web\n",
		},
		"host": {
			func(s string) string { return strings.Replace(s, "host: shop.test", "host: store.test", 1) },
			"- host shop.test\n    - path exact /gone: 503, no backend, from Ingress shop/web\n    - path prefix /: shop/web/80, from Ingress shop/web\n" +
				"+ host store.test\n    + path exact /gone: 503, no backend, from Ingress shop/web\n    + path prefix /: shop/web/80, from Ingress shop/web\n",
		},
		"catch-all": {
			func(s string) string { return strings.Replace(s, "- host: shop.test\n    http", "- http", 1) },
			"+ host * (any that no other serves)\n",
		},
		"problem gone": {
			func(s string) string { return strings.Replace(s, "name: nobody", "name: web", 1) },
			"gone problem Ingress shop/web (site.yaml:2) spec.rules[0].http.paths[1].backend.service.name: BackendNotFound",
		},
		"new problem": {
			func(s string) string {
				return strings.Replace(s, "kubernetes.io/ingress.class: headgate", `kubernetes.io/ingress.class: headgate, nginx.ingress.kubernetes.io/ssl-redirect: "perhaps"`, 1)
			},
			"new problem Ingress shop/web",
		},
		"not YAML": {
			func(string) string { return "kind: [" },
			"new problem site.yaml:1: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			report := compare(t, serves(t, folder(t, site)), c.edit(site))
			var out bytes.Buffer
			if err := report.WriteText(&out); err != nil || !strings.Contains(out.String(), c.want) {
				t.Errorf("%v, want\n%s\ngot\n%s", err, c.want, out.String())
			}
			if len(report.Reloads) > 0 || report.Empty() {
				t.Errorf("reloads %+v", report.Reloads)
			}
		})
	}
}

// TestReloads: nothing in manifests asks for a profile of its own yet, so the daemon is made to lack what they need.
func TestReloads(t *testing.T) {
	for reason, c := range map[plan.Reason]struct {
		change func(*daemon)
		detail string
	}{
		plan.FirstStart: {func(d *daemon) { d.moment.Answer.Config = nginxconf.Config{} }, ""},
		plan.LuaVersion: {func(d *daemon) { d.moment.Answer.LuaBuild = "old" }, ""},
		plan.NewProfile: {func(d *daemon) {
			p := model.Profile{Buffering: true}
			d.moment.Answer.Layout.KeepProfiles = []model.Profile{p}
		}, nginxconf.ProfileName(model.Profile{Buffering: true})},
		plan.Listener: {func(d *daemon) {
			d.moment.Answer.Options.Listeners = append(d.moment.Answer.Options.Listeners,
				model.Listener{Address: netip.MustParseAddrPort("127.0.0.1:81"), Scheme: model.HTTP})
		}, "+ http 127.0.0.1:81"},
		plan.Resize: {func(d *daemon) {
			d.moment.Answer.Bodies["a hash"] = 64 << 20
		}, "32 MiB to "},
	} {
		d := serves(t, folder(t, site))
		c.change(d)
		report := compare(t, d, site)
		if len(report.Reloads) != 1 || report.Reloads[0].Reason != reason || !strings.HasPrefix(report.Reloads[0].Detail, c.detail) {
			t.Errorf("%s: %+v", reason, report.Reloads)
		}
		var out bytes.Buffer
		if err := report.WriteText(&out); err != nil || !strings.HasPrefix(out.String(), "reload for "+string(reason)) {
			t.Errorf("%v\n%s", err, out.String())
		}
	}
}

func TestNotes(t *testing.T) {
	d := serves(t, folder(t, site))
	d.moment.Answer.Known = false
	d.regexes = errors.New("away")
	text := strings.Replace(site, "kubernetes.io/ingress.class: headgate", `kubernetes.io/ingress.class: headgate, nginx.ingress.kubernetes.io/use-regex: "true"`, 1)
	text = strings.Replace(text, "path: /gone, pathType: Exact", "path: '/go.*', pathType: ImplementationSpecific", 1) + `
---
apiVersion: v1
kind: Service
metadata: {name: nobody, namespace: shop}
spec: {type: ExternalName, externalName: api.example.com, ports: [{port: 80}]}
`
	report := compare(t, d, text)
	got := strings.Join(report.Notes, "\n")
	for _, want := range []string{"the daemon has not applied anything yet", "regular expressions are not validated, and taken for good: away", "the external name api.example.com is not resolved"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not noted:\n%s", want, got)
		}
	}
	d.moment.Answer.Resolutions = []*snapshot.Resolution{{Name: "api.example.com", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.80")}}}
	report = compare(t, d, text)
	if strings.Contains(strings.Join(report.Notes, "\n"), "api.example.com") {
		t.Errorf("notes %q", report.Notes)
	}
}

// TestObjectsThatMovedOn: another version of an object than the one that was compared has no words.
func TestObjectsThatMovedOn(t *testing.T) {
	d := serves(t, folder(t, site))
	a := d.answer()
	d.moment.State = luastate.State{} // it has built anew since
	report, err := Compare(t.Context(), a, []string{folder(t, strings.Replace(site, "192.0.2.10", "192.0.2.11", 1))}, d, now)
	if err != nil || len(report.Pushes) != 1 || report.Pushes[0].Action != Edit || len(report.Pushes[0].Details) > 0 {
		t.Errorf("%+v, %v", report.Pushes, err)
	}
}

// TestManyChanges: the daemon is not asked for thousands of objects.
func TestManyChanges(t *testing.T) {
	d := serves(t, folder(t, site))
	for i := range 2 * mostFetched {
		d.moment.Answer.Pointers[fmt.Sprintf("host/%d.test", i)] = "a hash"
	}
	report := compare(t, d, site)
	if len(report.Pushes) != 2*mostFetched || len(report.Notes) != 1 || !strings.Contains(report.Notes[0], "only 500 objects") {
		t.Errorf("%d changes, notes %q", len(report.Pushes), report.Notes)
	}
}

func TestAFolderThatIsNotThere(t *testing.T) {
	d := serves(t, folder(t, site))
	if _, err := Compare(t.Context(), d.answer(), []string{filepath.Join(t.TempDir(), "absent")}, d, now); err == nil || !strings.Contains(err.Error(), "absent") {
		t.Errorf("%v", err)
	}
}

func TestHandlerRefuses(t *testing.T) {
	w := httptest.NewRecorder()
	Handler(func(context.Context) (Moment, error) { return Moment{}, errors.New("busy") }).ServeHTTP(w, httptest.NewRequest("GET", "/v1/applied", nil))
	if w.Code != 503 || !strings.Contains(w.Body.String(), "busy") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestNoKeyLeaves looks at all that the daemon tells of a certificate.
func TestNoKeyLeaves(t *testing.T) {
	d := serves(t, folder(t, site))
	const key = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"
	body, err := json.Marshal(map[string]string{"chain": "", "key": key})
	if err != nil {
		t.Fatal(err)
	}
	d.moment.State.Objects = append(d.moment.State.Objects, &luastate.Object{Pointer: "cert/shop/tls", Hash: luastate.Hash(body), Body: body},
		&luastate.Object{Pointer: "cert/shop/odd", Hash: "x", Body: []byte(`"` + "c2VjcmV0" + `"`)})
	for _, path := range []string{"/v1/applied", "/v1/applied?pointer=cert/shop/tls", "/v1/applied?pointer=cert/shop/odd", "/v1/applied?pointer=none"} {
		if text := string(d.get(path)); strings.Contains(text, "c2VjcmV0") || strings.Contains(text, "PRIVATE KEY") {
			t.Errorf("%s: %s", path, text)
		}
	}
}

func TestProblemsOfAnotherFolder(t *testing.T) {
	p := admin.Problem{Kind: "Ingress", Namespace: "a", Name: "b", Origin: "a.yaml:1", Reason: "X", Message: "m"}
	q := p
	q.Origin = "b.yaml:9"
	if identity(p) != identity(q) {
		t.Error("one problem in another file must be the same")
	}
	p.Name, q.Name = "", ""
	if identity(p) == identity(q) {
		t.Error("where there is no name, the place is all there is")
	}
}

func FuzzDescribe(f *testing.F) {
	f.Add("host/a", `{"host/a":{"hash":"h","body":{"exact":{"/a":1},"prefix":{"":9},"regex":[["^/x",1],[1]],"routes":[{"backends":["u"],"weights":[1]}]}}}`)
	f.Add("upstream/a", `{"upstream/a":{"hash":"h","body":{"peers":["1"],"weights":[3,4],"draining":["2"]}}}`)
	f.Add("cert/a", `{"cert/a":{"hash":"h","body":{"chain":"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----","key":"sha256:1"}}}`)
	f.Add("setting/a", `{"setting/a":{"hash":"h","body":{"x":"y\u001b[31m"}}}`)
	f.Add("sni/a", `{"sni/a":null}`)
	f.Fuzz(func(t *testing.T, pointer, text string) {
		o := parseObject([]byte(text), pointer)
		for _, line := range append(describe(pointer, nil, o), describe(pointer, o, nil)...) {
			if strings.ContainsAny(line, "\n\x1b\x00") {
				t.Errorf("%q", line)
			}
		}
		if lines := describe(pointer, o, o); len(lines) > 0 {
			t.Errorf("an object differs from itself: %q", lines)
		}
	})
}

func TestDiffer(t *testing.T) {
	got := differ(facts{"a": "1", "b": "2", "c": ""}, facts{"b": "3", "c": "", "d": ""})
	if diff := cmp.Diff([]string{"~ b: 2 -> 3", "+ d", "- a: 1"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestRewriteTarget(t *testing.T) {
	for _, c := range []struct{ parts, want string }{
		{`["/new/", 2]`, "/new/$2"},
		{`["/plain"]`, "/plain"},
		{`[1, "?a=", 3]`, "$1?a=$3"},
	} {
		if got := rewriteTarget([]byte(c.parts)); got != c.want {
			t.Errorf("rewriteTarget(%s) = %q, want %q", c.parts, got, c.want)
		}
	}
}
