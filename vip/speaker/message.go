package speaker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"slices"

	"headgate/vip/election"
)

// What fits into MaxMessageBytes, whatever the terms are (a test holds it).
const (
	// MaxMessageBytes is the longest state that is published; it fits into one heartbeat below any usual MTU.
	MaxMessageBytes = 1000
	// MaxVIPs is how many VIPs are elected one by one. Each may have many addresses that move together.
	MaxVIPs = 64
	// maxSuccessors is how many other hosts can be named as successors in one message.
	maxSuccessors = 7
	// maxHardware is how many of its hardware addresses a host tells; the conflicts of others are known by them.
	maxHardware = 8
	// maxRequests is how many moves can be asked for at the same time.
	maxRequests = 4
)

// version is the first byte of a message. A host of another version is not understood, and told.
const version = 1

// claimState is what a host says of itself and one VIP.
type claimState uint8

const (
	claimNone     claimState = iota // it does not own the VIP
	claimAdopting                   // it has just started, and its kernel still holds the address
	claimProbing                    // it asks whether somebody answers for the VIP, and takes it if not
	claimActive                     // it owns the VIP
)

// entry is one host's word about one VIP.
type entry struct {
	ID       uint32 // vipID of the VIP's name
	Claim    claimState
	Able     bool   // link up, not released by the administrator, the kernel takes the address
	Priority uint8  // 1–254
	Term     uint32 // of the claim if active, else the highest that the host has heard of
	Offered  uint32 // hostID of the successor that the owner asks to take over; 0: nobody
	Manual   bool   // the administrator asked for it: the successor keeps the VIP against a better candidate
}

// claiming tells that the host is about to take the VIP, if nothing speaks against it.
func (e *entry) claiming() bool { return e.Claim == claimProbing || e.Claim == claimAdopting }

// request asks the owner of a VIP to give it to a host.
type request struct {
	Nonce, VIP, To uint32
}

// message is the state of one host, published as a whole whenever it changes.
type message struct {
	Boot     uint64 // random, for one run of the speaker
	Sequence uint64 // rises with each message of a boot
	Ready    bool   // the proxy serves a complete revision
	Draining bool
	Leaving  bool // the speaker stops
	Lasting  bool // the host's addresses outlive its speaker for lastingLifetime instead of the short one
	Hardware []net.HardwareAddr
	Entries  []entry
	Requests []request
}

// The bits of a message and of an entry.
const (
	flagReady = 1 << iota
	flagDraining
	flagLeaving
	flagLasting
)

const (
	entryClaim     = 0b11
	entryAble      = 1 << 2
	entryManual    = 1 << 3
	entrySuccessor = 4 // shift: number of the successor, 0 is nobody
)

// vipID is how a VIP is named on the wire; two names of one configuration never share an ID (New refuses them).
func vipID(name string) uint32 { return hash32("vip\x00" + name) }

// hostID is how a host is named on the wire; never 0.
func hostID(h election.Host) uint32 { return max(1, hash32("host\x00"+string(h))) }

func hash32(text string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(text)) // documented never to fail
	return h.Sum32()
}

// encode writes the message: version, flags, boot, sequence, hardware addresses, successors, entries, requests. Numbers
// are big-endian or, where most of them are small, unsigned varints.
func (m *message) encode() []byte {
	b := append(make([]byte, 0, 256), version, m.flags())
	b = binary.BigEndian.AppendUint64(b, m.Boot)
	b = binary.AppendUvarint(b, m.Sequence)
	hardware := m.Hardware[:min(len(m.Hardware), maxHardware)]
	b = append(b, byte(len(hardware)))
	for _, a := range hardware {
		var fixed [6]byte
		copy(fixed[:], a)
		b = append(b, fixed[:]...)
	}
	successors := m.successors()
	b = append(b, byte(len(successors)))
	for _, id := range successors {
		b = binary.BigEndian.AppendUint32(b, id)
	}
	b = append(b, byte(len(m.Entries)))
	for _, e := range m.Entries {
		b = e.append(b, successors)
	}
	b = append(b, byte(len(m.Requests)))
	for _, r := range m.Requests {
		for _, n := range []uint32{r.Nonce, r.VIP, r.To} {
			b = binary.BigEndian.AppendUint32(b, n)
		}
	}
	return b
}

func (m *message) flags() byte {
	var f byte
	for _, bit := range []struct {
		set  bool
		flag byte
	}{{m.Ready, flagReady}, {m.Draining, flagDraining}, {m.Leaving, flagLeaving}, {m.Lasting, flagLasting}} {
		if bit.set {
			f |= bit.flag
		}
	}
	return f
}

// successors lists the hosts that the entries name. Those beyond what a message can hold are offered nothing yet.
func (m *message) successors() []uint32 {
	var ids []uint32
	for _, e := range m.Entries {
		if e.Offered != 0 && len(ids) < maxSuccessors && !slices.Contains(ids, e.Offered) {
			ids = append(ids, e.Offered)
		}
	}
	return ids
}

func (e entry) append(b []byte, successors []uint32) []byte {
	bits := byte(e.Claim) | byte(1+slices.Index(successors, e.Offered))<<entrySuccessor //nolint:gosec // at most maxSuccessors
	if e.Able {
		bits |= entryAble
	}
	if e.Manual {
		bits |= entryManual
	}
	b = binary.BigEndian.AppendUint32(b, e.ID)
	b = append(b, bits, e.Priority)
	return binary.AppendUvarint(b, uint64(e.Term))
}

// errMessage tells that a peer's state cannot be read: it is of another version, or cut short.
var errMessage = errors.New("the state of a peer cannot be read")

// reader takes a message apart; after the first fault all it gives is zero.
type reader struct {
	rest  []byte
	fault bool
}

func (r *reader) take(n int) []byte {
	if len(r.rest) < n {
		r.fault, r.rest = true, nil
		return make([]byte, n)
	}
	taken := r.rest[:n]
	r.rest = r.rest[n:]
	return taken
}

func (r *reader) byte() byte   { return r.take(1)[0] }
func (r *reader) u32() uint32  { return binary.BigEndian.Uint32(r.take(4)) }
func (r *reader) u64() uint64  { return binary.BigEndian.Uint64(r.take(8)) }
func (r *reader) count() int   { return int(r.byte()) }
func (r *reader) failed() bool { return r.fault }

func (r *reader) uvarint(most uint64) uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 || v > most {
		r.fault, r.rest = true, nil
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

// decode reads what encode wrote. The error is errMessage with what is wrong.
func decode(text []byte) (*message, error) {
	r := &reader{rest: text}
	if v := r.byte(); v != version {
		return nil, fmt.Errorf("%w: version %d, this host speaks %d: let all hosts run the same version of headgate", errMessage, v, version)
	}
	f := r.byte()
	m := &message{
		Ready: f&flagReady != 0, Draining: f&flagDraining != 0, Leaving: f&flagLeaving != 0, Lasting: f&flagLasting != 0,
		Boot: r.u64(), Sequence: r.uvarint(1<<63 - 1),
	}
	for range r.count() {
		m.Hardware = append(m.Hardware, bytes.Clone(r.take(6)))
	}
	var successors []uint32
	for range r.count() {
		successors = append(successors, r.u32())
	}
	for n := r.count(); n > 0 && !r.failed(); n-- {
		m.Entries = append(m.Entries, r.entry(successors))
	}
	for n := r.count(); n > 0 && !r.failed(); n-- {
		m.Requests = append(m.Requests, request{r.u32(), r.u32(), r.u32()})
	}
	if r.failed() || len(r.rest) > 0 || len(m.Hardware) > maxHardware || len(m.Entries) > MaxVIPs {
		return nil, fmt.Errorf("%w: %d bytes that do not fit version %d", errMessage, len(text), version)
	}
	return m, nil
}

func (r *reader) entry(successors []uint32) entry {
	e := entry{ID: r.u32()}
	bits := r.byte()
	e.Claim, e.Able, e.Manual = claimState(bits&entryClaim), bits&entryAble != 0, bits&entryManual != 0
	if number := int(bits >> entrySuccessor); number > len(successors) {
		r.fault = true
	} else if number > 0 {
		e.Offered = successors[number-1]
	}
	e.Priority = r.byte()
	e.Term = uint32(r.uvarint(1<<32 - 1)) //nolint:gosec // bounded by the argument
	return e
}

// find gives the entry of a VIP; nil when the host does not have it in its configuration.
func (m *message) find(id uint32) *entry {
	if m == nil {
		return nil
	}
	for i := range m.Entries {
		if m.Entries[i].ID == id {
			return &m.Entries[i]
		}
	}
	return nil
}
