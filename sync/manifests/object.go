package manifests

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	kjson "sigs.k8s.io/json"

	"headgate/gateway/snapshot"
)

// identity names an object over all files.
type identity struct {
	kind string
	key  snapshot.Key
}

// object is one good object: value is a pointer to one of the snapshot's types.
type object struct {
	id    identity
	value any
	sum   [sha256.Size]byte // of content and place: equal sums are equal values
}

// reading is what one content of a file says by itself.
type reading struct {
	parsed
	broken   bool       // is not YAML: says nothing of any object
	failed   []identity // objects that are there, but not good
	nameless bool       // something is there that does not say what it is
}

// parse reads the content of a file whose name in messages is name.
func parse(name string, content []byte) *reading {
	r := &reading{}
	documents, err := documents(name, content)
	if err != nil {
		r.broken = true
		r.faults = []snapshot.Fault{{Origin: at(name, 1), Message: err.Error()}}
		var syntax *syntaxError
		if errors.As(err, &syntax) {
			r.faults[0].Origin = at(name, syntax.line)
		}
		return r
	}
	for _, d := range documents {
		r.document(name, d, header{})
	}
	return r
}

func at(name string, line int) string { return fmt.Sprintf("%s:%d", name, line) }

// over lays the reading over what the file last stood for: what did not change keeps its pointer, and what
// went bad keeps its last good version.
func (r *reading) over(before parsed) parsed {
	if r.broken {
		for i := range r.faults {
			if len(before.objects) > 0 {
				r.faults[i].Message += "; the objects the file last held are still served"
			}
		}
		return parsed{objects: before.objects, faults: r.faults, ignored: before.ignored}
	}
	old := map[identity]*object{}
	for _, o := range before.objects {
		if old[o.id] == nil {
			old[o.id] = o
		}
	}
	present := map[identity]bool{}
	for i, o := range r.objects {
		if was := old[o.id]; was != nil && was.sum == o.sum {
			r.objects[i] = was
		}
		present[o.id] = true
	}
	for _, o := range before.objects {
		if present[o.id] || (!r.nameless && !slices.Contains(r.failed, o.id)) {
			continue
		}
		present[o.id] = true
		r.objects = append(r.objects, o)
		for i := range r.faults {
			f := &r.faults[i]
			if f.Kind == o.id.kind && f.Key == o.id.key && !f.Warning {
				f.Message += "; its last good version is still served"
			}
		}
	}
	return r.parsed
}

// header is what every object begins with. In the items of a typed list (kind: IngressList) it may be left out.
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
}

// document takes one document in; outer fills in what the item of a list leaves out.
func (r *reading) document(name string, d document, outer header) {
	var h header
	if err := kjson.UnmarshalCaseSensitivePreserveInts(d.json, &h); err != nil {
		r.nameless = true
		r.fault(name, d, identity{kind: h.Kind}, wrongHeader(d.json, err))
		return
	}
	h.APIVersion, h.Kind = cmp.Or(h.APIVersion, outer.APIVersion), cmp.Or(h.Kind, outer.Kind)
	if h.Kind == "" || h.APIVersion == "" {
		r.nameless = true
		r.fault(name, d, identity{}, finding{"", "apiVersion or kind is missing: write, for example, apiVersion: networking.k8s.io/v1 and kind: Ingress"})
		return
	}
	if element, ok := strings.CutSuffix(h.Kind, "List"); ok && isList(d) {
		r.list(name, d, h, element)
		return
	}
	k, why := kindOf(h.APIVersion, h.Kind)
	switch {
	case why != "":
		r.nameless = true
		r.fault(name, d, identity{kind: h.Kind, key: snapshot.Key{Namespace: h.Metadata.Namespace, Name: h.Metadata.Name}}, finding{"", why})
	case k == nil:
		r.ignored.add(kindCount{h.Kind: 1})
	default:
		r.object(name, d, h, k)
	}
}

// wrongHeader says why a document has no header that can be read. The usual reason is a name such as off or 123, which
// YAML reads as a boolean or a number.
func wrongHeader(raw []byte, err error) finding {
	if !bytes.HasPrefix(bytes.TrimSpace(raw), []byte("{")) {
		return finding{"", "this is not a Kubernetes object: write a mapping with apiVersion, kind and metadata"}
	}
	return wrongType(err)
}

func isList(d document) bool {
	var list struct {
		Items *json.RawMessage `json:"items"`
	}
	return kjson.UnmarshalCaseSensitivePreserveInts(d.json, &list) == nil && list.Items != nil
}

func (r *reading) list(name string, d document, h header, element string) {
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(d.json, &list); err != nil {
		r.nameless = true
		r.fault(name, d, identity{kind: h.Kind}, finding{"items", "must be a list of objects"})
		return
	}
	outer := header{}
	if element != "" {
		outer.APIVersion, outer.Kind = h.APIVersion, element
	}
	for i, raw := range list.Items {
		r.document(name, d.item(i, raw), outer)
	}
}

func (r *reading) object(name string, d document, h header, k *kind) {
	id := identity{kind: k.name, key: snapshot.Key{Name: h.Metadata.Name}}
	if k.namespaced {
		id.key.Namespace = cmp.Or(h.Metadata.Namespace, "default")
	}
	value, findings := k.read(d.json)
	findings = append(findings, checkName(h, k)...)
	if len(findings) > 0 {
		r.failed = append(r.failed, id)
		if h.Metadata.Name == "" {
			r.nameless = true
		}
		for _, f := range findings {
			r.fault(name, d, id, f)
		}
		return
	}
	if k.old != "" {
		r.faults = append(r.faults, snapshot.Fault{Origin: at(name, d.line), Kind: id.kind, Key: id.key, Warning: true,
			Message: h.APIVersion + " is an old version that no cluster serves any more; it was converted: write apiVersion: " + k.old})
	}
	o := &object{id: id, value: value, sum: sum(d)}
	m := o.meta()
	// These belong to a cluster: with a UID, for example, somebody would write Events.
	m.Key, m.UID, m.ResourceVersion, m.Origin = id.key, "", "", at(name, d.line)
	if slice, ok := value.(*snapshot.EndpointSlice); ok {
		slice.Service.Namespace = id.key.Namespace // the namespace may have been left out of the manifest
	}
	r.objects = append(r.objects, o)
}

func sum(d document) [sha256.Size]byte {
	hash := sha256.New()
	var line [8]byte
	binary.BigEndian.PutUint64(line[:], uint64(d.line))
	hash.Write(line[:])
	hash.Write(d.json)
	return [sha256.Size]byte(hash.Sum(nil))
}

// finding is one mistake; field is "" when it concerns the whole object.
type finding struct {
	field, text string
}

// typed says that a finding's field has no indices and its value is of the wrong kind.
const typed = "\x00"

func (r *reading) fault(name string, d document, id identity, f finding) {
	line, text := d.line, f.text
	field, kind, wrongKind := strings.Cut(f.field, typed)
	switch {
	case wrongKind:
		line = d.lineOfKind(field, kind)
	case field != "":
		line = d.lineOf(field)
	}
	if field != "" {
		text = field + ": " + text
	}
	r.faults = append(r.faults, snapshot.Fault{Origin: at(name, line), Kind: id.kind, Key: id.key, Message: text})
}

// strict decodes JSON as the API server does with fieldValidation=Strict.
func strict(raw []byte, into any) []finding {
	unknown, err := kjson.UnmarshalStrict(raw, into)
	if err != nil {
		return []finding{wrongType(err)}
	}
	var findings []finding
	for _, e := range unknown {
		var field kjson.FieldError
		if !errors.As(e, &field) {
			findings = append(findings, finding{"", e.Error()})
			continue
		}
		text := "there is no such field: correct its spelling (capitals count) or remove it"
		if strings.HasPrefix(e.Error(), "duplicate") {
			text = "is given twice: remove one"
		}
		findings = append(findings, finding{field.FieldPath(), text})
	}
	return findings
}

var goStep = regexp.MustCompile(`\b[A-Z]\w*\.`)

func wrongType(err error) finding {
	var mismatch *json.UnmarshalTypeError
	if !errors.As(err, &mismatch) {
		return finding{"", strings.TrimPrefix(err.Error(), "json: ")}
	}
	want := jsonName(mismatch.Type)
	// The library names inlined Go structs on the way, too.
	mismatch.Field = goStep.ReplaceAllString(mismatch.Field, "")
	if strings.HasPrefix(mismatch.Value, "number ") {
		return finding{mismatch.Field + typed + mismatch.Value, fmt.Sprintf("the %s does not fit: write %s", mismatch.Value, want)}
	}
	return finding{mismatch.Field + typed + mismatch.Value, fmt.Sprintf("is of type %s: write %s", mismatch.Value, want)}
}

// jsonName says what to write for a Go type.
func jsonName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "a whole number, without quotes"
	case reflect.String:
		return "a text (put numbers, true and false into quotes)"
	case reflect.Slice, reflect.Array:
		return "a list"
	default:
		return "a mapping"
	}
}

func (o *object) meta() *snapshot.Meta {
	switch v := o.value.(type) {
	case *snapshot.Ingress:
		return &v.Meta
	case *snapshot.IngressClass:
		return &v.Meta
	case *snapshot.Service:
		return &v.Meta
	case *snapshot.EndpointSlice:
		return &v.Meta
	case *snapshot.Secret:
		return &v.Meta
	default:
		panic(fmt.Sprintf("no snapshot type: %T", o.value))
	}
}

func (o *object) addTo(s *snapshot.Snapshot) {
	switch v := o.value.(type) {
	case *snapshot.Ingress:
		s.Ingresses = append(s.Ingresses, v)
	case *snapshot.IngressClass:
		s.IngressClasses = append(s.IngressClasses, v)
	case *snapshot.Service:
		s.Services = append(s.Services, v)
	case *snapshot.EndpointSlice:
		s.EndpointSlices = append(s.EndpointSlices, v)
	case *snapshot.Secret:
		s.Secrets = append(s.Secrets, v)
	default:
		panic(fmt.Sprintf("no snapshot type: %T", o.value))
	}
}

func (o *object) duplicateOf(origin string) snapshot.Fault {
	return snapshot.Fault{
		Origin: o.meta().Origin, Kind: o.id.kind, Key: o.id.key,
		Message: fmt.Sprintf("%s already defines this %s, and the first file by name counts: remove one of the two", origin, o.id.kind),
	}
}

func sortSnapshot(s *snapshot.Snapshot) {
	slices.SortFunc(s.Ingresses, func(a, b *snapshot.Ingress) int { return a.Compare(b.Key) })
	slices.SortFunc(s.IngressClasses, func(a, b *snapshot.IngressClass) int { return a.Compare(b.Key) })
	slices.SortFunc(s.Services, func(a, b *snapshot.Service) int { return a.Compare(b.Key) })
	slices.SortFunc(s.EndpointSlices, func(a, b *snapshot.EndpointSlice) int { return a.Compare(b.Key) })
	slices.SortFunc(s.Secrets, func(a, b *snapshot.Secret) int { return a.Compare(b.Key) })
}

// same compares by pointer: what did not change has kept its own.
func same(a, b *snapshot.Snapshot) bool {
	return slices.Equal(a.Ingresses, b.Ingresses) &&
		slices.Equal(a.IngressClasses, b.IngressClasses) &&
		slices.Equal(a.Services, b.Services) &&
		slices.Equal(a.EndpointSlices, b.EndpointSlices) &&
		slices.Equal(a.Secrets, b.Secrets) &&
		slices.Equal(a.Faults, b.Faults)
}
