package detect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	rawpacket "github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
)

const (
	// etherType is IEEE 802 local experimental 1 (RFC 9542 section B.2).
	etherType      = 0x88B5
	ethernetHeader = 14
	// reopen is how long to wait at most until a link that cannot be opened, or whose interface is gone, is looked at
	// again; a change that the kernel tells is followed at once.
	reopen = time.Second
)

// link is the heartbeat on one interface.
type link struct {
	name string
	out  *outbox
}

func newLink(name string) *link { return &link{name: name, out: newOutbox()} }

// runLink keeps the heartbeat on the interface, through its absence, renaming and re-creation.
func (d *Detector) runLink(ctx context.Context, l *link) {
	changes := make(chan struct{}, 1) // capacity 1: the newest state of the interface is read
	var watching sync.WaitGroup
	watching.Go(func() { d.watchLinks(ctx, changes) })
	defer watching.Wait()
	told := ""
	for ctx.Err() == nil {
		err := d.useLink(ctx, l, changes, &told)
		if ctx.Err() != nil {
			return
		}
		if err.Error() != told { // the same reason again is no news
			told = err.Error()
			d.cfg.Log.Warn("no heartbeat on the link: the other detectors judge", "iface", l.name, "err", err)
		}
		wait(ctx, changes)
	}
}

func wait(ctx context.Context, changes <-chan struct{}) {
	t := time.NewTimer(reopen)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-changes:
	case <-t.C:
	}
}

// useLink opens the interface and sends and receives until it is no longer the same. told is emptied when it works.
func (d *Detector) useLink(ctx context.Context, l *link, changes <-chan struct{}, told *string) error {
	iface, err := net.InterfaceByName(l.name)
	if err != nil {
		return fmt.Errorf("find the interface: %w", err)
	}
	if len(iface.HardwareAddr) != 6 {
		return errors.New("the interface has no Ethernet address")
	}
	conn, err := rawpacket.Listen(iface, rawpacket.Raw, etherType, nil)
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("open a packet socket: %w: the process needs CAP_NET_RAW", err)
	}
	if err != nil {
		return fmt.Errorf("open a packet socket: %w", err)
	}
	if *told != "" {
		*told = ""
		d.cfg.Log.Info("heartbeat on the link again", "iface", l.name)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	running.Go(func() { d.sendLink(ctx, l, conn, iface.HardwareAddr) })
	running.Go(func() { d.receiveLink(ctx, l, conn) })
	err = d.stay(ctx, iface, changes)
	cancel()
	closing := conn.Close()
	running.Wait()
	return errors.Join(err, closing)
}

// stay returns when the name no longer means the interface that was opened.
func (d *Detector) stay(ctx context.Context, opened *net.Interface, changes <-chan struct{}) error {
	for {
		wait(ctx, changes)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end that was asked for
		}
		now, err := net.InterfaceByName(opened.Name)
		switch {
		case err != nil:
			return fmt.Errorf("the interface is gone: %w", err)
		case now.Index != opened.Index || now.HardwareAddr.String() != opened.HardwareAddr.String():
			return errors.New("the interface was created anew, or got another address")
		}
	}
}

func (d *Detector) sendLink(ctx context.Context, l *link, conn *rawpacket.Conn, own net.HardwareAddr) {
	broadcast := &rawpacket.Addr{HardwareAddr: net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.out.wake:
		}
		for _, letter := range l.out.take() {
			_, _ = conn.WriteTo(frame(broadcast.HardwareAddr, own, d.seal(letter, overLink)), broadcast) // down, or full: the peer judges by what comes
		}
	}
}

func frame(to, from net.HardwareAddr, payload []byte) []byte {
	b := make([]byte, 0, ethernetHeader+len(payload))
	b = append(b, to...)
	b = append(b, from...)
	b = append(b, etherType>>8, etherType&0xff)
	return append(b, payload...)
}

func (d *Detector) receiveLink(ctx context.Context, l *link, conn *rawpacket.Conn) {
	buffer := make([]byte, ethernetHeader+maxPacket+1)
	for ctx.Err() == nil {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			// The link is down (packet(7): ENETDOWN): the socket works again when it is up. Closed: ctx has ended.
			if !pause(ctx, d.cfg.Interval/ticksPerInterval) {
				return
			}
			continue
		}
		if n < ethernetHeader {
			continue
		}
		d.receive(linkVia(l.name), overLink, buffer[ethernetHeader:n], from.String(), l.out.put)
	}
}

// watchLinks passes on that the kernel told of some interface (rtnetlink(7), RTNLGRP_LINK); where it cannot, reopen
// does alone.
func (d *Detector) watchLinks(ctx context.Context, changes chan struct{}) {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{Groups: unix.RTMGRP_LINK})
	if err != nil {
		d.cfg.Log.Warn("changes of interfaces are seen late", "err", err)
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	for ctx.Err() == nil {
		if _, err := conn.Receive(); err != nil && ctx.Err() == nil && !pause(ctx, reopen) {
			break
		}
		poke(changes)
	}
	if stop() {
		_ = conn.Close()
	}
}
