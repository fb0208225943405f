package chaos

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"headgate/sync/admin"
)

func unwell(s admin.Status) bool { return s.Source.Synced && !s.Source.Healthy }

// apiGone: what was served is served on; a daemon that starts now has the state log alone, and says so.
func apiGone(w *world) {
	w.change()
	w.changeServed()
	l := w.load()
	w.cluster.Kill(w.t)
	w.awaitStatus("the API server is missed", unwell)
	l.awaitRequests(50)

	w.kill9()
	mark := w.log.mark()
	w.start()
	lastKnownGood := func(s admin.Status) bool { return s.LastKnownGood && !s.Source.Synced && !s.Source.Healthy }
	w.awaitStatus("last known good is told", lastKnownGood)
	w.told(mark, "last known good")
	w.changeServed()
	l.awaitRequests(50)

	// The whole host boots, and the cluster is away.
	w.kill9()
	l.outage(func() {
		l.kill(w.killNginx)
		w.start()
		w.listening()
	})
	w.awaitStatus("last known good is told", lastKnownGood)
	w.changeServed()
	l.awaitRequests(50)

	w.cluster.Resume(w.t)
	w.awaitStatus("read again", well)
	l.stop()
}

// watchCompacted: what happened while the daemon was cut off is not in the API server's memory any more; things are gone of
// which no event will tell.
func watchCompacted(w *world) {
	lost := ingress("lost", "lost.test", "b")
	w.cluster.Apply(w.t, lost)
	w.serves(target{"http://lost.test/", "b"})
	l := w.load()
	before := w.api.gone.Load()
	w.api.network.cut()
	w.awaitStatus("cut off", unwell)
	w.cluster.Delete(w.t, lost)
	for n := range 20 {
		w.cluster.Apply(w.t, ingress("passing", fmt.Sprintf("passing-%d.test", n), "b"))
	}
	w.change()
	w.cluster.Restart(w.t)
	w.api.network.flow()
	w.changeServed()
	w.awaitCode("http://lost.test/", http.StatusNotFound)
	w.serves(target{"http://passing-19.test/", "b"})
	if w.api.gone.Load() == before {
		w.t.Error("the API server never said that a resourceVersion is too old: this test tests nothing")
	}
	w.cluster.Delete(w.t, ingress("passing", "passing-19.test", "b"))
	l.stop()
}

// apiRestarted: first it is a restart, then time runs backwards in the cluster.
func apiRestarted(w *world) {
	older, younger := ingress("older", "older.test", "b"), ingress("younger", "younger.test", "b")
	w.cluster.Apply(w.t, older)
	w.serves(target{"http://older.test/", "b"})
	l := w.load()
	data := filepath.Join(filepath.Dir(w.cluster.KubeconfigPath), "etcd")
	backup := filepath.Join(w.t.TempDir(), "etcd")
	w.cluster.Stop(w.t)
	if err := os.CopyFS(backup, os.DirFS(data)); err != nil {
		w.t.Fatal(err)
	}
	w.cluster.Resume(w.t)
	resumed := time.Now()
	w.cluster.Delete(w.t, older)
	w.cluster.Apply(w.t, younger)
	w.awaitCode("http://older.test/", http.StatusNotFound)
	w.serves(target{"http://younger.test/", "b"})
	w.t.Logf("a change is served %v after the API server came back", time.Since(resumed).Round(time.Millisecond))

	w.cluster.Stop(w.t)
	if err := os.RemoveAll(data); err != nil {
		w.t.Fatal(err)
	}
	if err := os.CopyFS(data, os.DirFS(backup)); err != nil {
		w.t.Fatal(err)
	}
	w.cluster.Resume(w.t)
	resumed = time.Now()
	w.serves(target{"http://older.test/", "b"})
	w.awaitCode("http://younger.test/", http.StatusNotFound)
	w.t.Logf("the older state is served %v after the API server came back", time.Since(resumed).Round(time.Millisecond))
	w.cluster.Delete(w.t, older)
	l.stop()
}

// absurdLoss: most of what the daemon serves is gone when its connection comes back. That may not be true.
func absurdLoss(w *world) {
	const many = 60 // more than half of all that there is
	all := ""
	for i := range many {
		all += "---" + ingress(fmt.Sprintf("doubtful-%d", i), fmt.Sprintf("doubtful-%d.test", i), "b")
	}
	w.cluster.Apply(w.t, all)
	w.serves(target{fmt.Sprintf("http://doubtful-%d.test/", many-1), "b"})
	l := w.load()
	w.api.network.cut()
	w.awaitStatus("cut off", unwell)
	w.cluster.Delete(w.t, all)
	w.change()
	w.api.network.flow()
	w.awaitStatus("the loss is held back", func(s admin.Status) bool {
		h := s.LossGuard.Held
		return h != nil && h.Before.Routes >= many && h.Now.Routes < many/2 && len(s.Degraded()) > 0
	})
	w.serves(target{"http://doubtful-0.test/", "b"})
	w.serves(target{"http://" + w.changeHost() + "/", "b"}) // what is new is served all the same
	accepted, err := admin.AskAccept(w.t.Context(), w.runtimeDir)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Logf("let go: %+v", accepted.Held) // null on a machine so slow that a second reading has confirmed the loss
	w.awaitCode("http://doubtful-0.test/", http.StatusNotFound)
	w.awaitStatus("nothing is held any more", func(s admin.Status) bool { return s.LossGuard.Held == nil && well(s) })
	l.stop()
}

// endpointsLost: most endpoints go while the API server is away. The proxy keeps them, requests go on, and a complete reading in
// good order lets them go, without anybody's word.
func endpointsLost(w *world) {
	const many = 60 // more than half of all that there are
	crowd := func(n int) string {
		text := service("crowd", backendB) + "---" + ingress("crowd", "crowd.test", "crowd")
		for i := range n - 1 {
			text = strings.Replace(text, "endpoints: [", fmt.Sprintf("endpoints: [{addresses: [10.244.9.%d], conditions: {ready: true}}, ", i+1), 1)
		}
		return text
	}
	peers := func(want int) {
		w.t.Helper()
		harnessEventually(w.t, patience, func() error {
			ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
			defer cancel()
			view, err := w.control.View(ctx, "default/crowd/80")
			if err == nil && len(view.Peers) != want {
				err = fmt.Errorf("the proxy has %d peers, want %d", len(view.Peers), want)
			}
			return err
		})
	}
	w.cluster.Apply(w.t, crowd(many))
	peers(many)
	l := w.load()
	w.api.network.cut()
	w.awaitStatus("cut off", unwell)
	w.cluster.Apply(w.t, crowd(1))
	w.change()
	w.api.network.flow()
	w.awaitStatus("the loss is held back", func(s admin.Status) bool {
		h := s.LossGuard.Held
		return h != nil && h.Before.Endpoints >= many && h.Now.Endpoints < many/2
	})
	// What is new is served. What the same change deletes may have gone after the loss, and is then held with it.
	w.serves(target{"http://" + w.changeHost() + "/", "b"})
	peers(many)
	// The guard waits for half a minute without trouble before it asks for another reading.
	harnessEventually(w.t, 2*patience, func() error {
		s, err := w.status()
		if err == nil && s.LossGuard.Held != nil {
			err = fmt.Errorf("still held: %+v", s.LossGuard.Held)
		}
		return err
	})
	peers(1)
	w.serves(target{"http://crowd.test/", "b"})
	w.cluster.Delete(w.t, crowd(1))
	l.stop()
}

// watchHangs: the connection is there, and nothing comes.
func watchHangs(w *world) {
	l := w.load()
	w.api.network.hang()
	w.change()
	w.awaitStatus("the silence is noticed", unwell)
	l.awaitRequests(50)
	w.api.network.flow()
	flows := time.Now()
	w.changeServed()
	w.t.Logf("the change is served %v after new connections work", time.Since(flows).Round(time.Millisecond))
	l.stop()
}

func tooManyRequests(w *world) {
	l := w.load()
	w.api.busy.Store(true)
	before := w.api.refused.Load()
	w.api.network.cut() // so that watches must be asked for anew
	w.api.network.flow()
	w.awaitStatus("the refusals are told", unwell)
	w.change()
	harnessEventually(w.t, patience, func() error {
		if n := w.api.refused.Load() - before; n < 5 {
			return fmt.Errorf("%d requests were refused", n)
		}
		return nil
	})
	w.api.busy.Store(false)
	w.changeServed()
	l.stop()
}

// credentialsReplaced: a token that expires is told of, a new one is used without a restart, in its own file and in the
// kubeconfig.
func credentialsReplaced(w *world) {
	l := w.load()
	pid := w.daemon.Process.Pid
	file := filepath.Join(filepath.Dir(w.kubeconfigPath()), "token")
	w.replaceFile(file, w.token("headgate"))
	mark := w.log.mark()
	w.replaceKubeconfig(w.api.kubeconfigWith("tokenFile: " + file))
	w.switched(mark)

	w.expireTokens()
	s := w.awaitStatus("the refusal is told", unwell)
	if !strings.Contains(s.Source.Error, "401") || !strings.Contains(s.Source.Error, "renew the token") {
		w.t.Errorf("the status says %q of a token that is not accepted", s.Source.Error)
	}
	l.awaitRequests(50)
	w.replaceFile(file, w.token("headgate"))
	w.change()
	w.changeServed()
	w.awaitStatus("accepted again", well)

	mark = w.log.mark()
	w.replaceKubeconfig(w.api.kubeconfig(w.token("headgate")))
	w.switched(mark)
	w.change()
	w.changeServed()

	// What cannot be read changes nothing.
	w.replaceKubeconfig("{")
	s = w.awaitStatus("the broken file is told", func(s admin.Status) bool { return strings.Contains(s.Source.Error, "kubeconfig") })
	w.change()
	w.changeServed()
	mark = w.log.mark()
	w.replaceKubeconfig(w.api.kubeconfig(w.token("headgate")))
	w.switched(mark)
	if s = w.awaitStatus("well", well); s.PID != pid {
		w.t.Errorf("the daemon was restarted: %d, was %d", s.PID, pid)
	}
	l.stop()
}

// switched waits until the new kubeconfig is in use.
func (w *world) switched(mark int) {
	w.t.Helper()
	w.awaitStatus("the new kubeconfig is used", func(s admin.Status) bool {
		return well(s) && w.log.since(mark, "the cluster is read completely")
	})
}

// expireTokens makes all tokens of the daemon's ServiceAccount invalid: it is another one of the same name now.
func (w *world) expireTokens() {
	w.t.Helper()
	account := "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: headgate, namespace: headgate-system}\n"
	w.cluster.Delete(w.t, account)
	w.cluster.Apply(w.t, account)
}

// clockSkew: a clock that is wrong makes certificates look expired or not yet valid. They are served, and it is told.
func clockSkew(w *world) {
	l := w.load()
	for _, skew := range []struct {
		notBefore time.Duration
		reason    string
	}{{time.Hour, "CertificateNotYetValid"}, {-25 * time.Hour, "CertificateExpired"}} {
		w.cluster.Apply(w.t, secret("tls", certificate(w.t, "tls.test", time.Now().Add(skew.notBefore))))
		w.awaitStatus(skew.reason+" is told", func(s admin.Status) bool {
			for _, p := range s.Problems {
				if p.Reason == skew.reason && p.Warning {
					return well(s)
				}
			}
			return false
		})
		l.awaitRequests(30)
	}
	w.cluster.Apply(w.t, secret("tls", certificate(w.t, "tls.test", time.Now().Add(-time.Hour))))
	w.awaitStatus("no problem is left", func(s admin.Status) bool { return well(s) && len(s.Problems) == 0 })
	l.stop()
}
