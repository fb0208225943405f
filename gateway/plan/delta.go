package plan

import (
	"slices"
	"strconv"
	"strings"

	"headgate/gateway/luastate"
)

// Delta is a change of the pushed state. Each list is sorted, so that equal changes are equal bytes.
type Delta struct {
	// Add are bodies that the dict lacks, by hash.
	Add []Body
	// Set are pointers to write, in the order of the contract: upstreams, certificates and settings
	// before the hosts and SNI names that may refer to them.
	Set []Pointer
	// Delete are pointers to remove after the commit, hosts and SNI names first.
	Delete []string
	// Drop are hashes of bodies that no pointer names any more.
	Drop []string
	// TooLarge are pointers whose body is larger than the proxy takes (luastate.MaxValueBytes). What
	// it holds under them stays, as with Keep. They do not count for Empty.
	TooLarge []string
}

// Body is an immutable object under its hash.
type Body struct {
	Hash string
	Data []byte
}

// Pointer names a body.
type Pointer struct {
	Name, Hash string
}

// Empty tells that there is nothing to change.
func (d Delta) Empty() bool {
	return len(d.Add) == 0 && len(d.Set) == 0 && len(d.Delete) == 0 && len(d.Drop) == 0
}

// Changes computes the delta that turns a dict with pointers and bodies into state.
//
// An object with Keep (or one that is too large) stands for whatever is under its pointer: that stays, and where nothing is,
// nothing is pushed.
func Changes(pointers map[string]string, bodies map[string]int, state luastate.State) Delta {
	var d Delta
	wanted := make(map[string]struct{}, len(state.Objects)) // hashes that stay
	seen := 0                                               // pointers that stay
	for _, o := range state.Objects {
		have, ok := pointers[o.Pointer]
		if ok {
			seen++
		}
		hash, keep := o.Hash, o.Keep
		if tooLarge(o) {
			d.TooLarge = append(d.TooLarge, o.Pointer)
			keep = true
		}
		if keep {
			hash = have
		}
		if hash == "" {
			continue
		}
		if _, twice := wanted[hash]; !twice {
			wanted[hash] = struct{}{}
			if _, there := bodies[hash]; !there && !keep {
				d.Add = append(d.Add, Body{Hash: hash, Data: o.Body})
			}
		}
		if have != hash {
			d.Set = append(d.Set, Pointer{Name: o.Pointer, Hash: hash})
		}
	}
	if seen < len(pointers) {
		d.Delete = gone(pointers, state)
	}
	for hash := range bodies {
		if _, ok := wanted[hash]; !ok {
			d.Drop = append(d.Drop, hash)
		}
	}
	d.sort()
	return d
}

func tooLarge(o *luastate.Object) bool {
	return len(o.Body) > luastate.MaxValueBytes || len(o.Pointer) > luastate.MaxKeyBytes
}

func (d *Delta) sort() {
	slices.SortFunc(d.Add, func(a, b Body) int { return strings.Compare(a.Hash, b.Hash) })
	slices.SortFunc(d.Set, func(a, b Pointer) int { return comparePointers(a.Name, b.Name) })
	slices.SortFunc(d.Delete, func(a, b string) int { return comparePointers(b, a) })
	slices.Sort(d.Drop)
}

func gone(pointers map[string]string, state luastate.State) []string {
	want := make(map[string]struct{}, len(state.Objects))
	for _, o := range state.Objects {
		want[o.Pointer] = struct{}{}
	}
	var names []string
	for name := range pointers {
		if _, ok := want[name]; !ok {
			names = append(names, name)
		}
	}
	return names
}

// comparePointers puts what is referred to before what refers to it, then orders by name.
func comparePointers(a, b string) int {
	if ra, rb := rank(a), rank(b); ra != rb {
		return ra - rb
	}
	return strings.Compare(a, b)
}

func rank(pointer string) int {
	if luastate.Referring(pointer) {
		return 1
	}
	return 0
}

// Records writes the delta as the records of one push that commits revision.
func (d Delta) Records(revision uint64) []luastate.Record {
	rs := make([]luastate.Record, 0, len(d.Add)+len(d.Set)+len(d.Delete)+len(d.Drop)+1)
	for _, b := range d.Add {
		rs = append(rs, luastate.Record{Op: luastate.OpBody, Key: b.Hash, Value: b.Data})
	}
	for _, p := range d.Set {
		rs = append(rs, luastate.Record{Op: luastate.OpPointer, Key: p.Name, Value: []byte(p.Hash)})
	}
	rs = append(rs, luastate.Record{Op: luastate.OpRevision, Value: strconv.AppendUint(nil, revision, 10)})
	for _, name := range d.Delete {
		rs = append(rs, luastate.Record{Op: luastate.OpDelete, Key: name})
	}
	for _, hash := range d.Drop {
		rs = append(rs, luastate.Record{Op: luastate.OpDrop, Key: hash})
	}
	return rs
}

// Apply makes the change to pointers and bodies in place, as the proxy did when it acknowledged it.
func (d Delta) Apply(pointers map[string]string, bodies map[string]int) {
	for _, b := range d.Add {
		bodies[b.Hash] = len(b.Data)
	}
	for _, p := range d.Set {
		pointers[p.Name] = p.Hash
	}
	for _, name := range d.Delete {
		delete(pointers, name)
	}
	for _, hash := range d.Drop {
		delete(bodies, hash)
	}
}
