// Package setup makes the first configuration of a host: it puts answers to a few questions, or a join string from another
// host, into a short and commented headgate.yaml with the files that it names. It writes over nothing without being told to,
// keeps a copy of what it replaces, and asks neither the cluster nor the other hosts. `headgate init` and `headgate join` run
// it.
package setup

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"headgate/cmd/config"
)

// Answers are what only the administrator knows. The zero value serves nothing: one of Kubeconfig and Manifests is needed.
type Answers struct {
	Kubeconfig string
	Manifests  []string
	// Interface carries the VIPs; needed with VIPs.
	Interface string
	// VIPs are addresses, with or without the length of a prefix; none: this host shares nothing.
	VIPs []string
	// Own is the address by which the other hosts reach this one, Peers are theirs.
	Own   string
	Peers []string
	// Cluster is the name of the cluster of hosts; "" is the default.
	Cluster string
	// KeyFile is where the secret of the hosts lies; needed with VIPs.
	KeyFile string
}

// Compose makes the configuration of the answers, which is checked.
func (a Answers) Compose() (config.Config, error) {
	c := config.Default()
	c.Kubeconfig, c.Manifests = a.Kubeconfig, a.Manifests
	if a.Cluster != "" {
		c.Gossip.Cluster = a.Cluster
	}
	c.VIP.Interface, c.VIP.Addresses = a.Interface, a.VIPs
	if len(a.VIPs) > 0 {
		c.Gossip.KeyFile = a.KeyFile
	}
	if len(a.VIPs) > 0 && a.Own != "" {
		c.Gossip.Peers = distinct(append([]string{a.Own}, a.Peers...))
	} else {
		c.Gossip.Peers = distinct(a.Peers)
	}
	return a.finish(c)
}

// CheckHosts looks at the answers to two questions alone: VIPs, and the addresses or names of the other hosts.
func CheckHosts(vips, peers []string) error {
	usual := config.Default()
	_, err := Answers{Manifests: []string{"/"}, Interface: "eth0", KeyFile: usual.Gossip.KeyFile, VIPs: vips, Peers: peers}.Compose()
	return err
}

// ComposeJoin makes the configuration of a further host: what all hosts share from j, the rest from the answers.
func (a Answers) ComposeJoin(j Join) (config.Config, error) {
	c := config.Default()
	c.Kubeconfig, c.Manifests = a.Kubeconfig, a.Manifests
	c.VIP.Interface, c.Gossip.KeyFile = a.Interface, a.KeyFile
	j.into(&c)
	if a.Own != "" {
		c.Gossip.Peers = distinct(append(slices.Clone(c.Gossip.Peers), a.Own))
	}
	return a.finish(c)
}

func (a Answers) finish(c config.Config) (config.Config, error) {
	if c.Kubeconfig == "" && len(c.Manifests) == 0 {
		return c, errors.New("no source of objects: give --kubeconfig FILE, or --api-server URL --token-file FILE --ca FILE, or --manifests DIR")
	}
	if len(c.VIP.All()) == 0 && len(a.Peers) > 0 {
		return c, errors.New("there are peers and no VIP to share with them: give --vip ADDRESS")
	}
	c.Publish.Addresses = published(c.VIP)
	return c, explain(c.Check())
}

// published are the VIPs without the lengths of their prefixes: what the status of Ingresses tells.
func published(v config.VIP) []string {
	var list []string
	for _, g := range v.All() {
		for _, text := range g.Addresses {
			if p, err := config.ParseVIP(text); err == nil {
				list = append(list, p.Addr().String())
			}
		}
	}
	return list
}

func distinct(list []string) []string {
	var out []string
	for _, s := range list {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// explain puts the errors of a configuration into one, in words of its keys: there is no file yet.
func explain(err error) error {
	var joined interface{ Unwrap() []error }
	if err == nil || !errors.As(err, &joined) {
		return err
	}
	var words []string
	for _, e := range joined.Unwrap() {
		words = append(words, e.Error())
	}
	return errors.New(strings.Join(words, "\n"))
}

func withPort(a netip.AddrPort, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr(), port)
}

// Text writes the file: what differs from the defaults, with a line on each part. Equal configurations give equal bytes.
func Text(c config.Config) []byte {
	usual := config.Default()
	var b bytes.Buffer
	b.WriteString(`# headgate's configuration. Every key, its default and its range: man headgate-run, or
# /usr/share/doc/headgate/reference/configuration.md.
# 'headgate check' looks at a change, 'headgate reload' brings it into force and says what needs a restart.

`)
	if c.Kubeconfig != "" {
		fmt.Fprintf(&b, "# The cluster to read. A renewed file is used without a restart.\nkubeconfig: %s\n", quote(c.Kubeconfig))
	} else {
		fmt.Fprintf(&b, "# The folders of manifests to serve. They are watched.\nmanifests: %s\n", list(c.Manifests))
	}
	b.WriteString(`
# An Ingress is ours when its class has the controller headgate.io/ingress. To also serve what ingress-nginx serves:
# takeOverIngressNginx: true
`)
	if len(c.VIP.All()) == 0 {
		b.WriteString(`
# To share an address with other hosts: 'headgate init --force' with --vip, --interface and --peer.
`)
		return b.Bytes()
	}
	fmt.Fprintf(&b, "\n# Written to the status of every Ingress that is served.\npublish:\n  addresses: %s\n", list(c.Publish.Addresses))
	b.WriteString("\n# The hosts that share addresses; this one is among them, so that the list is the same everywhere.\ngossip:\n")
	fmt.Fprintf(&b, "  cluster: %s\n  peers: %s\n", quote(c.Gossip.Cluster), list(c.Gossip.Peers))
	fmt.Fprintf(&b, "  # The same on all hosts. Whoever has it can take the addresses: mode 0640.\n  keyFile: %s\n", quote(c.Gossip.KeyFile))
	if c.Gossip.Listen != usual.Gossip.Listen {
		fmt.Fprintf(&b, "  listen: %s\n", quote(c.Gossip.Listen.String()))
	}
	if c.Gossip.MTU != usual.Gossip.MTU {
		fmt.Fprintf(&b, "  mtu: %d\n", c.Gossip.MTU)
	}
	writeVIP(&b, c.VIP, usual.VIP)
	return b.Bytes()
}

func writeVIP(b *bytes.Buffer, v, usual config.VIP) {
	b.WriteString("\n# The addresses: each has one owner, and the next ready host takes it over.\nvip:\n")
	fmt.Fprintf(b, "  interface: %s\n", quote(v.Interface))
	if len(v.Addresses) > 0 {
		fmt.Fprintf(b, "  addresses: %s\n", list(v.Addresses))
	}
	if len(v.Groups) > 0 {
		b.WriteString("  groups:\n")
		for _, g := range v.Groups {
			fmt.Fprintf(b, "    - {name: %s, addresses: %s}\n", quote(g.Name), list(g.Addresses))
		}
	}
	if v.Listen != usual.Listen {
		fmt.Fprintf(b, "  listen: %s\n", quote(v.Listen.String()))
	}
	b.WriteString("  # The ready host with the highest priority owns an address (1–254); equal ones share them out.\n  # priority: 100\n")
}

// quote writes text as YAML reads it back: JSON is a part of YAML.
func quote(text string) string {
	out, err := json.Marshal(text)
	if err != nil {
		panic(err) // text can be written
	}
	return string(out)
}

func list(texts []string) string {
	quoted := make([]string, len(texts))
	for i, t := range texts {
		quoted[i] = quote(t)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}
