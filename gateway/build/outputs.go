package build

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"headgate/gateway/annotations"
	"headgate/gateway/model"
	"headgate/gateway/snapshot"
)

// outputs are the parts of the last model, and the way back from an input to the parts it reaches.
type outputs struct {
	notes notes

	hosts          map[model.HostName]*hostOutput
	hostList       []*model.Host
	changedHosts   map[model.HostName]*model.Host // nil: gone
	hostsOfService index[snapshot.Key, model.HostName]
	hostsOfSecret  index[snapshot.Key, model.HostName]

	upstreams          map[model.UpstreamID]*upstreamOutput
	upstreamList       []*model.Upstream
	dirtyUpstreams     map[model.UpstreamID]struct{}
	changedUpstreams   map[model.UpstreamID]*model.Upstream // nil: gone
	upstreamsOfService index[snapshot.Key, model.UpstreamID]
	upstreamsOfName    index[string, model.UpstreamID]

	servicePolicies map[snapshot.Key]*annotations.Balancing // of Services that have annotations
	peerSecrets     map[snapshot.Key]*peerState
	peerSecretUsers map[snapshot.Key]int // hosts
	identities      catalogue[model.IdentityID, model.Identity]
	fastcgis        catalogue[model.FastCGIID, model.FastCGI]
	profiles        profileCounts
	wishes          profileWishes

	secrets             map[snapshot.Key]*secretState
	certificateUsers    map[snapshot.Key]int // hosts, and the setting of the default certificate
	kept                map[snapshot.Key]*model.Certificate
	certificates        []*model.Certificate
	certificatesChanged bool
	hasDefault          bool // the default certificate is counted among the users
	// Between these moments no certificate enters or leaves its time.
	checkedFrom, checkedUntil time.Time

	settings model.Settings
}

func newOutputs() outputs {
	return outputs{
		notes:               newNotes(),
		hosts:               map[model.HostName]*hostOutput{},
		changedHosts:        map[model.HostName]*model.Host{},
		hostsOfService:      index[snapshot.Key, model.HostName]{},
		hostsOfSecret:       index[snapshot.Key, model.HostName]{},
		upstreams:           map[model.UpstreamID]*upstreamOutput{},
		dirtyUpstreams:      map[model.UpstreamID]struct{}{},
		changedUpstreams:    map[model.UpstreamID]*model.Upstream{},
		upstreamsOfService:  index[snapshot.Key, model.UpstreamID]{},
		upstreamsOfName:     index[string, model.UpstreamID]{},
		servicePolicies:     map[snapshot.Key]*annotations.Balancing{},
		peerSecrets:         map[snapshot.Key]*peerState{},
		peerSecretUsers:     map[snapshot.Key]int{},
		identities:          newCatalogue[model.IdentityID, model.Identity](),
		fastcgis:            newCatalogue[model.FastCGIID, model.FastCGI](),
		profiles:            newProfileCounts(),
		wishes:              newProfileWishes(),
		secrets:             map[snapshot.Key]*secretState{},
		certificateUsers:    map[snapshot.Key]int{},
		kept:                map[snapshot.Key]*model.Certificate{},
		certificatesChanged: true,
	}
}

// result assembles the parts.
func (b *Builder) result(s *snapshot.Snapshot) *Result {
	b.notes.set("faults", "", faultProblems(s.Faults))
	b.hostList = merge(b.hostList, b.changedHosts, func(h *model.Host) model.HostName { return h.Name })
	b.upstreamList = merge(b.upstreamList, b.changedUpstreams, func(u *model.Upstream) model.UpstreamID { return u.ID })
	clear(b.changedHosts)
	clear(b.changedUpstreams)
	return &Result{
		Model: &model.Model{
			Settings:     b.settings,
			Listeners:    b.options.Listeners,
			Hosts:        b.hostList,
			Upstreams:    b.upstreamList,
			Certificates: b.certificates,
			Identities:   b.identities.sorted(),
			FastCGI:      b.fastcgis.sorted(),
			Profiles:     b.profiles.sorted(),
		},
		Problems:       b.notes.list(),
		Served:         b.servedKeys(s),
		ExternalNames:  slices.Sorted(maps.Keys(b.upstreamsOfName)),
		Checks:         checksOf(b.upstreamList),
		PeerSecrets:    slices.SortedFunc(maps.Keys(b.peerSecretUsers), snapshot.Key.Compare),
		UnknownRegexes: b.unknownRegexes(),
	}
}

func (b *Builder) servedKeys(s *snapshot.Snapshot) []snapshot.Key {
	if b.inputs.served == nil {
		keys := []snapshot.Key{}
		for _, src := range sortedBy(s.Ingresses, keyOfIngress) {
			if b.inputs.entries[src.Key].ours {
				keys = append(keys, src.Key)
			}
		}
		b.inputs.served = keys
	}
	return b.inputs.served
}

// use notes what a host was made from.
func (b *Builder) use(name model.HostName, out *hostOutput) {
	for _, key := range out.services {
		b.hostsOfService.add(key, name)
	}
	for _, key := range out.secrets {
		b.hostsOfSecret.add(key, name)
	}
	for _, ref := range out.upstreams {
		id := ref.id()
		up := b.upstreams[id]
		if up == nil {
			up = &upstreamOutput{ref: ref, over: out.overlays[ref.policy]}
			b.upstreams[id] = up
			b.upstreamsOfService.add(ref.service, id)
			b.dirtyUpstreams[id] = struct{}{}
		}
		up.users++
	}
	for _, key := range out.peerSecrets {
		b.peerSecretUsers[key]++
	}
	b.identities.use(out.identities)
	b.fastcgis.use(out.fastcgis)
	b.profiles.use(out.profiles)
	b.wishes.use(out.wanted)
	if id := out.host.Certificate; id != "" {
		b.useCertificate(keyOfCertificate(id), 1)
	}
}

// unuse takes back what use noted for a host; next is what has been noted in its place, or nil.
func (b *Builder) unuse(name model.HostName, out, next *hostOutput) {
	if next == nil {
		next = &hostOutput{}
	}
	for _, key := range out.services {
		if _, stays := slices.BinarySearchFunc(next.services, key, snapshot.Key.Compare); !stays {
			b.hostsOfService.remove(key, name)
		}
	}
	for _, key := range out.secrets {
		if _, stays := slices.BinarySearchFunc(next.secrets, key, snapshot.Key.Compare); !stays {
			b.hostsOfSecret.remove(key, name)
		}
	}
	for _, ref := range out.upstreams {
		up := b.upstreams[ref.id()]
		up.users--
		if up.users == 0 {
			b.dirtyUpstreams[ref.id()] = struct{}{}
		}
	}
	for _, key := range out.peerSecrets {
		b.peerSecretUsers[key]--
		if b.peerSecretUsers[key] == 0 {
			delete(b.peerSecretUsers, key)
		}
	}
	b.identities.unuse(out.identities)
	b.fastcgis.unuse(out.fastcgis)
	b.profiles.unuse(out.profiles)
	b.wishes.unuse(out.wanted)
	if id := out.host.Certificate; id != "" {
		b.useCertificate(keyOfCertificate(id), -1)
	}
}

func (b *Builder) useCertificate(key snapshot.Key, change int) {
	before := b.certificateUsers[key]
	after := before + change
	if after == 0 {
		delete(b.certificateUsers, key)
		delete(b.kept, key)
	} else {
		b.certificateUsers[key] = after
	}
	if (before == 0) != (after == 0) {
		b.certificatesChanged = true
	}
}

func keyOfCertificate(id model.CertificateID) snapshot.Key {
	namespace, name, found := strings.Cut(string(id), "/")
	if !found {
		namespace, name = "", string(id) // no API server gives a Secret without a namespace, but it is no reason to die
	}
	return snapshot.Key{Namespace: namespace, Name: name}
}

// index leads from an input to the outputs that were made from it. Nearly all lead to one output, so a
// short sorted slice is a quarter of what a set would take.
type index[From comparable, To cmp.Ordered] map[From][]To

func (x index[From, To]) add(from From, to To) {
	list := x[from]
	if at, known := slices.BinarySearch(list, to); !known {
		x[from] = slices.Insert(list, at, to)
	}
}

func (x index[From, To]) remove(from From, to To) {
	list := x[from]
	at, known := slices.BinarySearch(list, to)
	switch {
	case !known:
	case len(list) == 1:
		delete(x, from)
	default:
		x[from] = slices.Delete(list, at, at+1)
	}
}

func (x index[From, To]) each(from From, visit func(To)) {
	for _, to := range x[from] {
		visit(to)
	}
}

// merge gives the sorted list with changes applied: nil takes a value out. The list itself, which an
// earlier model may hold, stays as it is.
func merge[K cmp.Ordered, T any](list []*T, changes map[K]*T, key func(*T) K) []*T {
	if len(changes) == 0 {
		return list
	}
	out := make([]*T, 0, len(list)+len(changes))
	for _, k := range slices.Sorted(maps.Keys(changes)) {
		at, found := slices.BinarySearchFunc(list, k, func(v *T, k K) int { return cmp.Compare(key(v), k) })
		out = append(out, list[:at]...)
		list = list[at:]
		if found {
			list = list[1:]
		}
		if v := changes[k]; v != nil {
			out = append(out, v)
		}
	}
	return append(out, list...)
}
