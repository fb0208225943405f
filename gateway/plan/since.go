package plan

import "headgate/gateway/luastate"

// changes computes what Changes does. From one state to the next, of 25,000 objects, few differ: two sorted lists of
// which nearly all are the same in memory are compared in a small part of the time that the maps take.
func (a Applied) changes(next luastate.State) Delta {
	if !a.Known || len(a.State.Objects) == 0 {
		return Changes(a.Pointers, a.Bodies, next)
	}
	s := since{applied: a, loose: map[string]struct{}{}, added: map[string]struct{}{}}
	s.compare(next.Objects)
	s.drop(next.Objects)
	s.delta.sort()
	return s.delta
}

// since is the work of Applied.changes.
type since struct {
	applied Applied
	delta   Delta
	added   map[string]struct{} // hashes of delta.Add
	loose   map[string]struct{} // hashes that a pointer named and does not any more
}

func (s *since) compare(next []*luastate.Object) {
	last := s.applied.State.Objects
	for _, o := range next {
		for len(last) > 0 && last[0] != o && last[0].Pointer < o.Pointer {
			s.remove(last[0])
			last = last[1:]
		}
		same := false
		if len(last) > 0 && (last[0] == o || last[0].Pointer == o.Pointer) {
			same = last[0] == o || last[0].Hash == o.Hash && last[0].Keep == o.Keep
			last = last[1:]
		}
		if tooLarge(o) {
			s.delta.TooLarge = append(s.delta.TooLarge, o.Pointer)
		} else if !same && !o.Keep { // else what is there stays
			s.set(o)
		}
	}
	for _, o := range last {
		s.remove(o)
	}
}

func (s *since) set(o *luastate.Object) {
	if _, there := s.applied.Bodies[o.Hash]; !there {
		if _, twice := s.added[o.Hash]; !twice {
			s.added[o.Hash] = struct{}{}
			s.delta.Add = append(s.delta.Add, Body{Hash: o.Hash, Data: o.Body})
		}
	}
	have, ok := s.applied.Pointers[o.Pointer]
	if have == o.Hash {
		return
	}
	s.delta.Set = append(s.delta.Set, Pointer{Name: o.Pointer, Hash: o.Hash})
	if ok {
		s.loose[have] = struct{}{}
	}
}

func (s *since) remove(o *luastate.Object) {
	if have, ok := s.applied.Pointers[o.Pointer]; ok { // one that was to be kept may never have been there
		s.delta.Delete = append(s.delta.Delete, o.Pointer)
		s.loose[have] = struct{}{}
	}
}

// drop finds the bodies that no pointer names any more.
func (s *since) drop(next []*luastate.Object) {
	for i := 0; i < len(next) && len(s.loose) > 0; i++ {
		o := next[i]
		hash := o.Hash
		if o.Keep || tooLarge(o) {
			hash = s.applied.Pointers[o.Pointer]
		}
		delete(s.loose, hash)
	}
	for hash := range s.loose {
		if _, there := s.applied.Bodies[hash]; there {
			s.delta.Drop = append(s.delta.Drop, hash)
		}
	}
}
