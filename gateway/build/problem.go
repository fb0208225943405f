package build

import (
	"cmp"
	"fmt"
	"slices"

	"headgate/gateway/snapshot"
)

// String gives the problem on one line, as logs and "headgate status" show it.
func (p Problem) String() string {
	level := "error"
	if p.Warning {
		level = "warning"
	}
	at := p.Object.String()
	if p.Field != "" {
		at += " " + p.Field
	}
	return fmt.Sprintf("%s %s: %s: %s", level, at, p.Reason, p.Message)
}

// String gives "Kind namespace/name", and the origin where there is one.
func (o Object) String() string {
	s := o.Kind + " " + snapshot.Key{Namespace: o.Namespace, Name: o.Name}.String()
	if o.Origin != "" {
		s += " (" + o.Origin + ")"
	}
	return s
}

func objectOf(kind string, m *snapshot.Meta) Object {
	return Object{Kind: kind, Namespace: m.Namespace, Name: m.Name, UID: m.UID, Origin: m.Origin}
}

func compareProblems(a, b Problem) int {
	return cmp.Or(
		cmp.Compare(a.Object.Kind, b.Object.Kind),
		cmp.Compare(a.Object.Namespace, b.Object.Namespace),
		cmp.Compare(a.Object.Name, b.Object.Name),
		cmp.Compare(a.Object.UID, b.Object.UID),
		cmp.Compare(a.Object.Origin, b.Object.Origin),
		cmp.Compare(a.Field, b.Field),
		cmp.Compare(a.Reason, b.Reason),
		cmp.Compare(a.Message, b.Message),
	)
}

// notes keeps problems by what they were found in, such as one host, so that a part can be replaced.
type notes struct {
	by      map[noteKey][]Problem
	changed bool
	sorted  []Problem
}

// noteKey names what problems were found in.
type noteKey struct {
	room string // "ingress", "host", "upstream", "certificates", "faults"
	name string
}

func newNotes() notes { return notes{by: map[noteKey][]Problem{}} }

// set replaces the problems of one part.
func (n *notes) set(room, name string, problems []Problem) {
	key := noteKey{room, name}
	if slices.Equal(n.by[key], problems) {
		return
	}
	n.changed = true
	if len(problems) == 0 {
		delete(n.by, key)
		return
	}
	n.by[key] = problems
}

// list gives all problems, sorted, none twice. The slice is not changed later.
func (n *notes) list() []Problem {
	if n.changed {
		var all []Problem
		for _, problems := range n.by {
			all = append(all, problems...)
		}
		slices.SortFunc(all, compareProblems)
		n.sorted = slices.Compact(all)
		n.changed = false
	}
	return n.sorted
}

func faultProblems(faults []snapshot.Fault) []Problem {
	var problems []Problem
	for _, f := range faults {
		reason := UnreadableInput
		if f.Warning {
			reason = DoubtfulInput
		}
		problems = append(problems, Problem{
			Object:  Object{Kind: cmp.Or(f.Kind, "File"), Namespace: f.Key.Namespace, Name: f.Key.Name, Origin: f.Origin},
			Reason:  reason,
			Message: f.Message,
			Warning: f.Warning,
		})
	}
	return problems
}
