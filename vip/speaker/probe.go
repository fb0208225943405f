package speaker

import (
	"context"
	"net"
	"sync"
	"time"
)

// probe asks the wire for all addresses of one VIP at once.
type probe struct {
	token     uint64
	vip       uint32
	addresses []Address
}

// answer is who answered for one address.
type answer struct {
	address  Address
	hardware net.HardwareAddr
}

// probeResult is what came of a probe. An error of one address hides no answer of another.
type probeResult struct {
	token   uint64
	vip     uint32
	answers []answer
	err     error
}

// probeTimeout bounds a probe; it takes 40 ms when nobody answers.
const probeTimeout = time.Second

func (p probe) ask(ctx context.Context, wire Wire) probeResult {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	result := probeResult{token: p.token, vip: p.vip}
	var lock sync.Mutex // guards result
	var asked sync.WaitGroup
	for _, a := range p.addresses {
		asked.Go(func() {
			hardware, answered, err := wire.Probe(ctx, a)
			lock.Lock()
			defer lock.Unlock()
			if err != nil {
				result.err = err
			}
			if answered {
				result.answers = append(result.answers, answer{a, hardware})
			}
		})
	}
	asked.Wait()
	return result
}
