// Package luastate turns the model into the objects that are pushed to the proxy's Lua: named
// pointers to immutable JSON bodies, each body known by its hash. It writes no text of nginx, does
// no I/O and knows no revision; gateway/plan compares two States, sync/luapush and sync/statelog
// carry Records.
package luastate

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"headgate/gateway/model"
)

// Schema numbers the shape of pointers and bodies. The proxy refuses any other.
// lua/headgate/schema.lua and nginxconf write the same number; tests compare them.
const Schema = 1

// Object is one pointer and the body that it points to.
type Object struct {
	// Pointer is "host/<name>", "sni/<name>", "upstream/<id>", "cert/<id>" or "setting/<name>".
	Pointer string
	// Hash names the body: the first 128 bits of its SHA-256 as 32 hex digits; "" with Keep.
	Hash string
	// Body is JSON; nil with Keep. It may hold a private key: never log it.
	Body []byte
	// Keep says that whatever the proxy holds under Pointer stays; where it holds nothing, nothing is pushed.
	Keep bool
}

// State is everything that is pushed, sorted by pointer; a pointer occurs once. No Object is changed once it stands in one:
// the next State has it again, and is a new list of 8 bytes an Object.
type State struct {
	Objects []*Object
}

// Referring reports whether objects under this pointer refer to objects of other kinds: such
// pointers (host/, sni/) are set after those that they refer to (upstream/, cert/, setting/).
func Referring(pointer string) bool {
	return strings.HasPrefix(pointer, "host/") || strings.HasPrefix(pointer, "sni/")
}

// Hash is the name of a body: the first 128 bits of its SHA-256 as 32 hex digits.
func Hash(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:16])
}

// maxProfileNames is how many names of profiles are remembered before all are forgotten: nginx.conf could not hold as
// many profiles at once, but over time every Secret of peers makes new ones.
const maxProfileNames = 10_000

// Encoder encodes models. It remembers the objects of the last one by the identity of its parts, so
// that an unchanged host, upstream or certificate costs the comparison of a pointer. Not goroutine-safe.
type Encoder struct {
	profiles     *profileNames
	certificates section[model.Certificate]
	hosts, snis  section[model.Host]
	upstreams    section[model.Upstream]
	last         State
}

// NewEncoder returns an encoder that remembers nothing yet.
func NewEncoder() *Encoder { return &Encoder{profiles: newProfileNames(model.Profile{})} }

// Encode turns m into its objects. Equal models give equal states. Where a model breaks its promise
// and names a host, upstream or certificate twice, the first one counts. The State is never changed later.
func (e *Encoder) Encode(m *model.Model) State {
	if e.profiles.inlined != m.Settings.DefaultProfile {
		// Routes name every profile but the default one.
		e.hosts, e.profiles = section[model.Host]{}, newProfileNames(m.Settings.DefaultProfile)
	}
	if len(e.profiles.names) > maxProfileNames {
		clear(e.profiles.names)
	}
	changed := e.certificates.encode(m.Certificates, nameOfCertificate, certificateObject)
	changed = e.hosts.encode(m.Hosts, nameOfHost, func(h *model.Host) *Object {
		return newObject("host/"+string(h.Name), hostBody(h, e.profiles))
	}) || changed
	changed = e.snis.encode(m.Hosts, nameOfHost, sniObject) || changed
	changed = e.upstreams.encode(m.Upstreams, nameOfUpstream, upstreamObject) || changed
	settings := newObject("setting/global", encodeSettings(m.Settings))
	if changed || e.settings() != settings.Hash {
		e.last = e.together(settings)
	}
	return e.last
}

// settings is the hash of the last settings.
func (e *Encoder) settings() string {
	at, found := slices.BinarySearchFunc(e.last.Objects, "setting/global", func(o *Object, p string) int { return strings.Compare(o.Pointer, p) })
	if !found {
		return ""
	}
	return e.last.Objects[at].Hash
}

// together makes one list of the sections, in the order of their pointers: as the lists of a model are mostly sorted,
// there is nothing to sort then.
func (e *Encoder) together(settings *Object) State {
	all := make([]*Object, 0, len(e.certificates.objects)+2*len(e.hosts.objects)+len(e.upstreams.objects)+1)
	all = append(all, e.certificates.objects...)
	all = append(all, e.hosts.objects...)
	all = append(all, settings)
	for _, o := range e.snis.objects {
		if o != nil {
			all = append(all, o)
		}
	}
	all = append(all, e.upstreams.objects...)
	if !rising(all) {
		slices.SortStableFunc(all, func(a, b *Object) int { return strings.Compare(a.Pointer, b.Pointer) })
		all = slices.CompactFunc(all, func(a, b *Object) bool { return a.Pointer == b.Pointer })
	}
	return State{Objects: all}
}

// rising tells whether the pointers are sorted, each once.
func rising(all []*Object) bool {
	for i := 1; i < len(all); i++ {
		if all[i-1].Pointer >= all[i].Pointer {
			return false
		}
	}
	return true
}

func nameOfHost(h *model.Host) string               { return string(h.Name) }
func nameOfUpstream(u *model.Upstream) string       { return string(u.ID) }
func nameOfCertificate(c *model.Certificate) string { return string(c.ID) }

func certificateObject(c *model.Certificate) *Object {
	if c.Keep {
		return &Object{Pointer: "cert/" + string(c.ID), Keep: true}
	}
	return newObject("cert/"+string(c.ID), encodeCertificate(c))
}

func upstreamObject(u *model.Upstream) *Object {
	return newObject("upstream/"+string(u.ID), encodeUpstream(u))
}

// sniObject leads from a host to the certificate of its own; nil where it has none.
func sniObject(h *model.Host) *Object {
	if !h.TLS || h.Certificate == "" {
		return nil
	}
	var j jsonWriter
	j.object(func() { j.field("certificate").text(string(h.Certificate)) })
	return newObject("sni/"+string(h.Name), j.buf)
}

func newObject(pointer string, body []byte) *Object {
	// A copy without spare memory: at 50,000 routes what the writers leave over takes megabytes.
	return &Object{Pointer: pointer, Hash: Hash(body), Body: bytes.Clone(body)}
}
