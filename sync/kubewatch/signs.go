package kubewatch

import (
	"sync"
	"time"
)

// signs are what all sessions of a source report to it.
type signs struct {
	changed func() // what a session knows is different

	mu   sync.Mutex // guards what follows
	at   time.Time
	what string
}

// mark notes that something is out of order. It comes before anything that may follow from it, such as a new list.
func (s *signs) mark(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at, s.what = time.Now(), what
}

func (s *signs) last() (time.Time, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at, s.what
}
