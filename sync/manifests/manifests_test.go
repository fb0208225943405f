package manifests

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	networkingv1 "k8s.io/api/networking/v1"

	"headgate/gateway/snapshot"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ingress(name, host string) string {
	return fmt.Sprintf(`apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: %s
spec:
  rules:
  - host: %s
    http:
      paths:
      - path: /
        pathType: Prefix
        backend:
          service:
            name: web
            port:
              number: 80
`, name, host)
}

const service = `apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  ports: [{port: 80}]
`

// desk is a folder and a source that is scanned by hand.
type desk struct {
	t      *testing.T
	folder string
	source *Source
	now    time.Time
}

func newDesk(t *testing.T, config Config) *desk {
	t.Helper()
	d := &desk{t: t, folder: t.TempDir(), now: noon}
	if config.Folders == nil {
		config.Folders = []string{d.folder}
	}
	source, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	if source.seen, err = loadFirstSeen(config.StateDir); err != nil {
		t.Fatal(err)
	}
	d.source = source
	return d
}

func (d *desk) write(name, content string) {
	d.t.Helper()
	if err := os.WriteFile(filepath.Join(d.folder, name), []byte(content), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

func (d *desk) scan() *snapshot.Snapshot {
	d.source.scan(d.now)
	s, _ := d.source.Snapshot()
	return s
}

func (d *desk) changed() bool {
	select {
	case <-d.source.Changed():
		return true
	default:
		return false
	}
}

// show writes a snapshot down: objects with their origins, then faults.
func show(s *snapshot.Snapshot) []string {
	var lines []string
	for _, o := range s.Ingresses {
		host := "-"
		if len(o.Spec.Rules) > 0 {
			host = o.Spec.Rules[0].Host
		}
		lines = append(lines, "Ingress "+o.String()+" "+host+" @"+o.Origin)
	}
	for _, o := range s.IngressClasses {
		lines = append(lines, "IngressClass "+o.String()+" @"+o.Origin)
	}
	for _, o := range s.Services {
		lines = append(lines, "Service "+o.String()+" @"+o.Origin)
	}
	for _, o := range s.EndpointSlices {
		lines = append(lines, "EndpointSlice "+o.String()+" @"+o.Origin)
	}
	for _, o := range s.Secrets {
		lines = append(lines, "Secret "+o.String()+" @"+o.Origin)
	}
	for _, f := range s.Faults {
		level := "fault"
		if f.Warning {
			level = "warning"
		}
		lines = append(lines, strings.TrimSpace(level+" "+f.Origin+" "+strings.TrimSpace(f.Kind+" "+f.Key.String()))+": "+f.Message)
	}
	return lines
}

func expect(t *testing.T, s *snapshot.Snapshot, want ...string) {
	t.Helper()
	if got := show(s); !slices.Equal(got, want) {
		t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     []string
	}{
		{"empty", "", nil},
		{"comments only", "# nothing\n---\n# here\n...\n", nil},
		{"null", "null\n---\n~\n", nil},
		{"directive", "%YAML 1.1\n---\n" + service, []string{"Service default/web @f:3"}},
		{"byte order mark and CRLF", "\xef\xbb\xbf" + strings.ReplaceAll(service, "\n", "\r\n"), []string{"Service default/web @f:1"}},
		{"several documents", "# shop\n" + ingress("shop", "shop.test") + "---\n\n" + service + "---\n", []string{
			"Ingress default/shop shop.test @f:2", "Service default/web @f:20",
		}},
		{"on the line of the marker", "--- {apiVersion: v1, kind: Service, metadata: {name: web}, spec: {ports: [{port: 80}]}}\n--- # end\n", []string{"Service default/web @f:1"}},
		{"marker inside a block", "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData:\n  x: |\n    ---\n    y\n", []string{"Secret default/a @f:1"}},
		{"JSON", "\n{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"name\":\"web\"},\n\t\"spec\":{\"ports\":[{\"port\":80}]}}\n{\"apiVersion\":\"v1\",\"kind\":\"Secret\",\"metadata\":{\"name\":\"\\ud83d\"}}", []string{
			"Service default/web @f:2",
			"fault f:4 Secret default/\ufffd: metadata.name: \"\ufffd\" is not a name: write lower-case letters, digits, '-' and '.', at most 253",
		}},
		{"JSON, broken", "{\"apiVersion\":\"v1\",\n \"kind\": ]}", []string{"fault f:2: this is not JSON: invalid character ']' looking for beginning of value"}},
		{"JSON, cut off", "{\"apiVersion\":\"v1\",\n", []string{"fault f:2: this is not JSON: unexpected EOF"}},
		{"YAML that begins like JSON", "{\"apiVersion\": v1, kind: Secret, metadata: {name: a}}", []string{"Secret default/a @f:1"}},
		{"List", "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata: {name: a, namespace: shop}\n  spec: {ports: [{port: 1}]}\n- apiVersion: apps/v1\n  kind: Deployment\n  metadata: {name: a}\n", []string{
			"Service shop/a @f:4",
			"warning manifests: objects of these kinds are not read: Deployment (1); headgate reads Ingress, IngressClass, Service, EndpointSlice and Secret",
		}},
		{"typed list", "apiVersion: networking.k8s.io/v1\nkind: IngressClassList\nmetadata: {}\nitems:\n- metadata: {name: headgate}\n  spec: {controller: headgate.io/ingress}\n", []string{"IngressClass headgate @f:5"}},
		{"list of nonsense", "apiVersion: v1\nkind: List\nitems: {a: b}\n", []string{"fault f:3 List: items: must be a list of objects"}},
		{"not an object", "- a\n- b\n", []string{"fault f:1: this is not a Kubernetes object: write a mapping with apiVersion, kind and metadata"}},
		{"a name that YAML reads as a boolean", "apiVersion: v1\nkind: Service\nmetadata:\n  name: off\n", []string{"fault f:4 Service: metadata.name: is of type bool: write a text (put numbers, true and false into quotes)"}},
		{"a namespace that YAML reads as a number", "apiVersion: v1\nkind: Service\nmetadata:\n  name: a\n  namespace: 1\n", []string{"fault f:5 Service: metadata.namespace: is of type number: write a text (put numbers, true and false into quotes)"}},
		{"metadata that is a list", "apiVersion: v1\nkind: Service\nmetadata: [a]\n", []string{"fault f:3 Service: metadata: is of type array: write a mapping"}},
		{"no kind", "metadata: {name: a}\n", []string{"fault f:1: apiVersion or kind is missing: write, for example, apiVersion: networking.k8s.io/v1 and kind: Ingress"}},
		{"kind in lower case", "apiVersion: networking.k8s.io/v1\nkind: ingress\nmetadata: {name: a}\n", []string{
			"fault f:1 ingress a: there is no kind ingress in apiVersion networking.k8s.io/v1: write apiVersion: networking.k8s.io/v1 and kind: Ingress",
		}},
		{"wrong group", "apiVersion: v1\nkind: Ingress\nmetadata: {name: a}\n", []string{
			"fault f:1 Ingress a: there is no kind Ingress in apiVersion v1: write apiVersion: networking.k8s.io/v1 and kind: Ingress",
		}},
		{"others' kinds of our names", "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: a}\n---\napiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: b}\n", []string{
			"warning manifests: objects of these kinds are not read: Service (2); headgate reads Ingress, IngressClass, Service, EndpointSlice and Secret",
		}},
		{"syntax error in the second document", service + "---\na: b: c\n", []string{"fault f:7: this is not YAML: mapping values are not allowed in this context"}},
		{"key twice", "apiVersion: v1\nkind: Service\nkind: Secret\n", []string{"fault f:3: this is not YAML: key \"kind\" already set in map"}},
		{"no name", "apiVersion: v1\nkind: Secret\nmetadata: {generateName: a}\n", []string{"fault f:3 Secret default/: metadata.name: is missing: give the object a name"}},
		{"bad names", "apiVersion: v1\nkind: Secret\nmetadata:\n  name: A_b\n  namespace: a.b\n", []string{
			"fault f:4 Secret a.b/A_b: metadata.name: \"A_b\" is not a name: write lower-case letters, digits, '-' and '.', at most 253",
			"fault f:5 Secret a.b/A_b: metadata.namespace: \"a.b\" is not a namespace: write lower-case letters, digits and '-', at most 63",
		}},
		{"class with a namespace", "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: a, namespace: b}\nspec: {controller: x.io/y}\n", []string{
			"fault f:3 IngressClass a: metadata.namespace: an object of this kind has no namespace: remove it",
		}},
		{"class without controller", "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: a}\nspec: {}\n", []string{
			"fault f:4 IngressClass a: spec.controller: is missing: write controller: headgate.io/ingress",
		}},
		{"status and managed fields are fine", "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: a, uid: u, resourceVersion: \"7\", creationTimestamp: null, managedFields: [{manager: kubectl}]}\nspec: {defaultBackend: {service: {name: web, port: {name: http}}}}\nstatus: {loadBalancer: {}}\n", []string{"Ingress default/a - @f:1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			expect(t, assembled(t, c.in), c.want...)
		})
	}
}

// assembled makes a snapshot of one file called f.
func assembled(t *testing.T, content string) *snapshot.Snapshot {
	t.Helper()
	d := newDesk(t, Config{})
	d.source.folders[0].files["f"] = &file{parsed: parse("f", []byte(content)).over(parsed{})}
	return d.source.assemble(noon)
}

func TestFieldsAreNamedWithTheirLine(t *testing.T) {
	base := ingress("a", "a.test")
	for _, c := range []struct {
		name, in, want string
	}{
		{"unknown field", strings.Replace(base, "pathType", "pathtype", 1),
			"fault f:11 Ingress default/a: spec.rules[0].http.paths[0].pathtype: there is no such field: correct its spelling (capitals count) or remove it"},
		{"path type missing", strings.Replace(base, "        pathType: Prefix\n", "", 1),
			"fault f:10 Ingress default/a: spec.rules[0].http.paths[0].pathType: is missing: write pathType: Prefix (or Exact, or ImplementationSpecific)"},
		{"path type unknown", strings.Replace(base, "Prefix", "Regex", 1),
			"fault f:11 Ingress default/a: spec.rules[0].http.paths[0].pathType: \"Regex\" is not a path type: write Prefix, Exact or ImplementationSpecific"},
		{"path without slash", strings.Replace(base, "path: /", "path: a", 1),
			"fault f:10 Ingress default/a: spec.rules[0].http.paths[0].path: \"a\" does not begin with a slash: write \"/a\""},
		{"port out of range", strings.Replace(base, "number: 80", "number: 70000", 1),
			"fault f:16 Ingress default/a: spec.rules[0].http.paths[0].backend.service.port.number: 70000 is not a port: write 1 to 65535"},
		{"port as text", strings.Replace(base, "number: 80", "number: \"80\"", 1),
			"fault f:16 Ingress default/a: spec.rules.http.paths.backend.service.port.number: is of type string: write a whole number, without quotes"},
		{"port too large for its type", strings.Replace(base, "number: 80", "number: 5000000000", 1),
			"fault f:16 Ingress default/a: spec.rules.http.paths.backend.service.port.number: the number 5000000000 does not fit: write a whole number, without quotes"},
		{"no port", strings.Replace(base, "            port:\n              number: 80\n", "", 1),
			"fault f:13 Ingress default/a: spec.rules[0].http.paths[0].backend.service.port: is missing: write port: {number: …} or port: {name: …}"},
		{"annotation is a bool", strings.Replace(base, "  name: a\n", "  name: a\n  annotations: {x: true}\n", 1),
			"fault f:5 Ingress default/a: metadata.annotations: is of type bool: write a text (put numbers, true and false into quotes)"},
		{"service without ports", "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {}\n",
			"fault f:4 Service default/a: spec.ports: is missing: write at least one port"},
		{"two ports, a name missing", "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  ports:\n  - {port: 80, name: a}\n  - port: 81\n",
			"fault f:7 Service default/a: spec.ports[1].name: is missing: with more than one port, each needs a name"},
		{"protocol", "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  ports:\n  - port: 80\n    protocol: tcp\n",
			"fault f:7 Service default/a: spec.ports[0].protocol: \"tcp\" is not a protocol: write TCP, UDP or SCTP"},
		{"external name missing", "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {type: ExternalName}\n",
			"fault f:4 Service default/a: spec.externalName: is missing: write the DNS name that the Service stands for"},
		{"secret not base64", "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ndata: {x: \"!\"}\n",
			"fault f:1 Secret default/a: illegal base64 data at input byte 0"},
		{"slice without service", "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a}\naddressType: IPv4\nendpoints: []\n",
			"fault f:3 EndpointSlice default/a: metadata.labels: says no Service: write the label kubernetes.io/service-name: NAME"},
		{"slice of names", "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a}\naddressType: FQDN\nendpoints: []\n",
			"fault f:4 EndpointSlice default/a: addressType: slices of type FQDN have no addresses and are not served: write a Service of type ExternalName"},
		{"address of the other family", "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a, labels: {kubernetes.io/service-name: web}}\naddressType: IPv6\nendpoints:\n- addresses: [10.0.0.1]\n",
			"fault f:6 EndpointSlice default/a: endpoints[0].addresses[0]: \"10.0.0.1\" is not an IPv6 address: write one, or correct addressType"},
		{"old version, port", "apiVersion: extensions/v1beta1\nkind: Ingress\nmetadata: {name: a}\nspec:\n  backend:\n    serviceName: web\n",
			"fault f:5 Ingress default/a: spec.backend.servicePort: write the number (1 to 65535) or the name of a port of the Service"},
	} {
		t.Run(c.name, func(t *testing.T) {
			expect(t, assembled(t, c.in), c.want)
		})
	}
}

func TestDefaults(t *testing.T) {
	s := assembled(t, service+`---
apiVersion: v1
kind: Secret
metadata: {name: merged, creationTimestamp: "2020-01-01T00:00:00Z"}
data: {a: b2xk, b: a2VwdA==}
stringData: {a: new}
---
apiVersion: v1
kind: Secret
metadata: {name: tls}
type: kubernetes.io/tls
`)
	if port := s.Services[0].Ports[0]; port.Protocol != "TCP" || s.Services[0].Type != snapshot.ServiceClusterIP {
		t.Errorf("service: %+v", s.Services[0])
	}
	merged, tls := s.Secrets[0], s.Secrets[1]
	if string(merged.Data["a"]) != "new" || string(merged.Data["b"]) != "kept" || merged.Type != "Opaque" {
		t.Errorf("secret: type %s, a %q, b %q", merged.Type, []byte(merged.Data["a"]), []byte(merged.Data["b"]))
	}
	if tls.Type != "kubernetes.io/tls" {
		t.Errorf("type %s", tls.Type)
	}
	if want := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC); !merged.Created.Equal(want) {
		t.Errorf("a creationTimestamp in the manifest counts, got %v", merged.Created)
	}
	if !tls.Created.Equal(noon) {
		t.Errorf("without one, the first time it was seen counts, got %v", tls.Created)
	}
}

func TestOldVersionsAreConverted(t *testing.T) {
	s := assembled(t, `apiVersion: networking.k8s.io/v1beta1
kind: Ingress
metadata: {name: old, annotations: {kubernetes.io/ingress.class: headgate}}
spec:
  ingressClassName: x
  backend: {serviceName: web, servicePort: http}
  tls: [{hosts: [a.test], secretName: s}]
  rules:
  - host: a.test
    http:
      paths:
      - backend: {serviceName: web, servicePort: 80}
      - path: /b
        pathType: Exact
        backend: {resource: {kind: Bucket, name: b}}
---
apiVersion: networking.k8s.io/v1beta1
kind: IngressClass
metadata: {name: x}
spec: {controller: headgate.io/ingress}
`)
	expect(t, s, "Ingress default/old a.test @f:1", "IngressClass x @f:17",
		"warning f:1 Ingress default/old: networking.k8s.io/v1beta1 is an old version that no cluster serves any more; it was converted: write apiVersion: networking.k8s.io/v1",
		"warning f:17 IngressClass x: networking.k8s.io/v1beta1 is an old version that no cluster serves any more; it was converted: write apiVersion: networking.k8s.io/v1")
	spec := s.Ingresses[0].Spec
	first, second := spec.Rules[0].HTTP.Paths[0], spec.Rules[0].HTTP.Paths[1]
	switch {
	case spec.DefaultBackend.Service.Port.Name != "http", spec.TLS[0].SecretName != "s", *spec.IngressClassName != "x",
		*first.PathType != networkingv1.PathTypeImplementationSpecific, first.Backend.Service.Port.Number != 80,
		*second.PathType != networkingv1.PathTypeExact, second.Backend.Resource.Name != "b":
		t.Errorf("converted to %+v", spec)
	}
}

func TestWhatWasGoodStays(t *testing.T) {
	d := newDesk(t, Config{})
	good := ingress("a", "a.test") + "---\n" + ingress("b", "b.test")
	d.write("f.yaml", good)
	before := d.scan()
	a := before.Ingresses[0]

	d.write("f.yaml", strings.Replace(good, "b.test\n", "b.test\n    hosst: x\n", 1))
	s := d.scan()
	expect(t, s, "Ingress default/a a.test @f.yaml:1", "Ingress default/b b.test @f.yaml:18",
		"fault f.yaml:25 Ingress default/b: spec.rules[0].hosst: there is no such field: correct its spelling (capitals count) or remove it; its last good version is still served")
	if s.Ingresses[0] != a || s.Ingresses[1] != before.Ingresses[1] {
		t.Error("what did not change, or went bad, must keep its pointer")
	}

	d.write("f.yaml", "a: [")
	s = d.scan()
	expect(t, s, "Ingress default/a a.test @f.yaml:1", "Ingress default/b b.test @f.yaml:18",
		"fault f.yaml:1: this is not YAML: did not find expected node content; the objects the file last held are still served")

	d.write("f.yaml", strings.Replace(good, "name: b", "nam: b", 1))
	expect(t, d.scan(), "Ingress default/a a.test @f.yaml:1", "Ingress default/b b.test @f.yaml:18",
		"fault f.yaml:21 Ingress default/: metadata.nam: there is no such field: correct its spelling (capitals count) or remove it",
		"fault f.yaml:20 Ingress default/: metadata.name: is missing: give the object a name")

	d.write("f.yaml", ingress("a", "a.test"))
	expect(t, d.scan(), "Ingress default/a a.test @f.yaml:1")
	if err := os.Remove(filepath.Join(d.folder, "f.yaml")); err != nil {
		t.Fatal(err)
	}
	expect(t, d.scan())
}

func TestChangedOnlyWhenSomethingIsDifferent(t *testing.T) {
	d := newDesk(t, Config{})
	d.write("a.yaml", service)
	if _, complete := d.source.Snapshot(); complete {
		t.Error("before the first look the snapshot must not count as complete")
	}
	d.scan()
	if !d.changed() {
		t.Error("the first look is a change")
	}
	s := d.scan()
	d.write("a.yaml", service)
	if d.scan() != s || d.changed() {
		t.Error("the same content again is no change")
	}
	d.write("a.yaml", service+"\n# a comment\n")
	if d.scan() != s || d.changed() {
		t.Error("a comment is no change")
	}
	d.write("b.yaml", ingress("a", "a.test"))
	if next := d.scan(); next == s || !d.changed() || next.Services[0] != s.Services[0] {
		t.Error("a new file is a change, and what was there keeps its pointer")
	}
}

func TestDuplicates(t *testing.T) {
	second := t.TempDir()
	first := t.TempDir()
	d := newDesk(t, Config{Folders: []string{first, second}})
	d.folder = second
	d.write("a.yaml", ingress("a", "second.test"))
	d.folder = first
	d.write("b.yaml", ingress("a", "b.test"))
	d.write("a.yaml", ingress("a", "a.test")+"---\n"+ingress("a", "again.test"))
	at := func(folder, name string) string { return filepath.Join(folder, name) }
	fault := func(origin string) string {
		return "fault " + origin + " Ingress default/a: " + at(first, "a.yaml:1") + " already defines this Ingress, and the first file by name counts: remove one of the two"
	}
	expect(t, d.scan(), "Ingress default/a a.test @"+at(first, "a.yaml:1"),
		fault(at(first, "a.yaml:18")), fault(at(first, "b.yaml:1")), fault(at(second, "a.yaml:1")))
}

func TestFirstSeenTimes(t *testing.T) {
	state := t.TempDir()
	d := newDesk(t, Config{StateDir: state})
	d.write("a.yaml", ingress("a", "a.test"))
	d.scan()
	d.now = noon.Add(time.Hour + time.Millisecond)
	d.write("b.yaml", ingress("b", "b.test"))
	d.scan()
	if err := d.source.seen.save(); err != nil {
		t.Fatal(err)
	}

	again := newDesk(t, Config{StateDir: state, Folders: []string{d.folder}})
	again.folder, again.now = d.folder, noon.Add(48*time.Hour)
	s := again.scan()
	if a, b := s.Ingresses[0].Created, s.Ingresses[1].Created; !a.Equal(noon) || !b.Equal(noon.Add(time.Hour)) {
		t.Errorf("after a restart: a %v, b %v", a, b)
	}

	move := func(from, to string, away time.Duration) time.Time {
		t.Helper()
		if err := os.Remove(filepath.Join(d.folder, from)); err != nil {
			t.Fatal(err)
		}
		again.scan()
		again.now = again.now.Add(away)
		again.scan()
		again.write(to, ingress("a", "a.test"))
		return again.scan().Ingresses[0].Created
	}
	if got := move("a.yaml", "c.yaml", grace/2); !got.Equal(noon) {
		t.Errorf("moved to another file in half a minute: %v", got)
	}
	if got := move("c.yaml", "a.yaml", 2*grace); !got.Equal(again.now) {
		t.Errorf("an object that was away is a new one: %v", got)
	}

	if err := os.WriteFile(filepath.Join(state, firstSeenFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := loadFirstSeen(state); err == nil || !strings.Contains(err.Error(), firstSeenFile) {
		t.Errorf("a broken file of times must be told, got %v", err)
	}
}

// A file of times that cannot be used must not keep anything from being served.
func TestABrokenFileOfTimesIsSetAside(t *testing.T) {
	for _, text := range []string{"", "{", "null", `{"version": 2}`, `{"version": 1, "objects": [{"seen": "yesterday"}]}`} {
		t.Run(text, func(t *testing.T) {
			state, folder := t.TempDir(), t.TempDir()
			path := filepath.Join(state, firstSeenFile)
			for name, content := range map[string]string{path: text, filepath.Join(folder, "a.yaml"): ingress("a", "a.test")} {
				if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var log strings.Builder
			source, err := New(Config{Folders: []string{folder}, StateDir: state, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- source.Run(ctx) }()
			select {
			case <-source.Changed():
			case err := <-ended:
				t.Fatalf("ended: %v", err)
			}
			cancel()
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			if aside, err := os.ReadFile(path + ".refused"); err != nil || string(aside) != text {
				t.Errorf("set aside: %q, %v", aside, err)
			}
			if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), path+".refused") {
				t.Errorf("log: %s", log.String())
			}
			if seen, err := loadFirstSeen(state); err != nil || len(seen.entries) != 1 {
				t.Errorf("the new file: %v, %v", seen, err)
			}
		})
	}
}

// A folder that is missing, from the start or later, is told in the log and costs health; it comes back by itself.
func TestHealth(t *testing.T) {
	var log strings.Builder
	folder := filepath.Join(t.TempDir(), "site")
	other := t.TempDir()
	d := newDesk(t, Config{Folders: []string{folder, other}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if h := d.source.Health(); !h.Healthy || h.Since.IsZero() {
		t.Errorf("before the first look: %+v", h)
	}
	gone := "the folder " + folder + " does not exist: create it, or correct manifests (--manifests)"
	look := func(step string, healthy bool, since time.Time, reason string, lines ...string) {
		t.Helper()
		log.Reset()
		d.source.scan(d.now)
		if h := d.source.Health(); h.Healthy != healthy || !h.Since.Equal(since) || h.Reason != reason {
			t.Errorf("%s: %+v, want %t since %v: %s", step, h, healthy, since, reason)
		}
		if got := strings.Count(log.String(), "\n"); got != len(lines) {
			t.Errorf("%s: %d lines of log, want %d:\n%s", step, got, len(lines), log.String())
		}
		for _, line := range lines {
			if !strings.Contains(log.String(), line) {
				t.Errorf("%s: log lacks %s:\n%s", step, line, log.String())
			}
		}
		d.now = d.now.Add(time.Minute)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	start := d.now
	look("missing at the start", false, start, gone, `level=WARN msg="a folder of manifests cannot be read" reason="`+gone)
	look("still missing", false, start, gone)
	if _, complete := d.source.Snapshot(); complete {
		t.Error("a source that lacks a folder is complete")
	}
	must(os.WriteFile(folder, nil, 0o600))
	look("a file", false, start, "the folder "+folder+" is no folder: name the folder that holds the files in manifests (--manifests)", "level=WARN")
	must(os.Remove(folder))
	must(os.Mkdir(folder, 0o700))
	must(os.WriteFile(filepath.Join(folder, "a.yaml"), []byte(service), 0o600))
	back := d.now
	look("made", true, back, "", `level=INFO msg="the folder of manifests can be read again" folder=`+folder)
	look("still there", true, back, "")
	must(os.Rename(folder, folder+".away"))
	away := d.now
	look("vanished", false, away, gone+"; what it last held is still served", "level=WARN")
	if s, complete := d.source.Snapshot(); !complete || len(s.Services) != 1 {
		t.Errorf("of a folder that vanished: %v, complete %t", show(s), complete)
	}
	must(os.Rename(folder+".away", folder))
	look("back", true, d.now, "", "level=INFO")
}

func TestLinksStayInTheFolder(t *testing.T) {
	d := newDesk(t, Config{})
	outside := filepath.Join(t.TempDir(), "outside.yaml")
	if err := os.WriteFile(outside, []byte(service), 0o600); err != nil {
		t.Fatal(err)
	}
	link := func(target, name string) {
		t.Helper()
		if err := os.Symlink(target, filepath.Join(d.folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	link(outside, "absolute.yaml")
	link("nowhere.yaml", "dangling.yaml")
	if err := os.Mkdir(filepath.Join(d.folder, "folder.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	link("folder.yaml", "linked.yaml")
	d.write(".hidden.yaml", "nonsense: [")
	d.write("notes.txt", "nonsense: [")
	d.write("shop.yaml~", "nonsense: [")
	const kept = "; what it last held is still served"
	expect(t, d.scan(),
		"fault absolute.yaml: the symbolic link leads out of the folder, and is not followed: copy the file into the folder"+kept,
		"fault dangling.yaml: the symbolic link leads nowhere: remove it or its file's name must be corrected"+kept,
		"fault linked.yaml: this is neither a regular file nor a link to one: remove it or give it another ending"+kept)
}

func TestAFolderThatVanishesKeepsWhatItHeld(t *testing.T) {
	d := newDesk(t, Config{})
	d.write("a.yaml", service)
	d.scan()
	if err := os.Rename(d.folder, d.folder+".away"); err != nil {
		t.Fatal(err)
	}
	expect(t, d.scan(), "Service default/web @a.yaml:1",
		"fault "+d.folder+": the folder does not exist: create it, or correct manifests (--manifests); what it last held is still served")
	if err := os.Rename(d.folder+".away", d.folder); err != nil {
		t.Fatal(err)
	}
	expect(t, d.scan(), "Service default/web @a.yaml:1")
}

func TestLimits(t *testing.T) {
	d := newDesk(t, Config{})
	big, err := os.Create(filepath.Join(d.folder, "big.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := big.Truncate(maxFileBytes + 1); err != nil {
		t.Fatal(err)
	}
	if err := big.Close(); err != nil {
		t.Fatal(err)
	}
	d.write("long.yaml", "a: "+strings.Repeat("x", maxObjectBytes))
	d.write("bomb.yaml", "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\nh: [*g,*g,*g,*g,*g,*g,*g,*g,*g]\n")
	expect(t, d.scan(),
		"fault big.yaml: the file is larger than 16 MiB: split it; what it last held is still served",
		"fault bomb.yaml:1: this is not YAML: document contains excessive aliasing",
		"fault long.yaml:1: the document is larger than 3 MiB: no API server would take it")
}

// What is said of a broken file fits what it was meant to be.
func TestWhatABrokenFileWasMeantToBe(t *testing.T) {
	for _, c := range []struct{ file, text, want string }{
		{"a.json", "{\"a\": 1,\n b: [}", "a.json:2: this is not JSON"},
		{"a.yaml", "{\"a\": 1,\n \"b\": [}", "a.yaml:2: this is not JSON"},
		{"a.yaml", "{\"a\": 1}\n---\nkind: Service\nb: c: d\n", "a.yaml:4: this is not YAML"},
		{"a.yaml", "{\"a\": 1,\n b: c: [}\n", "a.yaml:2: this is not YAML"},
		{"a.yml", "{\"a\": 1, # why\n # more\n \"b\": }}\n", "a.yml:"},
		{"a.yaml", "a: b: c\n", "a.yaml:1: this is not YAML"},
	} {
		d := newDesk(t, Config{})
		d.write(c.file, c.text)
		got := show(d.scan())
		if len(got) != 1 || !strings.HasPrefix(got[0], "fault "+c.want) {
			t.Errorf("%s %q: %q, want %q", c.file, c.text, got, c.want)
		}
	}
}

func TestReadOnce(t *testing.T) {
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "a.yaml"), []byte(service), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Read(Config{Folders: []string{folder}}, noon)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, s, "Service default/web @a.yaml:1")
	if _, err := Read(Config{Folders: []string{folder + "/none"}}, noon); err == nil {
		t.Error("a missing folder must be an error")
	}
	if _, err := New(Config{}); err == nil {
		t.Error("no folder must be an error")
	}
	if _, err := New(Config{Folders: []string{folder, folder + "/."}}); err == nil {
		t.Error("a folder named twice must be an error")
	}
}

// running starts Run and gives a function that waits for a snapshot with these lines.
func running(t *testing.T, config Config) func(want ...string) {
	t.Helper()
	source, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- source.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return func(want ...string) {
		t.Helper()
		deadline := time.After(10 * time.Second)
		for {
			s, complete := source.Snapshot()
			if complete && slices.Equal(show(s), want) {
				return
			}
			select {
			case <-source.Changed():
			case <-deadline:
				t.Fatalf("complete %v, got\n  %s\nwant\n  %s", complete, strings.Join(show(s), "\n  "), strings.Join(want, "\n  "))
			}
		}
	}
}

func replace(t *testing.T, path, content string) {
	t.Helper()
	temp := path + ".tmp"
	if err := os.WriteFile(temp, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(temp, path); err != nil {
		t.Fatal(err)
	}
}

func TestRunSeesEdits(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "conf", "manifests")
	wait := running(t, Config{Folders: []string{folder}, StateDir: t.TempDir(), Rescan: time.Hour})
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	wait()
	path := filepath.Join(folder, "a.yaml")
	replace(t, path, ingress("a", "one.test"))
	wait("Ingress default/a one.test @a.yaml:1")
	replace(t, path, ingress("a", "two.test"))
	wait("Ingress default/a two.test @a.yaml:1")
	// As vim does it: the old file becomes the backup, a new one takes the name.
	if err := os.Rename(path, path+"~"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(ingress("a", "three.test")), 0o600); err != nil {
		t.Fatal(err)
	}
	wait("Ingress default/a three.test @a.yaml:1")
	if err := os.Rename(folder, folder+".old"); err != nil {
		t.Fatal(err)
	}
	wait("Ingress default/a three.test @a.yaml:1",
		"fault "+folder+": the folder does not exist: create it, or correct manifests (--manifests); what it last held is still served")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	wait()
	replace(t, path, ingress("a", "four.test"))
	wait("Ingress default/a four.test @a.yaml:1")
}

func TestRunSeesTheSwapOfAMountedConfigMap(t *testing.T) {
	folder := t.TempDir()
	generation := func(name, host string) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(folder, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, name, "a.yaml"), []byte(ingress("a", host)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(name, filepath.Join(folder, "..data_tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(folder, "..data_tmp"), filepath.Join(folder, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	generation("..2026_1", "one.test")
	if err := os.Symlink("..data/a.yaml", filepath.Join(folder, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	wait := running(t, Config{Folders: []string{folder}, Rescan: time.Hour})
	wait("Ingress default/a one.test @a.yaml:1")
	generation("..2026_2", "two.test")
	if err := os.RemoveAll(filepath.Join(folder, "..2026_1")); err != nil {
		t.Fatal(err)
	}
	wait("Ingress default/a two.test @a.yaml:1")
}

func TestRunFollowsAFolderThatIsALink(t *testing.T) {
	base := t.TempDir()
	for _, name := range []string{"one", "two"} {
		if err := os.Mkdir(filepath.Join(base, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(base, name, "a.yaml"), []byte(ingress("a", name+".test")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(base, "current")
	if err := os.Symlink("one", link); err != nil {
		t.Fatal(err)
	}
	wait := running(t, Config{Folders: []string{link}, Rescan: time.Hour})
	wait("Ingress default/a one.test @a.yaml:1")
	if err := os.Symlink("two", link+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link+".new", link); err != nil {
		t.Fatal(err)
	}
	wait("Ingress default/a two.test @a.yaml:1")
	replace(t, filepath.Join(base, "two", "a.yaml"), ingress("a", "three.test"))
	wait("Ingress default/a three.test @a.yaml:1")
}

func TestTheRescanFindsWhatNoEventTold(t *testing.T) {
	folder := t.TempDir()
	wait := running(t, Config{Folders: []string{folder}, Rescan: 20 * time.Millisecond})
	wait()
	// The directory's own events do not tell of a write through another hard link.
	other := filepath.Join(t.TempDir(), "a")
	if err := os.WriteFile(other, []byte(ingress("a", "one.test")), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(other, filepath.Join(folder, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	wait("Ingress default/a one.test @a.yaml:1")
	if err := os.WriteFile(other, []byte(ingress("a", "two.test")), 0o600); err != nil {
		t.Fatal(err)
	}
	wait("Ingress default/a two.test @a.yaml:1")
}

// FuzzParse feeds any file content; nothing may panic, and each good object must have a name and an origin.
func FuzzParse(f *testing.F) {
	f.Add([]byte(service))
	f.Add([]byte(ingress("a", "a.test") + "---\n" + service))
	f.Add([]byte("apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Secret, metadata: {name: a}, stringData: {a: b}}\n"))
	f.Add([]byte("{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"name\":\"a\"},\"spec\":{\"ports\":[{\"port\":1}]}}"))
	f.Add([]byte("apiVersion: extensions/v1beta1\nkind: Ingress\nmetadata: {name: a}\nspec: {backend: {serviceName: a, servicePort: b}}\n"))
	f.Add([]byte("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a, labels: {kubernetes.io/service-name: web}}\naddressType: IPv4\nendpoints: [{addresses: [10.0.0.1]}]\nports: [{port: 80}]\n"))
	f.Add([]byte("a: &a [*a]\n"))
	f.Add([]byte("--- --- ---\n...\n%\n"))
	f.Add([]byte("apiVersion: v1\nkind: List\nitems: &x\n- *x\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		r := parse("f", content)
		for _, o := range r.objects {
			if o.id.key.Name == "" || o.meta().Origin == "" || o.meta().Key != o.id.key {
				t.Errorf("object %+v", o.meta())
			}
		}
		again := parse("f", content).over(r.parsed)
		for i, o := range again.objects {
			if !slices.Contains(r.objects, o) {
				t.Errorf("object %d lost its pointer", i)
			}
		}
	})
}
