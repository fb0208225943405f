package addr

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"

	"github.com/google/renameio/v2"
)

// schema is that of the state file.
const schema = 1

// stateFileMode lets everybody read it: it holds no secret.
const stateFileMode = 0o644

// refusedSuffix is put behind the name of a state file that is none.
const refusedSuffix = ".refused"

// entry names an address of ours.
type entry struct {
	Interface string     `json:"interface"`
	Index     int        `json:"index"`
	IP        netip.Addr `json:"ip"`
	Bits      int        `json:"bits"`
}

func (e entry) names(p kernelAddress) bool {
	return e.IP == p.ip && e.Bits == p.bits && (e.Index == p.index || e.Interface == p.iface)
}

// asKernel is the address where it was added.
func (e entry) asKernel() kernelAddress {
	return kernelAddress{index: e.Index, iface: e.Interface, ip: e.IP, bits: e.Bits}
}

func (e entry) valid() bool {
	return e.Interface != "" && e.Index > 0 && e.IP.IsValid() && e.Bits > 0 && e.Bits <= e.IP.BitLen()
}

// ledger is the addresses of ours.
type ledger map[netip.Addr][]entry

func (l ledger) add(e entry) {
	if !l.has(e) {
		l[e.IP] = append(l[e.IP], e)
	}
}

func (l ledger) has(e entry) bool { return slices.Contains(l[e.IP], e) }

// owns says whether the kernel's address is ours. An interface that was renamed keeps its index, one that was
// made anew its name.
func (l ledger) owns(p kernelAddress) bool {
	return slices.ContainsFunc(l[p.ip], func(e entry) bool { return e.names(p) })
}

// foreign finds an address of somebody else where ours should go.
func (l ledger) foreign(w placed, have inventory) error {
	for _, p := range have.byIP[w.IP] {
		if p.index == w.index && !l.owns(p) {
			return fmt.Errorf("%s/%d on %s: %w: remove it (ip addr del %s/%d dev %s) or take it out of what configures it",
				p.ip, p.bits, p.iface, ErrForeign, p.ip, p.bits, p.iface)
		}
	}
	return nil
}

func (l ledger) remove(e entry) {
	l[e.IP] = slices.DeleteFunc(l[e.IP], func(other entry) bool { return other == e })
	if len(l[e.IP]) == 0 {
		delete(l, e.IP)
	}
}

func (l ledger) copy() ledger {
	other := make(ledger, len(l))
	for ip, entries := range l {
		other[ip] = slices.Clone(entries)
	}
	return other
}

// list is in the order of the addresses, so that equal ledgers give equal files.
func (l ledger) list() []entry {
	all := []entry{}
	for _, ip := range slices.SortedFunc(maps.Keys(l), netip.Addr.Compare) {
		all = append(all, l[ip]...)
	}
	return all
}

type stateFile struct {
	Schema    int     `json:"schema"`
	Addresses []entry `json:"addresses"`
}

// errState says that a file is no state file of ours.
var errState = errors.New("not a state file of VIP addresses")

// load reads the state file; without one nothing is ours.
func load(path string) (ledger, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return ledger{}, nil
	}
	if err != nil {
		return nil, err
	}
	return parse(path, text)
}

func parse(path string, text []byte) (ledger, error) {
	var f stateFile
	if err := json.Unmarshal(text, &f); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", path, errState, err)
	}
	if f.Schema != schema {
		return nil, fmt.Errorf("%s: %w: schema %d, want %d", path, errState, f.Schema, schema)
	}
	owned := ledger{}
	for _, e := range f.Addresses {
		if !e.valid() {
			return nil, fmt.Errorf("%s: %w: address %s/%d on %q", path, errState, e.IP, e.Bits, e.Interface)
		}
		owned.add(e)
	}
	return owned, nil
}

func loadOrRefuse(path string, log *slog.Logger) (ledger, error) {
	owned, err := load(path)
	if !errors.Is(err, errState) {
		return owned, err
	}
	log.Warn("moved a state file aside that cannot be used", "file", path, "to", path+refusedSuffix, "err", err)
	if err := os.Rename(path, path+refusedSuffix); err != nil {
		return nil, err
	}
	return ledger{}, nil
}

// store replaces the state file: fsync, then rename, so that a crash leaves the old one or the new one.
func store(path string, owned ledger) error {
	text, err := json.Marshal(stateFile{Schema: schema, Addresses: owned.list()})
	if err != nil {
		return err
	}
	return renameio.WriteFile(path, append(text, '\n'), stateFileMode)
}

func forget(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
