package lossguard

import (
	"maps"
	"slices"
	"time"

	"headgate/gateway/snapshot"
)

// held is one object that the source has lost, or of which it has lost a part, and that is served all the same.
type held[T any] struct {
	object *T
	since  time.Time
}

// kept are the held objects of one kind.
type kept[T any] struct {
	key    func(*T) snapshot.Key
	weight func(*T) int // what there is to lose of it
	held   map[snapshot.Key]held[T]
}

func newKept[T any](key func(*T) snapshot.Key, weight func(*T) int) kept[T] {
	return kept[T]{key, weight, map[snapshot.Key]held[T]{}}
}

func one[T any](*T) int { return 1 }

// lose begins to hold what is in before and not, or smaller, in now.
func (k *kept[T]) lose(before, now []*T, at time.Time) {
	eachChange(before, now, k.key, func(key snapshot.Key, old, next *T) {
		if _, already := k.held[key]; already || old == nil {
			return
		}
		if next == nil || k.weight(next) < k.weight(old) {
			k.held[key] = held[T]{old, at}
		}
	})
}

// settle lets go of what came back, and of what was held long enough.
func (k *kept[T]) settle(now []*T, until func(since time.Time) bool) (back, over int) {
	if len(k.held) == 0 {
		return 0, 0
	}
	for key, h := range k.held {
		at, found := slices.BinarySearchFunc(now, key, func(o *T, key snapshot.Key) int { return k.key(o).Compare(key) })
		switch {
		case found && k.weight(now[at]) >= k.weight(h.object):
			delete(k.held, key)
			back++
		case !until(h.since):
			delete(k.held, key)
			over++
		}
	}
	return back, over
}

// over gives the list with the held objects in it.
func (k *kept[T]) over(list []*T) []*T {
	if len(k.held) == 0 {
		return list
	}
	out := make([]*T, 0, len(list)+len(k.held))
	for _, key := range slices.SortedFunc(maps.Keys(k.held), snapshot.Key.Compare) {
		at, found := slices.BinarySearchFunc(list, key, func(o *T, key snapshot.Key) int { return k.key(o).Compare(key) })
		out = append(out, list[:at]...)
		if found {
			at++
		}
		list = list[at:]
		out = append(out, k.held[key].object)
	}
	return append(out, list...)
}

// times widens [first, last] by when the objects began to be held.
func (k *kept[T]) times(first, last *time.Time) {
	for _, h := range k.held {
		if first.IsZero() || h.since.Before(*first) {
			*first = h.since
		}
		if h.since.After(*last) {
			*last = h.since
		}
	}
}
