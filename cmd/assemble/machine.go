package assemble

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/user"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"headgate/cmd/config"
	"headgate/cmd/defaultcert"
	"headgate/lua"
	"headgate/sync/nginxproc"
)

// Account is whom the proxy's workers run as. The zero value leaves it to nginx: it does not run as root.
type Account struct {
	User, Group string
	UID, GID    int
}

// accounts are the users that distributions make for nginx, tried in this order.
func accounts() []string { return []string{"www-data", "nginx", "nobody"} }

// Worker finds the account: the configured one, which must exist, or the distribution's. A managed proxy of
// a daemon that is not root runs as the daemon, and beside such a daemon an external one is not root either, as its unit
// says; then there is none.
func Worker(c config.Config) (Account, error) {
	if os.Geteuid() != 0 && (c.Proxy.Mode == config.Managed || c.Proxy.User == "") {
		return Account{}, nil
	}
	names := accounts()
	if c.Proxy.User != "" {
		names = []string{c.Proxy.User}
	}
	for _, name := range names {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		g, err := user.LookupGroupId(u.Gid)
		if err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if errors.Join(err1, err2) == nil {
			return Account{User: u.Username, Group: g.Name, UID: uid, GID: gid}, nil
		}
	}
	if c.Proxy.User != "" {
		return Account{}, fmt.Errorf("proxy.user: there is no user %q with a group on this host: create it, or write another", c.Proxy.User)
	}
	return Account{}, fmt.Errorf("none of the users %v exists on this host: write proxy.user", names)
}

// MakeFolders makes the folders that daemon and proxy need, so that the proxy's workers reach their own and
// nobody else the sockets. They may exist; then only their mode is set.
func MakeFolders(c config.Config, p Paths, worker Account) error {
	for _, f := range []struct {
		key    string // of the configuration
		path   string
		mode   fs.FileMode
		worker bool // belongs to the workers' user
	}{
		{"stateDir", c.StateDir, 0o750, false},
		{"runtimeDir", c.RuntimeDir, 0o755, false}, // workers pass through
		{"runtimeDir", p.Lua, 0o755, false},
		{"runtimeDir", p.ProxyDir, 0o750, true}, // nginx makes its sockets world-writable: the folder protects them
		{"runtimeDir", p.Temp, 0o700, true},
	} {
		if err := os.MkdirAll(f.path, f.mode); err != nil {
			return fmt.Errorf("%s: the folder %s cannot be made: %w: write the path of a folder that this user may make and write", f.key, f.path, err)
		}
		if os.Geteuid() != 0 {
			continue // what exists was made by whoever may
		}
		err := os.Chmod(f.path, f.mode)
		if errors.Is(err, unix.EROFS) {
			continue // it is as it was when it could be written; what cannot be kept there is told by its owner
		}
		if err != nil {
			return fmt.Errorf("%s: protect the folder: %w", f.key, err)
		}
		if f.worker && worker.User != "" {
			if err := os.Chown(f.path, worker.UID, os.Getegid()); err != nil {
				return fmt.Errorf("%s: give the folder to %s: %w", f.key, worker.User, err)
			}
		}
	}
	return nil
}

// CheckBinary says what is wrong with proxy.binary, before it is run; "" is nothing to check.
func CheckBinary(path string) error {
	if path == "" {
		return nil
	}
	const remedy = "write the path of nginx or OpenResty, such as /usr/sbin/nginx, or leave out the key to have it searched"
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("proxy.binary: %s does not exist: %s", path, remedy)
	case err != nil:
		return fmt.Errorf("proxy.binary: %w: %s", err, remedy)
	case !info.Mode().IsRegular() || unix.Access(path, unix.X_OK) != nil:
		return fmt.Errorf("proxy.binary: %s is no program that this user may run: %s", path, remedy)
	}
	return nil
}

// Host tells what this host lacks of what the configuration may ask for. A socket is asked for rather than
// /proc/net/if_inet6: that file is there, and empty, where IPv6 is only switched off on the interfaces.
func Host() config.Host {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return config.Host{NoIPv6: errors.Is(err, unix.EAFNOSUPPORT)}
	}
	_ = unix.Close(fd) // it was never bound
	return config.Host{}
}

// Prepare puts on disk what nginx needs before it can start: folders, the default certificate, the Lua files.
func Prepare(c config.Config, p Paths, found nginxproc.Installation, now time.Time) (Machine, error) {
	var m Machine
	var err error
	if m.Worker, err = Worker(c); err != nil {
		return m, err
	}
	if err := MakeFolders(c, p, m.Worker); err != nil {
		return m, err
	}
	if m.Certificate, err = defaultcert.Ensure(c.StateDir, now); err != nil {
		return m, err
	}
	if err := lua.Write(p.Lua); err != nil {
		return m, err
	}
	m.NginxVersion, m.Modules, m.LuaPath, m.LuaCPath = found.Version, found.Modules, found.LuaPath, found.LuaCPath
	m.LuaDir, m.LuaBuild, m.OpenFiles = lua.Dir(p.Lua), lua.Build(), OpenFiles(c)
	return m, nil
}

// spareFiles are what a worker opens besides connections: logs, listeners, temporary files.
const spareFiles = 1024

// OpenFiles is worker_rlimit_nofile of a managed proxy: two for each connection (client and upstream), as
// far as this process may give them. An external proxy has its limit from its unit: 0.
func OpenFiles(c config.Config) int {
	if c.Proxy.Mode == config.External {
		return 0
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return int(min(uint64(WantedFiles(c)), limit.Max)) //nolint:gosec // config keeps it positive, and the wanted number fits
}

// WantedFiles is what one worker opens when all its connections are in use.
func WantedFiles(c config.Config) int { return 2*c.Proxy.WorkerConnections + spareFiles }

// OwnAddresses are those of this host's interfaces as they are now, without loopback (which has a rule of its
// own): no upstream may point the gateway at itself.
func OwnAddresses() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the addresses of this host: %w", err)
	}
	var own []netip.Addr
	for _, a := range list {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil && !prefix.Addr().IsLoopback() {
			own = append(own, prefix.Addr().Unmap().WithZone(""))
		}
	}
	return own, nil
}
