package build

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"

	"headgate/gateway/annotations"
	"headgate/gateway/model"
	"headgate/gateway/snapshot"
)

// proxySSLSecret is the name of the annotation that identities come from.
const proxySSLSecret = "proxy-ssl-secret" //nolint:gosec // a name

// maxCAs bounds ca.crt: a bundle of a whole operating system holds about 150.
const maxCAs = 300

// peerSecret is what a Secret of proxy-ssl-secret holds, written anew in PEM.
type peerSecret struct {
	certificate, ca []byte
	key             model.Secret
	// verified is the newest version before that had authorities, for one that has none any more.
	verified *peerSecret
	kept     *KeptSecret // what keep gave
}

func (p *peerSecret) same(o *peerSecret) bool {
	return bytes.Equal(p.certificate, o.certificate) && bytes.Equal(p.ca, o.ca) && bytes.Equal(p.key, o.key)
}

// withCA gives the newest version that has authorities, or nil.
func (p *peerSecret) withCA() *peerSecret {
	if p == nil || len(p.ca) > 0 {
		return p
	}
	return p.verified
}

// parsePeerSecret reads tls.crt with tls.key, ca.crt, or all three. The error names the key of the Secret and what to
// write, and never holds any of its bytes.
func parsePeerSecret(s *snapshot.Secret) (*peerSecret, error) {
	out := &peerSecret{}
	hasCertificate := len(s.Data["tls.crt"]) > 0 || len(s.Data["tls.key"]) > 0
	if hasCertificate {
		if err := out.readCertificate(s); err != nil {
			return nil, err
		}
	}
	if len(s.Data["ca.crt"]) > 0 {
		cas, err := parseCAs(s.Data["ca.crt"])
		if err != nil {
			return nil, fmt.Errorf("ca.crt %w", err)
		}
		out.ca = cas
	} else if !hasCertificate {
		return nil, errors.New("it holds neither tls.crt with tls.key nor ca.crt; write at least one of the two")
	}
	return out, nil
}

func (p *peerSecret) readCertificate(s *snapshot.Secret) error {
	chain, err := parseChain(s.Data["tls.crt"])
	if err != nil {
		return fmt.Errorf("tls.crt %w", err)
	}
	key, err := parseKey(s.Data["tls.key"])
	if err != nil {
		return fmt.Errorf("tls.key %w", err)
	}
	if err := checkFit(chain, key); err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return errors.New("tls.key holds a kind of key that cannot be used; write an RSA, ECDSA or Ed25519 key")
	}
	p.certificate = encodeChain(chain)
	p.key = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	return nil
}

// parseCAs reads a bundle. Unlike a chain it may be long, and nobody checks the strength of what stands in it but
// the peer's certificate itself.
func parseCAs(data []byte) ([]byte, error) {
	var all []*x509.Certificate
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("holds a PEM block %q; write only certificates there", block.Type)
		}
		if len(all) == maxCAs {
			return nil, fmt.Errorf("holds more than %d certificates; write only those that peers' certificates come from", maxCAs)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("holds a certificate that cannot be read (number %d): %w", len(all)+1, err)
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, errors.New("holds no PEM block CERTIFICATE; write the authorities in PEM")
	}
	return encodeChain(all), nil
}

func encodeChain(chain []*x509.Certificate) []byte {
	var out []byte
	for _, c := range chain {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	return out
}

// peerState is what is known of one version of a Secret.
type peerState struct {
	src  *snapshot.Secret
	good *peerSecret
	err  error
}

// readPeerSecret gives the newest good version of a Secret, or nil, and what is wrong with the present one.
func (b *Builder) readPeerSecret(key snapshot.Key) (*peerSecret, error) {
	src := b.inputs.secrets[key]
	if src == nil {
		delete(b.peerSecrets, key)
		return b.memory.peers[key], errNoSecret
	}
	state := b.peerSecrets[key]
	if state == nil || state.src != src {
		state = &peerState{src: src}
		state.good, state.err = parsePeerSecret(src)
		b.peerSecrets[key] = state
	}
	last := b.memory.peers[key]
	if state.err != nil {
		return last, state.err
	}
	if last != nil && last.same(state.good) {
		return last, nil
	}
	if len(state.good.ca) == 0 {
		state.good.verified = last.withCA()
	}
	b.memory.peers[key] = state.good
	return state.good, nil
}

var errNoSecret = errors.New("there is no such Secret")

// identify sets the identity of a route that speaks TLS to its peers, or says why that cannot be.
func (h *hostBuild) identify(c *claim, r *model.Route, ref upstreamRef) string {
	t := c.in.values.PeerTLS
	speaksTLS := r.Profile.Protocol == model.ProtocolHTTPS || r.Profile.Protocol == model.ProtocolGRPCS
	if t == nil || t.Secret == "" || !speaksTLS {
		return ""
	}
	key := snapshot.Key{Namespace: c.in.src.Namespace, Name: t.Secret}
	h.seenSecrets = append(h.seenSecrets, key)
	h.peerSecretKeys = append(h.peerSecretKeys, key)
	secret, err := h.readPeerSecret(key)
	if t.Verify && secret != secret.withCA() {
		secret = secret.withCA()
		if err == nil {
			err = errors.New("it has no ca.crt, which proxy-ssl-verify needs; write the authorities in PEM there")
		}
	}
	if err != nil {
		h.notePeerSecret(c, key, secret, err)
	}
	if secret == nil {
		return fmt.Sprintf("Secret %s of proxy-ssl-secret cannot be used", key)
	}
	identity := h.identity(t, secret, ref)
	r.Profile.Identity = identity.ID
	return ""
}

func (h *hostBuild) notePeerSecret(c *claim, key snapshot.Key, last *peerSecret, err error) {
	field := annotationField(h.reader.Prefix() + proxySSLSecret)
	reason, message := InvalidCertificate, fmt.Sprintf("Secret %s cannot be used: %v", key, err)
	if errors.Is(err, errNoSecret) {
		reason = SecretNotFound
		message = fmt.Sprintf("there is no Secret %s of type %s or Opaque; create it with tls.crt and tls.key, with ca.crt, or with all three",
			key, tlsSecretType)
	}
	if last != nil {
		h.problems = append(h.problems, c.in.warning(field, reason, message+"; until then its last good version is used"))
		return
	}
	h.problems = append(h.problems, c.in.problem(field, reason, message+"; until then the paths that need it answer 503"))
}

// identity makes the identity of a route, once for each host.
func (h *hostBuild) identity(t *annotations.PeerTLS, secret *peerSecret, ref upstreamRef) *model.Identity {
	i := &model.Identity{
		Certificate: secret.certificate, Key: secret.key, Verify: t.Verify, Depth: usualAsZero(t.Depth, 1),
		Name: t.Name, ServerName: t.ServerName, Protocols: t.Protocols, Ciphers: t.Ciphers,
	}
	if t.Verify {
		i.CA = secret.ca
	} else {
		i.Depth = 0
	}
	switch {
	case !t.Verify && !t.ServerName:
		i.Name = "" // nobody would look at it
	case i.Name == "":
		// The name of the pool, which nginx would take, stands in nobody's certificate. A Service whose name is no
		// label of DNS, as only manifests have it, keeps that one.
		if name, err := model.ParseHostName(ref.service.Name + "." + ref.service.Namespace + ".svc"); err == nil {
			i.Name = name
		}
	}
	i.ID = identityID(i)
	if known := h.identities[i.ID]; known != nil {
		return known
	}
	if h.identities == nil {
		h.identities = map[model.IdentityID]*model.Identity{}
	}
	h.identities[i.ID] = i
	return i
}

// identityID hashes the content. The key enters as bytes: in JSON it would be redacted.
func identityID(i *model.Identity) model.IdentityID {
	text, err := json.Marshal(i)
	if err != nil {
		panic("build: an identity cannot be written: " + err.Error()) // every field of it can
	}
	hash := sha256.New()
	hash.Write(text)
	hash.Write(i.Key)
	return model.IdentityID(hex.EncodeToString(hash.Sum(nil)[:16]))
}

// fastCGI makes the parameters of a route, once for each host.
func (h *hostBuild) fastCGI(v *annotations.Values, r *model.Route) {
	if r.Profile.Protocol != model.ProtocolFastCGI || v.FastCGIIndex == "" {
		return
	}
	sum := sha256.Sum256([]byte(v.FastCGIIndex))
	f := &model.FastCGI{ID: model.FastCGIID(hex.EncodeToString(sum[:16])), Index: v.FastCGIIndex}
	r.Profile.FastCGI = f.ID
	if h.fastcgis == nil {
		h.fastcgis = map[model.FastCGIID]*model.FastCGI{}
	}
	h.fastcgis[f.ID] = f
}

// dropUnused forgets the parts of profiles that no route has in the end.
func (h *hostBuild) dropUnused(profiles []model.Profile) {
	if len(h.identities)+len(h.fastcgis) == 0 {
		return
	}
	identities, fastcgis := map[model.IdentityID]struct{}{}, map[model.FastCGIID]struct{}{}
	for _, p := range profiles {
		identities[p.Identity], fastcgis[p.FastCGI] = struct{}{}, struct{}{}
	}
	maps.DeleteFunc(h.identities, func(id model.IdentityID, _ *model.Identity) bool { _, used := identities[id]; return !used })
	maps.DeleteFunc(h.fastcgis, func(id model.FastCGIID, _ *model.FastCGI) bool { _, used := fastcgis[id]; return !used })
}

// catalogue counts who uses the parts of the model that profiles name by a hash of their content.
type catalogue[K cmp.Ordered, T any] struct {
	parts map[K]*T
	users map[K]int
	list  []*T // nil when it must be made anew
}

func newCatalogue[K cmp.Ordered, T any]() catalogue[K, T] {
	return catalogue[K, T]{parts: map[K]*T{}, users: map[K]int{}}
}

func (c *catalogue[K, T]) use(used map[K]*T) {
	for id, part := range used {
		if c.users[id] == 0 {
			c.parts[id] = part
			c.list = nil
		}
		c.users[id]++
	}
}

func (c *catalogue[K, T]) unuse(used map[K]*T) {
	for id := range used {
		c.users[id]--
		if c.users[id] == 0 {
			delete(c.users, id)
			delete(c.parts, id)
			c.list = nil
		}
	}
}

// sorted gives the parts in use by their hash. The slice is not changed later.
func (c *catalogue[K, T]) sorted() []*T {
	if c.list == nil && len(c.parts) > 0 {
		for _, id := range slices.Sorted(maps.Keys(c.parts)) {
			c.list = append(c.list, c.parts[id])
		}
	}
	return c.list
}

// forgetPeers drops the last good versions of Secrets that no host names any more.
func (b *Builder) forgetPeers() {
	maps.DeleteFunc(b.memory.peers, func(key snapshot.Key, _ *peerSecret) bool { return b.peerSecretUsers[key] == 0 })
	maps.DeleteFunc(b.peerSecrets, func(key snapshot.Key, _ *peerState) bool { return b.peerSecretUsers[key] == 0 })
}
