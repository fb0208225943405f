package ndp

import (
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// localAddress finds the link-local address of an interface. The file that it reads stays that of the namespace in
// which it was opened.
type localAddress struct {
	mu     sync.Mutex // guards the rest
	file   *os.File
	known  netip.Addr
	index  int
	looked time.Time
}

// localFile lists all IPv6 addresses: address, index of the interface, length of the prefix, scope, flags, name; all
// but the name in hexadecimal.
const localFile = "/proc/thread-self/net/if_inet6"

func openLocalAddress() (*localAddress, error) {
	file, err := os.Open(localFile)
	if err != nil {
		return nil, fmt.Errorf("list the IPv6 addresses: %w", err)
	}
	return &localAddress{file: file}, nil
}

// lookEvery is how long an address is remembered: a thousand VIPs are probed at once.
const lookEvery = time.Second

// of gives the link-local address of the interface, unspecified when it has none that is usable.
func (l *localAddress) of(index int, now time.Time) netip.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.index != index || now.Sub(l.looked) >= lookEvery {
		l.index, l.looked, l.known = index, now, l.read(index)
	}
	return l.known
}

func (l *localAddress) read(index int) netip.Addr {
	if _, err := l.file.Seek(0, io.SeekStart); err != nil {
		return netip.IPv6Unspecified() // closed
	}
	text, err := io.ReadAll(l.file)
	if err != nil {
		return netip.IPv6Unspecified()
	}
	return parseLocal(string(text), index)
}

func parseLocal(text string, index int) netip.Addr {
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 5 || unusable(words[4]) {
			continue
		}
		at, err := strconv.ParseUint(words[1], 16, 32)
		if err != nil || int(at) != index {
			continue
		}
		b, err := hex.DecodeString(words[0])
		if ip, ok := netip.AddrFromSlice(b); err == nil && ok && ip.IsLinkLocalUnicast() {
			return ip
		}
	}
	return netip.IPv6Unspecified()
}

// unusable tells that nobody answers for an address: it is tentative, or somebody else has it. An answer that is sent to
// it would wait for that.
func unusable(flags string) bool {
	set, err := strconv.ParseUint(flags, 16, 32)
	return err != nil || set&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0
}

func (l *localAddress) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Close()
}
