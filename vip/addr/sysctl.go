package addr

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Sysctl is a setting of the kernel that a VIP needs.
type Sysctl struct {
	Key     string // as sysctl(8) has it
	Have    string // its value now, after Sysctls
	Want    string
	Changed bool  // Sysctls set it
	Err     error // why it is not as wanted and could not be set; nil if all is well

	why  string
	path string
}

// Complaint is what to tell the administrator, with the command that mends it; "" if all is well.
func (s Sysctl) Complaint() string {
	if s.Err == nil {
		return ""
	}
	return fmt.Sprintf("%s is %s, want %s (%s): run %s, and put it into /etc/sysctl.d to keep it: %v",
		s.Key, s.Have, s.Want, s.why, command(s.path, s.Want), s.Err)
}

// AboutARP says whether the setting is one of those that keep a host from answering for a VIP of another.
func (s Sysctl) AboutARP() bool { return strings.Contains(s.path, "/arp_") }

// interfaceName is what may stand in a path below /proc/sys: what the kernel takes for a name, and no dots alone.
var interfaceName = regexp.MustCompile(`^[^/\s:]{1,15}$`)

// Sysctls looks at the settings that VIPs on the interface need and sets those that are not so, where it may
// (it may not in a unit with ProtectKernelTunables). It returns every setting that it looked at; what could not
// be set has an Err and a Complaint. Settings of IPv6 are left out where the kernel has none.
//
//   - arp_ignore=1, arp_announce=2: a host answers ARP for a VIP only on the interface that has it, and never
//     names a VIP as the sender of its own requests. For both the kernel takes the higher one of "all" and the interface.
//   - promote_secondaries=1: taking a VIP with a prefix off takes no other address of its network with it.
//   - ip_nonlocal_bind=1, for IPv4 and IPv6: the proxy may listen on a VIP that another host has.
//
// The error is about the name of the interface alone; it wraps [ErrNoLink] if there is no such interface.
func Sysctls(iface string) ([]Sysctl, error) {
	if !interfaceName.MatchString(iface) || iface == "." || iface == ".." {
		return nil, fmt.Errorf("interface %q: a name has 1 to 15 characters, without spaces, slashes and colons", iface)
	}
	if _, err := os.Stat(sysctlFile("net/ipv4/conf/" + iface)); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("interface %s: %w", iface, ErrNoLink)
	}
	var all []Sysctl
	for _, r := range rules(iface) {
		if s, there := r.enforce(); there {
			all = append(all, s)
		}
	}
	return all, nil
}

// rule is one setting: good values, and where it is read and set.
type rule struct {
	path string
	also string // a second place; the higher value counts
	want string
	good []string
	why  string
}

func rules(iface string) []rule {
	const v4, all = "net/ipv4/conf/", "net/ipv4/conf/all/"
	return []rule{
		// 2 is stricter than 1 and still answers the own network. 3 to 8 hide the VIP or answer for others.
		{v4 + iface + "/arp_ignore", all + "arp_ignore", "1", []string{"1", "2"}, "else hosts answer ARP for a VIP that is not theirs"},
		{v4 + iface + "/arp_announce", all + "arp_announce", "2", []string{"2"}, "else a VIP becomes the sender of ARP requests"},
		{v4 + iface + "/promote_secondaries", all + "promote_secondaries", "1", []string{"1"}, "else a VIP that goes takes other addresses of its network along"},
		{"net/ipv4/ip_nonlocal_bind", "", "1", []string{"1"}, "else the proxy cannot listen on a VIP of another host"},
		{"net/ipv6/ip_nonlocal_bind", "", "1", []string{"1"}, "else the proxy cannot listen on a VIP of another host"},
	}
}

// enforce looks and sets; false if the kernel has no such setting.
func (r rule) enforce() (Sysctl, bool) {
	s := Sysctl{Key: dotted(r.path), Want: r.want, why: r.why, path: r.path}
	have, err := r.effective()
	if errors.Is(err, fs.ErrNotExist) {
		return s, false
	}
	if s.Have = have; err != nil {
		s.Have, s.Err = "unknown", err
		return s, true
	}
	if slices.Contains(r.good, have) {
		return s, true
	}
	if s.Err = os.WriteFile(sysctlFile(r.path), []byte(r.want), 0o644); s.Err != nil {
		return s, true
	}
	s.Changed = true
	if s.Have, s.Err = r.effective(); s.Err == nil && !slices.Contains(r.good, s.Have) {
		// The other place has a higher value, and to lower that one is not ours: it is about all interfaces.
		s.Key, s.path, s.Changed = dotted(r.also), r.also, false
		s.Err = errors.New("the higher value of all and the interface counts")
	}
	return s, true
}

func (r rule) effective() (string, error) {
	value, err := readNumber(r.path)
	if err != nil || r.also == "" {
		return strconv.Itoa(value), err
	}
	other, err := readNumber(r.also)
	return strconv.Itoa(max(value, other)), err
}

func readNumber(path string) (int, error) {
	text, err := os.ReadFile(sysctlFile(path))
	if err != nil {
		return 0, err
	}
	number, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", sysctlFile(path), err)
	}
	return number, nil
}

func sysctlFile(path string) string { return filepath.Join("/proc/sys", path) }

// command is what the administrator runs.
func command(path, value string) string { return "sysctl -w " + dotted(path) + "=" + value }

// dotted writes the key as sysctl(8) does: a dot in the name of an interface becomes a slash.
func dotted(path string) string {
	return strings.NewReplacer("/", ".", ".", "/").Replace(path)
}
