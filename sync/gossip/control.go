package gossip

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"
)

// Beside memberlist's own streams the gossip port takes ours, which begin with controlMagic. Over them hosts tell each other
// who they are before they join, fetch the key in use after an absence, and rotate keys:
//
//	client: "HGK1"
//	server: 16 random bytes
//	client: frame{greeting, 16 random bytes, sealed request}
//	server: frame{greeting, sealed answer; nothing sealed when there is no common key}
//
// A frame is two bytes of length and JSON of envelope. What is sealed is AES-256-GCM under a key that HKDF derives from the
// secret that the client named and both random values: it is fresh, authentic and secret. The greeting is in the
// clear, so that a wrong key or cluster can be told by name; from the client it is authenticated with the request.
const (
	controlMagic   = "HGK1"
	controlLabel   = "gossip control"
	randomBytes    = 16
	maxFrame       = 8 << 10
	controlTimeout = 3 * time.Second
	maxName        = 63
)

// greeting is who speaks. Unless something sealed goes with it, it is a claim.
type greeting struct {
	Cluster string `json:"cluster"`
	Host    string `json:"host"`
	KeyID   string `json:"key"` // from the client: with which it seals; from the server: which is in use
	// Retired is when the client's key was retired, RFC 3339; from a server that knows it.
	Retired string `json:"retired,omitempty"`
	// Verdict is the server's.
	Verdict verdict `json:"verdict,omitempty"`
}

type verdict string

const (
	welcome      verdict = "welcome"
	otherCluster verdict = "otherCluster"
	unknownKey   verdict = "unknownKey"
	retiredKeyed verdict = "retiredKey"
)

type envelope struct {
	Greeting greeting `json:"greeting"`
	Random   []byte   `json:"random,omitempty"`
	Sealed   []byte   `json:"sealed,omitempty"`
}

type operation string

const (
	opHello  operation = "hello"
	opAdd    operation = "add"    // accept the secret, too
	opUse    operation = "use"    // use the accepted secret of that ID
	opRetire operation = "retire" // accept nothing but the secret of that ID, which must be in use
	opForget operation = "forget" // no longer accept the secret of that ID, which must not be in use
)

// request and answer are what is sealed. Secrets are in the clear inside only.
type request struct {
	Op       operation `json:"op"`
	Secret   string    `json:"secret,omitempty"`
	ID       string    `json:"id,omitempty"`
	Instance uint64    `json:"instance"`
	AgeMs    int64     `json:"ageMs"`
	Refused  bool      `json:"refused,omitempty"`
	Address  string    `json:"address"`
	Turn     uint64    `json:"turn"`
}

type answer struct {
	Error    string `json:"error,omitempty"`
	Instance uint64 `json:"instance"`
	AgeMs    int64  `json:"ageMs"`
	Refused  bool   `json:"refused,omitempty"`
	Turn     uint64 `json:"turn"`
	// Secrets are the valid ones, where the server's keyring is newer.
	Secrets []string `json:"secrets,omitempty"`
}

func (g greeting) check() error {
	for _, text := range []string{g.Cluster, g.Host, g.KeyID, g.Retired} {
		if len(text) > maxName {
			return errors.New("a name in the greeting is too long")
		}
		for _, r := range text {
			if r < ' ' || r == 0x7f {
				return errors.New("a name in the greeting holds control characters")
			}
		}
	}
	return nil
}

func writeFrame(w io.Writer, e envelope) error {
	b, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	if len(b) > maxFrame {
		return fmt.Errorf("a frame of %d bytes", len(b))
	}
	if _, err := w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

func readFrame(r io.Reader) (envelope, error) {
	var head [2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return envelope{}, fmt.Errorf("read: %w", err)
	}
	length := int(binary.BigEndian.Uint16(head[:]))
	if length > maxFrame {
		return envelope{}, fmt.Errorf("a frame of %d bytes", length)
	}
	b := make([]byte, length)
	if _, err := io.ReadFull(r, b); err != nil {
		return envelope{}, fmt.Errorf("read: %w", err)
	}
	return parseEnvelope(b)
}

func parseEnvelope(b []byte) (envelope, error) {
	var e envelope
	if err := json.Unmarshal(b, &e); err != nil {
		return envelope{}, errors.New("no frame of ours")
	}
	return e, e.Greeting.check()
}

// sealer is the key of one exchange. Each direction seals once, so fixed nonces are used once.
type sealer struct{ aead cipher.AEAD }

const (
	fromClient byte = 1
	fromServer byte = 2
)

func newSealer(s Secret, server, client []byte) sealer {
	block, err := aes.NewCipher(s.derive(slices.Concat(server, client), controlLabel))
	if err != nil {
		panic(err) // only for a key of another length
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err) // only for a block cipher of another size
	}
	return sealer{aead}
}

func (s sealer) nonce(direction byte) []byte {
	nonce := make([]byte, s.aead.NonceSize())
	nonce[0] = direction
	return nonce
}

func (s sealer) seal(direction byte, g greeting, content any) ([]byte, error) {
	plain, err := json.Marshal(content)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	header, err := json.Marshal(g)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return s.aead.Seal(nil, s.nonce(direction), plain, header), nil
}

func (s sealer) open(direction byte, e envelope, content any) error {
	header, err := json.Marshal(e.Greeting)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	plain, err := s.aead.Open(nil, s.nonce(direction), e.Sealed, header)
	if err != nil {
		return errors.New("what is sealed is not authentic")
	}
	if err := json.Unmarshal(plain, content); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	return nil
}

// exchange sends one request to the gossip port at the address. The answer is authentic when the verdict of the
// greeting is welcome and err is nil; else the greeting is what the other side claims.
func (g *Gossip) exchange(ctx context.Context, address string, r request) (greeting, answer, error) {
	ring := g.ring.Load()
	secret := ring.Secrets[0]
	r.Instance, r.AgeMs, r.Refused, r.Address, r.Turn = g.instance, g.age().Milliseconds(), g.refused(), g.address.String(), ring.Turn
	dialer := net.Dialer{Timeout: controlTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return greeting{}, answer{}, fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if err := conn.SetDeadline(time.Now().Add(controlTimeout)); err != nil {
		return greeting{}, answer{}, fmt.Errorf("set a deadline: %w", err)
	}
	var random [2 * randomBytes]byte
	if _, err := io.WriteString(conn, controlMagic); err != nil {
		return greeting{}, answer{}, fmt.Errorf("write: %w", err)
	}
	if _, err := io.ReadFull(conn, random[:randomBytes]); err != nil {
		return greeting{}, answer{}, fmt.Errorf("read what only a headgate sends: %w", err)
	}
	_, _ = rand.Read(random[randomBytes:]) // never fails (crypto/rand)
	return g.converse(conn, secret, random[:], r)
}

func (g *Gossip) converse(conn net.Conn, secret Secret, random []byte, r request) (greeting, answer, error) {
	seal := newSealer(secret, random[:randomBytes], random[randomBytes:])
	us := greeting{Cluster: g.cfg.Cluster, Host: g.cfg.Host, KeyID: secret.ID()}
	sealed, err := seal.seal(fromClient, us, r)
	if err != nil {
		return greeting{}, answer{}, err
	}
	if err := writeFrame(conn, envelope{Greeting: us, Random: random[randomBytes:], Sealed: sealed}); err != nil {
		return greeting{}, answer{}, err
	}
	e, err := readFrame(conn)
	if err != nil || e.Greeting.Verdict != welcome {
		return e.Greeting, answer{}, err
	}
	var a answer
	return e.Greeting, a, seal.open(fromServer, e, &a)
}

// serve answers one exchange; the magic was read already.
func (g *Gossip) serve(conn net.Conn) {
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(controlTimeout)); err != nil {
		return
	}
	peer := hostOf(conn.RemoteAddr().String())
	var random [randomBytes]byte
	_, _ = rand.Read(random[:]) // never fails (crypto/rand)
	if _, err := conn.Write(random[:]); err != nil {
		return // the peer went; it asks again
	}
	e, err := readFrame(conn)
	if err != nil {
		g.cfg.Log.Debug("a control stream that is none", "peer", peer, "err", err)
		return
	}
	reply := g.reply(peer, random[:], e)
	if err := writeFrame(conn, reply); err != nil {
		g.cfg.Log.Debug("answer a control stream", "peer", peer, "err", err)
	}
}

// reply judges the greeting and does what is asked for.
func (g *Gossip) reply(peer string, random []byte, e envelope) envelope {
	ring := g.ring.Load()
	us := greeting{Cluster: g.cfg.Cluster, Host: g.cfg.Host, KeyID: ring.Secrets[0].ID()}
	them := e.Greeting
	secret, known := ring.byID(them.KeyID)
	at, retired := ring.retiredAt(them.KeyID)
	switch {
	case them.Cluster != g.cfg.Cluster:
		us.Verdict = otherCluster
		g.conditions.note(OtherCluster, peer, fmt.Sprintf("host %q says that its cluster is %q, and ours is %q: write the same gossip.cluster, or keep the clusters apart", them.Host, them.Cluster, g.cfg.Cluster))
		return envelope{Greeting: us}
	case retired:
		us.Verdict, us.Retired = retiredKeyed, at.UTC().Format(time.RFC3339)
		g.conditions.note(RetiredKey, peer, fmt.Sprintf("host %q comes with the key %s, which was retired at %s while it was away: copy the keyring of a host to it, as its secret file", them.Host, them.KeyID, us.Retired))
		return envelope{Greeting: us}
	}
	seal := newSealer(secret, random, e.Random)
	var r request
	if !known || len(e.Random) != randomBytes || seal.open(fromClient, e, &r) != nil {
		us.Verdict = unknownKey
		g.conditions.note(WrongKey, peer, fmt.Sprintf("host %q says that its key is %s, and ours is %s: give all hosts the same secret", them.Host, them.KeyID, us.KeyID))
		return envelope{Greeting: us}
	}
	g.conditions.clear(peer, OtherCluster, RetiredKey, WrongKey)
	us.Verdict = welcome
	a := g.perform(r)
	if them.Host == g.cfg.Host && r.Instance != g.instance {
		if _, err := netip.ParseAddrPort(r.Address); err != nil {
			r.Address = peer
		}
		g.rival(rivalSeen{address: r.Address, instance: r.Instance, age: time.Duration(r.AgeMs) * time.Millisecond, refused: r.Refused})
	}
	a.Instance, a.AgeMs, a.Refused = g.instance, g.age().Milliseconds(), g.refused()
	ring = g.ring.Load()
	if a.Turn = ring.Turn; ring.Turn > r.Turn {
		for _, s := range ring.Secrets {
			a.Secrets = append(a.Secrets, s.Reveal())
		}
	}
	sealed, err := seal.seal(fromServer, us, a)
	if err != nil {
		us.Verdict = unknownKey
		return envelope{Greeting: us}
	}
	return envelope{Greeting: us, Sealed: sealed}
}
