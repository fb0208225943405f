package keepalived

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// translator makes instances of blocks, and of these the configuration.
type translator struct {
	findings  *findings
	scripts   map[string]*checkScript
	instances []*instance
	sets      []*syncGroup
	usual     string // default_interface
	hosts     []netip.Addr
	told      bool    // who the hosts are: by Options.Peers
	multicast []Place // of instances without unicast_peer
	notify    notification
	origins   []string // of each group, for the text
	keywords  struct{ top, global, instance map[string]remark }
	options   map[string]option
}

func newTranslator(f *findings, peers []netip.Addr) *translator {
	t := &translator{findings: f, scripts: map[string]*checkScript{}, usual: "eth0", hosts: slices.Clone(peers), told: len(peers) > 0}
	t.keywords.top, t.keywords.global, t.keywords.instance = topKeywords(), globalKeywords(), instanceKeywords()
	t.options = addressOptions()
	return t
}

// checkScript is a vrrp_script or a vrrp_track_process.
type checkScript struct {
	place   Place
	what    string // keyword and name, for messages
	proxy   bool   // it is the proxy that is checked
	used    bool
	weighed bool
}

// syncGroup is a vrrp_sync_group.
type syncGroup struct {
	place   Place
	name    string
	members []string
}

// file translates what stands outside of all blocks. Scripts come first: instances name them, in any order.
func (t *translator) file(block []*statement) {
	for _, s := range block {
		switch s.keyword() {
		case "vrrp_script", "vrrp_track_process":
			t.script(s)
		case "global_defs":
			t.global(s)
		}
	}
	for _, s := range block {
		switch s.keyword() {
		case "vrrp_script", "vrrp_track_process", "global_defs":
		case "vrrp_instance":
			t.instance(s)
		case "vrrp_sync_group":
			t.syncGroup(s)
		default:
			t.remark(s, t.keywords.top)
		}
	}
	for _, c := range t.scripts {
		if !c.used {
			t.findings.add(Note, c.place, "%s: left out, because nothing tracks it", c.what)
		}
	}
}

// remark tells what becomes of a keyword that has no value in headgate: once, with all its lines.
func (t *translator) remark(s *statement, table map[string]remark) {
	name := shown(s.keyword())
	r, known := table[s.keyword()]
	switch {
	case !known:
		t.findings.add(LeftOut, s.place, "%s: no keyword that is known here (keepalived.conf(5) of version 2.2.7); is it misspelt?", name)
	case r.say != "" && r.kind == LeftOut:
		t.findings.add(r.kind, s.place, "%s: %s", name, strings.TrimPrefix(r.say, "left out: "))
	case r.say != "":
		t.findings.add(r.kind, s.place, "%s: %s", name, r.say)
	}
}

func (t *translator) global(s *statement) {
	for _, inner := range s.block {
		if inner.keyword() == "default_interface" && interfaceName.MatchString(inner.word(1)) {
			t.usual = inner.word(1)
			continue
		}
		t.remark(inner, t.keywords.global)
	}
}

func (t *translator) script(s *statement) {
	c := &checkScript{place: s.place, what: s.keyword() + " " + shown(s.word(1))}
	for _, inner := range s.block {
		switch inner.keyword() {
		case "script", "process":
			command := strings.Join(inner.words[1:], " ")
			c.proxy = proxyName.MatchString(command) || localURL.MatchString(command)
		case "weight":
			c.weighed = inner.word(1) != "0"
		}
	}
	t.scripts[s.word(1)] = c
}

var (
	// proxyName is a proxy that headgate takes the place of: a check of it has a counterpart that is always on.
	proxyName = regexp.MustCompile(`(?i)(^|[^a-z])(nginx|openresty|haproxy)([^a-z]|$)`)
	// localURL is what a check asks that wants an answer over HTTP from this host.
	localURL = regexp.MustCompile(`(?i)\bhttps?://(localhost|127\.[0-9.]+|\[::1\])([:/ ]|$)`)
)

// track tells what becomes of a track_script or track_process.
func (t *translator) track(s *statement, of string) {
	for _, inner := range s.block {
		name := inner.keyword()
		c, found := t.scripts[name]
		if !found {
			t.findings.add(LeftOut, inner.place, "%s: %s: there is no such vrrp_script or vrrp_track_process", of, shown(name))
			continue
		}
		c.used = true
		weighed := c.weighed || inner.word(1) == "weight" && inner.word(2) != "0"
		switch {
		case !c.proxy:
			t.findings.add(LeftOut, c.place, "%s: headgate runs no scripts: let a systemd timer run it, and call 'headgate drain' when it fails and 'headgate undrain' when it succeeds again", c.what)
		case weighed:
			t.findings.add(Differs, c.place, "%s: checking the proxy is built in, all the time (vip.proxyTimeout), and not a matter of weight: a host whose proxy is dead or hung owns no VIP", c.what)
		default:
			t.findings.add(Note, c.place, "%s: checking the proxy is built in, all the time (vip.proxyTimeout); if the script looks at more than that, let it call 'headgate drain' and 'headgate undrain'", c.what)
		}
	}
}

func (t *translator) syncGroup(s *statement) {
	set := &syncGroup{place: s.place, name: s.word(1)}
	of := "vrrp_sync_group " + shown(set.name)
	for _, inner := range s.block {
		switch inner.keyword() {
		case "group":
			set.members = append(set.members, inner.values()...)
		case "track_script", "track_process":
			t.track(inner, of)
		case "track_interface":
			t.trackInterface(inner, of, nil)
		case "notify", "notify_master", "notify_backup", "notify_fault", "notify_stop":
			t.hook(inner, of)
		default:
			t.remark(inner, t.keywords.instance)
		}
	}
	t.sets = append(t.sets, set)
}

// trackInterface tells of interfaces that headgate does not watch: all but those in own, which carry the VIPs.
func (t *translator) trackInterface(s *statement, of string, own map[string]bool) {
	for _, inner := range s.block {
		name := inner.keyword()
		switch {
		case !own[name]:
			t.findings.add(LeftOut, inner.place, "%s: track_interface %s: headgate watches the link that carries the VIP, and no other: if a host without this one must not serve, let a script call 'headgate drain'", of, shown(name))
		case inner.word(1) == "weight" && inner.word(2) != "0":
			t.findings.add(Differs, inner.place, "%s: track_interface %s: its weight is left out: a host whose link is down owns no VIP on it", of, shown(name))
		}
	}
}

// notification is the program that was chosen for vip.notify: there is one for all VIPs.
type notification struct {
	argv  []string
	place Place
}

func (t *translator) hook(s *statement, of string) {
	c, err := readCommand(s.raw)
	switch {
	case err != nil:
		t.findings.add(LeftOut, s.place, "%s: %s: %v: write the program into vip.notify", of, s.keyword(), err)
		return
	case !safeProgram.MatchString(c.argv[0]) || slices.ContainsFunc(c.argv, unprintable):
		t.findings.add(LeftOut, s.place, "%s: %s: vip.notify wants an absolute path of letters, digits and ._+-, and arguments without control characters: call this program from one", of, s.keyword())
		return
	case s.keyword() != "notify":
		state := strings.ToUpper(strings.TrimPrefix(s.keyword(), "notify_"))
		t.findings.add(LeftOut, s.place, "%s: %s: headgate runs one program for all states (vip.notify): let that one call this script when its last argument but one is %s", of, s.keyword(), state)
		return
	}
	if len(c.user) > 0 {
		t.findings.add(Differs, s.place, "%s: notify: user and group are left out: vip.notify runs as the user of the VIP process (headgate)", of)
	}
	switch {
	case t.notify.argv == nil:
		t.notify = notification{c.argv, s.place}
		t.findings.add(Differs, s.place, "notify: vip.notify runs without a shell and without privileges, and gets the same four arguments for every VIP: INSTANCE, the name of the VIP as it is called here, MASTER, BACKUP, FAULT or STOP, and the priority")
	case !slices.Equal(t.notify.argv, c.argv):
		t.findings.add(LeftOut, s.place, "%s: notify: there is one vip.notify for all VIPs, and it is that of line %d: let that program look at its last argument but two, the name of the VIP", of, t.notify.place.Line)
	}
}

// safeProgram is what cmd/config lets vip.notify begin with.
var safeProgram = regexp.MustCompile(`^/[A-Za-z0-9/._+-]*$`)
