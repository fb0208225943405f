package chaos

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"headgate/sync/admin"
)

// files breaks what lies on disk and in memory, with a folder of manifests in the cluster's place.
func files(t *testing.T, binary string) {
	serveBackend(t, "10.244.0.3", "f")
	for _, part := range []struct {
		name string
		run  func(*folder)
	}{
		{"dict full", dictFull},
		{"disk full", diskFull},
		{"disk read-only", diskReadOnly},
		{"state log damaged", stateLogDamaged},
		{"daemon killed before a reload", killedBeforeReload},
	} {
		t.Run(part.name, func(t *testing.T) { part.run(newFolder(t, binary)) })
	}
}

// folder is a gateway in front of a folder of manifests.
type folder struct {
	*gateway
	manifests string
}

func newFolder(t *testing.T, binary string) *folder {
	t.Helper()
	f := &folder{manifests: t.TempDir()}
	f.gateway = newGateway(t, binary, 8090, fmt.Sprintf(`
manifests: [%q]
proxy: {mode: managed, workerProcesses: 2, stateMemory: 1MiB}
`, f.manifests))
	f.write("site.yaml", service("f", "10.244.0.3"), ingress("always", "always.test", "f"), `
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: headgate}
spec: {controller: headgate.io/ingress}
`)
	return f
}

// write replaces a file of the folder.
func (f *folder) write(name string, documents ...string) {
	f.t.Helper()
	next := filepath.Join(f.manifests, "."+name)
	if err := os.WriteFile(next, []byte(strings.Join(documents, "---\n")), 0o600); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(f.manifests, name)); err != nil {
		f.t.Fatal(err)
	}
}

func (f *folder) target() target { return target{"http://always.test/", "f"} }

func (f *folder) load() *load {
	f.serves(f.target())
	return startLoad(f.t, f.http, f.https, f.target())
}

// host makes an Ingress of its own and waits until it is served.
func (f *folder) host(name string) {
	f.t.Helper()
	f.write(name+".yaml", ingress(name, name+".test", "f"))
	f.serves(target{"http://" + name + ".test/", "f"})
}

// dictFull: the proxy's memory does not hold what there is; it is made larger, and nothing was lost meanwhile.
func dictFull(f *folder) {
	f.start()
	l := f.load()
	before := f.awaitStatus("well", well)
	var many []string
	for n := range 2500 {
		many = append(many, ingress(fmt.Sprintf("many-%d", n), fmt.Sprintf("many-%d.test", n), "f"))
	}
	f.write("many.yaml", many...)
	f.serves(target{"http://many-2499.test/", "f"})
	f.serves(target{"http://many-0.test/", "f"})
	s := f.awaitStatus("all of them", func(s admin.Status) bool { return well(s) && s.Counts.Hosts > 2500 })
	if s.Reloads["resize"] == 0 || s.Proxy.DictCapacityBytes <= before.Proxy.DictCapacityBytes {
		f.t.Errorf("reloads %v, capacity %d, was %d: want it larger", s.Reloads, s.Proxy.DictCapacityBytes, before.Proxy.DictCapacityBytes)
	}
	f.t.Logf("reloads %v, capacity %d", s.Reloads, s.Proxy.DictCapacityBytes)
	l.stop()
}

// disk mounts a small disk of its own as the state directory. It goes with the test.
func (f *folder) disk() {
	f.t.Helper()
	if err := os.MkdirAll(f.stateDir, 0o750); err != nil {
		f.t.Fatal(err)
	}
	if err := unix.Mount("chaos", f.stateDir, "tmpfs", 0, "size=1m"); err != nil {
		f.t.Fatalf("mount a tmpfs: %v", err)
	}
	f.t.Cleanup(func() {
		if err := unix.Unmount(f.stateDir, unix.MNT_DETACH); err != nil {
			f.t.Error(err)
		}
	})
}

// diskFull: pushes go on, it is told that the state log is not written, and once there is room it is whole again.
func diskFull(f *folder) {
	f.disk()
	f.start()
	l := f.load()
	f.awaitStatus("well", well)
	f.fill()
	var hosts []string
	for n := range 50 { // more than what is left of the log's last page
		hosts = append(hosts, ingress(fmt.Sprintf("full-%d", n), fmt.Sprintf("full-%d.test", n), "f"))
	}
	f.write("full.yaml", hosts...)
	f.serves(target{"http://full-49.test/", "f"})
	f.host("fuller")
	s := f.awaitStatus("the full disk is told", func(s admin.Status) bool { return s.StateLog.Error != "" })
	if !strings.Contains(s.StateLog.Error, unix.ENOSPC.Error()) {
		f.t.Errorf("the status says %q of a full disk", s.StateLog.Error)
	}
	l.awaitRequests(30)
	if err := os.Remove(filepath.Join(f.stateDir, "ballast")); err != nil {
		f.t.Fatal(err)
	}
	f.awaitStatus("written again", well)
	l.stop()
	f.restartAlone()
	f.serves(target{"http://fuller.test/", "f"})
	f.start()
	f.awaitStatus("well", well)
}

// fill leaves not a byte on the disk.
func (f *folder) fill() {
	f.t.Helper()
	ballast, err := os.Create(filepath.Join(f.stateDir, "ballast"))
	if err != nil {
		f.t.Fatal(err)
	}
	block := make([]byte, 4096)
	for err == nil {
		_, err = ballast.Write(block)
	}
	_ = ballast.Close() // it is full: that is what it is for
}

// restartAlone ends the daemon, kills nginx and starts that alone.
func (f *folder) restartAlone() {
	f.t.Helper()
	f.stop()
	f.killNginx()
	f.startNginx()
}

// diskReadOnly: the disk went read-only, as a file system does on an error. The daemon that starts then serves all the same.
func diskReadOnly(f *folder) {
	f.disk()
	f.start()
	l := f.load()
	f.awaitStatus("well", well)
	f.kill9()
	f.remount(unix.MS_RDONLY)
	f.start()
	f.host("read-only")
	s := f.awaitStatus("the read-only disk is told", func(s admin.Status) bool { return s.StateLog.Error != "" && s.Ready })
	if !strings.Contains(s.StateLog.Error, unix.EROFS.Error()) {
		f.t.Errorf("the status says %q of a read-only disk", s.StateLog.Error)
	}
	l.awaitRequests(30)
	f.remount(0)
	f.host("writable")
	f.awaitStatus("written again", well)
	l.stop()
	f.restartAlone()
	f.serves(target{"http://read-only.test/", "f"})
	f.serves(target{"http://writable.test/", "f"})
}

func (f *folder) remount(flags uintptr) {
	f.t.Helper()
	if err := unix.Mount("", f.stateDir, "", unix.MS_REMOUNT|flags, "size=1m"); err != nil {
		f.t.Fatalf("remount: %v", err)
	}
}

// stateLogDamaged: nginx serves the last state that is whole, or none and says why; a daemon puts everything right.
func stateLogDamaged(f *folder) {
	f.start()
	f.serves(f.target())
	f.awaitStatus("well", well)
	log := filepath.Join(f.stateDir, "state.log")
	for n, damage := range []struct {
		name   string
		do     func(text []byte, whole int) []byte
		serves bool   // what lies in the undamaged part
		says   string // of the rest
	}{
		{"truncated", func(text []byte, _ int) []byte { return text[:len(text)-7] }, true, "cut short"},
		{"torn header", func(text []byte, whole int) []byte { return text[:whole+9] }, true, "header"},
		{"corrupted", func(text []byte, whole int) []byte { text[whole+60] ^= 1; return text }, true, "checksum"},
		{"garbage added", func(text []byte, _ int) []byte { return append(text, "garbage and more of it, and more"...) }, true, "header"},
		{"another schema", func(text []byte, _ int) []byte { return otherSchema(text) }, false, "schema"},
		{"a newer version", func(text []byte, _ int) []byte { return append([]byte("HGSTATE2"), text[8:]...) }, false, "not a state log"},
		{"empty", func([]byte, int) []byte { return nil }, false, "not a state log"},
		{"noise", func([]byte, int) []byte { return bytes.Repeat([]byte{0xa5}, 4096) }, false, "not a state log"},
	} {
		f.t.Run(damage.name, func(t *testing.T) {
			outer := f.t
			f.t = t
			defer func() { f.t = outer }()
			f.awaitStatus("well", well)
			whole := size(t, log)
			late := fmt.Sprintf("late-%d", n)
			f.host(late) // its push is the last one in the log
			f.awaitStatus("well", well)
			f.stop()
			text, err := os.ReadFile(log)
			if err != nil {
				t.Fatal(err)
			}
			f.killNginx()
			if err := os.WriteFile(log, damage.do(text, whole), 0o640); err != nil {
				t.Fatal(err)
			}
			f.startNginx()
			state := f.mustProxyState()
			if !strings.Contains(state.Loaded.Error, damage.says) {
				t.Errorf("nginx says %+v, want %q in it", state.Loaded, damage.says)
			}
			want := http.StatusNotFound
			if damage.serves {
				want = http.StatusOK
			}
			if got, err := f.answers("http://always.test/"); got != want {
				t.Errorf("nginx alone: %d, %v; want %d", got, err, want)
			}
			f.start()
			f.serves(f.target())
			f.serves(target{"http://" + late + ".test/", "f"})
			f.awaitStatus("well", well)
			f.restartAlone()
			if got, err := f.answers("http://" + late + ".test/"); got != http.StatusOK {
				t.Errorf("from the mended log: %d, %v", got, err)
			}
			f.start()
		})
	}
}

func size(t *testing.T, path string) int {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return int(info.Size())
}

// otherSchema gives the log's first push another schema, with a checksum that fits: as a later version would write it.
func otherSchema(text []byte) []byte {
	const file, header = 8, 24
	batch := text[file:]
	payload := batch[header : header+int(binary.BigEndian.Uint32(batch[16:]))]
	// B, the key's length, the value's, "schema", the number.
	payload[1+2+4+len("schema")] = '9'
	sum := crc32.NewIEEE()
	_, _ = sum.Write(batch[4:20])
	_, _ = sum.Write(payload)
	binary.BigEndian.PutUint32(batch[20:], sum.Sum32())
	return text
}
