package detect

import (
	"fmt"
	"net/netip"
	"time"
)

// Kind says what an Event tells.
type Kind int

// The kinds of events.
const (
	// Up: the host proved that it lives; for the first time, after a verdict of death that is taken back by it, or as a
	// new process (Restarted).
	Up Kind = iota + 1
	// State: the host published another state.
	State
	// Crashed: the process is dead for certain, or as certain as one gets: the session ended, the redial was refused,
	// and no detector answered.
	Crashed
	// Silent: all detectors are quiet; dead, cut off, or stalled.
	Silent
	// Left: the process said that it stops.
	Left
	// Lost: one detector is quiet while another hears the host. Told, not judged.
	Lost
	// Regained: that detector hears the host again.
	Regained
	// Clash: two processes answer to one name, this host's or a peer's.
	Clash
	// Quiet: all detectors are quiet for so long that Silent may follow in a moment, or may not. Told once for each time.
	Quiet
)

// String is the word for logs and metrics.
func (k Kind) String() string {
	switch k {
	case Up:
		return "up"
	case State:
		return "state"
	case Crashed:
		return "crashed"
	case Silent:
		return "silent"
	case Left:
		return "left"
	case Lost:
		return "lost"
	case Regained:
		return "regained"
	case Clash:
		return "clash"
	case Quiet:
		return "quiet"
	}
	return fmt.Sprintf("kind %d", int(k))
}

// Event is something that the caller should know.
type Event struct {
	Host string
	Kind Kind
	// Detector is set with Lost and Regained.
	Detector Via
	// State is the newest that is known, with every kind. The receiver may keep it.
	State []byte
	// Incarnation names the process that it is about; another one means that the host's process was started anew.
	Incarnation uint64
	// Restarted, with Up: a new process of a host that was known. What its predecessor held may still be there.
	Restarted bool
	// At is when it was judged; it has a monotonic reading.
	At time.Time
	// Reason is a clause for a person.
	Reason string
}

// Via names a detector, a way to hear a peer: Session, UDP, or "link:" and the interface.
type Via string

// The detectors that every peer has.
const (
	Session Via = "session"
	UDP     Via = "udp"
)

func linkVia(name string) Via { return Via("link:" + name) }

// PeerStatus is how the detectors see a peer.
type PeerStatus struct {
	Host    string         `json:"host"`
	Address netip.AddrPort `json:"address"`
	// Verdict is Up, Crashed, Silent or Left; 0 for a host that was never heard.
	Verdict Kind `json:"-"`
	// Word is Verdict as a word; "unknown" for 0.
	Word string `json:"verdict"`
	// Since is when it was judged so; zero for a host that was never heard.
	Since  time.Time `json:"since,omitzero"`
	Reason string    `json:"reason,omitempty"`
	// Incarnation is that of the process that is believed; 0: none yet.
	Incarnation uint64 `json:"incarnation"`
	// Crashes and Silences count verdicts; FalseCrashes and FalseSilences those that the same process took back.
	Crashes       uint64 `json:"crashes"`
	Silences      uint64 `json:"silences"`
	FalseCrashes  uint64 `json:"falseCrashes"`
	FalseSilences uint64 `json:"falseSilences"`
	// Doubts counts crashes that the session spoke for and a challenge refuted before they were told.
	Doubts    uint64           `json:"doubts"`
	Detectors []DetectorStatus `json:"detectors"`
}

// DetectorStatus is one detector of a peer.
type DetectorStatus struct {
	Detector Via `json:"detector"`
	// Heard is when the peer was last heard there; zero: never.
	Heard time.Time `json:"heard,omitzero"`
	// Lost: quiet while another detector hears the peer.
	Lost bool `json:"lost"`
	// Heartbeats counts those that were believed.
	Heartbeats uint64 `json:"heartbeats"`
	// Old counts authentic packets that were not newer than the last: duplicates, overtaken ones, replays.
	Old uint64 `json:"old"`
	// Unproven counts authentic packets of a process that has not proven that it lives now: an earlier boot
	// replayed, a new one before its handshake, or a dead one.
	Unproven uint64 `json:"unproven"`
	// Losses and Regains count the transitions of Lost.
	Losses  uint64 `json:"losses"`
	Regains uint64 `json:"regains"`
}
