package check

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"
)

const dnsTimeout = 2 * time.Second

// nameServers asks each server for the root, which every resolver knows. Any answer counts. Only ExternalName
// services and an API server with a name need them.
func (r *run) nameServers(ctx context.Context) {
	servers, written := r.Config.DNS.Servers, true
	if len(servers) == 0 {
		written = false
		file := r.path("/etc/resolv.conf")
		read, err := dns.ClientConfigFromFile(file)
		if err != nil || len(read.Servers) == 0 {
			r.warn("write dns.servers, or nameserver lines into "+file, "%s names no server: ExternalName services get no addresses", file)
			return
		}
		for _, text := range read.Servers {
			if a, err := netip.ParseAddr(text); err == nil {
				servers = append(servers, netip.AddrPortFrom(a, 53))
			}
		}
	}
	errs := make([]error, len(servers))
	var asked sync.WaitGroup
	for i, s := range servers {
		asked.Go(func() { errs[i] = ask(ctx, s) })
	}
	asked.Wait()
	silent := 0
	for i, err := range errs {
		if err != nil {
			silent++
			r.warn("see whether "+servers[i].Addr().String()+" is right and reachable from here", "name server %s does not answer: %v", servers[i], err)
			continue
		}
		r.ok("name server %s answers", servers[i])
	}
	if written && silent == len(servers) {
		r.fail("correct dns.servers", "none of dns.servers answers: ExternalName services get no addresses")
	}
}

func ask(ctx context.Context, server netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, dnsTimeout)
	defer cancel()
	question := new(dns.Msg)
	question.SetQuestion(".", dns.TypeNS)
	client := dns.Client{Timeout: dnsTimeout}
	if _, _, err := client.ExchangeContext(ctx, question, server.String()); err != nil {
		return fmt.Errorf("ask for the root: %w", err)
	}
	return nil
}
