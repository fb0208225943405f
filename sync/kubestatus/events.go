package kubestatus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"headgate/gateway/build"
	"headgate/gateway/snapshot"
)

const (
	reportingController = "headgate.io/gateway"
	action              = "Serve"
	// resolved is the Reason of the Normal Event for a Problem that is over.
	resolved build.Reason = "Resolved"

	// noteLimit and instanceLimit are the API server's (events.k8s.io/v1, in bytes).
	noteLimit     = 1024
	instanceLimit = 128

	// memory is how long a Problem that is over is remembered, so that its return is counted on the same Event; the
	// API server keeps Events as long by default.
	memory = time.Hour

	eventsDenied = `may not create or patch events: add to the ClusterRole of headgate's ServiceAccount: ` +
		`{apiGroups: ["events.k8s.io"], resources: [events], verbs: [create, patch]}`
)

// noteKey is what makes a Problem the same Problem.
type noteKey struct {
	uid     string
	reason  build.Reason
	message string
}

// note is one Problem, present or lately gone, or the end of one.
type note struct {
	key    noteKey
	object build.Object
	kind   string    // corev1.EventTypeNormal or EventTypeWarning
	times  int       // how often it began, as far as we know
	told   int       // the value of times that an Event tells
	gone   time.Time // when it ended; zero while it is there
}

// notes know what there is to tell. Every host keeps them; an Event's name is derived from what it says, so that a host that
// takes over creates what is there already, which does nothing.
type notes struct {
	current map[noteKey]*note
	ends    map[noteKey]*note // Normal Events for what is over
}

func newNotes() *notes { return &notes{current: map[noteKey]*note{}, ends: map[noteKey]*note{}} }

// update takes the Problems of a pass in.
func (n *notes) update(d *Desired, now time.Time) {
	present := map[noteKey]bool{}
	still := map[noteKey]bool{} // object and reason only
	for _, p := range d.Problems {
		if p.Object.UID == "" {
			continue // of a manifest: there is no object to put an Event on
		}
		key := noteKey{p.Object.UID, p.Reason, text(p)}
		present[key] = true
		still[noteKey{p.Object.UID, p.Reason, ""}] = true
		existing := n.current[key]
		switch {
		case existing == nil:
			n.current[key] = &note{key: key, object: p.Object, kind: corev1.EventTypeWarning, times: 1}
		case !existing.gone.IsZero():
			existing.times++
			existing.gone = time.Time{}
			delete(n.ends, noteKey{key.uid, resolved, endText(existing)})
		}
	}
	for key, one := range n.current {
		switch {
		case present[key]:
		case one.gone.IsZero():
			one.gone = now
			// It is over for the reader only if it was told and the object has no other of its kind. One whose Event is
			// being written at this moment is ended by tell.
			if one.told > 0 && !still[noteKey{key.uid, key.reason, ""}] {
				n.end(one)
			}
		case now.Sub(one.gone) > memory:
			delete(n.current, key)
		}
	}
	n.forgetEnds(d.Snapshot, now)
}

// tell notes that an Event tells of the note for the nth time. True means that there is something new to tell: the Problem
// ended while its Event was being written.
func (n *notes) tell(one *note, times int) bool {
	first := one.told == 0
	one.told = max(one.told, times)
	if !first || one.kind != corev1.EventTypeWarning || one.gone.IsZero() {
		return false
	}
	for key, other := range n.current {
		if key.uid == one.key.uid && key.reason == one.key.reason && other.gone.IsZero() {
			return false
		}
	}
	n.end(one)
	return true
}

// forgetEnds drops what is old, or of objects that are gone.
func (n *notes) forgetEnds(s *snapshot.Snapshot, now time.Time) {
	if len(n.ends) == 0 {
		return // nearly always; a look at every object would take milliseconds
	}
	exists := uids(s)
	for key, one := range n.ends {
		if !exists[key.uid] || now.Sub(one.gone) > memory {
			delete(n.ends, key)
		}
	}
}

func (n *notes) end(one *note) {
	key := noteKey{one.key.uid, resolved, endText(one)}
	n.ends[key] = &note{key: key, object: one.object, kind: corev1.EventTypeNormal, times: one.times, gone: one.gone}
}

func endText(one *note) string {
	return fmt.Sprintf("%s is over: %s", one.key.reason, one.key.message)
}

func text(p build.Problem) string {
	if p.Field == "" {
		return p.Message
	}
	return p.Field + ": " + p.Message
}

// uids are those of all objects in a snapshot.
func uids(s *snapshot.Snapshot) map[string]bool {
	set := map[string]bool{}
	for _, o := range s.Ingresses {
		set[o.UID] = true
	}
	for _, o := range s.IngressClasses {
		set[o.UID] = true
	}
	for _, o := range s.Services {
		set[o.UID] = true
	}
	for _, o := range s.EndpointSlices {
		set[o.UID] = true
	}
	for _, o := range s.Secrets {
		set[o.UID] = true
	}
	return set
}

// eventJobs are the Events that are still to be written. It is called with w.mu held.
func (w *Writer) eventJobs() []job {
	var jobs []job
	for _, list := range []map[noteKey]*note{w.notes.current, w.notes.ends} {
		for _, one := range list {
			if one.told < one.times && (one.gone.IsZero() || one.kind == corev1.EventTypeNormal) {
				jobs = append(jobs, w.eventJob(one, one.times))
			}
		}
	}
	return jobs
}

func (w *Writer) eventJob(one *note, times int) job {
	event := w.event(one)
	return job{
		name:   "event " + event.Namespace + "/" + event.Name,
		denied: eventsDenied,
		do: func(ctx context.Context) error {
			if err := wait(ctx, w.events); err != nil {
				return err
			}
			if err := w.writeEvent(ctx, event, times); err != nil {
				return err
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.notes.tell(one, times) {
				w.signal()
			}
			return nil
		},
	}
}

// writeEvent creates the Event. One that exists was written by a former leader, or tells of a former time: the first is
// enough, the second is counted.
func (w *Writer) writeEvent(ctx context.Context, event *eventsv1.Event, times int) error {
	client := w.config.Client().EventsV1().Events(event.Namespace)
	_, err := client.Create(ctx, event, metav1.CreateOptions{FieldManager: fieldManager})
	if err == nil || (apierrors.IsAlreadyExists(err) && times == 1) {
		return nil
	}
	if apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil // the namespace is gone, or on its way
	}
	if !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating Event %s/%s: %w", event.Namespace, event.Name, err)
	}
	patch, err := json.Marshal(map[string]any{"series": eventsv1.EventSeries{Count: int32(min(times, 1<<20)), LastObservedTime: metav1.NowMicro()}})
	if err != nil {
		return fmt.Errorf("encoding Event %s/%s: %w", event.Namespace, event.Name, err)
	}
	_, err = client.Patch(ctx, event.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("patching Event %s/%s: %w", event.Namespace, event.Name, err)
	}
	return nil
}

func (w *Writer) event(one *note) *eventsv1.Event {
	hash := sha256.New()
	for _, part := range []string{one.key.uid, string(one.key.reason), one.key.message} {
		_, _ = fmt.Fprintf(hash, "%d %s", len(part), part)
	}
	namespace := one.object.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault // where Events of cluster-scoped objects live
	}
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace,
			Name:      eventName(one.object.Name, hash.Sum(nil)),
		},
		EventTime:           metav1.NowMicro(),
		ReportingController: reportingController,
		ReportingInstance:   cut(w.config.Identity, instanceLimit),
		Action:              action,
		Reason:              string(one.key.reason),
		Regarding:           regarding(one.object),
		Note:                cut(one.key.message, noteLimit),
		Type:                one.kind,
	}
}

// eventName stays a DNS subdomain of at most 253 bytes.
func eventName(object string, hash []byte) string {
	return strings.TrimRight(object[:min(len(object), 200)], ".-") + ".headgate." + hex.EncodeToString(hash[:8])
}

func regarding(o build.Object) corev1.ObjectReference {
	version := map[string]string{
		"Ingress": "networking.k8s.io/v1", "IngressClass": "networking.k8s.io/v1",
		"EndpointSlice": "discovery.k8s.io/v1",
	}[o.Kind]
	if version == "" {
		version = "v1"
	}
	return corev1.ObjectReference{Kind: o.Kind, APIVersion: version, Namespace: o.Namespace, Name: o.Name, UID: types.UID(o.UID)}
}

// cut shortens to a number of bytes, between two characters.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	const more = "…"
	end := limit - len(more)
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + more
}
