package addr

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// eventBytes is the receive buffer of the subscription: some thousand addresses may come and go at once.
const eventBytes = 1 << 20

func subscribe() (*nl.NetlinkSocket, error) {
	events, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return nil, fmt.Errorf("subscribe to addresses and links: %w", err)
	}
	if err := events.SetReceiveBufferSize(eventBytes, true); err == nil {
		return events, nil
	}
	// Without CAP_NET_ADMIN the kernel's limit counts (net.core.rmem_max).
	if err := events.SetReceiveBufferSize(eventBytes, false); err != nil {
		events.Close()
		return nil, fmt.Errorf("subscribe to addresses and links: %w", err)
	}
	return events, nil
}

// listen reads events until the socket is closed.
func (s *Set) listen() error {
	for {
		messages, from, err := s.events.Receive()
		switch {
		case err != nil && s.closed.Load():
			return nil
		case errors.Is(err, unix.ENOBUFS):
			// The kernel dropped events: anything may have changed.
			s.notify()
			continue
		case errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN):
			continue
		case err != nil:
			return fmt.Errorf("read events of addresses and links: %w", err)
		case from.Pid != nl.PidKernel:
			continue
		}
		for _, m := range messages {
			if s.concerns(m) {
				s.notify()
			}
		}
	}
}

func (s *Set) notify() {
	select {
	case s.changes <- struct{}{}:
	default:
	}
}

// concerns says whether the event is about something of ours. What Apply does is not: an address that it
// removes is no longer in the ledger when the event is read, and additions are no events at all.
func (s *Set) concerns(m syscall.NetlinkMessage) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch m.Header.Type {
	case unix.RTM_DELADDR:
		return s.lost(m.Data)
	case unix.RTM_NEWLINK:
		l, ok := parseLink(m)
		return ok && s.linkChanged(l)
	case unix.RTM_DELLINK:
		l, ok := parseLink(m)
		return ok && s.linkGone(l)
	}
	return false
}

// lost says whether a removed address was ours.
func (s *Set) lost(data []byte) bool {
	if len(data) < unix.SizeofIfAddrmsg {
		return false
	}
	head := nl.DeserializeIfAddrmsg(data)
	attributes, err := nl.ParseRouteAttr(data[head.Len():])
	if err != nil {
		return false
	}
	for _, a := range attributes {
		if a.Attr.Type != unix.IFA_LOCAL && a.Attr.Type != unix.IFA_ADDRESS {
			continue
		}
		ip, ok := netip.AddrFromSlice(a.Value)
		if !ok {
			continue
		}
		for _, e := range s.owned[ip] {
			if e.Index == int(head.Index) {
				return true
			}
		}
	}
	return false
}

func parseLink(m syscall.NetlinkMessage) (Link, bool) {
	if len(m.Data) < unix.SizeofIfInfomsg || nl.DeserializeIfInfomsg(m.Data).Family != unix.AF_UNSPEC {
		// A bridge tells of its ports with the same message and another family.
		return Link{}, false
	}
	header := unix.NlMsghdr(m.Header)
	link, err := netlink.LinkDeserialize(&header, m.Data)
	if err != nil {
		return Link{}, false
	}
	return linkOf(link.Attrs()), true
}

// linkChanged compares the link with what was last told of it. An interface that was renamed is gone under
// its old name.
func (s *Set) linkChanged(now Link) bool {
	changed := false
	for name, last := range s.links {
		if last.Index == now.Index && name != now.Name {
			s.links[name] = Link{Name: name}
			changed = true
		}
	}
	if last, asked := s.links[now.Name]; asked && !same(last, now) {
		s.links[now.Name] = now
		changed = true
	}
	return changed
}

func (s *Set) linkGone(gone Link) bool {
	last, asked := s.links[gone.Name]
	if !asked || last.Index != gone.Index {
		return false
	}
	s.links[gone.Name] = Link{Name: gone.Name}
	return true
}

func same(a, b Link) bool {
	return a.Index == b.Index && a.Up == b.Up && a.MTU == b.MTU && bytes.Equal(a.HardwareAddr, b.HardwareAddr)
}
