package keepalived

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"headgate/cmd/config"
)

// text writes the sections gossip and vip: what differs from the defaults. origins say of each group what it was.
func text(c config.Config, origins []string) []byte {
	var b bytes.Buffer
	usual := config.Default()
	b.WriteString("# Imported from keepalived by 'headgate vip import': the sections gossip and vip of headgate.yaml.\n\ngossip:\n")
	if len(c.Gossip.Peers) == 0 {
		b.WriteString("  # Write the addresses of the hosts, this one among them: without them it is alone.\n")
	} else {
		b.WriteString("  # The hosts, this one among them, so that the list is the same everywhere.\n")
	}
	fmt.Fprintf(&b, "  peers: %s\n", list(c.Gossip.Peers))
	fmt.Fprintf(&b, "  # In place of auth_pass: 'headgate gossip genkey --out %s', the same file on all hosts.\n  keyFile: %s\n", c.Gossip.KeyFile, quote(c.Gossip.KeyFile))
	if c.Gossip.Listen != usual.Gossip.Listen {
		fmt.Fprintf(&b, "  listen: %s\n", quote(c.Gossip.Listen.String()))
	}
	v := c.VIP
	b.WriteString("\nvip:\n")
	if v.Interface != "" {
		fmt.Fprintf(&b, "  interface: %s\n", quote(v.Interface))
	}
	if v.Priority != usual.VIP.Priority {
		fmt.Fprintf(&b, "  priority: %d\n", v.Priority)
	}
	if v.NoPreempt {
		b.WriteString("  nopreempt: true\n")
	}
	if v.PreemptDelay != usual.VIP.PreemptDelay {
		fmt.Fprintf(&b, "  preemptDelay: %s\n", quote(time.Duration(v.PreemptDelay).String()))
	}
	if v.Listen != usual.VIP.Listen {
		fmt.Fprintf(&b, "  listen: %s\n", quote(v.Listen.String()))
	}
	if len(v.Notify) > 0 {
		fmt.Fprintf(&b, "  notify: %s\n", list(v.Notify))
	}
	b.WriteString("  groups:\n")
	for i, g := range v.Groups {
		fmt.Fprintf(&b, "    # %s\n    - name: %s\n", origins[i], quote(g.Name))
		writeGroup(&b, g)
	}
	return b.Bytes()
}

func writeGroup(b *bytes.Buffer, g config.VIPGroup) {
	if g.Interface != "" {
		fmt.Fprintf(b, "      interface: %s\n", quote(g.Interface))
	}
	if g.Priority != 0 {
		fmt.Fprintf(b, "      priority: %d\n", g.Priority)
	}
	if g.NoPreempt {
		b.WriteString("      nopreempt: true\n")
	}
	if g.PreemptDelay != 0 {
		fmt.Fprintf(b, "      preemptDelay: %s\n", quote(time.Duration(g.PreemptDelay).String()))
	}
	if len(g.Addresses) == 1 {
		fmt.Fprintf(b, "      addresses: %s\n", list(g.Addresses))
		return
	}
	b.WriteString("      addresses:\n")
	for _, a := range g.Addresses {
		fmt.Fprintf(b, "        - %s\n", quote(a))
	}
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
	quoted := slices.Clone(texts)
	for i, t := range quoted {
		quoted[i] = quote(t)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}
