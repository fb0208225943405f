package addr

import (
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"

	"headgate/test/netns"
)

// Where the kernel could not list all addresses because too much changed, what is not listed is removed all the same.
func TestRemovingWhatIsNotListed(t *testing.T) {
	n := netns.New(t)
	netns.Veth(t, netns.End{Namespace: n, Interface: "eth0"}, netns.End{Namespace: netns.New(t), Interface: "eth0"})
	var s *Set
	err := n.Do(func() (err error) {
		s, err = New(Config{StateFile: filepath.Join(t.TempDir(), "state"), Log: slog.New(slog.DiscardHandler)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	one, two := netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")
	kept := Address{IP: one, Interface: "eth0"}
	if err := s.Apply([]Address{kept, {IP: two, Interface: "eth0"}}); err != nil {
		t.Fatal(err)
	}
	unlisted := inventory{partial: true}
	wanted, faults := s.place([]Address{kept}, unlisted)
	var changed changes
	faults = append(faults, s.put(wanted[0], unlisted, &changed), s.dropAllBut(wanted, unlisted, &changed))
	if err := errors.Join(faults...); err != nil {
		t.Fatal(err)
	}
	if got := n.Addresses(t, "eth0"); len(got) != 1 || got[0].Addr() != one {
		t.Errorf("the interface has %v, want %s alone", got, one)
	}
	// The interface's other name of the same address keeps it.
	s.owned.add(entry{Interface: "old0", Index: wanted[0].index, IP: one, Bits: 32})
	if err := s.dropAllBut(wanted, unlisted, &changed); err != nil {
		t.Fatal(err)
	}
	if got := n.Addresses(t, "eth0"); len(got) != 1 || len(s.owned.list()) != 1 {
		t.Errorf("the interface has %v, ours are %v", got, s.owned)
	}
}
