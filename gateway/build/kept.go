package build

import (
	"slices"

	"headgate/gateway/snapshot"
)

// Kept is what a Builder remembers and could not compute again from a snapshot: it is to be kept over a restart of the daemon, lest
// an object that is broken by then is served worse than before. Lists are sorted by key; the parts of one that did not change are the same pointers.
type Kept struct {
	// Ingresses are the versions that are served in place of a newer, broken one.
	Ingresses []*snapshot.Ingress
	// Services are likewise the versions whose annotations hold.
	Services []*KeptService
	// PeerSecrets are the good versions of all Secrets that are named for TLS to peers: one that cannot be read when the daemon
	// starts is no reason to answer 503.
	PeerSecrets []*KeptSecret
}

// KeptService is the last good version of a Service whose annotations are broken.
type KeptService struct {
	snapshot.Key
	UID         string
	Annotations map[string]string
}

// KeptSecret is the last good version of a Secret for TLS to peers, in PEM.
type KeptSecret struct {
	snapshot.Key
	Certificate []byte   `json:",omitempty"`
	PrivateKey  KeptData `json:",omitempty"`
	CA          []byte   `json:",omitempty"`
	// Verified is the newest version before that had authorities, for one that has none any more.
	Verified *KeptSecret `json:",omitempty"`
}

// KeptData is a private key. It is written in the clear by JSON, and by nothing else.
type KeptData []byte

// String implements fmt.Stringer.
func (KeptData) String() string { return "[redacted]" }

// GoString implements fmt.GoStringer.
func (KeptData) GoString() string { return "[redacted]" }

// Equal tells whether both hold the same pointers.
func (k Kept) Equal(o Kept) bool {
	return slices.Equal(k.Ingresses, o.Ingresses) && slices.Equal(k.Services, o.Services) && slices.Equal(k.PeerSecrets, o.PeerSecrets)
}

// LastGood gives what is to be kept over a restart of the daemon.
func (b *Builder) LastGood() Kept {
	var k Kept
	for e := range b.inputs.standIns {
		k.Ingresses = append(k.Ingresses, e.served.src)
	}
	for key, last := range b.memory.services {
		if last.of != b.inputs.services[key] {
			k.Services = append(k.Services, last.kept)
		}
	}
	for key, secret := range b.memory.peers {
		k.PeerSecrets = append(k.PeerSecrets, secret.keep(key))
	}
	slices.SortFunc(k.Ingresses, func(a, b *snapshot.Ingress) int { return a.Compare(b.Key) })
	slices.SortFunc(k.Services, func(a, b *KeptService) int { return a.Compare(b.Key) })
	slices.SortFunc(k.PeerSecrets, func(a, b *KeptSecret) int { return a.Compare(b.Key) })
	return k
}

// Remember gives back what LastGood gave before a restart. It is called before the first Build. What is no good by the
// present options is forgotten.
func (b *Builder) Remember(k Kept) {
	for _, v := range k.Ingresses {
		if p := b.parse(v); p.invalid == "" {
			b.memory.lastGood[identity(v)] = p
		}
	}
	for _, v := range k.Services {
		if values, readable, _ := b.readService(v.Annotations); readable {
			b.memory.services[v.Key] = &servicePolicy{kept: v, values: values}
		}
	}
	for _, v := range k.PeerSecrets {
		if secret := v.restore(); secret != nil {
			b.memory.peers[v.Key] = secret
		}
	}
}

// keep gives the same for the same version.
func (p *peerSecret) keep(key snapshot.Key) *KeptSecret {
	if p.kept == nil {
		p.kept = &KeptSecret{Key: key, Certificate: p.certificate, PrivateKey: KeptData(p.key), CA: p.ca}
		if p.verified != nil {
			p.kept.Verified = p.verified.keep(key)
		}
	}
	return p.kept
}

// restore reads the parts again as if they stood in a Secret; nil when they are no good.
func (k *KeptSecret) restore() *peerSecret {
	secret, err := parsePeerSecret(&snapshot.Secret{Data: snapshot.SecretData{"tls.crt": k.Certificate, "tls.key": k.PrivateKey, "ca.crt": k.CA}})
	if err != nil {
		return nil
	}
	secret.kept = k
	if k.Verified != nil && len(k.CA) == 0 && len(k.Verified.CA) > 0 {
		secret.verified = k.Verified.restore()
	}
	return secret
}

// standsFor tells whether a remembered version may stand for the present Service: not for another one of its name.
func (p *servicePolicy) standsFor(uid string) bool {
	return p != nil && (p.kept.UID == "" || uid == "" || p.kept.UID == uid)
}
