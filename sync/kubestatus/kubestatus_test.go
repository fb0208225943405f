package kubestatus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"

	"headgate/gateway/build"
	"headgate/gateway/snapshot"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newWriter(t *testing.T, addresses ...string) *Writer {
	t.Helper()
	w, err := New(Config{Client: func() kubernetes.Interface { return nil }, Addresses: addresses, Identity: "host-1"})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func ingress(name, uid, version string, published ...networkingv1.IngressLoadBalancerIngress) *snapshot.Ingress {
	return &snapshot.Ingress{
		Meta:      snapshot.Meta{Key: snapshot.Key{Namespace: "shop", Name: name}, UID: uid, ResourceVersion: version},
		Published: published,
	}
}

func of(served []string, ingresses ...*snapshot.Ingress) Desired {
	d := Desired{Snapshot: &snapshot.Snapshot{Ingresses: ingresses}}
	for _, name := range served {
		d.Served = append(d.Served, snapshot.Key{Namespace: "shop", Name: name})
	}
	return d
}

// wishes are the names of the jobs after an update, sorted.
func wishes(w *Writer, tries *tries, d Desired) []string {
	w.Update(d)
	w.mu.Lock()
	defer w.mu.Unlock()
	var names []string
	for _, j := range append(w.statusJobs(&d, tries), w.eventJobs()...) {
		names = append(names, j.name)
	}
	slices.Sort(names)
	return names
}

func TestStatusJobs(t *testing.T) {
	w, tries := newWriter(t, "192.0.2.10", "edge.example.org"), newTries()
	ours := []networkingv1.IngressLoadBalancerIngress{{Hostname: "edge.example.org", Ports: []networkingv1.IngressPortStatus{{Port: 80}}}, {IP: "192.0.2.10"}}
	other := networkingv1.IngressLoadBalancerIngress{IP: "198.51.100.1"}
	for _, step := range []struct {
		name string
		d    Desired
		want []string
	}{
		{"served, nothing there", of([]string{"a", "b"}, ingress("a", "1", "5"), ingress("b", "2", "5", ours...)), []string{"publish 1"}},
		{"others wrote", of([]string{"a", "b"}, ingress("a", "1", "6", ours...), ingress("b", "2", "6", other)), []string{"publish 2"}},
		{"partly ours", of([]string{"b"}, ingress("b", "2", "7", ours[1])), []string{"publish 2"}},
		{"never ours", of([]string{"b"}, ingress("b", "2", "8", ours...), ingress("c", "3", "1", ours...)), nil},
		{"no longer ours", of(nil, ingress("b", "2", "9", ours...)), []string{"withdraw 2"}},
		{"no longer ours, and others wrote", of(nil, ingress("b", "2", "10", other)), nil},
		{"only once", of(nil, ingress("b", "2", "11", ours...)), nil},
		{"of a manifest", of([]string{"m"}, ingress("m", "", "")), nil},
		{"served but gone", of([]string{"x"}), nil},
	} {
		if got := wishes(w, tries, step.d); !slices.Equal(got, step.want) {
			t.Errorf("%s: got %q, want %q", step.name, got, step.want)
		}
	}
}

func TestAWriteIsNotRepeatedBeforeTheSnapshotShowsIt(t *testing.T) {
	w, tries := newWriter(t, "192.0.2.10"), newTries()
	d := of([]string{"a"}, ingress("a", "1", "5"))
	tries.written["1"] = "5"
	tries.written["gone"] = "7"
	if got := wishes(w, tries, d); len(got) != 0 {
		t.Errorf("got %q", got)
	}
	if _, left := tries.written["gone"]; left {
		t.Error("what is gone must be forgotten")
	}
	if got := wishes(w, tries, of([]string{"a"}, ingress("a", "1", "6"))); !slices.Equal(got, []string{"publish 1"}) {
		t.Errorf("a newer version without the addresses must be written: %q", got)
	}
}

func TestNoAddressesTouchNoStatus(t *testing.T) {
	w := newWriter(t)
	if got := wishes(w, newTries(), of([]string{"a"}, ingress("a", "1", "5", networkingv1.IngressLoadBalancerIngress{IP: "192.0.2.10"}))); len(got) != 0 {
		t.Errorf("got %q", got)
	}
}

func problem(uid string, reason build.Reason, message string) build.Problem {
	return build.Problem{Object: build.Object{Kind: "Ingress", Namespace: "shop", Name: "a", UID: uid}, Reason: reason, Message: message}
}

func TestEventJobsFollowTransitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, tries := newWriter(t), newTries()
		d := func(problems ...build.Problem) Desired {
			d := of(nil, ingress("a", "1", "5"))
			d.Problems = problems
			return d
		}
		written := func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, list := range []map[noteKey]*note{w.notes.current, w.notes.ends} {
				for _, one := range list {
					one.told = one.times
				}
			}
		}
		count := func(name string, want int, d Desired) {
			t.Helper()
			if got := wishes(w, tries, d); len(got) != want {
				t.Errorf("%s: got %q, want %d", name, got, want)
			}
		}
		p := problem("1", build.HostConflict, "m")
		count("begins", 1, d(p))
		count("still unwritten", 1, d(p))
		written()
		count("written", 0, d(p))
		count("of a manifest", 0, d(p, problem("", build.HostConflict, "m")))
		count("another field is another message", 1, d(p, build.Problem{Object: p.Object, Field: "spec", Reason: p.Reason, Message: "m"}))
		written()
		count("one of two of a kind ends", 0, d(p))
		count("all end", 1, d())
		count("and comes back before that was told", 1, d(p))
		written()
		count("ends again", 1, d())
		written()
		count("stays away", 0, d())
		<-time.After(memory + time.Minute)
		count("is forgotten", 0, d())
		if len(w.notes.current)+len(w.notes.ends) != 0 {
			t.Errorf("%d and %d left", len(w.notes.current), len(w.notes.ends))
		}
		count("an untold problem", 1, d(p))
		count("that ends untold leaves nothing to say", 0, d())
		count("begins again", 1, d(p))
		written()
		gone := of(nil)
		count("the object is gone", 0, gone)
	})
}

// TestAProblemThatEndsWhileItsEventIsWritten: readers have seen it begin, so they must see it end.
func TestAProblemThatEndsWhileItsEventIsWritten(t *testing.T) {
	n := newNotes()
	there := Desired{Snapshot: &snapshot.Snapshot{Ingresses: []*snapshot.Ingress{ingress("a", "1", "1")}}}
	gone := there
	there.Problems = []build.Problem{problem("1", build.BackendNotFound, "no web")}
	n.update(&there, time.Unix(1, 0))
	var one *note
	for _, one = range n.current {
	}
	n.update(&gone, time.Unix(2, 0))
	if len(n.ends) != 0 {
		t.Fatalf("the end of what nobody was told: %v", n.ends)
	}
	if !n.tell(one, 1) || len(n.ends) != 1 {
		t.Fatalf("the Problem was told after it ended: ends %v, want one", n.ends)
	}
	if n.tell(one, 1) {
		t.Error("the end is new a second time")
	}

	// Another Problem of the kind is still there: nothing is over.
	n = newNotes()
	there.Problems = append(there.Problems, problem("1", build.BackendNotFound, "no api"))
	n.update(&there, time.Unix(1, 0))
	one = n.current[noteKey{"1", build.BackendNotFound, "no web"}]
	there.Problems = there.Problems[1:]
	n.update(&there, time.Unix(2, 0))
	if n.tell(one, 1) || len(n.ends) != 0 {
		t.Errorf("ends %v while another Problem of the kind is there", n.ends)
	}
}

func TestEventsFitTheAPI(t *testing.T) {
	w := newWriter(t)
	w.config.Identity = strings.Repeat("h", 300)
	long := strings.Repeat("ü", 2000)
	seen := map[string]bool{}
	for _, o := range []build.Object{
		{Kind: "Ingress", Namespace: "shop", Name: strings.Repeat("a.", 126) + "b", UID: "1"},
		{Kind: "IngressClass", Name: "headgate", UID: "2"},
		{Kind: "Secret", Namespace: "shop", Name: "tls", UID: "3"},
	} {
		e := w.event(&note{key: noteKey{o.UID, build.HostConflict, long}, object: o, kind: "Warning"})
		if errs := validation.IsDNS1123Subdomain(e.Name); len(errs) > 0 || seen[e.Name] {
			t.Errorf("name %q: %v", e.Name, errs)
		}
		seen[e.Name] = true
		if len(e.Note) > noteLimit || len(e.ReportingInstance) > instanceLimit || !utf8.ValidString(e.Note) {
			t.Errorf("note of %d bytes, instance of %d", len(e.Note), len(e.ReportingInstance))
		}
		if e.Namespace == "" || e.Regarding.APIVersion == "" || string(e.Regarding.UID) != o.UID {
			t.Errorf("event %+v", e)
		}
	}
	if got := w.event(&note{key: noteKey{"2", "R", "m"}, object: build.Object{Kind: "IngressClass", Name: "x", UID: "2"}}).Namespace; got != "default" {
		t.Errorf("namespace %s", got)
	}
	for in, want := range map[string]string{"": "", "abc": "abc", "äöüä": "äöüä", "äöüäö": "äö…"} {
		if got := cut(in, 8); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestTries(t *testing.T) {
	tries := newTries()
	now := time.Now()
	var jobs []job
	for i := range batch + 10 {
		jobs = append(jobs, job{name: fmt.Sprint(i)})
	}
	due, next := tries.due(jobs, now)
	if len(due) != batch || !next.Equal(now) {
		t.Errorf("%d due, next in %v", len(due), next.Sub(now))
	}
	one := jobs[:1]
	for i, want := range []time.Duration{firstRetry, 2 * firstRetry, 4 * firstRetry} {
		if times := tries.fail("0", now); times != i+1 {
			t.Errorf("%d times", times)
		}
		if due, next := tries.due(one, now); len(due) != 0 || next.Sub(now) != want {
			t.Errorf("after %d failures: %d due, next in %v", i+1, len(due), next.Sub(now))
		}
	}
	for range 100 {
		tries.fail("0", now)
	}
	if _, next := tries.due(one, now); next.Sub(now) != longestRetry {
		t.Errorf("at the end: %v", next.Sub(now))
	}
	tries.forget(nil)
	if due, next := tries.due(one, now); len(due) != 1 || !next.IsZero() {
		t.Errorf("a forgotten failure: %d due, next %v", len(due), next)
	}
	tries.fail("0", now)
	tries.succeed("0")
	if due, _ := tries.due(one, now); len(due) != 1 {
		t.Error("a success ends the back-off")
	}
	if !tries.tellOnce("a") || tries.tellOnce("a") || !tries.tellOnce("b") {
		t.Error("each text is told once")
	}
}

func TestNewRefuses(t *testing.T) {
	client := func() kubernetes.Interface { return nil }
	for name, c := range map[string]Config{
		"no client":    {},
		"address":      {Client: client, Addresses: []string{"http://x"}},
		"port":         {Client: client, Addresses: []string{"192.0.2.1:80"}},
		"zone":         {Client: client, Addresses: []string{"fe80::1%eth0"}},
		"lease times":  {Client: client, LeaseDuration: time.Second, RenewDeadline: 2 * time.Second},
		"retry period": {Client: client, RetryPeriod: time.Minute},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	w, err := New(Config{Client: client, Addresses: []string{"192.0.2.1", "::ffff:192.0.2.2", "2001:DB8::1", "edge.example.org"}})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(w.addresses)
	if want := `[{"ip":"192.0.2.1"},{"ip":"192.0.2.2"},{"ip":"2001:db8::1"},{"hostname":"edge.example.org"}]`; err != nil || string(raw) != want {
		t.Errorf("addresses %s, %v", raw, err)
	}
	if w.config.LeaseDuration != 30*time.Second || w.config.RenewDeadline != 20*time.Second || w.config.RetryPeriod != 4*time.Second ||
		w.config.LeaseNamespace != "headgate-system" || w.config.LeaseName != "edge-status" || w.Identity() == "" {
		t.Errorf("defaults %+v", w.config)
	}
}

func TestRunWaitsForAClientAndEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWriter(t, "192.0.2.10")
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		w.Update(of(nil))
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
		if identity, mine := w.Leader(); identity != "" || mine {
			t.Errorf("leader %q, %v", identity, mine)
		}
	})
}

func TestProblemLog(t *testing.T) {
	var out bytes.Buffer
	l := NewProblemLog(slog.New(slog.NewTextHandler(&out, nil)))
	observe := func(problems ...build.Problem) string {
		out.Reset()
		l.Observe(problems)
		return out.String()
	}
	file := build.Problem{Object: build.Object{Kind: "File", Origin: "shop.yaml:3"}, Reason: build.UnreadableInput, Message: "broken"}
	if got := observe(file); !strings.Contains(got, "shop.yaml:3") || !strings.Contains(got, "reason=UnreadableInput") || !strings.Contains(got, "level=WARN") {
		t.Errorf("begins: %s", got)
	}
	if got := observe(file); got != "" {
		t.Errorf("lasts: %s", got)
	}
	if got := observe(); !strings.Contains(got, "problem is over") {
		t.Errorf("ends: %s", got)
	}
	conflict := problem("1", build.HostConflict, "with a")
	reworded := conflict
	reworded.Message = "with b"
	observe(conflict)
	if got := observe(reworded); strings.Contains(got, "is over") || !strings.Contains(got, `message="with b"`) {
		t.Errorf("in other words: %s", got)
	}
	elsewhere := reworded
	elsewhere.Object.Origin = "shop.yaml:4"
	if got := observe(elsewhere); strings.Contains(got, "is over") {
		t.Errorf("the same in another line: %s", got)
	}
	if got := observe(); strings.Count(got, "problem is over") != 1 {
		t.Errorf("ends after other words: %s", got)
	}
	var many []build.Problem
	for i := range 3 * maxLines {
		many = append(many, problem("1", build.HostConflict, fmt.Sprint(i)))
	}
	if got := observe(many...); strings.Count(got, "\n") != maxLines+1 || !strings.Contains(got, "unsaid=200") {
		t.Errorf("%d lines", strings.Count(got, "\n"))
	}
	if got := observe(); strings.Count(got, "\n") != maxLines {
		t.Errorf("%d lines at the end", strings.Count(got, "\n"))
	}
	NewProblemLog(nil).Observe(many)
}

func TestLeadership(t *testing.T) {
	var l leadership
	over, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("over"))
	if l.begin(over) || l.untilTheEnd() {
		t.Error("a term that is over must not begin")
	}
	if !l.begin(t.Context()) || !l.untilTheEnd() {
		t.Error("a term must begin")
	}
	if !l.end() || l.end() {
		t.Error("a term ends once")
	}
	if !l.untilTheEnd() {
		t.Error("an end that was asked for keeps what was ours")
	}
	l.lose()
	if l.untilTheEnd() {
		t.Error("a lost term is lost")
	}
}

func TestOtherAddressesArePublished(t *testing.T) {
	w, tries := newWriter(t, "192.0.2.10"), newTries()
	ours := networkingv1.IngressLoadBalancerIngress{IP: "192.0.2.10"}
	d := of([]string{"a"}, ingress("a", "1", "5", ours))
	if got := wishes(w, tries, d); len(got) != 0 {
		t.Fatalf("got %q", got)
	}
	if err := w.Publish(Publishing{Addresses: []string{"192.0.2.11"}, ClearOnStop: true}); err != nil {
		t.Fatal(err)
	}
	if got := wishes(w, tries, d); !slices.Equal(got, []string{"publish 1"}) {
		t.Errorf("got %q", got)
	}
	if err := w.Publish(Publishing{Addresses: []string{"no address"}}); err == nil {
		t.Error("no error")
	}
	if addresses, clearThem := w.published(); len(addresses) != 1 || addresses[0].IP != "192.0.2.11" || !clearThem {
		t.Errorf("a refused change is in force: %v, %v", addresses, clearThem)
	}
}
