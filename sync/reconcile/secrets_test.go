package reconcile

import (
	"slices"
	"sync"
	"testing"
	"time"

	"headgate/gateway/build"
	"headgate/gateway/snapshot"
)

// fakeSecrets knows of a Secret once it was told to.
type fakeSecrets struct {
	mu     sync.Mutex
	wanted []snapshot.Key
	known  []snapshot.Key
}

func (s *fakeSecrets) Want(keys []snapshot.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wanted = slices.Clone(keys)
	return !slices.ContainsFunc(keys, func(k snapshot.Key) bool { return !slices.Contains(s.known, k) })
}

func (s *fakeSecrets) learn(names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		s.known = append(s.known, snapshot.Key{Name: name})
	}
}

// secretBuilder wants a Secret of the name of each Ingress.
type secretBuilder struct{ *fakeBuilder }

func (b secretBuilder) Build(s *snapshot.Snapshot, now time.Time) *build.Result {
	r := b.fakeBuilder.Build(s, now)
	for _, i := range s.Ingresses {
		r.PeerSecrets = append(r.PeerSecrets, i.Key)
	}
	return r
}

// TestAPassWaitsForSecrets: a Secret that is named for the first time is read before anything is told of its lack, at the
// start and later; where it cannot be read nobody waits for ever, and not twice.
func TestAPassWaitsForSecrets(t *testing.T) {
	scenario(t, func(t *testing.T, w *world) {
		s := &fakeSecrets{}
		w.cfg.Secrets, w.cfg.Builder = s, secretBuilder{w.builder}
		w.start()
		w.source.set("a")
		w.wait(secretPatience / 2)
		w.want("")
		s.learn("a")
		w.follow("a", "reload", "push")
		if !slices.Equal(s.wanted, []snapshot.Key{{Name: "a"}}) {
			t.Errorf("wanted %v", s.wanted)
		}
		// A new one holds back everything, for a moment.
		w.source.set("a", "b")
		w.wait(secretPatience / 2)
		w.want("a")
		s.learn("b")
		w.follow("a b", "push")
		// One that is never read.
		w.source.set("a", "b", "c")
		w.wait(secretPatience / 2)
		w.want("a b")
		w.wait(secretPatience)
		w.want("a b c", "push")
		w.follow("a b c*1", "push")
	})
}
