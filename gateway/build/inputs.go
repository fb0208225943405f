package build

import (
	"cmp"
	"net/netip"
	"slices"

	"headgate/gateway/model"
	"headgate/gateway/snapshot"
)

// inputs are the newest snapshot, indexed, and what of the last outputs it has made stale.
type inputs struct {
	last     *snapshot.Snapshot
	entries  map[snapshot.Key]*entry
	classes  classes
	services map[snapshot.Key]*snapshot.Service
	slices   map[snapshot.Key][]*snapshot.EndpointSlice // by service, sorted by key
	secrets  map[snapshot.Key]*snapshot.Secret
	answers  map[string]*snapshot.Resolution
	ill      map[model.UpstreamID][]netip.AddrPort // peers that are down, sorted

	// byHost lists the Ingresses that are served for a host, the oldest first.
	byHost map[model.HostName][]*entry
	// served is nil when an Ingress became or ceased to be ours.
	served []snapshot.Key

	// withPatterns are the entries with regexes, and standIns those of which an older version is served.
	withPatterns, standIns map[*entry]struct{}

	unsettled     map[*entry]struct{}
	dirtyHosts    map[model.HostName]struct{}
	dirtyServices map[snapshot.Key]struct{}
	dirtyNames    map[string]struct{} // external names
	dirtySecrets  map[snapshot.Key]struct{}
}

// entry is one Ingress of the snapshot.
type entry struct {
	src    *snapshot.Ingress
	parsed *ingress
	ours   bool
	// served is the version that is served: parsed, or the last good one, or nil when the Ingress is not ours.
	served *ingress
	// closed says why all paths answer 503, or is "".
	closed string
}

func newInputs() inputs {
	return inputs{
		last:          &snapshot.Snapshot{},
		entries:       map[snapshot.Key]*entry{},
		services:      map[snapshot.Key]*snapshot.Service{},
		slices:        map[snapshot.Key][]*snapshot.EndpointSlice{},
		secrets:       map[snapshot.Key]*snapshot.Secret{},
		answers:       map[string]*snapshot.Resolution{},
		ill:           map[model.UpstreamID][]netip.AddrPort{},
		byHost:        map[model.HostName][]*entry{},
		withPatterns:  map[*entry]struct{}{},
		standIns:      map[*entry]struct{}{},
		unsettled:     map[*entry]struct{}{},
		dirtyHosts:    map[model.HostName]struct{}{},
		dirtyServices: map[snapshot.Key]struct{}{},
		dirtyNames:    map[string]struct{}{},
		dirtySecrets:  map[snapshot.Key]struct{}{},
	}
}

// takeIn compares a snapshot with the last one, object by object, and marks what changed.
func (b *Builder) takeIn(s *snapshot.Snapshot) {
	in := &b.inputs
	if !slices.Equal(in.last.IngressClasses, s.IngressClasses) || in.classes.ours == nil {
		in.classes = b.readClasses(s.IngressClasses)
		for _, e := range in.entries {
			in.unsettled[e] = struct{}{}
		}
	}
	eachChange(in.last.Ingresses, s.Ingresses, keyOfIngress, b.takeIngress)
	eachChange(in.last.Services, s.Services, keyOfService, func(key snapshot.Key, _, service *snapshot.Service) {
		put(in.services, key, service)
		b.takeServicePolicy(key, service)
		in.dirtyServices[key] = struct{}{}
	})
	eachChange(in.last.EndpointSlices, s.EndpointSlices, keyOfSlice, func(_ snapshot.Key, old, slice *snapshot.EndpointSlice) {
		in.takeSlice(old, slice)
	})
	eachChange(in.last.Secrets, s.Secrets, keyOfSecret, func(key snapshot.Key, _, secret *snapshot.Secret) {
		put(in.secrets, key, secret)
		if secret == nil {
			delete(b.secrets, key)
			delete(b.memory.certificates, key)
		}
		in.dirtySecrets[key] = struct{}{}
	})
	eachChange(in.last.Resolutions, s.Resolutions, nameOfResolution, func(key snapshot.Key, _, answer *snapshot.Resolution) {
		put(in.answers, key.Name, answer)
		in.dirtyNames[key.Name] = struct{}{}
	})
	b.takeVerdicts(s.Verdicts)
	in.last = s
}

func (b *Builder) takeIngress(key snapshot.Key, old, src *snapshot.Ingress) {
	in := &b.inputs
	before := in.entries[key]
	if before != nil {
		in.forget(before)
		delete(in.entries, key)
	}
	if old != nil && (src == nil || identity(old) != identity(src)) {
		delete(b.memory.lastGood, identity(old))
	}
	if src == nil {
		b.notes.set("ingress", key.String(), nil)
		if before != nil && before.ours {
			in.served = nil
		}
		return
	}
	e := &entry{src: src, parsed: b.parse(src)}
	e.ours = before != nil && before.ours // as the list of served Ingresses has it; settle decides
	in.entries[key] = e
	in.unsettled[e] = struct{}{}
}

// forget takes an entry out of everything but the entries.
func (in *inputs) forget(e *entry) {
	in.unlink(e)
	delete(in.unsettled, e)
	delete(in.withPatterns, e)
	delete(in.standIns, e)
}

// sort puts a settled entry among those that are looked for.
func (in *inputs) sort(e *entry) {
	standIn := e.served != nil && e.served != e.parsed
	mark(in.standIns, e, standIn)
	mark(in.withPatterns, e, len(e.parsed.patterns) > 0 || (standIn && len(e.served.patterns) > 0))
}

func mark[T comparable](set map[T]struct{}, one T, in bool) { //nolint:revive // flag-parameter: in or out
	if in {
		set[one] = struct{}{}
	} else {
		delete(set, one)
	}
}

func (in *inputs) takeSlice(old, slice *snapshot.EndpointSlice) {
	if old != nil {
		list := slices.DeleteFunc(slices.Clone(in.slices[old.Service]), func(s *snapshot.EndpointSlice) bool { return s == old })
		if len(list) == 0 {
			delete(in.slices, old.Service)
		} else {
			in.slices[old.Service] = list
		}
		in.dirtyServices[old.Service] = struct{}{}
	}
	if slice != nil {
		list := in.slices[slice.Service]
		at, _ := slices.BinarySearchFunc(list, slice.Key, func(s *snapshot.EndpointSlice, k snapshot.Key) int { return s.Compare(k) })
		in.slices[slice.Service] = slices.Insert(list, at, slice)
		in.dirtyServices[slice.Service] = struct{}{}
	}
}

// settle decides for each Ingress that may have changed its mind whether it is ours and which version of
// it is served.
func (b *Builder) settle() {
	in := &b.inputs
	for e := range in.unsettled {
		in.unlink(e)
		wasOurs := e.ours
		problems := b.chooseVersion(e)
		b.notes.set("ingress", e.src.String(), problems)
		if e.ours != wasOurs {
			in.served = nil
		}
		in.link(e)
		in.sort(e)
	}
	clear(in.unsettled)
}

// chooseVersion sets ours, served and closed, and gives the problems that do not depend on a host.
func (b *Builder) chooseVersion(e *entry) []Problem {
	var problems []Problem
	e.ours, problems = b.claims(e.parsed)
	e.served, e.closed = nil, ""
	if !e.ours {
		delete(b.memory.lastGood, identity(e.src))
		return problems
	}
	problems = append(problems, e.parsed.problems...) // a copy: messages change below
	problems = append(problems, b.regexProblems(e.parsed)...)
	last := b.memory.lastGood[identity(e.src)]
	switch {
	case e.parsed.leftOut:
		delete(b.memory.lastGood, identity(e.src))
	case e.parsed.withheld != "":
		// The last good version may lack the access control: it is no substitute.
		delete(b.memory.lastGood, identity(e.src))
		e.served, e.closed = e.parsed, e.parsed.withheld
	case e.parsed.invalid == "" && b.accepted(e.parsed):
		e.served = e.parsed
		b.memory.lastGood[identity(e.src)] = e.parsed
	case last != nil:
		e.served = last
	default:
		e.served, e.closed = e.parsed, e.parsed.invalid
	}
	for i := range problems {
		problems[i].Message += e.meanwhile(problems[i].Reason)
	}
	return problems
}

// meanwhile says what is served while the version has a problem that keeps it from being served.
func (e *entry) meanwhile(r Reason) string {
	if r != InvalidAnnotation && r != InvalidRegex {
		return ""
	}
	switch {
	case e.served == nil:
		return ""
	case e.served != e.parsed:
		return "; until then the last good version of the Ingress is served"
	case e.closed != "":
		return "; until then its paths answer 503"
	}
	return "; until then the path is not served, and 503 answers where it is requested letter by letter"
}

// accepted tells whether the proxy has accepted every regex of the version.
func (b *Builder) accepted(in *ingress) bool {
	for _, pattern := range in.patterns {
		if verdict, known := b.memory.verdicts[pattern]; !known || verdict != "" {
			return false
		}
	}
	return true
}

// link puts a served Ingress into its hosts, in the order of age.
func (in *inputs) link(e *entry) {
	if e.served == nil {
		return
	}
	for i := range e.served.hosts {
		name := e.served.hosts[i].name
		list := in.byHost[name]
		at, _ := slices.BinarySearchFunc(list, e, compareAge)
		in.byHost[name] = slices.Insert(list, at, e)
		in.dirtyHosts[name] = struct{}{}
	}
}

func (in *inputs) unlink(e *entry) {
	if e.served == nil {
		return
	}
	for i := range e.served.hosts {
		name := e.served.hosts[i].name
		list := slices.DeleteFunc(in.byHost[name], func(other *entry) bool { return other == e })
		if len(list) == 0 {
			delete(in.byHost, name)
		} else {
			in.byHost[name] = list
		}
		in.dirtyHosts[name] = struct{}{}
	}
}

// compareAge orders Ingresses that claim the same thing: the oldest first; of the same age the greater
// key first, as ingress-nginx does.
func compareAge(a, b *entry) int { return compareSources(a.src, b.src) }

func compareSources(a, b *snapshot.Ingress) int {
	return cmp.Or(a.Created.Compare(b.Created), b.Compare(a.Key))
}

// eachChange calls back for every key whose object is not the same pointer in both lists. Lists of a
// Snapshot are sorted and hold a key once; one that is not is sorted here, in a copy.
func eachChange[T any](old, next []*T, key func(*T) snapshot.Key, change func(key snapshot.Key, old, next *T)) {
	old, next = withoutEqualEnds(old, next)
	old, next = sortedBy(old, key), sortedBy(next, key)
	for len(old) > 0 || len(next) > 0 {
		switch order := compareHeads(old, next, key); {
		case order < 0:
			change(key(old[0]), old[0], nil)
			old = old[1:]
		case order > 0:
			change(key(next[0]), nil, next[0])
			next = next[1:]
		default:
			if old[0] != next[0] {
				change(key(next[0]), old[0], next[0])
			}
			old, next = old[1:], next[1:]
		}
	}
}

// withoutEqualEnds cuts off what both lists begin and end with: of 10,000 objects, few change at a time, and to compare
// a pointer takes a tenth of comparing a key.
func withoutEqualEnds[T any](old, next []*T) (oldRest, nextRest []*T) {
	if len(old) == len(next) && (len(old) == 0 || &old[0] == &next[0]) {
		return nil, nil
	}
	for len(old) > 0 && len(next) > 0 && old[0] == next[0] {
		old, next = old[1:], next[1:]
	}
	for len(old) > 0 && len(next) > 0 && old[len(old)-1] == next[len(next)-1] {
		old, next = old[:len(old)-1], next[:len(next)-1]
	}
	return old, next
}

func compareHeads[T any](old, next []*T, key func(*T) snapshot.Key) int {
	switch {
	case len(old) == 0:
		return 1
	case len(next) == 0:
		return -1
	case old[0] == next[0]:
		return 0
	}
	return key(old[0]).Compare(key(next[0]))
}

func sortedBy[T any](list []*T, key func(*T) snapshot.Key) []*T {
	compare := func(a, b *T) int { return key(a).Compare(key(b)) }
	if !slices.IsSortedFunc(list, compare) {
		list = slices.Clone(list)
		slices.SortStableFunc(list, compare)
	}
	return list
}

func put[K comparable, T any](m map[K]*T, key K, value *T) {
	if value == nil {
		delete(m, key)
		return
	}
	m[key] = value
}

func keyOfIngress(o *snapshot.Ingress) snapshot.Key        { return o.Key }
func keyOfService(o *snapshot.Service) snapshot.Key        { return o.Key }
func keyOfSlice(o *snapshot.EndpointSlice) snapshot.Key    { return o.Key }
func keyOfSecret(o *snapshot.Secret) snapshot.Key          { return o.Key }
func nameOfResolution(o *snapshot.Resolution) snapshot.Key { return snapshot.Key{Name: o.Name} }
