package speaker

import (
	"errors"
	"math"
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func drawMessage(t *rapid.T) *message {
	m := &message{
		Boot: rapid.Uint64().Draw(t, "boot"), Sequence: rapid.Uint64Max(1<<63-1).Draw(t, "sequence"),
		Ready: rapid.Bool().Draw(t, "ready"), Draining: rapid.Bool().Draw(t, "draining"),
		Leaving: rapid.Bool().Draw(t, "leaving"), Lasting: rapid.Bool().Draw(t, "lasting"),
	}
	for range rapid.IntRange(0, maxHardware).Draw(t, "hardware") {
		m.Hardware = append(m.Hardware, rapid.SliceOfN(rapid.Byte(), 6, 6).Draw(t, "address"))
	}
	hosts := rapid.SliceOfNDistinct(rapid.Uint32Min(1), 1, maxSuccessors, rapid.ID[uint32]).Draw(t, "hosts")
	for range rapid.IntRange(0, MaxVIPs).Draw(t, "vips") {
		m.Entries = append(m.Entries, entry{
			ID: rapid.Uint32().Draw(t, "id"), Claim: claimState(rapid.IntRange(0, 3).Draw(t, "claim")),
			Able: rapid.Bool().Draw(t, "able"), Priority: rapid.Byte().Draw(t, "priority"), Term: rapid.Uint32().Draw(t, "term"),
			Offered: rapid.SampledFrom(append(hosts, 0)).Draw(t, "offered"), Manual: rapid.Bool().Draw(t, "manual"),
		})
	}
	for range rapid.IntRange(0, maxRequests).Draw(t, "requests") {
		m.Requests = append(m.Requests, request{rapid.Uint32().Draw(t, "nonce"), rapid.Uint32().Draw(t, "vip"), rapid.Uint32().Draw(t, "to")})
	}
	return m
}

func TestMessageRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMessage(t)
		text := m.encode()
		if len(text) > MaxMessageBytes {
			t.Fatalf("%d bytes", len(text))
		}
		got, err := decode(text)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(m, got); diff != "" {
			t.Fatal(diff)
		}
		for n := range text {
			if _, err := decode(text[:n]); !errors.Is(err, errMessage) {
				t.Fatalf("%d of %d bytes: %v", n, len(text), err)
			}
		}
	})
}

// The largest message that can be: all VIPs, all terms at their end.
func TestLargestMessageFits(t *testing.T) {
	m := &message{Boot: math.MaxUint64, Sequence: math.MaxInt64}
	for range maxHardware {
		m.Hardware = append(m.Hardware, net.HardwareAddr{1, 2, 3, 4, 5, 6})
	}
	for i := range MaxVIPs {
		m.Entries = append(m.Entries, entry{ID: uint32(i), Term: math.MaxUint32, Offered: uint32(1 + i%maxSuccessors)})
	}
	for range maxRequests {
		m.Requests = append(m.Requests, request{math.MaxUint32, math.MaxUint32, math.MaxUint32})
	}
	if n := len(m.encode()); n > MaxMessageBytes {
		t.Errorf("%d bytes, at most %d are published", n, MaxMessageBytes)
	}
}

func TestOtherVersion(t *testing.T) {
	_, err := decode([]byte{version + 1, 0, 0})
	if !errors.Is(err, errMessage) || err.Error() != "the state of a peer cannot be read: version 2, this host speaks 1: let all hosts run the same version of headgate" {
		t.Error(err)
	}
}

// An offer to more hosts than a message can name is left out, never given to another one.
func TestTooManySuccessors(t *testing.T) {
	m := &message{}
	for i := range maxSuccessors + 3 {
		m.Entries = append(m.Entries, entry{ID: uint32(i), Offered: uint32(100 + i)})
	}
	got, err := decode(m.encode())
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range got.Entries {
		if want := uint32(100 + i); i < maxSuccessors && e.Offered != want || i >= maxSuccessors && e.Offered != 0 {
			t.Errorf("entry %d offered to %d", i, e.Offered)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add((&message{Boot: 1, Entries: []entry{{ID: 7, Claim: claimActive, Term: 300, Offered: 9}}, Requests: []request{{1, 2, 3}}}).encode())
	f.Add([]byte{version})
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := decode(text)
		if err != nil {
			return
		}
		again, err := decode(m.encode())
		if len(m.Requests) <= maxRequests && err != nil {
			t.Fatal(err)
		}
		if err == nil && len(again.Entries) != len(m.Entries) {
			t.Fatalf("%d entries, %d after a round trip", len(m.Entries), len(again.Entries))
		}
	})
}
