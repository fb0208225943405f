// Package luastate turns the model into the objects that are pushed to the proxy's Lua: named
// pointers to immutable JSON bodies, each body known by its hash. It writes no text of nginx, does
// no I/O and knows no revision; gateway/plan compares two States, sync/luapush and sync/statelog
// carry Records.
package luastate

import (
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

// State is everything that is pushed, sorted by pointer; a pointer occurs once.
type State struct {
	Objects []Object
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

// Encoder encodes models. It remembers the bodies of the last one by the identity of its parts, so
// that an unchanged host, upstream or certificate costs a map lookup. Not goroutine-safe.
type Encoder struct {
	profiles     *profileNames
	hosts        map[*model.Host][]Object
	upstreams    map[*model.Upstream]Object
	certificates map[*model.Certificate]Object
}

// NewEncoder returns an encoder that remembers nothing yet.
func NewEncoder() *Encoder { return &Encoder{profiles: newProfileNames(model.Profile{})} }

// Encode turns m into its objects. Equal models give equal states. Where a model breaks its promise
// and names a host, upstream or certificate twice, the first one counts.
func (e *Encoder) Encode(m *model.Model) State {
	if e.profiles.inlined != m.Settings.DefaultProfile {
		// Routes name every profile but the default one.
		e.hosts, e.profiles = nil, newProfileNames(m.Settings.DefaultProfile)
	}
	if len(e.profiles.names) > maxProfileNames {
		clear(e.profiles.names)
	}
	hosts := make(map[*model.Host][]Object, len(m.Hosts))
	upstreams := make(map[*model.Upstream]Object, len(m.Upstreams))
	certificates := make(map[*model.Certificate]Object, len(m.Certificates))

	// In the order of their pointers, as the lists of a model are mostly sorted: there is nothing to sort then.
	objects := make([]Object, 0, 2*len(m.Hosts)+len(m.Upstreams)+len(m.Certificates)+1)
	for _, c := range m.Certificates {
		certificates[c] = remembered(e.certificates, c, func() Object {
			if c.Keep {
				return Object{Pointer: "cert/" + string(c.ID), Keep: true}
			}
			return newObject("cert/"+string(c.ID), encodeCertificate(c))
		})
		objects = append(objects, certificates[c])
	}
	for _, h := range m.Hosts {
		hosts[h] = remembered(e.hosts, h, func() []Object { return encodeHost(h, e.profiles) })
		objects = append(objects, hosts[h][0])
	}
	objects = append(objects, newObject("setting/global", encodeSettings(m.Settings)))
	for _, h := range m.Hosts {
		objects = append(objects, hosts[h][1:]...)
	}
	for _, u := range m.Upstreams {
		upstreams[u] = remembered(e.upstreams, u, func() Object {
			return newObject("upstream/"+string(u.ID), encodeUpstream(u))
		})
		objects = append(objects, upstreams[u])
	}
	e.hosts, e.upstreams, e.certificates = hosts, upstreams, certificates

	byPointer := func(a, b Object) int { return strings.Compare(a.Pointer, b.Pointer) }
	if !slices.IsSortedFunc(objects, byPointer) {
		slices.SortStableFunc(objects, byPointer)
	}
	objects = slices.CompactFunc(objects, func(a, b Object) bool { return a.Pointer == b.Pointer })
	return State{Objects: objects}
}

func remembered[K comparable, V any](memory map[K]V, key K, encode func() V) V {
	if v, ok := memory[key]; ok {
		return v
	}
	return encode()
}

func newObject(pointer string, body []byte) Object {
	return Object{Pointer: pointer, Hash: Hash(body), Body: body}
}

// encodeHost gives the host's object and, where it has a certificate of its own, the one for its SNI.
func encodeHost(h *model.Host, names *profileNames) []Object {
	objects := []Object{newObject("host/"+string(h.Name), hostBody(h, names))}
	if h.TLS && h.Certificate != "" {
		var j jsonWriter
		j.object(func() { j.field("certificate").text(string(h.Certificate)) })
		objects = append(objects, newObject("sni/"+string(h.Name), j.buf))
	}
	return objects
}
