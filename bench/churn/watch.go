package main

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"headgate/bench/load"
)

// watch finds requests that were answered by an endpoint which the proxy had acknowledged to be gone before they
// were sent.
type watch struct {
	mu    sync.Mutex           // guards all below
	since map[string]time.Time // endpoint → when its end was acknowledged
	count int
	first string
}

func newWatch(n int) *watch {
	w := &watch{since: map[string]time.Time{}}
	w.gone(churners(n))
	return w
}

// back is called before endpoints come again.
func (w *watch) back(now []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, peer := range now {
		delete(w.since, peer)
	}
}

// gone is called when the proxy has acknowledged that there are these and no others.
func (w *watch) gone(now []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, peer := range churners(many) {
		if _, known := w.since[peer]; !known && !slices.Contains(now, peer) {
			w.since[peer] = time.Now()
		}
	}
}

func (w *watch) heard(a load.Answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at, gone := w.since[a.Body]
	if gone && a.Err == nil && a.Sent.After(at) {
		w.count++
		if w.first == "" {
			w.first = fmt.Sprintf("%s answered %s after the acknowledgement", a.Body, a.Sent.Sub(at))
		}
	}
}

func (w *watch) found() (int, string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count, w.first
}
