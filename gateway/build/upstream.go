package build

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"headgate/gateway/annotations"
	"headgate/gateway/model"
	"headgate/gateway/reach"
	"headgate/gateway/snapshot"
)

// upstreamRef names a port of a service and, where an Ingress wants it balanced in another way, that way.
type upstreamRef struct {
	service snapshot.Key
	port    uint16
	policy  string // see policyName
}

func (r upstreamRef) id() model.UpstreamID {
	id := fmt.Sprintf("%s/%d", r.service, r.port)
	if r.policy != "" {
		id += "#" + r.policy
	}
	return model.UpstreamID(id)
}

func compareUpstreamRefs(a, b upstreamRef) int {
	return cmp.Or(a.service.Compare(b.service), cmp.Compare(a.port, b.port), cmp.Compare(a.policy, b.policy))
}

// upstreamOutput is one upstream of the model, and what it was made from.
type upstreamOutput struct {
	ref      upstreamRef
	over     *annotations.Balancing // what the Ingresses say, where ref.policy is set
	users    int                    // hosts that send requests to it
	upstream *model.Upstream
	external string // name to be resolved, or ""
}

// buildUpstreams makes the upstreams anew that changed inputs reach, and drops those that no host uses.
func (b *Builder) buildUpstreams() {
	for key := range b.inputs.dirtyServices {
		b.upstreamsOfService.each(key, func(id model.UpstreamID) { b.dirtyUpstreams[id] = struct{}{} })
	}
	for name := range b.inputs.dirtyNames {
		b.upstreamsOfName.each(name, func(id model.UpstreamID) { b.dirtyUpstreams[id] = struct{}{} })
	}
	for id := range b.dirtyUpstreams {
		out := b.upstreams[id]
		if out.external != "" {
			b.upstreamsOfName.remove(out.external, id)
		}
		if out.users == 0 {
			delete(b.upstreams, id)
			b.upstreamsOfService.remove(out.ref.service, id)
			b.notes.set("upstream", string(id), nil)
			b.changedUpstreams[id] = nil
			continue
		}
		b.buildUpstream(id, out)
	}
	clear(b.dirtyUpstreams)
	clear(b.inputs.dirtyServices)
	clear(b.inputs.dirtyNames)
}

func (b *Builder) buildUpstream(id model.UpstreamID, out *upstreamOutput) {
	u := &upstreamBuild{Builder: b, service: b.inputs.services[out.ref.service], ref: out.ref}
	u.policy = b.policyOf(u.service, out.over)
	u.build()
	next := u.policy.upstream
	next.ID, next.Peers = id, u.sortedPeers()
	u.setDown(&next)
	if out.upstream == nil || !reflect.DeepEqual(out.upstream, &next) {
		out.upstream = &next
		b.changedUpstreams[id] = &next
	}
	out.external = u.external
	if out.external != "" {
		b.upstreamsOfName.add(out.external, id)
	}
	b.notes.set("upstream", string(id), u.problems)
}

// upstreamBuild is the work on one upstream.
type upstreamBuild struct {
	*Builder
	service  *snapshot.Service // nil while a host still refers to it that is about to change
	ref      upstreamRef
	policy   policy
	peers    map[netip.AddrPort]bool // true: draining
	external string
	problems []Problem
}

func (u *upstreamBuild) build() {
	u.peers = map[netip.AddrPort]bool{}
	switch {
	case u.service == nil:
	case u.service.Type == snapshot.ServiceExternalName:
		u.fromExternalName()
	case u.policy.service && u.fromService():
	default:
		u.fromSlices()
	}
}

// fromService takes the address of the Service itself for the only peer. It gives false for a headless Service,
// whose endpoints are used then, as in ingress-nginx.
func (u *upstreamBuild) fromService() bool {
	if len(u.service.ClusterIPs) == 0 {
		u.problems = append(u.problems, Problem{
			Object: objectOf("Service", &u.service.Meta), Field: "spec.clusterIP", Reason: UnusedAnnotation, Warning: true,
			Message: "service-upstream asks for the address of the Service, and it has none; its endpoints are used; " +
				"take service-upstream back, or give the Service an address",
		})
		return false
	}
	refused := refusals{}
	address := u.service.ClusterIPs[0] // the others are the same Service in another family (KEP-563)
	if why := u.refuse.Refuse(address); why != reach.Allowed {
		refused[address] = why
		u.problems = append(u.problems, Problem{
			Object: objectOf("Service", &u.service.Meta), Field: "spec.clusterIP", Reason: AddressRefused, Message: refused.message(),
		})
		return true
	}
	u.addPeer(netip.AddrPortFrom(address.Unmap(), u.ref.port), false)
	return true
}

// fromSlices merges all slices of the service; the port is found by its name (KEP-752).
func (u *upstreamBuild) fromSlices() {
	port := servicePort(u.service, u.ref.port)
	if port == nil {
		return
	}
	for _, slice := range u.inputs.slices[u.ref.service] {
		number, ok := slicePort(slice, port)
		if !ok {
			continue
		}
		refused := refusals{}
		for i := range slice.Endpoints {
			u.addEndpoint(&slice.Endpoints[i], number, refused)
		}
		if message := refused.message(); message != "" {
			u.problems = append(u.problems, Problem{
				Object: objectOf("EndpointSlice", &slice.Meta), Field: "endpoints", Reason: AddressRefused, Message: message,
			})
		}
	}
}

// addEndpoint takes ready endpoints, and those that still serve while they end.
func (u *upstreamBuild) addEndpoint(e *snapshot.Endpoint, port uint16, refused refusals) {
	draining := !e.Ready && e.Serving && e.Terminating
	if !e.Ready && !draining {
		return
	}
	for _, a := range e.Addresses {
		if why := u.refuse.Refuse(a); why != reach.Allowed {
			refused[a] = why
			continue
		}
		u.addPeer(netip.AddrPortFrom(a.Unmap(), port), draining)
	}
}

// addPeer counts an address once; it drains only if every mention of it does.
func (u *upstreamBuild) addPeer(address netip.AddrPort, draining bool) {
	if was, known := u.peers[address]; known {
		draining = draining && was
	}
	u.peers[address] = draining
}

func (u *upstreamBuild) fromExternalName() {
	port := u.ref.port
	if p := servicePort(u.service, port); p != nil && p.TargetNumber != 0 {
		port = p.TargetNumber
	}
	name := strings.TrimSuffix(u.service.ExternalName, ".")
	if a, err := netip.ParseAddr(name); err == nil {
		u.addExternal([]netip.Addr{a}, port)
		return
	}
	host, err := model.ParseHostName(name)
	if err == nil && (host == model.AnyHost || host.Wildcard()) {
		err = fmt.Errorf("%w: %q names no single host; write a DNS name", model.ErrHostName, name)
	}
	if err != nil {
		u.noteService(InvalidExternalName, err.Error()+"; its paths answer 503")
		return
	}
	u.external = string(host)
	answer := u.inputs.answers[u.external]
	if answer == nil {
		return // not asked yet: the name stands in Result.ExternalNames
	}
	if answer.Err != "" {
		message := fmt.Sprintf("%q does not resolve: %s; its paths answer 503; write a name that the DNS servers (dns.servers) resolve: /etc/hosts is not read",
			u.external, answer.Err)
		if len(answer.Addresses) > 0 {
			message = fmt.Sprintf("%q does not resolve any more: %s; the last good addresses stay in use", u.external, answer.Err)
		}
		u.noteService(UnresolvedExternalName, message)
		u.problems[len(u.problems)-1].Warning = len(answer.Addresses) > 0
	}
	u.addExternal(answer.Addresses, port)
}

func (u *upstreamBuild) addExternal(addresses []netip.Addr, port uint16) {
	refused := refusals{}
	for _, a := range addresses {
		if why := u.refuse.Refuse(a); why != reach.Allowed {
			refused[a] = why
			continue
		}
		u.addPeer(netip.AddrPortFrom(a.Unmap(), port), false)
	}
	if message := refused.message(); message != "" {
		u.noteService(AddressRefused, message)
	}
}

func (u *upstreamBuild) noteService(reason Reason, message string) {
	u.problems = append(u.problems, Problem{
		Object: objectOf("Service", &u.service.Meta), Field: "spec.externalName", Reason: reason, Message: message,
	})
}

func (u *upstreamBuild) sortedPeers() []model.Peer {
	peers := make([]model.Peer, 0, len(u.peers))
	for address, draining := range u.peers {
		peers = append(peers, model.Peer{Address: address, Weight: 1, Draining: draining})
	}
	slices.SortFunc(peers, func(a, b model.Peer) int { return a.Address.Compare(b.Address) })
	return peers
}

// findPort gives the port number of a service that a backend means, or says what to write instead.
func findPort(service *snapshot.Service, b backend) (uint16, string) {
	for i := range service.Ports {
		p := &service.Ports[i]
		if p.Protocol == "TCP" && p.Number != 0 && (p.Number == b.portNumber || (b.portName != "" && p.Name == b.portName)) {
			return p.Number, ""
		}
	}
	// A Service of type ExternalName needs no ports: the number is the port of the named host.
	if service.Type == snapshot.ServiceExternalName && b.portNumber != 0 {
		return b.portNumber, ""
	}
	return 0, fmt.Sprintf("Service %s has no TCP port %s; %s", service.Key, b.port(), portsToWrite(service))
}

func portsToWrite(service *snapshot.Service) string {
	var ports []string
	for _, p := range service.Ports {
		switch {
		case p.Protocol != "TCP":
		case p.Name == "":
			ports = append(ports, fmt.Sprint(p.Number))
		default:
			ports = append(ports, fmt.Sprintf("%s (%d)", p.Name, p.Number))
		}
	}
	if len(ports) == 0 {
		return "it has no TCP port at all: add one to its spec.ports"
	}
	return "write one of " + strings.Join(ports, ", ")
}

func servicePort(service *snapshot.Service, number uint16) *snapshot.ServicePort {
	for i := range service.Ports {
		if p := &service.Ports[i]; p.Protocol == "TCP" && p.Number == number {
			return p
		}
	}
	return nil
}

// slicePort finds the port of a slice that belongs to a service port. A slice port without a number
// means that the slice does not say, so the service does.
func slicePort(slice *snapshot.EndpointSlice, port *snapshot.ServicePort) (uint16, bool) {
	for _, p := range slice.Ports {
		if p.Name == port.Name && p.Protocol == "TCP" {
			return cmp.Or(p.Number, port.TargetNumber, port.Number), true
		}
	}
	return 0, false
}

// refusals collects addresses that the deny-list refuses.
type refusals map[netip.Addr]reach.Reason

func (r refusals) message() string {
	const most = 3
	var shown []string
	for _, a := range slices.SortedFunc(maps.Keys(r), netip.Addr.Compare) {
		if len(shown) == most {
			shown = append(shown, fmt.Sprintf("and %d more", len(r)-most))
			break
		}
		shown = append(shown, fmt.Sprintf("%s (%s)", a, r[a]))
	}
	if len(shown) == 0 {
		return ""
	}
	return fmt.Sprintf("no requests are sent to %s; write addresses of pods, or have the administrator allow them with upstreams.allow",
		strings.Join(shown, ", "))
}
