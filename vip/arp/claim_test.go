package arp

import (
	"net"
	"net/netip"
	"testing"
)

func frameOf(t testing.TB, sender string) []byte {
	t.Helper()
	frame, err := request(net.HardwareAddr{2, 0, 0, 0, 0, 1}, netip.MustParseAddr(sender), netip.MustParseAddr("192.0.2.10"))
	if err != nil {
		t.Fatal(err)
	}
	return frame
}

func TestClaim(t *testing.T) {
	announcement := frameOf(t, "192.0.2.10")
	changed := func(at int, to byte) []byte {
		f := append([]byte(nil), announcement...)
		f[at] = to
		return f
	}
	for name, c := range map[string]struct {
		frame []byte
		want  bool
	}{
		"announcement":              {announcement, true},
		"with padding":              {append(frameOf(t, "192.0.2.10"), make([]byte, 18)...), true},
		"a reply":                   {changed(21, 2), true},
		"a probe names no sender":   {frameOf(t, "0.0.0.0"), false},
		"cut off":                   {announcement[:41], false},
		"nothing":                   {nil, false},
		"hardware address of 8":     {changed(18, 8), false},
		"protocol address of 16":    {changed(19, 16), false},
		"another protocol than IP4": {changed(16, 0x86), false},
	} {
		ip, by, ok := claim(c.frame)
		if ok != c.want || ok && (ip.String() != "192.0.2.10" || by.String() != "02:00:00:00:00:01") {
			t.Errorf("%s: %s by %s, %t", name, ip, by, ok)
		}
	}
}

func FuzzClaim(f *testing.F) {
	f.Add(frameOf(f, "192.0.2.10"))
	f.Add(frameOf(f, "0.0.0.0"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, frame []byte) {
		if ip, by, ok := claim(frame); ok && (!ip.Is4() || ip.IsUnspecified() || len(by) != hardware) {
			t.Errorf("claim of %s by %s", ip, by)
		}
	})
}
