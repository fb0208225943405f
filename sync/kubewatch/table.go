package kubewatch

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"headgate/gateway/snapshot"
)

// tables hold what one session knows, and make snapshots of it. One changed object costs a copy of its kind's list of
// pointers (240 KB at 30,000 objects), not a sort.
type tables struct {
	mu        sync.Mutex // guards everything below
	ingresses table[snapshot.Ingress]
	classes   table[snapshot.IngressClass]
	services  table[snapshot.Service]
	slices    table[snapshot.EndpointSlice]
	secrets   table[snapshot.Secret]
	named     table[snapshot.Secret] // read by their names
	faults    map[identity]snapshot.Fault
	latest    *snapshot.Snapshot // nil when something changed since
}

func newTables() *tables {
	return &tables{
		ingresses: newTable(func(o *snapshot.Ingress) snapshot.Key { return o.Key }),
		classes:   newTable(func(o *snapshot.IngressClass) snapshot.Key { return o.Key }),
		services:  newTable(func(o *snapshot.Service) snapshot.Key { return o.Key }),
		slices:    newTable(func(o *snapshot.EndpointSlice) snapshot.Key { return o.Key }),
		secrets:   newTable(func(o *snapshot.Secret) snapshot.Key { return o.Key }),
		named:     newTable(func(o *snapshot.Secret) snapshot.Key { return o.Key }),
		faults:    map[identity]snapshot.Fault{},
	}
}

// put takes one object in.
func (t *tables) put(h *held) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.latest = nil
	if h.fault == nil {
		delete(t.faults, h.id)
	} else {
		t.faults[h.id] = *h.fault
	}
	switch v := h.value.(type) {
	case *snapshot.Ingress:
		t.ingresses.put(v)
	case *snapshot.IngressClass:
		t.classes.put(v)
	case *snapshot.Service:
		t.services.put(v)
	case *snapshot.EndpointSlice:
		t.slices.put(v)
	case *snapshot.Secret:
		if h.id.kind == namedKind {
			t.named.put(v)
		} else {
			t.secrets.put(v)
		}
	case nil:
		t.drop(h.id)
	}
}

// remove forgets one object.
func (t *tables) remove(id identity) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.latest = nil
	delete(t.faults, id)
	t.drop(id)
}

func (t *tables) drop(id identity) {
	switch id.kind {
	case ingressKind:
		t.ingresses.remove(id.key)
	case classKind:
		t.classes.remove(id.key)
	case serviceKind:
		t.services.remove(id.key)
	case sliceKind:
		t.slices.remove(id.key)
	case secretKind:
		t.secrets.remove(id.key)
	case namedKind:
		t.named.remove(id.key)
	}
}

func (t *tables) has(id identity) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.faults[id]; ok {
		return true
	}
	switch id.kind {
	case ingressKind:
		return t.ingresses.items[id.key] != nil
	case classKind:
		return t.classes.items[id.key] != nil
	case serviceKind:
		return t.services.items[id.key] != nil
	case sliceKind:
		return t.slices.items[id.key] != nil
	case secretKind:
		return t.secrets.items[id.key] != nil
	case namedKind:
		return t.named.items[id.key] != nil
	}
	return false
}

func (t *tables) size() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.ingresses.items) + len(t.classes.items) + len(t.services.items) + len(t.slices.items) + len(t.secrets.items) + len(t.named.items)
}

func (t *tables) snapshot() *snapshot.Snapshot {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.latest != nil {
		return t.latest
	}
	t.latest = &snapshot.Snapshot{
		Ingresses:      t.ingresses.sorted(),
		IngressClasses: t.classes.sorted(),
		Services:       t.services.sorted(),
		EndpointSlices: t.slices.sorted(),
		Secrets:        together(t.secrets.sorted(), t.named.sorted()),
		Faults:         slices.SortedFunc(maps.Values(t.faults), compareFaults),
	}
	return t.latest
}

// together merges the two lists of Secrets. Where both know one of a name it was made anew with the other type, and one of the
// two watches has not heard of that: the usual type counts until it has.
func together(usual, named []*snapshot.Secret) []*snapshot.Secret {
	if len(named) == 0 {
		return usual
	}
	all := make([]*snapshot.Secret, 0, len(usual)+len(named))
	for _, o := range named {
		at, there := slices.BinarySearchFunc(usual, o.Key, func(u *snapshot.Secret, key snapshot.Key) int { return u.Compare(key) })
		all = append(all, usual[:at]...)
		usual = usual[at:]
		if !there {
			all = append(all, o)
		}
	}
	return append(all, usual...)
}

func compareFaults(a, b snapshot.Fault) int {
	if c := strings.Compare(a.Kind, b.Kind); c != 0 {
		return c
	}
	return a.Key.Compare(b.Key)
}

// table is the objects of one kind.
type table[T any] struct {
	key   func(*T) snapshot.Key
	items map[snapshot.Key]*T
	dirty map[snapshot.Key]struct{} // changed since list was made
	list  []*T                      // sorted; handed out, so never changed in place
}

func newTable[T any](key func(*T) snapshot.Key) table[T] {
	return table[T]{key: key, items: map[snapshot.Key]*T{}, dirty: map[snapshot.Key]struct{}{}}
}

func (t *table[T]) put(o *T) {
	key := t.key(o)
	if t.items[key] == o {
		return
	}
	t.items[key] = o
	t.dirty[key] = struct{}{}
}

func (t *table[T]) remove(key snapshot.Key) {
	if t.items[key] == nil {
		return
	}
	delete(t.items, key)
	t.dirty[key] = struct{}{}
}

// sorted merges what changed into a new list.
func (t *table[T]) sorted() []*T {
	if len(t.dirty) == 0 {
		return t.list
	}
	next := make([]*T, 0, len(t.items))
	rest := t.list
	for _, key := range slices.SortedFunc(maps.Keys(t.dirty), snapshot.Key.Compare) {
		at, found := slices.BinarySearchFunc(rest, key, func(o *T, key snapshot.Key) int { return t.key(o).Compare(key) })
		next = append(next, rest[:at]...)
		if found {
			at++
		}
		rest = rest[at:]
		if o := t.items[key]; o != nil {
			next = append(next, o)
		}
	}
	t.list = append(next, rest...)
	clear(t.dirty)
	return t.list
}
