package difference

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"headgate/cmd/assemble"
	"headgate/cmd/lastgood"
	"headgate/gateway/build"
	"headgate/gateway/luastate"
	"headgate/gateway/nginxconf"
	"headgate/gateway/plan"
	"headgate/gateway/snapshot"
	"headgate/sync/admin"
	"headgate/sync/manifests"
)

// Daemon is what can be asked while comparing.
type Daemon interface {
	// Object gives one object of the daemon as luastate.Redacted writes it.
	Object(ctx context.Context, pointer string) ([]byte, error)
	// CheckRegexes has the proxy compile patterns: an error text or "" for each.
	CheckRegexes(ctx context.Context, patterns []string) (map[string]string, error)
}

// Report is what would change.
type Report struct {
	Revision uint64   `json:"revision"` // that the proxy has now
	Pushes   []Change `json:"pushes"`
	Reloads  []Reload `json:"reloads"`
	Problems Problems `json:"problems"`
	// Notes tell what could not be compared.
	Notes []string `json:"notes"`
}

// Change is one object.
type Change struct {
	Action Action `json:"action"`
	Kind   string `json:"kind"` // "host", "upstream", "certificate", "certificate of", "setting"
	Name   string `json:"name"`
	// Details say what changes within it, a line each.
	Details []string `json:"details"`
}

// Action is what happens to an object.
type Action string

// The actions.
const (
	Add    Action = "add"
	Edit   Action = "change"
	Remove Action = "remove"
)

// Reload is one reason to reload.
type Reload struct {
	Reason plan.Reason `json:"reason"`
	Detail string      `json:"detail,omitempty"`
}

// Problems of objects that come and go.
type Problems struct {
	New  []admin.Problem `json:"new"`
	Gone []admin.Problem `json:"gone"`
}

// Empty tells that nothing would change.
func (r Report) Empty() bool {
	return len(r.Pushes) == 0 && len(r.Reloads) == 0 && len(r.Problems.New) == 0 && len(r.Problems.Gone) == 0
}

// Compare builds the folders as the daemon would, and plans the way there from what it has applied. The error is one
// that keeps everything from being compared, such as a folder that cannot be read.
func Compare(ctx context.Context, a Answer, folders []string, daemon Daemon, now time.Time) (Report, error) {
	report := Report{Revision: a.Revision, Pushes: []Change{}, Reloads: []Reload{}, Notes: []string{},
		Problems: Problems{New: []admin.Problem{}, Gone: []admin.Problem{}}}
	objects, err := read(a, folders, now)
	if err != nil {
		return report, err
	}
	c := comparison{answer: a, daemon: daemon, report: &report}
	if !a.Known {
		c.note("the daemon has not applied anything yet: all of it would be pushed")
	}
	result := c.build(ctx, objects, now)
	desired, err := c.desired(result)
	if err != nil {
		return report, err
	}
	p := plan.Diff(c.applied(), desired)
	c.reloads(p, desired)
	c.pushes(ctx, p.Delta, desired.State)
	c.problems(result.Problems)
	return report, nil
}

// read takes the objects as the daemon would: with the times at which it first saw those that it knows.
func read(a Answer, folders []string, now time.Time) (*snapshot.Snapshot, error) {
	s, err := manifests.Read(manifests.Config{Folders: folders, StateDir: a.StateDir}, now)
	if err != nil {
		// Who may not read the daemon's folder compares all the same; only ties of age may differ.
		if s, err = manifests.Read(manifests.Config{Folders: folders}, now); err != nil {
			return nil, err
		}
	}
	resolved := *s
	resolved.Resolutions, resolved.Verdicts = a.Resolutions, a.Verdicts
	return &resolved, nil
}

// comparison is one Compare.
type comparison struct {
	answer Answer
	daemon Daemon
	report *Report
	// fetched counts the questions for objects.
	fetched int
}

func (c *comparison) note(format string, args ...any) {
	c.report.Notes = append(c.report.Notes, fmt.Sprintf(format, args...))
}

func (c *comparison) build(ctx context.Context, s *snapshot.Snapshot, now time.Time) *build.Result {
	options := c.answer.Options.Options
	options.ProfileName = nginxconf.ProfileName
	builder := build.New(options)
	switch kept, err := lastgood.Read(c.answer.LastGood); {
	case err == nil:
		builder.Remember(kept)
	case errors.Is(err, fs.ErrPermission):
		c.note("what the daemon serves in place of broken objects cannot be read, and is not compared: run this as root or as the daemon's user")
	default: // the daemon tells of a damaged one
	}
	result := builder.Build(s, now)
	if unknown := result.UnknownRegexes; len(unknown) > 0 {
		verdicts, err := c.daemon.CheckRegexes(ctx, unknown)
		if err != nil {
			c.note("%d regular expressions are not validated, and taken for good: %v", len(unknown), err)
			verdicts = map[string]string{}
			for _, pattern := range unknown {
				verdicts[pattern] = ""
			}
		}
		builder.LearnRegexes(verdicts)
		result = builder.Build(s, now)
	}
	known := func(name string) bool {
		return slices.ContainsFunc(s.Resolutions, func(r *snapshot.Resolution) bool { return r.Name == name })
	}
	for _, name := range result.ExternalNames {
		if !known(name) {
			c.note("the external name %s is not resolved: its peers are not compared", name)
		}
	}
	return result
}

func (c *comparison) desired(result *build.Result) (plan.Desired, error) {
	size := max(result.Model.Settings.StateMemoryBytes, c.answer.StateBytes)
	sized := *result.Model
	sized.Settings.StateMemoryBytes = size
	conf, err := nginxconf.Render(&sized, c.answer.Layout)
	if err != nil {
		return plan.Desired{}, err
	}
	state := luastate.NewEncoder().Encode(result.Model)
	return plan.Desired{Config: conf, State: state, LuaBuild: c.answer.Layout.LuaBuild, StateBytes: size}, nil
}

func (c *comparison) applied() plan.Applied {
	a := c.answer
	return plan.Applied{
		Config: a.Config, Pointers: a.Pointers, Bodies: a.Bodies, Known: a.Known, Revision: a.Revision,
		LuaBuild: a.LuaBuild, Schema: a.Schema, StateBytes: a.StateBytes, MemoryRefused: a.MemoryRefused,
	}
}

func (c *comparison) reloads(p plan.Plan, d plan.Desired) {
	for _, reason := range p.Reload {
		detail := ""
		switch reason {
		case plan.NewProfile:
			var names []string
			for name, hash := range d.Config.Profiles {
				if c.answer.Config.Profiles[name] != hash {
					names = append(names, name)
				}
			}
			slices.Sort(names)
			detail = strings.Join(names, ", ")
		case plan.Listener:
			detail = strings.Join(changes(c.answer.Config.Listeners, d.Config.Listeners), ", ")
		case plan.Resize:
			detail = fmt.Sprintf("%d MiB to %d MiB", d.StateBytes>>20, p.StateBytes>>20)
		default: // the reason says it all
		}
		c.report.Reloads = append(c.report.Reloads, Reload{Reason: reason, Detail: detail})
	}
}

// pushes turns pointers into objects with words.
func (c *comparison) pushes(ctx context.Context, d plan.Delta, desired luastate.State) {
	bodies := make(map[string][]byte, len(desired.Objects))
	for _, o := range desired.Objects {
		bodies[o.Pointer] = o.Body
	}
	for _, p := range d.Set {
		was, exists := c.answer.Pointers[p.Name]
		change := Change{Action: Add}
		var before *object
		if exists {
			change.Action = Edit
			before = c.fetch(ctx, p.Name, was)
		}
		change.Kind, change.Name = words(p.Name)
		if change.Details = []string{}; before != nil || !exists {
			change.Details = describe(p.Name, before, redact(p, bodies[p.Name]))
		}
		c.report.Pushes = append(c.report.Pushes, change)
	}
	for _, pointer := range d.Delete {
		change := Change{Action: Remove}
		change.Kind, change.Name = words(pointer)
		change.Details = describe(pointer, c.fetch(ctx, pointer, c.answer.Pointers[pointer]), nil)
		c.report.Pushes = append(c.report.Pushes, change)
	}
	for _, pointer := range d.TooLarge {
		kind, name := words(pointer)
		c.note("%s %s is too large for the proxy: what it has stays", kind, name)
	}
	slices.SortStableFunc(c.report.Pushes, func(a, b Change) int {
		if d := kindRank(a.Kind) - kindRank(b.Kind); d != 0 {
			return d
		}
		return strings.Compare(a.Name, b.Name)
	})
}

// mostFetched bounds what is asked of a daemon at work: each object is a question of its own, and nobody reads more.
const mostFetched = 500

// fetch gets the daemon's version of an object; nil when it has another one by now, or none.
func (c *comparison) fetch(ctx context.Context, pointer, hash string) *object {
	if c.fetched++; c.fetched > mostFetched {
		if c.fetched == mostFetched+1 {
			c.note("so much changes that only %d objects were looked into", mostFetched)
		}
		return nil
	}
	text, err := c.daemon.Object(ctx, pointer)
	if err != nil {
		return nil
	}
	o := parseObject(text, pointer)
	if o == nil || o.Hash != hash {
		return nil
	}
	return o
}

func redact(p plan.Pointer, body []byte) *object {
	if body == nil {
		return nil
	}
	return parseObject(luastate.Redacted(luastate.State{Objects: []*luastate.Object{{Pointer: p.Name, Hash: p.Hash, Body: body}}}), p.Name)
}

func (c *comparison) problems(now []build.Problem) {
	have := map[admin.Problem]admin.Problem{}
	for _, p := range c.answer.Problems {
		have[identity(p)] = p
	}
	want := map[admin.Problem]admin.Problem{}
	for _, p := range now {
		told := assemble.Problem(p)
		want[identity(told)] = told
	}
	c.report.Problems.New = missing(want, have)
	c.report.Problems.Gone = missing(have, want)
}

// identity leaves out where a manifest lies, unless that is all there is: another folder has the same problem elsewhere.
func identity(p admin.Problem) admin.Problem {
	if p.Name != "" {
		p.Origin = ""
	}
	return p
}

// missing are those of a that b lacks, in order.
func missing(a, b map[admin.Problem]admin.Problem) []admin.Problem {
	list := []admin.Problem{}
	for key, p := range a {
		if _, there := b[key]; !there {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b admin.Problem) int { return strings.Compare(a.Line(), b.Line()) })
	return list
}

// changes are "+ x" and "- y" between two lists.
func changes(before, after []string) []string {
	var lines []string
	for _, x := range after {
		if !slices.Contains(before, x) {
			lines = append(lines, "+ "+x)
		}
	}
	for _, x := range before {
		if !slices.Contains(after, x) {
			lines = append(lines, "- "+x)
		}
	}
	return lines
}

// WriteText prints the report for people: reloads first, for they are what one wants to know before.
func (r Report) WriteText(w io.Writer) error {
	var b strings.Builder
	sign := map[Action]string{Add: "+", Edit: "~", Remove: "-"}
	for _, reload := range r.Reloads {
		fmt.Fprintf(&b, "reload for %s", reload.Reason)
		if reload.Detail != "" {
			fmt.Fprintf(&b, ": %s", reload.Detail)
		}
		b.WriteString("\n")
	}
	for _, change := range r.Pushes {
		fmt.Fprintf(&b, "%s %s %s\n", sign[change.Action], change.Kind, change.Name)
		for _, detail := range change.Details {
			fmt.Fprintf(&b, "    %s\n", detail)
		}
	}
	for _, p := range r.Problems.New {
		fmt.Fprintf(&b, "new %s\n", p.Line())
	}
	for _, p := range r.Problems.Gone {
		fmt.Fprintf(&b, "gone %s\n", p.Line())
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", note)
	}
	b.WriteString(r.summary() + "\n")
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write the difference: %w", err)
	}
	return nil
}

func (r Report) summary() string {
	if r.Empty() {
		return fmt.Sprintf("nothing would change at revision %d", r.Revision)
	}
	count := map[Action]int{}
	for _, change := range r.Pushes {
		count[change.Action]++
	}
	reload := "no reload"
	if len(r.Reloads) > 0 {
		reload = "one reload"
	}
	return fmt.Sprintf("objects: %d to add, %d to change, %d to remove; %s; problems: %d new, %d gone",
		count[Add], count[Edit], count[Remove], reload, len(r.Problems.New), len(r.Problems.Gone))
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
