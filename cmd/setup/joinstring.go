package setup

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode"

	"headgate/cmd/config"
	"headgate/sync/gossip"
)

// Join is what a further host must know of the cluster of hosts. It holds their secret.
type Join struct {
	Cluster string
	// Peers are the addresses of the hosts, as in gossip.peers.
	Peers []string
	// Addresses and Groups are the VIPs; groups have no interface: each host has its own.
	Addresses []string
	Groups    []config.VIPGroup
	// GossipPort and VIPPort are those of gossip.listen and vip.listen.
	GossipPort, VIPPort uint16
	MTU                 int // gossip.mtu, in bytes
	Secret              gossip.Secret
}

// A join string is prefix, version, ".", the payload, ".", and the beginning of the SHA-256 of all before, in hexadecimal. The
// payload is base64url (RFC 4648 section 5) of JSON. All of its characters stand for themselves in a shell.
const (
	joinPrefix    = "headgate-join-"
	joinVersion   = "1"
	checksumChars = 16
	maxJoin       = 16 << 10
	maxPeers      = 64
)

// payload is version 1.
type payload struct {
	Cluster    string   `json:"cluster"`
	Peers      []string `json:"peers"`
	Addresses  []string `json:"addresses,omitempty"`
	Groups     []group  `json:"groups,omitempty"`
	GossipPort uint16   `json:"gossipPort"`
	VIPPort    uint16   `json:"vipPort"`
	MTU        int      `json:"mtu"`
	Secret     string   `json:"secret"`
}

type group struct {
	Name      string   `json:"name"`
	Addresses []string `json:"addresses"`
}

// Reveal writes the join string: whoever reads it has the secret of the hosts.
func (j Join) Reveal() string {
	p := payload{
		Cluster: j.Cluster, Peers: j.Peers, Addresses: j.Addresses, GossipPort: j.GossipPort, VIPPort: j.VIPPort,
		MTU: j.MTU, Secret: j.Secret.Reveal(),
	}
	for _, g := range j.Groups {
		p.Groups = append(p.Groups, group{g.Name, g.Addresses})
	}
	text, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings and numbers can be written
	}
	head := joinPrefix + joinVersion + "." + base64.RawURLEncoding.EncodeToString(text)
	return head + "." + checksum(head)
}

func checksum(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:checksumChars]
}

// String keeps the secret out of what is printed by mistake.
func (j Join) String() string { return "join of " + j.Cluster + " [redacted]" }

// GoString is like String.
func (j Join) GoString() string { return j.String() }

// ErrJoin is wrapped by all errors of ParseJoin. No error repeats what may be the secret.
var ErrJoin = errors.New("the join string cannot be used")

var joinShape = regexp.MustCompile(`^headgate-join-([0-9]{1,6})\.([A-Za-z0-9_-]+)\.([0-9a-f]+)$`)

// ParseJoin reads what Reveal wrote. White space within it does not count: terminals break long lines. What it gives is
// checked: it can stand in a configuration.
func ParseJoin(text string) (Join, error) {
	j, err := parseJoin(text)
	if err != nil {
		return Join{}, fmt.Errorf("%w: %w", ErrJoin, err)
	}
	return j, nil
}

func parseJoin(text string) (Join, error) {
	if len(text) > maxJoin {
		return Join{}, fmt.Errorf("it has %d characters, at most %d: copy only what 'headgate join --show' printed", len(text), maxJoin)
	}
	text = strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return -1
		}
		return r
	}, text)
	if !strings.HasPrefix(text, joinPrefix) {
		return Join{}, errors.New("it does not begin with " + joinPrefix + ": copy what 'headgate init' or 'headgate join --show' printed on another host")
	}
	parts := joinShape.FindStringSubmatch(text)
	switch {
	case parts == nil:
		return Join{}, errors.New("it is damaged: copy it whole, from " + joinPrefix + " to its last digit")
	case parts[1] != joinVersion:
		return Join{}, fmt.Errorf("it is of version %s, and this headgate reads version %s: install the same version on all hosts", parts[1], joinVersion)
	case checksum(joinPrefix+joinVersion+"."+parts[2]) != parts[3]:
		return Join{}, errors.New("its checksum does not fit: a part is missing or changed; copy it again, whole")
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(parts[2])
	if err != nil {
		return Join{}, errors.New("it is no base64: copy it again, whole")
	}
	var p payload
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&p); err != nil {
		return Join{}, errors.New("what is in it is not what headgate writes: make it anew with 'headgate join --show'")
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Join{}, errors.New("there is something behind what headgate writes: make it anew with 'headgate join --show'")
	}
	return p.join()
}

// join checks what came from elsewhere by the rules of the configuration.
func (p payload) join() (Join, error) {
	secret, err := gossip.ParseSecret(p.Secret)
	if err != nil {
		return Join{}, errors.New("there is no secret in it: make it anew with 'headgate join --show'")
	}
	if len(p.Peers) == 0 || len(p.Peers) > maxPeers {
		return Join{}, fmt.Errorf("it names %d hosts: it must be 1 to %d", len(p.Peers), maxPeers)
	}
	if p.GossipPort == 0 || p.VIPPort == 0 {
		return Join{}, errors.New("it lacks the ports: make it anew with 'headgate join --show'")
	}
	j := Join{
		Cluster: p.Cluster, Peers: p.Peers, Addresses: p.Addresses, GossipPort: p.GossipPort, VIPPort: p.VIPPort,
		MTU: p.MTU, Secret: secret,
	}
	for _, g := range p.Groups {
		j.Groups = append(j.Groups, config.VIPGroup{Name: g.Name, Addresses: g.Addresses})
	}
	c := config.Default()
	c.VIP.Interface = "eth0" // each host has its own
	j.into(&c)
	if err := explain(c.Check()); err != nil {
		return Join{}, err
	}
	return j, nil
}

// into writes it into a configuration.
func (j Join) into(c *config.Config) {
	c.Gossip.Cluster, c.Gossip.Peers, c.Gossip.MTU = j.Cluster, j.Peers, j.MTU
	c.Gossip.Listen = withPort(c.Gossip.Listen, j.GossipPort)
	c.VIP.Addresses, c.VIP.Groups = j.Addresses, j.Groups
	c.VIP.Listen = withPort(c.VIP.Listen, j.VIPPort)
}

// JoinOf is the join string's content for a host with that configuration and secret.
func JoinOf(c config.Config, secret gossip.Secret) Join {
	return Join{
		Cluster: c.Gossip.Cluster, Peers: c.Gossip.Peers, Addresses: c.VIP.Addresses, Groups: c.VIP.Groups,
		GossipPort: c.Gossip.Listen.Port(), VIPPort: c.VIP.Listen.Port(), MTU: c.Gossip.MTU, Secret: secret,
	}
}
