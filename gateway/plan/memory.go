package plan

import (
	"math/bits"

	"headgate/gateway/luastate"
)

// What an entry of an nginx shared dict costs (ngx_http_lua_shdict.c, ngx_slab.c): a red-black tree
// node and the entry's own header stand before key and value; the slab rounds up to a power of two
// below half a page, and to whole pages above.
const (
	entryHeaderBytes = 32 + 36
	slabPageBytes    = 4096
	slabLargestBytes = slabPageBytes / 2
	slabLeastBytes   = 8
	hashBytes        = 32
	bodyKeyBytes     = len("body/") + hashBytes
)

// MaxStateBytes is where the growth of the dict ends (1 TiB): beyond it the estimate must be wrong.
const MaxStateBytes = int64(1) << 40

func entryBytes(key, value int) int64 {
	n := entryHeaderBytes + key + value
	if n > slabLargestBytes {
		return int64((n + slabPageBytes - 1) / slabPageBytes * slabPageBytes)
	}
	return int64(max(slabLeastBytes, 1<<bits.Len(uint(n-1)))) //nolint:gosec // n is at least the header
}

// needBytes estimates the dict that holds the desired state and, at the same time, the bodies that
// go away with it: the new ones are written before the old ones are dropped. A body that several
// pointers share is counted for each (they are the small ones). A quarter is added for fragments of
// the slab.
func needBytes(bodies map[string]int, state luastate.State, d Delta) int64 {
	var sum int64
	for _, o := range state.Objects {
		sum += entryBytes(len(o.Pointer), hashBytes)
		size := len(o.Body)
		if o.Keep || size > luastate.MaxValueBytes {
			size = 0 // what is there stays; its size is in the quarter
		}
		sum += entryBytes(bodyKeyBytes, size)
	}
	for _, hash := range d.Drop {
		sum += entryBytes(bodyKeyBytes, bodies[hash])
	}
	return sum + sum/4
}

// HeldBytes is the size of a new dict for the state that a log holds (the length of each body by its
// hash): least, doubled until it fits.
func HeldBytes(pointers map[string]string, bodies map[string]int, least int64) int64 {
	var need int64
	for pointer := range pointers {
		need += entryBytes(len(pointer), hashBytes)
	}
	for _, length := range bodies {
		need += entryBytes(bodyKeyBytes, length)
	}
	need += need / 4
	size := max(least, slabPageBytes)
	for size < need && size < MaxStateBytes {
		size *= 2
	}
	return size
}

// refusedGrowth bounds the growth after a refused push: a dict this many times larger than the
// estimate was not refused for its size, and doubling it for ever would take the host's memory.
const refusedGrowth = 8

// stateBytes is the size that the dict should have: what it has, doubled until the state fits, and
// doubled once when the proxy refused a push for want of memory. It never shrinks.
func stateBytes(a Applied, d Desired, delta Delta) int64 {
	size := max(a.StateBytes, d.StateBytes, slabPageBytes)
	need := needBytes(a.Bodies, d.State, delta)
	if a.MemoryRefused && size < refusedGrowth*need && size < MaxStateBytes {
		size *= 2
	}
	for size < need && size < MaxStateBytes {
		size *= 2
	}
	return size
}
