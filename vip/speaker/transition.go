package speaker

import (
	"time"

	"headgate/vip/election"
)

// State is what this host is to a VIP. The names are those of VRRP, but for Active, which was Master.
type State int

// The states.
const (
	Init   State = iota // just started, or just woken up: looking around, claiming nothing
	Backup              // another host owns the VIP, or nobody can
	Active              // the addresses are on and announced
)

// String gives "init", "backup" or "active".
func (s State) String() string {
	switch s {
	case Backup:
		return "backup"
	case Active:
		return "active"
	default:
		return "init"
	}
}

// MarshalText implements encoding.TextMarshaler.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler; what it does not know is Init.
func (s *State) UnmarshalText(text []byte) error {
	switch string(text) {
	case "backup":
		*s = Backup
	case "active":
		*s = Active
	default:
		*s = Init
	}
	return nil
}

// Reason is why a VIP changed its state on this host; logs and metrics carry it.
type Reason string

// The reasons of becoming Active.
const (
	Adopted       Reason = "adopted"        // the kernel still held it from the run before
	Vacant        Reason = "vacant"         // no owner was known, and nobody answered a probe
	OwnerReleased Reason = "owner-released" // the owner said that it let go
	OwnerCrashed  Reason = "owner-crashed"  // the owner's speaker ended without a word: proven
	OwnerSilent   Reason = "owner-silent"   // nothing was heard of the owner, and nobody answered a probe
	OwnerUnready  Reason = "owner-unready"  // the owner offered it, because its proxy cannot serve
	HandedOver    Reason = "handed-over"    // taken from, or given to, another host as planned
)

// The reasons of becoming Backup or Init; HandedOver is one, too.
const (
	Started       Reason = "started"         // looked around after the start
	HigherTerm    Reason = "higher-term"     // another host owns the VIP with a higher term
	LowerRank     Reason = "lower-rank"      // another host owns it with the same term, or does not listen, and has the better rank
	DeafRival     Reason = "deaf-rival"      // another host owns it with less right, does not hear this one, and did not let go
	RivalAnswers  Reason = "rival-answers"   // a host that says nothing answers for the VIP, and has the better rank
	ProxyNotReady Reason = "proxy-not-ready" // the proxy died, hangs, or has no complete revision
	LinkDown      Reason = "link-down"       // an interface of the VIP is down or gone
	KernelRefused Reason = "kernel-refused"  // the kernel did not take the addresses
	Released      Reason = "released"        // the administrator asked for it
	Stalled       Reason = "stalled"         // this process did not run for longer than the kernel keeps an address
	Stopped       Reason = "stopped"         // the speaker ends
)

// Reasons lists all reasons, for the series of a metric.
func Reasons() []Reason {
	return []Reason{
		Adopted, Vacant, OwnerReleased, OwnerCrashed, OwnerSilent, OwnerUnready, HandedOver, Started, HigherTerm, LowerRank, DeafRival, RivalAnswers,
		ProxyNotReady, LinkDown, KernelRefused, Released, Stalled, Stopped,
	}
}

// Transition is one change of state of one VIP.
type Transition struct {
	VIP      string        `json:"vip"`
	From     State         `json:"from"`
	To       State         `json:"to"`
	Term     uint32        `json:"term"`
	Reason   Reason        `json:"reason"`
	Peer     election.Host `json:"peer,omitempty"`   // who it was taken from or left to, when that is known
	Detail   string        `json:"detail,omitempty"` // for people
	Priority uint8         `json:"priority"`
	At       time.Time     `json:"at"`
}

// Status is the account of a speaker at one moment.
type Status struct {
	Host     election.Host `json:"host"`
	Time     time.Time     `json:"time"`
	Ready    bool          `json:"ready"`
	Health   string        `json:"health"` // why the proxy is not ready, or what it serves
	Draining bool          `json:"draining"`
	Stopping bool          `json:"stopping"`
	// Lasting tells that no peer could take over: the addresses outlive this process for Timing.Lasting.
	Lasting bool         `json:"lasting"`
	Stalls  uint64       `json:"stalls"` // how often this process did not run for longer than a lifetime
	VIPs    []VIPStatus  `json:"vips"`
	Peers   []PeerStatus `json:"peers"`
	// Recent are the last transitions, the oldest first.
	Recent []Transition `json:"recent"`
}

// VIPStatus is what this host knows of one VIP.
type VIPStatus struct {
	Name      string        `json:"name"`
	Addresses []string      `json:"addresses"` // with prefix and interface: "192.0.2.10/32 eth0"
	State     State         `json:"state"`
	Owner     election.Host `json:"owner"` // as far as this host knows; "" for nobody
	Term      uint32        `json:"term"`
	Since     time.Time     `json:"since"`  // of State
	Reason    Reason        `json:"reason"` // of State
	Priority  uint8         `json:"priority"`
	Able      bool          `json:"able"`          // but for the proxy: link up, not released, not refused by the kernel
	Why       string        `json:"why,omitempty"` // why it is not able
	Wants     string        `json:"wants"`         // what this host does about it now, for people
	Successor election.Host `json:"successor"`     // whom it is offered to
	Occupant  string        `json:"occupant"`      // hardware address that answered a probe, "" for none
	Conflicts uint64        `json:"conflicts"`     // announcements by others while it was ours
	Rival     string        `json:"rival"`         // hardware address of the last conflict
	Manual    bool          `json:"manual"`        // here because the administrator moved it
	Released  bool          `json:"released"`      // given up because the administrator asked for it
	Moves     uint64        `json:"becameActive"`  // how often it became active here
	Views     []View        `json:"views"`         // of each host
}

// View is what a host said last about a VIP.
type View struct {
	Host     election.Host `json:"host"`
	Claim    string        `json:"claim"` // "none", "adopting", "probing", "active"
	Able     bool          `json:"able"`
	Priority uint8         `json:"priority"`
	Term     uint32        `json:"term"`
}

// PeerStatus is what this host knows of a peer.
type PeerStatus struct {
	Host     election.Host `json:"host"`
	Alive    bool          `json:"alive"`
	Since    time.Time     `json:"since"` // of Alive
	Reason   string        `json:"reason"`
	Crashed  bool          `json:"crashed"` // its speaker's end is proven
	Ready    bool          `json:"ready"`
	Draining bool          `json:"draining"`
	Leaving  bool          `json:"leaving"`
	Error    string        `json:"error,omitempty"` // its state cannot be read
}

// recentTransitions is how many a Status tells.
const recentTransitions = 32
