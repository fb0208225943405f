package reconcile

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"headgate/gateway/model"
	"headgate/gateway/nginxconf"
	"headgate/gateway/plan"
)

func (w *world) filesHave(want map[string]string) {
	w.t.Helper()
	got := map[string]string{}
	for _, f := range w.nginx.files {
		got[strings.TrimPrefix(f.Path, "/run/h/tls/")] = string(f.Content)
	}
	if d := cmp.Diff(want, got); d != "" {
		w.t.Errorf("files of the configuration: -want +got\n%s", d)
	}
}

// A new identity is a reload with a reason of its own; its files go with the configuration that names them.
func TestIdentitiesReload(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.serve("a")
		w.follow("a tls-1", "reload", "push")
		id := string(fakeIdentity("tls-1").ID)
		files := map[string]string{id + ".pem": "certificate of tls-1", id + ".key": "key of tls-1", id + ".ca": "ca"}
		w.filesHave(files)
		if d := cmp.Diff(map[plan.Reason]uint64{plan.FirstStart: 1, plan.NewIdentity: 1}, w.loop.Status().Reloads); d != "" {
			t.Error(d)
		}
		w.follow("a b tls-1", "push")
		// The one that is gone is kept until the push that follows the reload for another.
		w.follow("tls-22", "reload", "push")
		two := string(fakeIdentity("tls-22").ID)
		files[two+".pem"], files[two+".key"], files[two+".ca"] = "certificate of tls-22", "key of tls-22", "ca"
		w.filesHave(files)
	})
}

// After a boot of the host /run is empty, and the identities come from what the daemon remembers.
func TestIdentitiesOutliveABoot(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.serve("tls-1")
		before := w.nginx.files
		w.stop()
		info, err := os.Stat(w.cfg.MemoryFile)
		if err != nil || info.Mode().Perm()&0o007 != 0 {
			t.Errorf("everybody may read the keys: %v %v", info.Mode(), err)
		}
		w.change(func(n *fakeNginx) { n.running, n.onDisk, n.files = false, "", nil })
		w.daemon("next")
		w.start()
		w.settle()
		w.want("tls-1", "reload")
		if d := cmp.Diff(before, w.nginx.files); d != "" {
			t.Errorf("files: %s", d)
		}
		w.follow("tls-1")
		// The files and keys are nobody's who only asks.
		m, err := w.loop.Moment(t.Context())
		if err != nil || m.Applied.Config.Files != nil || m.Applied.Config.Identities != nil {
			t.Errorf("%v %v %v", m.Applied.Config.Files, m.Applied.Config.Identities, err)
		}
	})
}

// A profile that cannot be written costs itself alone, and the builder knows why.
func TestProfileWithoutItsIdentity(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.serve("a tls-lost")
		lost := nginxconf.ProfileName(model.Profile{Protocol: model.ProtocolHTTPS, Identity: fakeIdentity("tls-lost").ID})
		if why := w.builder.refusals()[lost]; !strings.Contains(why, "is missing") || len(w.builder.refusals()) != 1 {
			t.Errorf("rejected %v", w.builder.refusals())
		}
		w.healthy()
	})
}

// A certificate that nginx does not accept: its profile is found, with its files at hand while searching.
func TestIdentityThatNginxRefuses(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		w.start()
		bad := string(fakeIdentity("tls-4444").ID)
		w.change(func(n *fakeNginx) { n.refuse = map[string]string{`/` + bad + `.pem"`: "cannot load certificate"} })
		w.follow("a tls-1 tls-4444", "reload", "push")
		name := nginxconf.ProfileName(model.Profile{Protocol: model.ProtocolHTTPS, Identity: model.IdentityID(bad)})
		if d := cmp.Diff(map[string]string{name: "cannot load certificate"}, w.builder.refusals()); d != "" {
			t.Error(d)
		}
	})
}
