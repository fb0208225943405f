package check

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"headgate/cmd/shell"
	"headgate/cmd/vip"
	"headgate/sync/gossip"
)

// peer is a host of gossip.peers.
type peer struct {
	name string // as written
	at   netip.AddrPort
}

func (p peer) String() string {
	if strings.HasPrefix(p.name, p.at.Addr().String()) {
		return p.name
	}
	return p.name + " (" + p.at.Addr().String() + ")"
}

// gossip looks at the secret and the ports, and asks each other host whether it has the same secret. A running VIP process
// has done so.
func (r *run) gossip(ctx context.Context) {
	g := r.Config.Gossip
	if len(r.Config.VIP.All()) == 0 || len(g.Peers) == 0 {
		r.ok("this host shares no VIP with others")
		return
	}
	secret, err := r.secret()
	if err != nil {
		r.fail("headgate gossip genkey --out "+shell.Word(g.KeyFile)+" on one host and a copy on the others, or headgate join STRING; chgrp headgate and chmod 0640 on the file", "%v", err)
	} else {
		r.ok("the secret of the hosts can be read: key %s", secret.ID())
		r.secretFile(g.KeyFile, "the secret of the hosts")
	}
	status, askErr := gossip.Ask(ctx, vip.PathsOf(r.Config).Socket)
	if askErr == nil {
		r.members(status)
		return
	}
	r.ok("no VIP process runs on this host: the other hosts are asked from here")
	r.ports()
	if err != nil {
		return
	}
	peers, unresolved := r.peers(ctx)
	for name, err := range unresolved {
		r.fail("write the address of "+name+" into gossip.peers, or its name into /etc/hosts", "%s has no address: %v", name, err)
	}
	r.greet(ctx, peers, secret)
}

// secret is the one in use: after a rotation it is in the keyring.
func (r *run) secret() (gossip.Secret, error) {
	secrets, err := gossip.ReadSecretFile(vip.PathsOf(r.Config).Keyring)
	if errors.Is(err, fs.ErrNotExist) {
		secrets, err = gossip.ReadSecretFile(r.Config.Gossip.KeyFile)
	}
	if err != nil {
		return gossip.Secret{}, err
	}
	return secrets[0], nil
}

// members tells what the running process knows.
func (r *run) members(s gossip.Status) {
	if s.Clash != "" {
		r.fail("write another gossip.host on one of them, and restart headgate-vip there", "%s", s.Clash)
	}
	for _, c := range s.Conditions {
		r.fail(adviceOnGossip(c.Kind, c.Peer), "%s: %s", c.Peer, c.Message)
	}
	for _, m := range s.Members {
		if m.Name != s.Host {
			r.ok("%s (%s) is a member, with our key", m.Name, m.Address)
		}
	}
	if len(s.Members) <= 1 && len(s.Conditions) == 0 {
		r.warn("start headgate-vip on the other hosts", "no other host is a member of the cluster %s", s.Cluster)
	}
}

func adviceOnGossip(k gossip.Kind, peer string) string {
	switch k {
	case gossip.Unreachable:
		return "systemctl start headgate-vip on " + peer + ", and open TCP and UDP of gossip.listen and vip.listen between the hosts"
	case gossip.Unresolved:
		return "write the address into gossip.peers"
	case gossip.WrongKey:
		return "copy gossip.keyFile of one host to all others (chmod 0640), or headgate join --force there; then restart headgate-vip"
	case gossip.RetiredKey:
		return "copy gossip.keyring from the stateDir of a host that is in the cluster, as gossip.keyFile"
	case gossip.BehindKey:
		return "headgate gossip rotate-key --finish, once it has the key"
	case gossip.OtherCluster:
		return "write the same gossip.cluster on all hosts"
	case gossip.NameClash:
		return "write another gossip.host on one of them"
	case gossip.UDPBlocked:
		return "open UDP of gossip.listen and vip.listen between the hosts in the firewall"
	case gossip.JoinFailed:
	}
	return "headgate version on both hosts, and journalctl -u headgate-vip there"
}

// ports tries whether what the VIP process listens on can be had.
func (r *run) ports() {
	held, _ := r.held() // who it is only makes the message better
	var free []string
	for _, p := range []struct {
		key string
		at  netip.AddrPort
	}{{"gossip.listen", r.Config.Gossip.Listen}, {"vip.listen", r.Config.VIP.Listen}} {
		err := errors.Join(r.Host.Bind(p.at), r.Host.BindUDP(p.at))
		switch {
		case err == nil:
			free = append(free, p.at.String())
		case errors.Is(err, unix.EADDRINUSE):
			who := "another process"
			if h := holderOf(p.at, held, func(string) bool { return false }); h != nil && h.pid != 0 {
				who = fmt.Sprintf("%s (PID %d)", h.name, h.pid)
			}
			r.fail("stop it (ss -lntup), or write another port for "+p.key+" on all hosts", "%s %s is taken by %s", p.key, p.at, who)
		case errors.Is(err, unix.EADDRNOTAVAIL):
			r.fail("write an address of this host, or 0.0.0.0, for "+p.key, "%s %s: no interface has this address", p.key, p.at)
		default:
			r.fail("write another address for "+p.key, "%s %s: %v", p.key, p.at, err)
		}
	}
	if len(free) > 0 {
		r.ok("free, TCP and UDP: %s", strings.Join(free, ", "))
	}
}

// peers resolves the other hosts; this one is left out.
func (r *run) peers(ctx context.Context) (list []peer, unresolved map[string]error) {
	ours, _ := own() // without them this host is asked, too, and says so
	unresolved = map[string]error{}
	for _, name := range r.Config.Gossip.Peers {
		host, port, err := gossip.PeerAddress(name, r.Config.Gossip.Listen.Port())
		if err != nil {
			continue // config has checked it
		}
		addresses := []netip.Addr{}
		if a, err := netip.ParseAddr(host); err == nil {
			addresses = append(addresses, a)
		} else {
			looking, cancel := context.WithTimeout(ctx, dnsTimeout)
			addresses, err = net.DefaultResolver.LookupNetIP(looking, "ip", host)
			cancel()
			if err != nil {
				unresolved[name] = err
			}
		}
		for _, a := range addresses {
			if _, here := ours[a.Unmap()]; !here {
				list = append(list, peer{name, netip.AddrPortFrom(a.Unmap(), port)})
			}
		}
	}
	return list, unresolved
}

// greet asks all of them at once, and whether the port of the heartbeats is open.
func (r *run) greet(ctx context.Context, peers []peer, secret gossip.Secret) {
	type found struct {
		agreement     gossip.Agreement
		err, heartErr error
	}
	results := make([]found, len(peers))
	var asked sync.WaitGroup
	for i, p := range peers {
		asked.Go(func() {
			caller := gossip.Caller{Cluster: r.Config.Gossip.Cluster, Secret: secret, Host: "headgate doctor"}
			results[i].agreement, results[i].err = gossip.Hello(ctx, caller, p.at)
			if results[i].err == nil {
				results[i].heartErr = reach(ctx, netip.AddrPortFrom(p.at.Addr(), r.Config.VIP.Listen.Port()))
			}
		})
	}
	asked.Wait()
	for i, p := range peers {
		switch f := results[i]; {
		case f.err != nil:
			r.fail(adviceOnGossip(gossip.Unreachable, p.name), "%s does not answer on %s: %v", p, p.at, f.err)
		case !f.agreement.Agrees:
			r.fail(adviceOnGossip(f.agreement.Kind, p.name), "%s", disagreement(p, f.agreement, r.Config.Gossip.Cluster, secret))
		case f.heartErr != nil:
			r.fail(fmt.Sprintf("open TCP and UDP port %d between the hosts in the firewall", r.Config.VIP.Listen.Port()),
				"%s has our key, and the port of its heartbeats is closed: %v", p, f.heartErr)
		default:
			r.ok("%s is host %s of the cluster %s, with our key", p, f.agreement.Host, f.agreement.Cluster)
		}
	}
}

func disagreement(p peer, a gossip.Agreement, cluster string, secret gossip.Secret) string {
	switch a.Kind {
	case gossip.OtherCluster:
		return fmt.Sprintf("%s says that it is host %q of the cluster %q, and ours is %q", p, a.Host, a.Cluster, cluster)
	case gossip.RetiredKey:
		return fmt.Sprintf("%s says that our key %s was retired by a rotation", p, secret.ID())
	case gossip.WrongKey:
		return fmt.Sprintf("%s says that it is host %q with the key %s, and ours is %s", p, a.Host, a.KeyID, secret.ID())
	default:
		return fmt.Sprintf("%s gives an answer that this version does not know", p)
	}
}

const reachTimeout = 2 * time.Second

// reach makes a TCP connection and ends it.
func reach(ctx context.Context, to netip.AddrPort) error {
	dialer := net.Dialer{Timeout: reachTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return err
	}
	return conn.Close()
}

// bindUDP is bind for a datagram socket.
func bindUDP(a netip.AddrPort) error {
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(a))
	if err != nil {
		return err
	}
	return conn.Close()
}
