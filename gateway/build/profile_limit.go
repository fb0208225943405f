package build

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"headgate/gateway/model"
	"headgate/gateway/snapshot"
)

// maxProfiles is how many profiles the Ingresses of one namespace may ask for. Each costs every reload about 2 ms and 100 KiB:
// without a limit, one namespace of a thousand values that are all valid would let no reload of anybody's come to an end.
const maxProfiles = 500

// wanted is a profile that an Ingress asks for.
type wanted struct {
	profile model.Profile
	by      *snapshot.Ingress // the oldest of the host that does
}

// wish names a profile of a namespace.
type wish struct {
	namespace string
	profile   model.Profile
}

// profileWishes counts the hosts that ask for each profile of a namespace, and holds the ones that it does not get.
type profileWishes struct {
	hosts   map[string]map[model.Profile]int
	denied  map[wish]struct{}
	over    map[string]struct{} // namespaces that do not get all
	changed map[string]struct{} // namespaces of which a host was made anew
}

func newProfileWishes() profileWishes {
	return profileWishes{
		hosts: map[string]map[model.Profile]int{}, denied: map[wish]struct{}{}, over: map[string]struct{}{}, changed: map[string]struct{}{},
	}
}

func (p *profileWishes) use(all []wanted) {
	for _, w := range all {
		p.changed[w.by.Namespace] = struct{}{}
		if p.hosts[w.by.Namespace] == nil {
			p.hosts[w.by.Namespace] = map[model.Profile]int{}
		}
		p.hosts[w.by.Namespace][w.profile]++
	}
}

func (p *profileWishes) unuse(all []wanted) {
	for _, w := range all {
		p.changed[w.by.Namespace] = struct{}{}
		of := p.hosts[w.by.Namespace]
		if of[w.profile]--; of[w.profile] == 0 {
			delete(of, w.profile)
		}
		if len(of) == 0 {
			delete(p.hosts, w.by.Namespace)
		}
	}
}

// wish notes that a route asks for a profile, and tells why it does not get it, or "". The caps of bodies alone are few, and
// free.
func (h *hostBuild) wish(c *claim, p model.Profile) string {
	usual := p
	usual.BodyClass = h.profile.BodyClass
	if usual == h.profile {
		return ""
	}
	namespace := c.in.src.Namespace
	key := wish{namespace, p}
	at, known := h.wantedAt[key]
	switch {
	case !known:
		if h.wantedAt == nil {
			h.wantedAt = map[wish]int{}
		}
		h.wantedAt[key] = len(h.wanted)
		h.wanted = append(h.wanted, wanted{p, c.in.src})
	case compareSources(c.in.src, h.wanted[at].by) < 0:
		h.wanted[at].by = c.in.src
	}
	if _, denied := h.wishes.denied[key]; !denied {
		return ""
	}
	h.problems = append(h.problems, c.in.problem(c.path.field(), TooManySettings, fmt.Sprintf(
		"the annotations of namespace %s ask nginx for more than %d different combinations of protocol, TLS, buffers and retries: those of the "+
			"oldest Ingresses are served, and this path answers 503; write the values that other Ingresses of the namespace have",
		namespace, h.mostProfiles)))
	return "its namespace asks for too many different settings"
}

// limitProfiles decides who gets what, and makes hosts anew for which that has changed.
func (b *Builder) limitProfiles() {
	for namespace := range b.wishes.changed {
		_, over := b.wishes.over[namespace]
		switch {
		case len(b.wishes.hosts[namespace]) > b.mostProfiles:
			b.deny(namespace, b.oldestWishes(namespace)[b.mostProfiles:])
		case over:
			b.deny(namespace, nil)
		}
	}
	b.buildHosts() // what they ask for is the same as before
	clear(b.wishes.changed)
}

// oldestWishes lists the profiles of a namespace, those of the oldest Ingresses first.
func (b *Builder) oldestWishes(namespace string) []model.Profile {
	oldest := map[model.Profile]*snapshot.Ingress{}
	for _, out := range b.hosts {
		for _, w := range out.wanted {
			if w.by.Namespace != namespace {
				continue
			}
			if before := oldest[w.profile]; before == nil || compareSources(w.by, before) < 0 {
				oldest[w.profile] = w.by
			}
		}
	}
	list := slices.Collect(maps.Keys(oldest))
	slices.SortFunc(list, func(x, y model.Profile) int {
		if order := compareSources(oldest[x], oldest[y]); order != 0 {
			return order
		}
		return cmp.Compare(x.Name(), y.Name()) // of one Ingress: the names of its Services make TLS identities differ
	})
	return list
}

// deny makes list the profiles that a namespace does not get.
func (b *Builder) deny(namespace string, list []model.Profile) {
	changed := map[model.Profile]struct{}{}
	next := map[wish]struct{}{}
	for _, p := range list {
		key := wish{namespace, p}
		next[key] = struct{}{}
		if _, already := b.wishes.denied[key]; !already {
			changed[p] = struct{}{}
		}
	}
	for key := range b.wishes.denied {
		if _, stays := next[key]; key.namespace == namespace && !stays {
			changed[key.profile] = struct{}{}
			delete(b.wishes.denied, key)
		}
	}
	maps.Copy(b.wishes.denied, next)
	mark(b.wishes.over, namespace, len(list) > 0)
	if len(changed) == 0 {
		return
	}
	for name, out := range b.hosts {
		if slices.ContainsFunc(out.wanted, func(w wanted) bool {
			_, is := changed[w.profile]
			return is && w.by.Namespace == namespace
		}) {
			b.inputs.dirtyHosts[name] = struct{}{}
		}
	}
}
