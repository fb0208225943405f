package luastate

import (
	"slices"
	"strings"
	"time"

	"headgate/gateway/model"
)

// The timeouts and tries that nginx.conf and the balancer use where a route names no others.
const (
	defaultConnect = 5 * time.Second
	defaultSend    = 60 * time.Second
	defaultRead    = 60 * time.Second
	defaultTries   = 3
)

// hostBody writes what the router needs of one host:
//
//	{"name", "exact": {path: n}, "prefix": {path: n}, "lengths": [longest prefix first],
//	 "regex": [[pattern, n]], "routes": [route]}
//
// n counts routes from 1, as Lua does. Prefixes stand without their trailing slash, so that "/" is "".
func hostBody(h *model.Host, names *profileNames) []byte {
	exact, prefix := map[string]int{}, map[string]int{}
	var regexes []int
	for i, r := range h.Routes {
		switch r.Match.Path.Type {
		case model.PathExact:
			addFirst(exact, r.Match.Path.Value, i+1)
		case model.PathPrefix:
			addFirst(prefix, strings.TrimRight(r.Match.Path.Value, "/"), i+1)
		case model.PathRegex:
			regexes = append(regexes, i+1)
		}
	}
	var j jsonWriter
	j.object(func() {
		j.field("name").text(string(h.Name))
		j.paths("exact", exact)
		j.paths("prefix", prefix)
		if len(prefix) > 0 {
			j.field("lengths").numbers(lengths(prefix))
		}
		if len(regexes) > 0 {
			j.field("regex").array(len(regexes), func(i int) {
				j.array(2, func(k int) {
					if k == 0 {
						j.text(h.Routes[regexes[i]-1].Match.Path.Value)
					} else {
						j.number(int64(regexes[i]))
					}
				})
			})
		}
		j.field("routes").array(len(h.Routes), func(i int) { encodeRoute(&j, h.Routes[i], names) })
	})
	return j.buf
}

// addFirst keeps the first definition: routes stand in matching order.
func addFirst(m map[string]int, path string, n int) {
	if _, ok := m[path]; !ok {
		m[path] = n
	}
}

// lengths lists the distinct lengths of the prefixes, longest first: the router looks a path up
// once for each length at which an element of it ends.
func lengths(prefix map[string]int) []int64 {
	var all []int64
	for p := range prefix {
		all = append(all, int64(len(p)))
	}
	slices.SortFunc(all, func(a, b int64) int { return int(b - a) })
	return slices.Compact(all)
}

// encodeRoute leaves out what is the default:
//
//	{"backends": [id], "weights": [w], "unavailable": true, "redirect": {"status", "keepSlash"},
//	 "rewrite": [literal or group number], "policy": "connect,send,read,tries,total" (ms; total 0: no bound),
//	 "maxBody": bytes, "profile": name, "pool": name, "cookiePath": path, "peerHost": host,
//	 "noLog": true, "source": [kind, namespace, name, service, port]}
func encodeRoute(j *jsonWriter, r *model.Route, names *profileNames) {
	j.object(func() {
		encodeBackends(j, r)
		for _, f := range r.Filters {
			encodeFilter(j, f)
		}
		if p := policy(r); p != "" {
			j.field("policy").text(p)
		}
		named := r.Profile != names.inlined
		if named {
			j.field("profile").text(names.of(r.Profile))
		}
		j.nonEmpty("pool", r.Profile.Pool())
		// nginx itself enforces the cap of the inlined profile, for every kind of body.
		if r.MaxBodyBytes > 0 && (named || r.MaxBodyBytes != names.inlined.BodyClass.Bytes()) {
			j.field("maxBody").number(r.MaxBodyBytes)
		}
		if r.CookiePath != "/" {
			j.nonEmpty("cookiePath", r.CookiePath)
		}
		j.nonEmpty("peerHost", r.PeerHost)
		if r.NoAccessLog {
			j.yes("noLog")
		}
		s := r.Source
		source := []string{s.Kind, s.Namespace, s.Name, s.Service, s.Port}
		j.field("source").array(len(source), func(i int) { j.text(source[i]) })
	})
}

// profileNames remembers the names of profiles, of which there are few: each is a hash.
type profileNames struct {
	inlined model.Profile // has no name
	names   map[model.Profile]string
}

func newProfileNames(inlined model.Profile) *profileNames {
	return &profileNames{inlined: inlined, names: map[model.Profile]string{}}
}

func (n *profileNames) of(p model.Profile) string {
	name, known := n.names[p]
	if !known {
		name = p.Name()
		n.names[p] = name
	}
	return name
}

func encodeBackends(j *jsonWriter, r *model.Route) {
	var used []model.Backend
	equal := true
	for _, b := range r.Backends {
		if b.Weight > 0 {
			used = append(used, b)
			equal = equal && b.Weight == used[0].Weight
		}
	}
	if r.Unavailable != "" || len(used) == 0 {
		j.field("unavailable").bool(true)
		return
	}
	j.field("backends").array(len(used), func(i int) { j.text(string(used[i].Upstream)) })
	if !equal {
		j.field("weights").array(len(used), func(i int) { j.number(int64(used[i].Weight)) })
	}
}

func encodeFilter(j *jsonWriter, f model.Filter) {
	switch f := f.(type) {
	case model.RedirectHTTPS:
		j.field("redirect").object(func() {
			j.field("status").number(int64(f.Status))
			if f.KeepTrailingSlash {
				j.field("keepSlash").bool(true)
			}
		})
	case model.RewritePath:
		j.field("rewrite").array(len(f.Parts), func(i int) {
			if f.Parts[i].Group > 0 {
				j.number(int64(f.Parts[i].Group))
			} else {
				j.text(f.Parts[i].Literal)
			}
		})
	}
}

// policy is what the balancer is told of a route, "" for the defaults. It is one string because it
// is handed over in one variable of nginx.
func policy(r *model.Route) string {
	milliseconds := func(d, unset time.Duration) int64 {
		if d <= 0 {
			d = unset
		}
		return max(1, d.Milliseconds())
	}
	tries := int64(r.Retry.Tries)
	if tries <= 0 {
		tries = defaultTries
	}
	connect := milliseconds(r.Timeouts.Connect, defaultConnect)
	send := milliseconds(r.Timeouts.Send, defaultSend)
	read := milliseconds(r.Timeouts.Read, defaultRead)
	if connect == defaultConnect.Milliseconds() && send == defaultSend.Milliseconds() &&
		read == defaultRead.Milliseconds() && tries == defaultTries && r.Retry.Total <= 0 {
		return ""
	}
	total := int64(0)
	if r.Retry.Total > 0 {
		total = milliseconds(r.Retry.Total, 0)
	}
	var j jsonWriter
	j.numbers([]int64{connect, send, read, tries, total})
	return string(j.buf[1 : len(j.buf)-1])
}
