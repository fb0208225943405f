package gossip

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"time"
)

// Caller is who says Hello without being a member.
type Caller struct {
	Cluster string
	Secret  Secret
	// Host is for the peer's log: 1 to 63 printable characters that are no host's name.
	Host string
}

// Agreement is what came of a Hello.
type Agreement struct {
	// Host, Cluster and KeyID are what the peer says of itself: authentic if Agrees, else a claim.
	Host, Cluster, KeyID string
	// Agrees tells that both have the secret and the cluster; Kind says what differs otherwise: OtherCluster, WrongKey,
	// RetiredKey, or JoinFailed for a verdict that this version does not know.
	Agrees bool
	Kind   Kind
}

// Hello asks the gossip port at the address whether it has the same cluster and secret, and changes nothing there; a refusal
// is noted by the peer as one of a host that joins would be. An error tells that the peer cannot be reached, or is no headgate.
func Hello(ctx context.Context, c Caller, address netip.AddrPort) (Agreement, error) {
	dialer := net.Dialer{Timeout: controlTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", address.String())
	if err != nil {
		return Agreement{}, fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close() }() // it was read
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if err := conn.SetDeadline(time.Now().Add(controlTimeout)); err != nil {
		return Agreement{}, fmt.Errorf("set a deadline: %w", err)
	}
	return c.converse(conn)
}

func (c Caller) converse(conn net.Conn) (Agreement, error) {
	var random [2 * randomBytes]byte
	if _, err := io.WriteString(conn, controlMagic); err != nil {
		return Agreement{}, fmt.Errorf("write: %w", err)
	}
	if _, err := io.ReadFull(conn, random[:randomBytes]); err != nil {
		return Agreement{}, fmt.Errorf("read what only a headgate sends: %w", err)
	}
	_, _ = rand.Read(random[randomBytes:]) // never fails (crypto/rand)
	seal := newSealer(c.Secret, random[:randomBytes], random[randomBytes:])
	us := greeting{Cluster: c.Cluster, Host: c.Host, KeyID: c.Secret.ID()}
	// With the highest turn the peer sends us no secrets.
	sealed, err := seal.seal(fromClient, us, request{Op: opHello, Turn: math.MaxUint64})
	if err != nil {
		return Agreement{}, err
	}
	if err := writeFrame(conn, envelope{Greeting: us, Random: random[randomBytes:], Sealed: sealed}); err != nil {
		return Agreement{}, err
	}
	e, err := readFrame(conn)
	if err != nil {
		return Agreement{}, err
	}
	a := Agreement{Host: e.Greeting.Host, Cluster: e.Greeting.Cluster, KeyID: e.Greeting.KeyID}
	switch e.Greeting.Verdict {
	case welcome:
		var sealedAnswer answer
		err := seal.open(fromServer, e, &sealedAnswer)
		a.Agrees = err == nil
		return a, err
	case otherCluster:
		a.Kind = OtherCluster
	case unknownKey:
		a.Kind = WrongKey
	case retiredKeyed:
		a.Kind = RetiredKey
	default:
		a.Kind = JoinFailed
	}
	return a, nil
}

// PeerAddress splits an entry of Config.Peers: an address or a DNS name, and its port, or the given one where it has none.
func PeerAddress(peer string, port uint16) (host string, at uint16, err error) {
	return splitPeer(peer, port)
}
