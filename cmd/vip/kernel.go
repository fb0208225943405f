package vip

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"headgate/cmd/config"
	"headgate/vip/addr"
	"headgate/vip/speaker"
)

// kernel is the speaker's Kernel: vip/addr, and a file that tells a cleanup to leave the addresses while nobody else
// could take them.
type kernel struct {
	addresses *addr.Set
	keep      string
	lasting   time.Duration
	log       *slog.Logger
	kept      bool
}

// Apply implements speaker.Kernel.
func (k *kernel) Apply(desired []speaker.Address, lifetime time.Duration) error {
	list := make([]addr.Address, len(desired))
	for i, a := range desired {
		list[i] = addr.Address{IP: a.IP, Bits: a.Bits, Interface: a.Interface, Lifetime: lifetime}
	}
	k.mark(lifetime)
	if err := k.addresses.Apply(list); err != nil {
		return fmt.Errorf("apply addresses: %w", err)
	}
	return nil
}

// mark keeps the file equal to whether the addresses are lasting ones. Its writing must not keep an address off.
func (k *kernel) mark(lifetime time.Duration) {
	keep := lifetime >= k.lasting
	if keep == k.kept {
		return
	}
	var err error
	if keep {
		err = os.WriteFile(k.keep, nil, 0o640) //nolint:gosec // it says nothing
	} else if err = os.Remove(k.keep); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		k.log.Warn("a cleanup after a crash may do the wrong thing", "file", k.keep, "err", err)
		return
	}
	k.kept = keep
}

// Held implements speaker.Kernel.
func (k *kernel) Held() ([]speaker.Address, error) {
	held, err := k.addresses.Held()
	if err != nil {
		return nil, fmt.Errorf("read addresses: %w", err)
	}
	list := make([]speaker.Address, len(held))
	for i, a := range held {
		list[i] = speaker.Address{IP: a.IP, Bits: a.Bits, Interface: a.Interface}
	}
	return list, nil
}

// Link implements speaker.Kernel.
func (k *kernel) Link(name string) (speaker.Link, error) {
	l, err := k.addresses.Link(name)
	if err != nil {
		return speaker.Link{}, fmt.Errorf("read interface: %w", err)
	}
	return speaker.Link{Up: l.Up, HardwareAddr: l.HardwareAddr}, nil
}

// Cleanup takes the VIPs off this host after its VIP process died, for ExecStopPost. It leaves them when no other host
// could take them: the next start adopts them, or they expire. Otherwise the proxy goes on answering for a moment what is
// under way, without a word on the network. The text says what it did.
func Cleanup(c config.Config, log *slog.Logger) (string, error) {
	p := PathsOf(c)
	lock, err := claim(p)
	if errors.Is(err, fs.ErrNotExist) {
		return "nothing to clean up: no VIP process has run here", nil
	}
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }() // nothing was written
	if _, err := os.Stat(p.Keep); err == nil {
		return "the addresses stay: no other host could take them; they expire within a minute unless the next start adopts them", nil
	}
	if err := keepCrashed(c, log); err != nil {
		log.Warn("connections that are under way are cut", "err", err)
	}
	if err := addr.Cleanup(p.Addresses); err != nil {
		return "", fmt.Errorf("clean up: %w", err)
	}
	return "the addresses of the VIPs are off", nil
}
