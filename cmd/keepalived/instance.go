package keepalived

import (
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"headgate/cmd/config"
)

// instance is a vrrp_instance.
type instance struct {
	place     Place
	name      string
	iface     string // "": not written
	vrid      int    // 0: not written
	priority  int
	master    bool // state MASTER
	nopreempt Place
	delay     *time.Duration // nil: not written
	delayed   Place
	addresses []address
	multicast bool // no unicast_peer
}

// address is one of virtual_ipaddress.
type address struct {
	place  Place
	prefix netip.Prefix
	dev    string // "": that of the instance
}

func (i *instance) String() string { return "vrrp_instance " + shown(i.name) }

const (
	usualPriority = 100  // keepalived's, and headgate's
	ownerPriority = 255  // of the address owner (RFC 5798 section 5.2.4)
	mostPriority  = 254  // headgate's
	mostDelay     = 1000 // seconds
	mostRouterID  = 255
	maxHosts      = 32
)

var interfaceName = regexp.MustCompile(`^[A-Za-z0-9._@-]{1,15}$`)

func (t *translator) instance(s *statement) {
	i := &instance{place: s.place, name: s.word(1), priority: usualPriority, multicast: true}
	for _, inner := range s.block {
		t.instanceKeyword(i, inner)
	}
	own := map[string]bool{i.iface: true}
	for _, a := range i.addresses {
		own[a.dev] = true
	}
	for _, inner := range s.block {
		if inner.keyword() == "track_interface" {
			t.trackInterface(inner, i.String(), own)
		}
	}
	t.preemption(i)
	if i.multicast && len(i.addresses) > 0 {
		t.multicast = append(t.multicast, i.place)
	}
	if i.iface == "" && slices.ContainsFunc(i.addresses, func(a address) bool { return a.dev == "" }) {
		i.iface = t.usual
		t.findings.add(Differs, i.place, "%s: no interface: it becomes %s, keepalived's default; write vip.interface if it is another one", i, shown(i.iface))
	}
	if len(i.addresses) == 0 {
		t.findings.add(LeftOut, i.place, "%s: no address that can be shared: it becomes no VIP", i)
	}
	t.instances = append(t.instances, i)
}

func (t *translator) instanceKeyword(i *instance, s *statement) {
	switch s.keyword() {
	case "state":
		t.state(i, s)
	case "interface":
		if !interfaceName.MatchString(s.word(1)) {
			t.findings.add(LeftOut, s.place, "%s: interface %s: no name of an interface: write vip.interface", i, shown(s.word(1)))
			return
		}
		i.iface = s.word(1)
	case "virtual_router_id":
		i.vrid = t.number(i, s, 1, mostRouterID)
	case "priority":
		t.priority(i, s)
	case "nopreempt":
		i.nopreempt = s.place
	case "preempt_delay":
		t.preemptDelay(i, s)
	case "virtual_ipaddress", "virtual_ipaddress_excluded":
		t.addresses(i, s)
	case "unicast_peer":
		i.multicast = false
		t.peers(i, s)
	case "unicast_src_ip", "mcast_src_ip":
		t.host(i, s.place, s.word(1))
	case "track_script", "track_process":
		t.track(s, i.String())
	case "track_interface": // once all addresses are known
	case "notify", "notify_master", "notify_backup", "notify_fault", "notify_stop":
		t.hook(s, i.String())
	case "strict_mode":
		if !off(s.word(1)) {
			t.remark(s, t.keywords.instance)
		}
	default:
		t.remark(s, t.keywords.instance)
	}
}

// off is a BOOL that says no; without a word it says yes.
func off(word string) bool { return word == "off" || word == "false" || word == "no" }

func (t *translator) state(i *instance, s *statement) {
	switch s.word(1) {
	case "MASTER":
		i.master = true
		t.findings.add(Note, s.place, "state MASTER is left out: the ready host with the highest priority owns a VIP")
	case "BACKUP":
	default:
		t.findings.add(Note, s.place, "%s: state %s is neither MASTER nor BACKUP, and left out", i, shown(s.word(1)))
	}
}

// number reads a whole number, and gives 0 when it is none or outside of its range.
func (t *translator) number(i *instance, s *statement, least, most int) int {
	n, err := strconv.Atoi(s.word(1))
	if err != nil || n < least || n > most {
		t.findings.add(LeftOut, s.place, "%s: %s %s: no whole number from %d to %d", i, s.keyword(), shown(s.word(1)), least, most)
		return 0
	}
	return n
}

func (t *translator) priority(i *instance, s *statement) {
	n := t.number(i, s, 1, ownerPriority)
	switch n {
	case 0:
		t.findings.add(Differs, s.place, "%s: its priority becomes %d", i, usualPriority)
		return
	case ownerPriority:
		t.findings.add(Differs, s.place, "%s: priority %d becomes %d: no host owns an address for good; no other one may have as much", i, ownerPriority, mostPriority)
		n = mostPriority
	}
	i.priority = n
}

func (t *translator) preemptDelay(i *instance, s *statement) {
	seconds, err := strconv.ParseFloat(s.word(1), 64)
	if err != nil || !(seconds >= 0 && seconds <= mostDelay) {
		t.findings.add(LeftOut, s.place, "%s: preempt_delay %s: no number of seconds from 0 to %d; it becomes vip.preemptDelay", i, shown(s.word(1)), mostDelay)
		return
	}
	d := time.Duration(seconds * float64(time.Second)).Round(time.Millisecond)
	i.delay, i.delayed = &d, s.place
}

// preemption does what keepalived does with an instance that starts as MASTER: nopreempt and preempt_delay do not count.
func (t *translator) preemption(i *instance) {
	if !i.master {
		return
	}
	if i.nopreempt.Line > 0 {
		t.findings.add(Differs, i.nopreempt, "%s: nopreempt is left out: with state MASTER keepalived ignores it, too; write nopreempt: true on all hosts if you want it", i)
		i.nopreempt = Place{}
	}
	if i.delay != nil {
		t.findings.add(Differs, i.delayed, "%s: preempt_delay is left out: with state MASTER keepalived ignores it, too; see vip.preemptDelay", i)
		i.delay = nil
	}
}

func (t *translator) peers(i *instance, s *statement) {
	lines := s.block
	if len(s.words) > 1 {
		lines = append([]*statement{{place: s.place, words: s.words[1:]}}, lines...)
	}
	for _, inner := range lines {
		words := inner.words
		for n := 0; n < len(words); n++ {
			switch words[n] {
			case "min_ttl", "max_ttl":
				n++
				t.findings.add(Note, inner.place, "min_ttl and max_ttl are left out: heartbeats are authenticated")
			default:
				t.host(i, inner.place, words[n])
			}
		}
	}
}

// host adds an address of a host to those that gossip.
func (t *translator) host(i *instance, at Place, text string) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" || a.Is4In6() || !a.IsGlobalUnicast() {
		t.findings.add(LeftOut, at, "%s: %s cannot be an address of a host (a global unicast one is wanted): write one that the others reach into gossip.peers", i, shown(text))
		return
	}
	if slices.Contains(t.hosts, a) {
		return
	}
	if len(t.hosts) >= maxHosts {
		t.findings.add(LeftOut, at, "more than %d hosts: headgate is made for 2 to 5", maxHosts)
		return
	}
	t.hosts = append(t.hosts, a)
}

func (t *translator) addresses(i *instance, s *statement) {
	lines := s.block
	if len(s.words) > 1 {
		lines = append([]*statement{{place: s.place, words: s.words[1:]}}, lines...)
	}
	for _, inner := range lines {
		t.addressLine(i, inner)
	}
}

// addressLine reads an address with its options (keepalived.conf(5), virtual_ipaddress). Further addresses on the line
// are taken for addresses.
func (t *translator) addressLine(i *instance, s *statement) {
	var found []address
	dev, routed := "", true
	for n := 0; n < len(s.words); n++ {
		word := s.words[n]
		switch option, known := t.options[word]; {
		case word == "dev" && interfaceName.MatchString(s.word(n+1)):
			dev = s.word(n + 1)
			n++
		case word == "dev":
			t.findings.add(LeftOut, s.place, "%s: dev %s: no name of an interface: the address goes to that of the instance", i, shown(s.word(n+1)))
			n++
		case known:
			routed = routed && word != "noprefixroute"
			n += option.values
			if option.say != "" && (option.values == 0 || s.word(n) != option.usual) {
				t.findings.add(option.kind, s.place, "%s: %s", word, strings.TrimPrefix(option.say, option.kind.String()+": "))
			}
		default:
			if a, ok := t.address(i, s.place, word); ok {
				found = append(found, a)
			}
		}
	}
	for _, a := range found {
		a.dev = dev
		if routed && a.prefix.Bits() < a.prefix.Addr().BitLen() {
			t.findings.add(Note, s.place, "addresses with a prefix add no route to their network here: each host needs an address of its own in it, or a route")
		}
		i.addresses = append(i.addresses, a)
	}
}

func (t *translator) address(i *instance, at Place, text string) (address, bool) {
	switch a, err := netip.ParseAddr(text); {
	case strings.Contains(text, "$"):
		t.findings.add(LeftOut, at, "%s: %s: this parameter is not defined: write the address into vip.groups", i, shown(text))
		return address{}, false
	case err == nil && a.Is6() && a.IsLinkLocalUnicast():
		t.findings.add(LeftOut, at, "%s: %s: a link-local address is none that clients reach from elsewhere; VRRPv3 wants one, headgate does not", i, shown(text))
		return address{}, false
	}
	p, err := config.ParseVIP(text)
	if err != nil {
		t.findings.add(LeftOut, at, "%s: %s is no address that can be shared: write one such as 192.0.2.10 or 2001:db8::10 into vip.groups", i, shown(text))
		return address{}, false
	}
	return address{place: at, prefix: p}, true
}

// unprintable is true for text that YAML, a log or a terminal would not show as it is.
func unprintable(text string) bool {
	return !utf8.ValidString(text) || strings.ContainsFunc(text, func(c rune) bool { return !unicode.IsPrint(c) })
}
