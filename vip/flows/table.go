package flows

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// The names in nftables. The table is ours as a whole.
const (
	tableName = "headgate_flows"
	probeName = "headgate_flows_probe"
	mapName   = "old_owner"
)

// mapID links rules to the map within one transaction.
const mapID = 1

// chunk is how many elements go into one message, whose attributes are at most 64 KiB.
const chunk = 256

// family is what differs between IPv4 and IPv6.
type family struct {
	name     string
	word     string
	table    nftables.TableFamily
	key      nftables.SetDatatype
	dup      string // the kernel's module for dup expressions
	address  field  // destination address in the header
	hopLimit field
	icmp     byte // protocol number of its error messages
	errors   byte // highest type of an error message
	lowest   byte // and the lowest one
}

// field is a place in a network header, in bytes.
type field struct{ offset, length uint32 }

func families() []family { return []family{ipv4(), ipv6()} }

func ipv4() family {
	return family{
		name: "ip", word: "IPv4", table: nftables.TableFamilyIPv4, key: nftables.TypeIPAddr, dup: "nft_dup_ipv4",
		address: field{16, 4}, hopLimit: field{8, 1},
		// Destination unreachable (RFC 792), fragmentation needed among them.
		icmp: unix.IPPROTO_ICMP, lowest: 3, errors: 3,
	}
}

func ipv6() family {
	return family{
		name: "ip6", word: "IPv6", table: nftables.TableFamilyIPv6, key: nftables.TypeIP6Addr, dup: "nft_dup_ipv6",
		address: field{24, 16}, hopLimit: field{7, 1},
		// All error messages of RFC 4443, packet too big among them.
		icmp: unix.IPPROTO_ICMPV6, lowest: 1, errors: 4,
	}
}

func (fam family) isIPv4() bool { return fam.table == nftables.TableFamilyIPv4 }

func familyOf(ip netip.Addr) (family, error) {
	switch ip = ip.Unmap(); {
	case ip.Is4():
		return ipv4(), nil
	case ip.Is6():
		return ipv6(), nil
	}
	return family{}, errors.New("flows of no address cannot be kept")
}

// owners is the map from VIPs to old owners in a table.
func (fam family) owners(table *nftables.Table) (*nftables.Set, error) {
	value, err := nftables.ConcatSetType(fam.key, nftables.TypeIFIndex)
	if err != nil {
		return nil, err
	}
	return &nftables.Set{
		Table: table, ID: mapID, Name: mapName, IsMap: true, HasTimeout: true, KeyType: fam.key, DataType: value,
	}, nil
}

// write replaces the table by one that holds the targets, in one transaction: packets see the old one or the new
// one. Without targets it only removes the table.
func (fam family) write(targets map[netip.Addr]target, now time.Time) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	table := &nftables.Table{Family: fam.table, Name: tableName}
	// To remove a table that is not there is an error. A removal makes the kernel's next transaction wait, some 10 ms, so none
	// is asked for without need: an owner that crashed is being followed.
	if fam.exists() {
		conn.DelTable(table)
	}
	if len(targets) > 0 {
		if err := fam.fill(conn, conn.AddTable(table), targets, now); err != nil {
			return err
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("change nftables table %s %s: %w", fam.name, tableName, err)
	}
	return nil
}

func (fam family) fill(conn *nftables.Conn, table *nftables.Table, targets map[netip.Addr]target, now time.Time) error {
	owners, err := fam.owners(table)
	if err != nil {
		return err
	}
	if err := conn.AddSet(owners, nil); err != nil {
		return fmt.Errorf("nftables map %s: %w", mapName, err)
	}
	if err := put(conn, owners, elements(targets, now)); err != nil {
		return err
	}
	fam.rules(conn, table)
	return nil
}

func put(conn *nftables.Conn, owners *nftables.Set, all []nftables.SetElement) error {
	for part := range slices.Chunk(all, chunk) {
		if err := conn.SetAddElements(owners, part); err != nil {
			return fmt.Errorf("nftables map %s: %w", mapName, err)
		}
	}
	return nil
}

// add puts targets into a table that is there, in one transaction. It fails if there is none.
func (fam family) add(targets map[netip.Addr]target, now time.Time) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	owners, err := fam.owners(&nftables.Table{Family: fam.table, Name: tableName})
	if err != nil {
		return err
	}
	owners.ID = 0 // it is not of this transaction; the name finds it
	if err := put(conn, owners, elements(targets, now)); err != nil {
		return err
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("add to nftables map %s: %w", mapName, err)
	}
	return nil
}

// elements are the map's; each ends by itself at its deadline.
func elements(targets map[netip.Addr]target, now time.Time) []nftables.SetElement {
	var all []nftables.SetElement
	for _, vip := range slices.SortedFunc(maps.Keys(targets), netip.Addr.Compare) {
		t := targets[vip]
		left := t.until.Sub(now)
		if left < time.Millisecond {
			continue // the kernel would take 0 for "for ever"
		}
		all = append(all, nftables.SetElement{Key: vip.AsSlice(), Val: t.bytes(), Timeout: left})
	}
	return all
}

// read gives the targets that the kernel's table holds. Without a table there are none; a table that holds
// something else counts as empty.
func (fam family) read(now time.Time) (map[netip.Addr]target, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	table := &nftables.Table{Family: fam.table, Name: tableName}
	owners, err := fam.owners(table)
	if err != nil {
		return nil, err
	}
	list, err := conn.GetSetElements(owners)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read nftables map %s: %w", mapName, err)
	}
	found := map[netip.Addr]target{}
	for _, e := range list {
		vip, known := netip.AddrFromSlice(e.Key)
		t, ok := parseTarget(e.Val, vip.BitLen()/8)
		if t.until = now.Add(e.Expires); ok && known && e.Expires > 0 {
			found[vip] = t
		}
	}
	return found, nil
}

// exists says whether the kernel has a table of ours.
func (fam family) exists() bool {
	conn, err := nftables.New()
	if err != nil {
		return false
	}
	table, err := conn.ListTableOfFamily(tableName, fam.table)
	return err == nil && table != nil
}

// available tries the parts of the table one after the other, each in a transaction that removes it again. The
// first one that fails is the reason.
func (fam family) available() error {
	for _, part := range []struct {
		missing string
		add     func(*nftables.Conn, *nftables.Table) error
	}{
		{"the kernel has no nf_tables, or the process lacks CAP_NET_ADMIN", nil},
		{"nftables has no maps with timeouts", func(c *nftables.Conn, t *nftables.Table) error {
			owners, err := fam.owners(t)
			if err != nil {
				return err
			}
			return c.AddSet(owners, nil)
		}},
		{"nftables has no socket expressions (module nft_socket)", func(c *nftables.Conn, t *nftables.Table) error {
			chain := c.AddChain(&nftables.Chain{Table: t, Name: "probe"})
			c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: onlyListener()})
			return nil
		}},
		{"nftables cannot send copies of packets (module " + fam.dup + ")", func(c *nftables.Conn, t *nftables.Table) error {
			return fam.fill(c, t, nil, time.Time{})
		}},
	} {
		if err := fam.try(part.add); err != nil {
			return fmt.Errorf("flows of %s VIPs cannot be kept after a move: %s: %w", fam.word, part.missing, err)
		}
	}
	return nil
}

func (fam family) try(add func(*nftables.Conn, *nftables.Table) error) error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	table := conn.AddTable(&nftables.Table{Family: fam.table, Name: probeName})
	if add != nil {
		if err := add(conn, table); err != nil {
			return err
		}
	}
	conn.DelTable(table)
	return conn.Flush()
}
