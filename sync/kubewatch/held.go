package kubewatch

import (
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"headgate/gateway/snapshot"
)

// The kinds that are read.
const (
	ingressKind = "Ingress"
	classKind   = "IngressClass"
	serviceKind = "Service"
	sliceKind   = "EndpointSlice"
	secretKind  = "Secret"
	// namedKind are Secrets that are read by their names: beside the others, so that what one watch tells of a name says nothing
	// about what the other knows of it.
	namedKind = "Secret by name"
)

// identity names an object over all kinds.
type identity struct {
	kind string
	key  snapshot.Key
}

// held is what stands in an informer's store instead of the object: its trimmed copy, and no second one. (The whole
// objects of 10,000 Ingresses and 100,000 endpoints take twice the memory.)
type held struct {
	id      identity
	uid     types.UID
	version string // resourceVersion
	value   any    // pointer to a snapshot type, or nil
	fault   *snapshot.Fault
}

// GetObjectMeta implements metav1.ObjectMetaAccessor: the informer takes its key and resourceVersion from here.
func (h *held) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: h.id.key.Namespace, Name: h.id.key.Name, UID: h.uid, ResourceVersion: h.version}
}

// memo converts objects, and gives the same copy again for the same version of the same object: a relist, a reconnect or a
// new kubeconfig must not make everything look changed.
type memo struct {
	mu    sync.Mutex // guards known
	known map[identity]*held
}

func newMemo() *memo { return &memo{known: map[identity]*held{}} }

// transform is a cache.TransformFunc. What is none of our kinds, or was converted before, passes.
func (m *memo) transform(in any) (any, error) {
	switch o := in.(type) {
	case *networkingv1.Ingress:
		return m.hold(ingressKind, &o.ObjectMeta, func(*held) any { return snapshot.FromIngress(o) }), nil
	case *networkingv1.IngressClass:
		return m.hold(classKind, &o.ObjectMeta, func(*held) any { return snapshot.FromIngressClass(o) }), nil
	case *corev1.Service:
		return m.hold(serviceKind, &o.ObjectMeta, func(*held) any { return snapshot.FromService(o) }), nil
	case *corev1.Secret:
		return m.hold(secretKind, &o.ObjectMeta, func(*held) any { return snapshot.FromSecret(o) }), nil
	case *discoveryv1.EndpointSlice:
		return m.hold(sliceKind, &o.ObjectMeta, func(h *held) any { return fromSlice(h, o) }), nil
	}
	return in, nil
}

// transformNamed is a cache.TransformFunc for Secrets that are read by their names.
func (m *memo) transformNamed(in any) (any, error) {
	o, ok := in.(*corev1.Secret)
	if !ok {
		return in, nil
	}
	return m.hold(namedKind, &o.ObjectMeta, func(*held) any {
		out := snapshot.FromSecret(o)
		out.Data = snapshot.SecretData{}
		for _, key := range peerKeys() {
			if text, there := o.Data[key]; there {
				out.Data[key] = text
			}
		}
		return out
	}), nil
}

// fromSlice tells of slices without addresses.
func fromSlice(h *held, in *discoveryv1.EndpointSlice) any {
	if out := snapshot.FromEndpointSlice(in); out != nil {
		return out
	}
	h.fault = &snapshot.Fault{
		Kind: sliceKind, Key: h.id.key,
		Message: fmt.Sprintf("addressType: slices of type %s have no addresses and are not served: use a Service of type ExternalName", in.AddressType),
	}
	return nil
}

func (m *memo) hold(kind string, in *metav1.ObjectMeta, convert func(*held) any) *held {
	id := identity{kind, snapshot.Key{Namespace: in.Namespace, Name: in.Name}}
	m.mu.Lock()
	before := m.known[id]
	m.mu.Unlock()
	if before != nil && before.uid == in.UID && before.version == in.ResourceVersion {
		return before
	}
	fresh := &held{id: id, uid: in.UID, version: in.ResourceVersion}
	fresh.value = convert(fresh)
	m.mu.Lock()
	m.known[id] = fresh
	m.mu.Unlock()
	return fresh
}

// drop forgets an object that is gone, unless a newer one has its name already.
func (m *memo) drop(h *held) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known[h.id] == h {
		delete(m.known, h.id)
	}
}

// keep forgets what is not there any more.
func (m *memo) keep(has func(identity) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := range m.known {
		if !has(id) {
			delete(m.known, id)
		}
	}
}

// handler brings the events of one kind into the tables.
type handler struct {
	kind    string
	tables  *tables
	memo    *memo
	changed func()
}

// OnAdd implements cache.ResourceEventHandler.
func (h *handler) OnAdd(in any, _ bool) {
	if o, ok := in.(*held); ok {
		h.tables.put(o)
		h.changed()
	}
}

// OnUpdate implements cache.ResourceEventHandler. A relist brings what did not change, too.
func (h *handler) OnUpdate(before, in any) {
	if o, ok := in.(*held); ok && before != in {
		h.tables.put(o)
		h.changed()
	}
}

// OnDelete implements cache.ResourceEventHandler. When the watch missed a deletion, only the last known state comes, or
// even just the key.
func (h *handler) OnDelete(in any) {
	id := identity{kind: h.kind}
	if unknown, ok := in.(cache.DeletedFinalStateUnknown); ok {
		id.key = splitKey(unknown.Key)
		in = unknown.Obj
	}
	if o, ok := in.(*held); ok {
		id = o.id
		h.memo.drop(o)
	}
	if id.key.Name == "" {
		return
	}
	h.tables.remove(id)
	h.changed()
}

func splitKey(key string) snapshot.Key {
	if namespace, name, ok := strings.Cut(key, "/"); ok {
		return snapshot.Key{Namespace: namespace, Name: name}
	}
	return snapshot.Key{Name: key}
}
