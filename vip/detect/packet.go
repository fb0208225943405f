package detect

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// A packet on the wire, the same on all three channels (integers big-endian):
//
//	magic     4  "HGB1"
//	kind      1
//	channel   1  on which it may travel: a packet seen on one is worth nothing on another
//	keyID     4  which key made the code
//	incarnation 8, counter 8, nonce 16
//	from      1+n, to 1+n, state 2+n
//	code      16 HMAC-SHA256 of all before it, cut to 128 bits (RFC 2104 section 5)
//
// What follows is padding of the link (Ethernet frames have at least 60 bytes).
const (
	magic      = "HGB1"
	fixedBytes = 4 + 1 + 1 + keyIDBytes + 8 + 8 + nonceBytes
	nonceBytes = 16
	keyIDBytes = 4
	codeBytes  = 16
	// MaxHost and MaxState are the longest host name and state in bytes. With both a packet has 1,188 bytes:
	// with the headers of UDP and IPv6 it fits the smallest MTU, 1,280.
	MaxHost    = 63
	MaxState   = 1000
	maxPacket  = fixedBytes + 1 + MaxHost + 1 + MaxHost + 2 + MaxState + codeBytes
	minKey     = 16
	minimumLen = fixedBytes + 1 + 1 + 2 + codeBytes
)

type kind byte

const (
	beat      kind = 1 // the sender lives; carries its state
	challenge kind = 2 // prove that you live now: send the nonce back
	answer    kind = 3 // the proof; carries the state too
	farewell  kind = 4 // the sender stops on purpose
)

type channel byte

const (
	overSession channel = 'S'
	overUDP     channel = 'U'
	overLink    channel = 'L'
)

type packet struct {
	kind        kind
	channel     channel
	incarnation uint64
	counter     uint64
	nonce       [nonceBytes]byte
	from, to    string
	state       []byte
}

// What keeps a packet from being believed.
var (
	errMalformed  = errors.New("no packet of ours")
	errForeignKey = errors.New("made with a key that this host does not have")
	errForged     = errors.New("the authentication code is wrong")
	errChannel    = errors.New("made for another channel")
)

// key is a secret with the name under which packets refer to it.
type key struct {
	id     [keyIDBytes]byte
	secret []byte
}

// newKey derives the identifier from the secret; it tells nothing about it.
func newKey(secret []byte) key {
	k := key{secret: append([]byte(nil), secret...)}
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("headgate heartbeat key id"))
	copy(k.id[:], mac.Sum(nil))
	return k
}

func (k key) code(b []byte) []byte {
	mac := hmac.New(sha256.New, k.secret)
	mac.Write(b)
	return mac.Sum(nil)[:codeBytes]
}

// seal writes the packet; from, to and state must be within their limits.
func (k key) seal(p packet) []byte {
	b := make([]byte, 0, fixedBytes+4+len(p.from)+len(p.to)+len(p.state)+codeBytes)
	b = append(b, magic...)
	b = append(b, byte(p.kind), byte(p.channel))
	b = append(b, k.id[:]...)
	b = binary.BigEndian.AppendUint64(b, p.incarnation)
	b = binary.BigEndian.AppendUint64(b, p.counter)
	b = append(b, p.nonce[:]...)
	b = append(b, byte(len(p.from)))
	b = append(b, p.from...)
	b = append(b, byte(len(p.to)))
	b = append(b, p.to...)
	b = binary.BigEndian.AppendUint16(b, uint16(len(p.state)))
	b = append(b, p.state...)
	return append(b, k.code(b)...)
}

// keyring is the keys that are accepted; the first is used for what we send.
type keyring []key

func newKeyring(secrets [][]byte) (keyring, error) {
	if len(secrets) == 0 {
		return nil, errors.New("no key")
	}
	ring := make(keyring, 0, len(secrets))
	for i, secret := range secrets {
		if len(secret) < minKey {
			return nil, fmt.Errorf("key %d has %d bytes: it needs %d or more", i, len(secret), minKey)
		}
		ring = append(ring, newKey(secret))
	}
	return ring, nil
}

// open reads a packet that came over the channel. With errForeignKey, errForged and errChannel the packet is what the
// bytes claim, good for a complaint only.
func (r keyring) open(b []byte, over channel) (packet, error) {
	p, id, signed, err := parse(b)
	if err != nil {
		return packet{}, err
	}
	for _, k := range r {
		if k.id != id {
			continue
		}
		switch {
		case !hmac.Equal(k.code(b[:signed]), b[signed:signed+codeBytes]):
			return p, errForged
		case p.channel != over:
			return p, errChannel
		}
		return p, nil
	}
	return p, errForeignKey
}

// parse takes the bytes apart and says how many of them the code covers.
func parse(b []byte) (packet, [keyIDBytes]byte, int, error) {
	var p packet
	var id [keyIDBytes]byte
	if len(b) < minimumLen || string(b[:len(magic)]) != magic {
		return p, id, 0, errMalformed
	}
	at := len(magic)
	p.kind, p.channel = kind(b[at]), channel(b[at+1])
	at += 2
	at += copy(id[:], b[at:])
	p.incarnation = binary.BigEndian.Uint64(b[at:])
	p.counter = binary.BigEndian.Uint64(b[at+8:])
	at += 16
	at += copy(p.nonce[:], b[at:])
	var ok bool
	if p.from, at, ok = name(b, at); !ok || p.from == "" {
		return p, id, 0, errMalformed
	}
	if p.to, at, ok = name(b, at); !ok {
		return p, id, 0, errMalformed
	}
	if len(b) < at+2 {
		return p, id, 0, errMalformed
	}
	length := int(binary.BigEndian.Uint16(b[at:]))
	at += 2
	if length > MaxState || len(b) < at+length+codeBytes {
		return p, id, 0, errMalformed
	}
	p.state = append([]byte(nil), b[at:at+length]...)
	if p.kind < beat || p.kind > farewell {
		return p, id, 0, errMalformed
	}
	return p, id, at + length, nil
}

func name(b []byte, at int) (string, int, bool) {
	if len(b) < at+1 {
		return "", at, false
	}
	end := at + 1 + int(b[at])
	if len(b) < end {
		return "", at, false
	}
	text := string(b[at+1 : end])
	return text, end, text == "" || validHost(text)
}

// validHost keeps names printable: they stand in logs and statuses before anything about them is proven.
func validHost(text string) bool {
	if text == "" || len(text) > MaxHost {
		return false
	}
	for _, c := range []byte(text) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '-', c == '_':
		default:
			return false
		}
	}
	return true
}
