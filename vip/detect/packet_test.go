package detect

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func ringOf(t testing.TB, secrets ...string) keyring {
	t.Helper()
	list := make([][]byte, 0, len(secrets))
	for _, s := range secrets {
		list = append(list, []byte(strings.Repeat(s, minKey)))
	}
	ring, err := newKeyring(list)
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

func fullPacket() packet {
	return packet{
		kind: answer, channel: overLink, incarnation: 1<<63 + 7, counter: 42, nonce: [nonceBytes]byte{1, 2, 3},
		from: strings.Repeat("a", MaxHost), to: strings.Repeat("b", MaxHost), state: bytes.Repeat([]byte{0xff}, MaxState),
	}
}

func TestPacketsComeBackAsTheyWere(t *testing.T) {
	ring := ringOf(t, "k")
	for name, p := range map[string]packet{
		"full":  fullPacket(),
		"small": {kind: beat, channel: overUDP, counter: 1, from: "a", state: []byte{}},
	} {
		t.Run(name, func(t *testing.T) {
			b := ring[0].seal(p)
			if len(b) > maxPacket || len(b) < minimumLen {
				t.Errorf("%d bytes, want %d to %d", len(b), minimumLen, maxPacket)
			}
			padded := append(b, make([]byte, 46)...) // as a link pads short frames
			got, err := ring.open(padded, p.channel)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(p, got, cmp.AllowUnexported(packet{}), cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		})
	}
	const headers = 40 + 8 // IPv6 and UDP
	if n := len(ring[0].seal(fullPacket())) + headers; n > 1280 {
		t.Errorf("the largest datagram has %d bytes: more than the smallest MTU of IPv6", n)
	}
}

// Every byte is under the code: whichever is changed, the packet is not believed.
func TestAPacketWithOneWrongBitIsNotBelieved(t *testing.T) {
	ring := ringOf(t, "k")
	good := ring[0].seal(packet{kind: beat, channel: overUDP, counter: 9, from: "alpha", to: "beta", state: []byte("state")})
	for i := range good {
		for bit := range 8 {
			b := bytes.Clone(good)
			b[i] ^= 1 << bit
			if _, err := ring.open(b, overUDP); err == nil {
				t.Errorf("byte %d, bit %d changed, and believed", i, bit)
			}
		}
	}
	for cut := range good {
		if _, err := ring.open(good[:cut], overUDP); err == nil {
			t.Errorf("cut to %d bytes, and believed", cut)
		}
	}
}

func TestWhatIsNotBelievedSaysWhy(t *testing.T) {
	ours, theirs := ringOf(t, "k"), ringOf(t, "x")
	p := packet{kind: beat, channel: overUDP, counter: 1, from: "alpha"}
	forged := ours[0].seal(p)
	forged[len(forged)-1] ^= 1
	for name, c := range map[string]struct {
		bytes []byte
		over  channel
		want  error
	}{
		"another key":     {theirs[0].seal(p), overUDP, errForeignKey},
		"forged":          {forged, overUDP, errForged},
		"another channel": {ours[0].seal(p), overLink, errChannel},
		"noise":           {[]byte(strings.Repeat("?", 100)), overUDP, errMalformed},
		"nothing":         {nil, overUDP, errMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ours.open(c.bytes, c.over)
			if !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
			if !errors.Is(c.want, errMalformed) && got.from != "alpha" {
				t.Errorf("the complaint names %q, want alpha", got.from)
			}
		})
	}
}

func TestARingAcceptsAllItsKeys(t *testing.T) {
	both, old := ringOf(t, "n", "o"), ringOf(t, "o")
	p := packet{kind: beat, channel: overUDP, counter: 1, from: "alpha"}
	if _, err := both.open(old[0].seal(p), overUDP); err != nil {
		t.Errorf("the old key during a rotation: %v", err)
	}
	if _, err := old.open(both[0].seal(p), overUDP); !errors.Is(err, errForeignKey) {
		t.Errorf("a key that is unknown: error %v, want %v", err, errForeignKey)
	}
}

func TestKeysThatAreNone(t *testing.T) {
	for name, keys := range map[string][][]byte{"none": nil, "short": {make([]byte, minKey-1)}, "one of two short": {make([]byte, minKey), {1}}} {
		if _, err := newKeyring(keys); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func FuzzOpen(f *testing.F) {
	ring, err := newKeyring([][]byte{make([]byte, minKey)})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(ring[0].seal(fullPacket()), byte(overLink))
	f.Add(ring[0].seal(packet{kind: beat, channel: overUDP, from: "a"}), byte(overUDP))
	f.Add([]byte(magic), byte(0))
	f.Fuzz(func(t *testing.T, b []byte, over byte) {
		p, err := ring.open(b, channel(over))
		if p.from != "" && !validHost(p.from) || p.to != "" && !validHost(p.to) || len(p.state) > MaxState {
			t.Fatalf("let through: %+v", p)
		}
		if err != nil {
			return
		}
		if again := ring[0].seal(p); !bytes.Equal(again, b[:len(again)]) {
			t.Fatalf("believed %x, which is written %x", b, again)
		}
	})
}

// A stream is cut into frames at any bytes: it ends in an error or in packets, never in a panic or a huge allocation.
func FuzzFrames(f *testing.F) {
	f.Add([]byte{0, 1, 'x', 0, 0})
	f.Add([]byte{0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		for {
			frame, err := readFrame(r)
			if err != nil {
				return
			}
			if len(frame) > maxPacket {
				t.Fatalf("a frame of %d bytes", len(frame))
			}
		}
	})
}
