package arch

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// A room is a folder with its own rules of import. The standard library is open to every room
// but for what closed names. An entry of uses opens that package and all below it.
type room struct {
	path   string   // below the module; the longest match is a package's room
	uses   []string // other rooms (starting with a room's first folder) and modules
	closed []string // packages of the standard library
}

// impure is what a room that only thinks has no use for.
func impure() []string {
	return []string{"log", "log/slog", "os", "os/exec", "os/signal", "net", "net/http", "syscall", "math/rand", "math/rand/v2"}
}

// rooms is the table of the house: who may import whom. A package in no room fails the test,
// so a new room begins with a line here. "*" opens everything.
func rooms() []room {
	const (
		apis   = "k8s.io/api"
		quanta = "k8s.io/apimachinery/pkg" // types that k8s.io/api cannot be used without
		hash   = "github.com/cespare/xxhash/v2"
		yaml   = "sigs.k8s.io/yaml"
	)
	return []room{
		{path: "cmd", uses: []string{"*"}},
		{path: "cmd/keepalived", uses: []string{"cmd/config"}, closed: impure()},

		{path: "gateway/snapshot", uses: []string{apis, quanta}, closed: impure()},
		{path: "gateway/model", closed: impure()},
		{path: "gateway/annotations", uses: []string{"gateway/model", "gateway/spelling"}, closed: impure()},
		{path: "gateway/spelling", closed: impure()},
		{path: "gateway/build", uses: []string{"gateway/snapshot", "gateway/annotations", "gateway/model", "gateway/reach", apis, quanta, hash}, closed: impure()},
		{path: "gateway/build/buildtest", uses: []string{"gateway", apis, quanta, yaml, "github.com/rogpeppe/go-internal"}},
		{path: "gateway/nginxconf", uses: []string{"gateway/model", hash}, closed: impure()},
		{path: "gateway/luastate", uses: []string{"gateway/model", hash}, closed: impure()},
		{path: "gateway/reach", uses: []string{"gateway/snapshot", "gateway/model"}, closed: impure()},
		{path: "gateway/plan", uses: []string{"gateway/model", "gateway/nginxconf", "gateway/luastate"}, closed: impure()},

		{path: "sync/script"},
		{path: "sync/socket", uses: []string{"golang.org/x/sys"}},
		{path: "sync/folderwatch", uses: []string{"github.com/fsnotify/fsnotify"}},
		{path: "sync/kubewatch", uses: []string{"gateway/snapshot", "sync/folderwatch", "k8s.io"}},
		{path: "sync/manifests", uses: []string{"gateway/snapshot", "sync/folderwatch", "k8s.io", yaml, "go.yaml.in/yaml/v3", "sigs.k8s.io/json", "github.com/google/renameio/v2"}},
		{path: "sync/kubestatus", uses: []string{"gateway/build", "gateway/snapshot", "k8s.io"}},
		{path: "sync/nginxproc", uses: []string{"sync/luapush", "golang.org/x/sys", "github.com/google/renameio/v2", "github.com/coreos/go-systemd/v22", "github.com/vishvananda/netlink/nl"}},
		{path: "sync/luapush", uses: []string{"gateway/luastate", "gateway/plan"}},
		{path: "sync/statelog", uses: []string{"gateway/luastate", "gateway/plan", "github.com/google/renameio/v2", "golang.org/x/sys"}},
		{path: "sync/gossip", uses: []string{"github.com/hashicorp/memberlist", "github.com/google/renameio/v2"}},
		{path: "sync/noderoutes", uses: []string{"gateway/reach", "github.com/vishvananda/netlink", "golang.org/x/sys"}},
		// Types and errors of the rooms it drives; what they do stays behind its own interfaces.
		{path: "sync/reconcile", uses: []string{"gateway", "sync/luapush", "sync/nginxproc", "github.com/google/renameio/v2"}},
		{path: "sync/externalname", uses: []string{"gateway/snapshot", "github.com/miekg/dns"}},
		{path: "sync/health", uses: []string{"gateway/build", "gateway/model", "gateway/snapshot"}},
		{path: "sync/lossguard", uses: []string{"gateway/snapshot", "github.com/google/renameio/v2"}},
		{path: "sync/admin", uses: []string{"gateway", "sync/socket", "github.com/prometheus/client_golang", "github.com/prometheus/client_model", "github.com/prometheus/common"}},

		{path: "vip/election", closed: []string{"time", "net", "net/http", "os", "log", "log/slog"}},
		{path: "vip/ether", uses: []string{"github.com/mdlayher/packet", "golang.org/x/sys"}},
		{path: "vip/rivals"},
		{path: "vip/arp", uses: []string{"vip/ether", "vip/rivals", "github.com/mdlayher"}},
		{path: "vip/ndp", uses: []string{"vip/ether", "vip/rivals", "github.com/mdlayher", "golang.org/x/net", "golang.org/x/sys"}},
		{path: "vip/addr", uses: []string{"github.com/vishvananda/netlink", "github.com/google/renameio/v2", "golang.org/x/sys"}},
		{path: "vip/detect", uses: []string{"github.com/mdlayher", "golang.org/x/net", "golang.org/x/sys"}},
		{path: "vip/flows", uses: []string{"vip/addr", "github.com/vishvananda/netlink", "github.com/google/nftables", "golang.org/x/sys"}},
		{path: "vip/speaker", uses: []string{"vip/election"}},

		{path: "lua"},
		{path: "test", uses: []string{"*"}},
		{path: "bench", uses: []string{"*"}},
	}
}

func TestEveryPackageKeepsToItsRoom(t *testing.T) {
	table := rooms()
	for _, p := range packages(t) {
		r, ok := roomOf(table, p.path())
		if !ok {
			t.Errorf("%s lies in no room: give it a line in the table of test/arch", p.path())
			continue
		}
		for _, imported := range p.Imports {
			if why := r.refuses(table, imported); why != "" {
				t.Errorf("%s imports %s: %s", p.path(), imported, why)
			}
		}
	}
}

// networks is to a test what t.TempDir is: tests of every room may make namespaces.
const networks = "test/netns"

// The directions that no line of the table can open, tests of the rooms included.
func TestTheDirections(t *testing.T) {
	for _, p := range packages(t) {
		top, _, _ := strings.Cut(p.path(), "/")
		for _, imported := range p.allImports() {
			other, inHouse := strings.CutPrefix(imported, module+"/")
			if !inHouse || other == networks && !slices.Contains(p.Imports, imported) {
				continue
			}
			other, _, _ = strings.Cut(other, "/")
			if why := direction(top, other); why != "" {
				t.Errorf("%s imports %s: %s", p.path(), imported, why)
			}
		}
	}
}

func direction(from, to string) string {
	switch {
	case from == to || from == "cmd" || from == "test" || from == "bench":
		return ""
	case to == "cmd", to == "test", to == "bench":
		return "nobody imports " + to + "/"
	case from == "gateway":
		return "gateway/ imports nobody but itself"
	case from == "sync" && to == "vip", from == "vip" && to == "sync":
		return "sync/ and vip/ never import each other"
	case from == "lua":
		return "lua/ imports nobody"
	}
	return ""
}

func TestRefuses(t *testing.T) {
	table := rooms()
	for _, c := range []struct {
		from, to string
		refused  bool
	}{
		{"gateway/build/ingress", module + "/gateway/snapshot", false},
		{"gateway/build", module + "/gateway/build/ingress", false},
		{"gateway/build", "k8s.io/api/networking/v1", false},
		{"gateway/build", "k8s.io/client-go/kubernetes", true},
		{"gateway/build", "log/slog", true},
		{"gateway/build", "net/netip", false},
		{"gateway/model", "k8s.io/api/core/v1", true},
		{"gateway/model", module + "/gateway/snapshot", true},
		{"sync/luapush", module + "/sync/nginxproc", true},
		{"sync/reconcile", module + "/gateway/plan", false},
		{"sync/reconcile", "k8s.io/client-go/rest", true},
		{"vip/speaker", "github.com/hashicorp/memberlist", true},
		{"cmd/headgate", module + "/vip/speaker", false},
	} {
		r, ok := roomOf(table, c.from)
		if !ok {
			t.Fatalf("%s lies in no room", c.from)
		}
		if got := r.refuses(table, c.to) != ""; got != c.refused {
			t.Errorf("%s imports %s: refused %t, want %t", c.from, c.to, got, c.refused)
		}
	}
}

func roomOf(table []room, path string) (room, bool) {
	var found room
	for _, r := range table {
		if within(path, r.path) && len(r.path) > len(found.path) {
			found = r
		}
	}
	return found, found.path != ""
}

// refuses says why the room may not import the package, or "".
func (r room) refuses(table []room, imported string) string {
	if path, inHouse := strings.CutPrefix(imported, module+"/"); inHouse {
		if other, ok := roomOf(table, path); ok && other.path == r.path || r.opens(path) {
			return ""
		}
		return fmt.Sprintf("the room %s may use %s", r.path, orNothing(r.uses))
	}
	first, _, _ := strings.Cut(imported, "/")
	if !strings.Contains(first, ".") {
		if slices.Contains(r.closed, imported) {
			return fmt.Sprintf("the room %s only thinks", r.path)
		}
		return ""
	}
	if r.opens(imported) {
		return ""
	}
	return fmt.Sprintf("the room %s may use %s", r.path, orNothing(r.uses))
}

func (r room) opens(path string) bool {
	return slices.ContainsFunc(r.uses, func(open string) bool { return open == "*" || within(path, open) })
}

func within(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, folder+"/")
}

func orNothing(uses []string) string {
	if len(uses) == 0 {
		return "the standard library alone"
	}
	return strings.Join(uses, ", ")
}
