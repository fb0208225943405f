package rivals_test

import (
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"headgate/vip/rivals"
)

var (
	one   = netip.MustParseAddr("192.0.2.1")
	two   = netip.MustParseAddr("2001:db8::2")
	ann   = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	berta = net.HardwareAddr{2, 0, 0, 0, 0, 2}
)

// next reads a conflict, or says that there is none once all goroutines wait.
func next(b *rivals.Book) (rivals.Conflict, bool) {
	synctest.Wait()
	select {
	case c := <-b.Conflicts():
		return c, true
	default:
		return rivals.Conflict{}, false
	}
}

func TestTheNewestClaimOfEachAddressWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := rivals.Open()
		defer b.Close()
		b.Watch([]netip.Addr{one, two})
		// Nobody reads; nothing blocks.
		for range 1000 {
			b.Claim(one, ann)
			b.Claim(two, ann)
		}
		time.Sleep(time.Second) // fake time of the bubble
		b.Claim(one, berta)
		for _, want := range []struct {
			ip net.HardwareAddr
			at netip.Addr
		}{{berta, one}, {ann, two}} {
			c, ok := next(b)
			if !ok || c.IP != want.at || c.HardwareAddr.String() != want.ip.String() {
				t.Errorf("got %+v, %t; want %s by %s", c, ok, want.at, want.ip)
			}
		}
		if c, ok := next(b); ok {
			t.Errorf("one more: %+v", c)
		}
		b.Claim(one, ann)
		if c, ok := next(b); !ok || c.IP != one || !c.At.Equal(time.Now()) {
			t.Errorf("got %+v, %t; want a conflict of now", c, ok)
		}
	})
}

func TestOnlyWatchedAddressesAreConflicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := rivals.Open()
		defer b.Close()
		b.Claim(one, ann)
		b.Watch([]netip.Addr{netip.AddrFrom16(one.As16()), two})
		if b.Cares(netip.MustParseAddr("192.0.2.9")) || !b.Cares(one) {
			t.Error("cares for what nobody watches, or not for what somebody does")
		}
		b.Claim(one, ann)
		b.Claim(two, ann)
		synctest.Wait()
		b.Watch([]netip.Addr{two})
		if c, ok := next(b); !ok || c.IP != two {
			t.Errorf("got %+v, %t; want that of %s alone", c, ok, two)
		}
		if c, ok := next(b); ok {
			t.Errorf("one more: %+v", c)
		}
	})
}

func TestAProbeGetsTheFirstAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := rivals.Open()
		defer b.Close()
		first, stopFirst := b.Probe(one)
		second, stopSecond := b.Probe(one)
		b.Claim(two, berta)
		b.Claim(one, ann)
		b.Claim(one, berta)
		for _, answer := range []<-chan net.HardwareAddr{first, second} {
			if got := <-answer; got.String() != ann.String() {
				t.Errorf("answered by %s, want %s", got, ann)
			}
		}
		stopFirst()
		if !b.Cares(one) {
			t.Error("the second probe still waits")
		}
		stopSecond()
		if b.Cares(one) {
			t.Error("nobody waits any more")
		}
		if c, ok := next(b); ok {
			t.Errorf("an unwatched address gave %+v", c)
		}
	})
}
