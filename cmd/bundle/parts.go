package bundle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"headgate/cmd/assemble"
	"headgate/cmd/config"
	"headgate/cmd/vip"
	"headgate/sync/admin"
	"headgate/sync/gossip"
)

// parts are the files, in the order in which somebody reads them.
func parts() []part {
	return []part{
		{"version.json", func(_ context.Context, g *gathering) ([]byte, error) { return indented(g.Version, nil) }, (*scrubber).text},
		{"host.txt", host, (*scrubber).text},
		{"config.txt", func(_ context.Context, g *gathering) ([]byte, error) {
			return configuration(g.scrubber, g.Config, g.File)
		}, (*scrubber).text},
		{"kubeconfig.txt", func(_ context.Context, g *gathering) ([]byte, error) {
			if g.Config.Kubeconfig == "" {
				return nil, errNone
			}
			return kubeconfigSummary(g.scrubber, g.Config.Kubeconfig)
		}, (*scrubber).text},
		{"doctor.json", func(ctx context.Context, g *gathering) ([]byte, error) { return g.Doctor(ctx) }, (*scrubber).text},
		{"status.json", status, (*scrubber).text},
		{"problems.json", problems, (*scrubber).text},
		{"reload.json", func(ctx context.Context, g *gathering) ([]byte, error) {
			return indented(admin.AskCompare(ctx, g.Config.RuntimeDir))
		}, (*scrubber).text},
		{"applied.json", func(ctx context.Context, g *gathering) ([]byte, error) {
			return admin.AskApplied(ctx, g.Config.RuntimeDir, "")
		}, (*scrubber).text},
		{"state.json", func(ctx context.Context, g *gathering) ([]byte, error) {
			return admin.AskState(ctx, g.Config.RuntimeDir)
		}, (*scrubber).text},
		{"peers.json", func(ctx context.Context, g *gathering) ([]byte, error) {
			return admin.AskPeers(ctx, g.Config.RuntimeDir, "")
		}, (*scrubber).text},
		{"goroutines.txt", func(ctx context.Context, g *gathering) ([]byte, error) {
			return admin.AskGoroutines(ctx, g.Config.RuntimeDir)
		}, (*scrubber).text},
		{"metrics.txt", func(ctx context.Context, g *gathering) ([]byte, error) {
			return metrics(ctx, g.Config.Metrics.Listen)
		}, (*scrubber).text},
		{"vip.json", vipStatus, (*scrubber).text},
		{"gossip.json", gossipStatus, (*scrubber).text},
		{"vip-metrics.txt", vipMetrics, (*scrubber).text},
		{"nginx.conf", func(_ context.Context, g *gathering) ([]byte, error) {
			return file(assemble.PathsOf(g.Config).Conf)
		}, (*scrubber).text},
		{"files.txt", files, (*scrubber).text},
		{"network.txt", network, (*scrubber).text},
		{"journal.log", journal, (*scrubber).log},
		{"error.log", func(_ context.Context, g *gathering) ([]byte, error) {
			p := assemble.PathsOf(g.Config)
			if !filepath.IsAbs(p.ErrorLog) {
				return nil, errNone // in the journal
			}
			return tail(p.ErrorLog)
		}, (*scrubber).log},
		{"nginx.out", func(_ context.Context, g *gathering) ([]byte, error) {
			if g.Config.Proxy.Mode == config.External {
				return nil, errNone // in the journal
			}
			return tail(assemble.PathsOf(g.Config).Output)
		}, (*scrubber).log},
	}
}

func status(ctx context.Context, g *gathering) ([]byte, error) {
	return indented(admin.Ask(ctx, g.Config.RuntimeDir))
}

func problems(ctx context.Context, g *gathering) ([]byte, error) {
	s, err := admin.Ask(ctx, g.Config.RuntimeDir)
	return indented(s.Problems, err)
}

func vipStatus(ctx context.Context, g *gathering) ([]byte, error) {
	if len(g.Config.VIP.All()) == 0 {
		return nil, errNone
	}
	return indented(vip.Ask(ctx, vip.PathsOf(g.Config)))
}

func gossipStatus(ctx context.Context, g *gathering) ([]byte, error) {
	if len(g.Config.VIP.All()) == 0 || len(g.Config.Gossip.Peers) == 0 {
		return nil, errNone
	}
	return indented(gossip.Ask(ctx, vip.PathsOf(g.Config).Socket))
}

func vipMetrics(ctx context.Context, g *gathering) ([]byte, error) {
	if len(g.Config.VIP.All()) == 0 {
		return nil, errNone
	}
	return metrics(ctx, g.Config.VIP.MetricsListen)
}

// mostBytes bounds each file of the bundle that others write.
const mostBytes = 16 << 20

// metrics asks a listener on loopback.
func metrics(ctx context.Context, listen string) ([]byte, error) {
	if listen == "" {
		return nil, errNone
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+listen+"/metrics", nil)
	if err != nil {
		return nil, fmt.Errorf("ask for metrics: %w", err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask for metrics: %w", err)
	}
	defer func() { _ = res.Body.Close() }() // it was read
	return io.ReadAll(io.LimitReader(res.Body, mostBytes))
}

func file(path string) ([]byte, error) {
	f, err := os.Open(path) //nolint:gosec // one of our own
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was read
	return io.ReadAll(io.LimitReader(f, mostBytes))
}

// tail reads the end of a log.
func tail(path string) ([]byte, error) {
	f, err := os.Open(path) //nolint:gosec // one of our own
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNone
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was read
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if over := info.Size() - mostBytes; over > 0 {
		if _, err := f.Seek(over, io.SeekStart); err != nil {
			return nil, err
		}
	}
	return io.ReadAll(io.LimitReader(f, mostBytes))
}

// journal reads what our units logged, where there is a journal.
func journal(ctx context.Context, _ *gathering) ([]byte, error) {
	const lines = "20000"
	path, err := exec.LookPath("journalctl")
	if err != nil {
		return nil, errNone
	}
	cmd := exec.CommandContext(ctx, path, "--no-pager", "--quiet", "--utc", "--output=short-iso-precise", "--lines="+lines,
		"--unit=headgate.service", "--unit=headgate-proxy.service", "--unit=headgate-vip.service")
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("read the journal: %w: %s", err, strings.TrimSpace(complaint.String()))
	}
	if out.Len() == 0 {
		return nil, errNone
	}
	return out.Bytes(), nil
}

// host is the machine and its load.
func host(context.Context, *gathering) ([]byte, error) {
	var b bytes.Buffer
	var name unix.Utsname
	if err := unix.Uname(&name); err == nil {
		fmt.Fprintf(&b, "%s %s %s %s\n", unix.ByteSliceToString(name.Sysname[:]), unix.ByteSliceToString(name.Release[:]),
			unix.ByteSliceToString(name.Version[:]), unix.ByteSliceToString(name.Machine[:]))
	}
	var missing []error
	for _, path := range []string{"/etc/os-release", "/proc/loadavg", "/proc/uptime", "/proc/meminfo", "/proc/net/sockstat", "/proc/self/limits"} {
		text, err := file(path)
		if err != nil {
			missing = append(missing, err)
			continue
		}
		fmt.Fprintf(&b, "\n== %s\n%s", path, text)
	}
	return b.Bytes(), errors.Join(missing...)
}

// files lists our folders with modes, owners and sizes: what is in them holds keys.
func files(_ context.Context, g *gathering) ([]byte, error) {
	var b bytes.Buffer
	var missing []error
	for _, dir := range []string{filepath.Dir(g.File), g.Config.StateDir, g.Config.RuntimeDir} {
		if dir == "." {
			continue
		}
		fmt.Fprintf(&b, "== %s\n", dir)
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				missing = append(missing, err)
				return nil
			}
			if entry.IsDir() && entry.Name() == "lua" {
				return fs.SkipDir // hundreds of files that the version tells
			}
			info, err := os.Lstat(path)
			if err != nil {
				return nil //nolint:nilerr // gone meanwhile
			}
			fmt.Fprintf(&b, "%s %s %10d %s %s\n", info.Mode(), ownerOf(path), info.Size(), info.ModTime().UTC().Format("2006-01-02T15:04:05Z"), path)
			return nil
		})
		missing = append(missing, err)
	}
	return b.Bytes(), errors.Join(missing...)
}

func ownerOf(path string) string {
	var stat unix.Stat_t
	if err := unix.Lstat(path, &stat); err != nil {
		return "?:?"
	}
	return fmt.Sprintf("%d:%d", stat.Uid, stat.Gid)
}

// network is what the kernel knows of links, addresses, routes, rules and neighbours.
func network(context.Context, *gathering) ([]byte, error) {
	var b bytes.Buffer
	links, linkErr := netlink.LinkList()
	names := map[int]string{}
	b.WriteString("== links\n")
	for _, l := range links {
		a := l.Attrs()
		names[a.Index] = a.Name
		fmt.Fprintf(&b, "%d %s %s %s mtu %d %s %s\n", a.Index, a.Name, l.Type(), a.HardwareAddr, a.MTU, a.OperState, a.Flags)
	}
	addresses, addressErr := netlink.AddrList(nil, netlink.FAMILY_ALL)
	b.WriteString("\n== addresses\n")
	for _, a := range addresses {
		fmt.Fprintf(&b, "%s %s flags %#x valid %d\n", names[a.LinkIndex], a.IPNet, a.Flags, a.ValidLft)
	}
	routes, routeErr := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	b.WriteString("\n== routes\n")
	for _, r := range routes {
		fmt.Fprintf(&b, "%s table %d protocol %d metric %d\n", r, r.Table, r.Protocol, r.Priority)
	}
	rules, ruleErr := netlink.RuleList(netlink.FAMILY_ALL)
	b.WriteString("\n== rules\n")
	for _, r := range rules {
		fmt.Fprintln(&b, r)
	}
	neighbours, neighbourErr := netlink.NeighList(0, netlink.FAMILY_ALL)
	b.WriteString("\n== neighbours\n")
	for _, n := range neighbours {
		fmt.Fprintf(&b, "%s %s %s state %#x\n", names[n.LinkIndex], n.IP, n.HardwareAddr, n.State)
	}
	return b.Bytes(), errors.Join(linkErr, addressErr, routeErr, ruleErr, neighbourErr)
}
