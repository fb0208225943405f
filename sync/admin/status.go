// Package admin lets people and monitoring look into the running daemon: a unix socket that `headgate
// status` and pprof use, and a read-only Prometheus listener on loopback. It turns one Status, which cmd
// puts together from what the rooms tell, into JSON, text and metrics. It changes nothing and decides
// nothing; cmd/headgate runs it beside the loop.
package admin

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Status is the daemon's own account of itself at one moment. Its JSON is what `headgate status -o json`
// prints; fields are only ever added.
type Status struct {
	Version string    `json:"version"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started"`
	Time    time.Time `json:"time"` // when this was put together

	Source   Source   `json:"source"`
	Revision Revision `json:"revision"`
	Proxy    Proxy    `json:"proxy"`
	StateLog StateLog `json:"stateLog"`

	Health    Health    `json:"health"`
	LossGuard LossGuard `json:"lossGuard"`

	// LastKnownGood tells that what is served comes from the state log alone: no source has been
	// complete since the start.
	LastKnownGood bool `json:"lastKnownGood"`
	// Ready tells that the proxy was seen to serve a complete desired state.
	Ready bool `json:"ready"`
	// Error is what the last pass could not do; "" when it did everything. It is retried.
	Error string `json:"error,omitempty"`
	// Rival names another daemon that pushes to the same proxy; "" when there is none.
	Rival string `json:"rival,omitempty"`
	// TooLarge are objects too large for the proxy, by pointer: what it had before stays.
	TooLarge []string `json:"tooLarge,omitempty"`

	Counts     Counts            `json:"counts"`
	LastReload *Reload           `json:"lastReload,omitempty"`
	Reloads    map[string]uint64 `json:"reloads"` // by reason; a reload with two reasons counts under both
	Passes     uint64            `json:"passes"`
	Pushes     uint64            `json:"pushes"`
	Failures   uint64            `json:"failures"` // passes that ended in an error

	Problems     []Problem     `json:"problems"`
	Certificates []Certificate `json:"certificates"`
}

// Source is where the objects come from.
type Source struct {
	Kind   string `json:"kind"`   // "cluster" or "manifests"
	Detail string `json:"detail"` // API server or folders
	Synced bool   `json:"synced"` // everything was read at least once
	// Healthy is false while the source cannot be read; what is served stays.
	Healthy bool      `json:"healthy"`
	Since   time.Time `json:"since"` // of the present Healthy
	Error   string    `json:"error,omitempty"`
}

// Revision compares what is wanted with what the proxy acknowledged.
type Revision struct {
	Desired uint64 `json:"desired"`
	Applied uint64 `json:"applied"`
}

// Proxy is what the proxy told when it was last asked.
type Proxy struct {
	Mode         string   `json:"mode"` // "managed" or "external"
	Reachable    bool     `json:"reachable"`
	Error        string   `json:"error,omitempty"` // why it does not answer, or why it was not started
	Restarts     int      `json:"restarts"`        // of a managed proxy that had died
	MasterPID    int      `json:"masterPid"`
	NginxVersion string   `json:"nginxVersion"`
	LuaBuild     string   `json:"luaBuild"`
	Generation   string   `json:"generation"`
	Workers      []Worker `json:"workers"`
	// The shared dict for pushed state, in bytes; 0 when unknown.
	DictCapacityBytes int64 `json:"dictCapacityBytes"`
	DictFreeBytes     int64 `json:"dictFreeBytes"`
}

// Worker is one nginx worker. An idle one catches up with its next request.
type Worker struct {
	PID        int      `json:"pid"`
	Generation string   `json:"generation"`
	Revision   uint64   `json:"revision"`
	SeenMs     int64    `json:"seenMs"` // milliseconds since its last report
	Errors     []string `json:"errors,omitempty"`
}

// StateLog is the pushed state on disk, from which the proxy starts without the daemon.
type StateLog struct {
	Revision  uint64 `json:"revision"`
	SizeBytes int64  `json:"sizeBytes"`
	Error     string `json:"error,omitempty"` // why it is not written
}

// Health is what the active health checks found. A peer that two upstreams check in the same way counts once.
type Health struct {
	Up      int `json:"up"`
	Down    int `json:"down"`
	Unknown int `json:"unknown"` // not yet known: taken for well
	// AllDown are upstreams whose peers are all down: they are used all the same.
	AllDown   []string `json:"allDown,omitempty"`
	Running   int      `json:"running"` // checks at this moment
	LateMs    int64    `json:"lateMs"`  // how far the checks are behind
	Succeeded uint64   `json:"succeeded"`
	Failed    uint64   `json:"failed"`
	Void      uint64   `json:"void"` // said nothing of the peer
	WentDown  uint64   `json:"wentDown"`
	CameUp    uint64   `json:"cameUp"`
}

// LossGuard is what is held against a loss that may not be true, and how old what is served is.
type LossGuard struct {
	// Held is null while nothing is.
	Held       *Held   `json:"held,omitempty"`
	AgeSeconds float64 `json:"ageSeconds"` // of the last good reading of the source; 0 while it is current
	// MaxAgeSeconds is lossGuard.maxAge, and TooOld tells that the age is above it.
	MaxAgeSeconds float64 `json:"maxAgeSeconds"`
	TooOld        bool    `json:"tooOld"`
	Holds         uint64  `json:"holds"` // since the start
}

// Held is a loss that is not passed on.
type Held struct {
	Since time.Time `json:"since"`
	Until time.Time `json:"until"` // at the latest
	Why   string    `json:"why"`
	// Withheld tells that nothing of this source has been served since the start, but the state log alone.
	Withheld bool   `json:"withheld"`
	Before   Amount `json:"before"`
	Now      Amount `json:"now"`
}

// Amount is how much there is.
type Amount struct {
	Routes    int `json:"routes"`
	Endpoints int `json:"endpoints"`
	Services  int `json:"services"`
	Secrets   int `json:"secrets"`
}

// String says it to people.
func (a Amount) String() string {
	return fmt.Sprintf("%d routes, %d endpoints, %d services, %d secrets", a.Routes, a.Endpoints, a.Services, a.Secrets)
}

// Counts are the sizes of what is served.
type Counts struct {
	Hosts        int `json:"hosts"`
	Routes       int `json:"routes"`
	Upstreams    int `json:"upstreams"`
	Peers        int `json:"peers"`
	Certificates int `json:"certificates"`
}

// Reload is one reload of nginx.
type Reload struct {
	Time    time.Time `json:"time"`
	Reasons []string  `json:"reasons"`
	Error   string    `json:"error,omitempty"`
}

// Problem is something wrong with one object; it costs that object only.
type Problem struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Origin    string `json:"origin,omitempty"` // "shop.yaml:12" for manifests
	Field     string `json:"field,omitempty"`
	Reason    string `json:"reason"`
	Message   string `json:"message"`
	Warning   bool   `json:"warning"` // served all the same
}

// Object names what the problem is about, for people.
func (p Problem) Object() string {
	name := p.Name
	if p.Namespace != "" {
		name = p.Namespace + "/" + name
	}
	if name == "" {
		return p.Origin
	}
	name = p.Kind + " " + name
	if p.Origin != "" {
		name += " (" + p.Origin + ")"
	}
	return name
}

// Certificate is one that is served.
type Certificate struct {
	ID       string    `json:"id"` // namespace/name of the Secret
	NotAfter time.Time `json:"notAfter"`
}

// Degraded lists what keeps the gateway from doing its whole work, in words; none means that all is well.
// A Problem is not in it: it is its author's, everything else is served.
func (s Status) Degraded() []string {
	var why []string
	add := func(bad bool, format string, args ...any) {
		if bad {
			why = append(why, oneLine(fmt.Sprintf(format, args...)))
		}
	}
	unread := "the source has not been read completely yet"
	if !s.Source.Healthy && s.Source.Error != "" {
		unread += ": " + s.Source.Error
	}
	add(!s.Source.Synced, "%s", unread)
	add(s.Source.Synced && !s.Source.Healthy, "the source cannot be read since %s: %s", stamp(s.Source.Since), orUnknown(s.Source.Error))
	if h := s.LossGuard.Held; h != nil {
		add(true, "a loss is held back until %s at the latest: the source had %s at %s and has %s now, which may not be true (%s); the old ones are served; `headgate accept` lets them go",
			stamp(h.Until), h.Before, stamp(h.Since), h.Now, h.Why)
	}
	add(s.LossGuard.TooOld, "what is served is %s old, and lossGuard.maxAge allows %s: it is served on; bring the source back",
		seconds(s.LossGuard.AgeSeconds), seconds(s.LossGuard.MaxAgeSeconds))
	add(s.LastKnownGood, "what is served is the last known good state from the state log")
	add(!s.Proxy.Reachable, "the proxy does not answer: %s", orUnknown(s.Proxy.Error))
	add(s.Error != "", "the last pass failed and is retried: %s", s.Error)
	add(s.Error == "" && s.Source.Synced && !s.Ready, "no complete state has been acknowledged by the proxy yet")
	add(s.Rival != "", "another daemon (%s) pushes to the same proxy: run only one, or give each its own runtimeDir", s.Rival)
	add(len(s.TooLarge) > 0, "%d objects are too large for the proxy, such as %s", len(s.TooLarge), first(s.TooLarge))
	for _, w := range s.Proxy.Workers {
		add(len(w.Errors) > 0, "worker %d reports %d errors", w.PID, len(w.Errors))
	}
	add(s.StateLog.Error != "", "the state log cannot be written: %s", s.StateLog.Error)
	return why
}

// oneLine makes a text fit a line of a terminal's page, and a line of sd_notify, where a line feed would begin
// another assignment. The whole text is in the JSON.
func oneLine(text string) string {
	const most = 400
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ReplaceAll(text, "\n", "; "))
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "… (all of it: -o json)"
	}
	return text
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Second)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// normal gives the lists and maps that must not be null in JSON, and their order.
func (s Status) normal() Status {
	if s.Reloads == nil {
		s.Reloads = map[string]uint64{}
	}
	if s.Problems == nil {
		s.Problems = []Problem{}
	}
	if s.Certificates == nil {
		s.Certificates = []Certificate{}
	}
	if s.Proxy.Workers == nil {
		s.Proxy.Workers = []Worker{}
	}
	s.Certificates = slices.SortedStableFunc(slices.Values(s.Certificates), func(a, b Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
	return s
}
