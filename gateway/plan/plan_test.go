package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"headgate/gateway/luastate"
	"headgate/gateway/model"
	"headgate/gateway/nginxconf"
)

func object(pointer, hash, body string) *luastate.Object {
	return &luastate.Object{Pointer: pointer, Hash: hash, Body: []byte(body)}
}

func config() nginxconf.Config {
	return nginxconf.Config{
		Generation: "g1", Globals: "globals",
		Profiles:  map[string]string{"p1": "h1", "p2": "h2"},
		Listeners: []string{"http 0.0.0.0:80"},
	}
}

// use puts a profile into a configuration.
func use(c *nginxconf.Config, p model.Profile) {
	c.Profiles[p.Name()] = "hash of " + p.Name()
	c.ProfileList = append(c.ProfileList, p)
}

func applied() Applied {
	return Applied{
		Config:   config(),
		Pointers: map[string]string{"host/a": "hash-a", "upstream/u": "hash-u"},
		Bodies:   map[string]int{"hash-a": 1, "hash-u": 1},
		Known:    true, Revision: 7, LuaBuild: "lua1", Schema: luastate.Schema, BootID: "boot", StateBytes: 1 << 20,
	}
}

func desired() Desired {
	return Desired{
		Config: config(), LuaBuild: "lua1", StateBytes: 1 << 20,
		State: luastate.State{Objects: []*luastate.Object{object("host/a", "hash-a", "a"), object("upstream/u", "hash-u", "u")}},
	}
}

func TestReasons(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Applied, *Desired)
		want   []Reason
	}{
		"nothing changed": {func(*Applied, *Desired) {}, nil},
		"first start":     {func(a *Applied, _ *Desired) { *a = Applied{} }, []Reason{FirstStart}},
		"running, and nobody knows what": {
			func(a *Applied, _ *Desired) { a.Config = nginxconf.Config{} }, []Reason{FirstStart}},
		"new profile": {
			func(_ *Applied, d *Desired) {
				d.Config.Generation, d.Config.Profiles["p3"] = "g2", "h3"
			}, []Reason{NewProfile}},
		"profile with other text": {
			func(_ *Applied, d *Desired) { d.Config.Profiles["p2"] = "h2'" }, []Reason{NewProfile}},
		"new identity": {
			func(_ *Applied, d *Desired) { use(&d.Config, model.Profile{Identity: "a"}) }, []Reason{NewIdentity}},
		"new profile of a known identity": {
			func(a *Applied, d *Desired) {
				use(&a.Config, model.Profile{Identity: "a"})
				use(&d.Config, model.Profile{Identity: "a"})
				use(&d.Config, model.Profile{Identity: "a", Buffering: true})
			}, []Reason{NewProfile}},
		"a profile and an identity": {
			func(_ *Applied, d *Desired) {
				use(&d.Config, model.Profile{Identity: "a"})
				use(&d.Config, model.Profile{Buffering: true})
			}, []Reason{NewProfile, NewIdentity}},
		"identity no longer used": {
			func(a *Applied, _ *Desired) { use(&a.Config, model.Profile{Identity: "a"}) }, nil},
		"log phase":                {func(_ *Applied, d *Desired) { d.Config.LogPhase = true }, []Reason{LogPhase}},
		"log phase is there":       {func(a *Applied, d *Desired) { a.Config.LogPhase, d.Config.LogPhase = true, true }, nil},
		"log phase needed no more": {func(a *Applied, _ *Desired) { a.Config.LogPhase = true }, nil},
		"profile no longer used": {
			func(_ *Applied, d *Desired) {
				d.Config.Generation = "g2"
				delete(d.Config.Profiles, "p2")
			}, nil},
		"listener came": {
			func(_ *Applied, d *Desired) { d.Config.Listeners = append(d.Config.Listeners, "https 0.0.0.0:443") },
			[]Reason{Listener}},
		"listener went": {func(_ *Applied, d *Desired) { d.Config.Listeners = nil }, []Reason{Listener}},
		"global setting": {
			func(_ *Applied, d *Desired) { d.Config.Globals = "other" }, []Reason{GlobalSetting}},
		"Lua upgraded":       {func(_ *Applied, d *Desired) { d.LuaBuild = "lua2" }, []Reason{LuaVersion}},
		"other schema":       {func(a *Applied, _ *Desired) { a.Schema = luastate.Schema + 1 }, []Reason{LuaVersion}},
		"more memory wanted": {func(_ *Applied, d *Desired) { d.StateBytes *= 2 }, []Reason{Resize}},
		"less memory wanted": {func(_ *Applied, d *Desired) { d.StateBytes /= 2 }, nil},
		"several": {
			func(_ *Applied, d *Desired) {
				d.Config.Profiles["p3"], d.Config.Globals, d.LuaBuild = "h3", "other", "lua2"
			}, []Reason{LuaVersion, NewProfile, GlobalSetting}},
	} {
		t.Run(name, func(t *testing.T) {
			a, d := applied(), desired()
			tc.change(&a, &d)
			p := Diff(a, d)
			if diff := cmp.Diff(tc.want, p.Reload); diff != "" {
				t.Error(diff)
			}
			for _, r := range p.Reload {
				if !slices.Contains(Reasons(), r) {
					t.Errorf("%s is not in Reasons", r)
				}
			}
		})
	}
}

func TestDelta(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Applied, *Desired)
		want   Delta
		push   bool
	}{
		"nothing": {func(*Applied, *Desired) {}, Delta{}, false},
		"unknown, and the same": {
			func(a *Applied, _ *Desired) { a.Known = false }, Delta{}, true},
		"an endpoint": {
			func(_ *Applied, d *Desired) { d.State.Objects[1] = object("upstream/u", "hash-v", "v") },
			Delta{Add: []Body{{"hash-v", []byte("v")}}, Set: []Pointer{{"upstream/u", "hash-v"}}, Drop: []string{"hash-u"}}, true},
		"contract order": {
			func(a *Applied, _ *Desired) { a.Pointers, a.Bodies = nil, nil },
			Delta{Add: []Body{{"hash-a", []byte("a")}, {"hash-u", []byte("u")}},
				Set: []Pointer{{"upstream/u", "hash-u"}, {"host/a", "hash-a"}}}, true},
		"all gone, hosts first": {
			func(_ *Applied, d *Desired) { d.State.Objects = nil },
			Delta{Delete: []string{"host/a", "upstream/u"}, Drop: []string{"hash-a", "hash-u"}}, true},
		"a shared body is sent once and stays while one names it": {
			func(_ *Applied, d *Desired) {
				d.State.Objects = []*luastate.Object{object("host/b", "hash-a", "a"), object("host/c", "hash-n", "n"),
					object("host/d", "hash-n", "n"), object("upstream/u", "hash-u", "u")}
			},
			Delta{Add: []Body{{"hash-n", []byte("n")}}, Set: []Pointer{{"host/b", "hash-a"}, {"host/c", "hash-n"}, {"host/d", "hash-n"}},
				Delete: []string{"host/a"}}, true},
		"bodies of a push that broke off": {
			func(a *Applied, _ *Desired) { a.Bodies["orphan"] = 0 }, Delta{Drop: []string{"orphan"}}, true},
		"a pointer without its body": {
			func(a *Applied, _ *Desired) { delete(a.Bodies, "hash-a") }, Delta{Add: []Body{{"hash-a", []byte("a")}}}, true},
		"keep, there": {
			func(a *Applied, d *Desired) {
				a.Pointers["cert/c"], a.Bodies["hash-c"] = "hash-c", 5
				d.State.Objects = append(d.State.Objects, &luastate.Object{Pointer: "cert/c", Keep: true})
			}, Delta{}, false},
		"keep, not there": {
			func(_ *Applied, d *Desired) {
				d.State.Objects = append(d.State.Objects, &luastate.Object{Pointer: "cert/c", Keep: true})
			}, Delta{}, false},
		"too large: what was there stays": {
			func(_ *Applied, d *Desired) {
				d.State.Objects[0] = object("host/a", "hash-huge", strings.Repeat("x", luastate.MaxValueBytes+1))
			}, Delta{TooLarge: []string{"host/a"}}, false},
		"too large, not there": {
			func(_ *Applied, d *Desired) {
				d.State.Objects = append(d.State.Objects, object("upstream/w", "hash-huge", strings.Repeat("x", luastate.MaxValueBytes+1)))
			}, Delta{TooLarge: []string{"upstream/w"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			a, d := applied(), desired()
			tc.change(&a, &d)
			p := Diff(a, d)
			if diff := cmp.Diff(tc.want, p.Delta); diff != "" {
				t.Error(diff)
			}
			if p.Push != tc.push {
				t.Errorf("push %v", p.Push)
			}
			if p.Nothing() == tc.push {
				t.Errorf("nothing %v", p.Nothing())
			}
		})
	}
}

func TestRecordsStandInTheOrderOfTheContract(t *testing.T) {
	d := Delta{
		Add: []Body{{"h", []byte("data")}}, Set: []Pointer{{"upstream/u", "h"}, {"host/a", "h"}},
		Delete: []string{"host/b"}, Drop: []string{"old"},
	}
	var got []string
	for _, r := range d.Records(42) {
		got = append(got, fmt.Sprintf("%c %s %s", r.Op, r.Key, r.Value))
	}
	want := []string{"B h data", "P upstream/u h", "P host/a h", "R  42", "D host/b ", "X old "}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestStateBytes(t *testing.T) {
	large := func(n int) []*luastate.Object {
		var os []*luastate.Object
		for i := range n {
			os = append(os, object(fmt.Sprintf("host/%d", i), fmt.Sprintf("%032d", i), strings.Repeat("x", 1<<16)))
		}
		return os
	}
	for name, tc := range map[string]struct {
		change func(*Applied, *Desired)
		want   int64
		resize bool
	}{
		"fits":                   {func(*Applied, *Desired) {}, 1 << 20, false},
		"grows by doubling":      {func(_ *Applied, d *Desired) { d.State.Objects = large(30) }, 4 << 20, true},
		"at the first start":     {func(a *Applied, d *Desired) { *a, d.State.Objects = Applied{}, large(30) }, 4 << 20, false},
		"never shrinks":          {func(a *Applied, _ *Desired) { a.StateBytes = 8 << 20 }, 8 << 20, false},
		"old and new beside":     {func(a *Applied, _ *Desired) { a.Bodies["old"] = 1 << 20 }, 2 << 20, true},
		"refused, near the need": {func(a *Applied, d *Desired) { a.MemoryRefused, d.State.Objects = true, large(10) }, 2 << 20, true},
		"refused, far from it":   {func(a *Applied, _ *Desired) { a.MemoryRefused = true }, 1 << 20, false},
	} {
		t.Run(name, func(t *testing.T) {
			a, d := applied(), desired()
			tc.change(&a, &d)
			p := Diff(a, d)
			if p.StateBytes != tc.want {
				t.Errorf("%d bytes, want %d", p.StateBytes, tc.want)
			}
			if got := slices.Contains(p.Reload, Resize); got != tc.resize {
				t.Errorf("resize %v, want %v", got, tc.resize)
			}
		})
	}
}

func TestHeldBytes(t *testing.T) {
	pointers := map[string]string{"host/a": "1", "host/b": "2"}
	for name, tc := range map[string]struct {
		bodies      map[string]int
		least, want int64
	}{
		"as configured": {map[string]int{"1": 100, "2": 100}, 1 << 20, 1 << 20},
		"needs more":    {map[string]int{"1": 900_000, "2": 900_000}, 1 << 20, 4 << 20},
		"nothing held":  {nil, 0, slabPageBytes},
	} {
		if got := HeldBytes(pointers, tc.bodies, tc.least); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

// The sizes of the slab: powers of two to half a page, then whole pages.
func TestEntryBytes(t *testing.T) {
	for _, tc := range []struct {
		key, value int
		want       int64
	}{{11, 32, 128}, {37, 23, 128}, {37, 24, 256}, {37, 1943, 2048}, {37, 1944, 4096}, {37, 4096, 8192}} {
		if got := entryBytes(tc.key, tc.value); got != tc.want {
			t.Errorf("entryBytes(%d, %d) = %d, want %d", tc.key, tc.value, got, tc.want)
		}
	}
}

// Whatever the way from one state to the next, the dict ends up with exactly the wanted one, never
// lacks a body that a pointer names, and a second diff finds nothing to do.
func TestPropertyDeltaLeadsToState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pointers, bodies := map[string]string{}, map[string]int{}
		var state, last luastate.State
		for range rapid.IntRange(1, 8).Draw(t, "pushes") {
			names := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"cert/a", "host/", "host/a", "host/b", "setting/s",
				"sni/a", "upstream/a", "upstream/b"}), 0, 8, rapid.ID[string]).Draw(t, "names")
			slices.Sort(names)
			state.Objects = nil
			for _, n := range names {
				if rapid.IntRange(0, 9).Draw(t, "keep") == 0 {
					state.Objects = append(state.Objects, &luastate.Object{Pointer: n, Keep: true})
					continue
				}
				b := rapid.SampledFrom([]string{"1", "2", "3", "4"}).Draw(t, "body")
				state.Objects = append(state.Objects, object(n, "hash-"+b, b))
			}
			before := map[string]string{}
			for k, v := range pointers {
				before[k] = v
			}
			d := Changes(pointers, bodies, state)
			fast := Applied{Pointers: pointers, Bodies: bodies, Known: true, State: last}.changes(state)
			if diff := cmp.Diff(d, fast); diff != "" {
				t.Fatalf("looking only at what differs from the last state (-all +fast):\n%s", diff)
			}
			last = luastate.State{Objects: state.Objects}
			check := func(step string) {
				for n, h := range pointers {
					if _, ok := bodies[h]; !ok {
						t.Fatalf("after %s: %s has no body", step, n)
					}
				}
			}
			Delta{Add: d.Add}.Apply(pointers, bodies)
			check("bodies")
			for _, p := range d.Set {
				Delta{Set: []Pointer{p}}.Apply(pointers, bodies)
				check(p.Name)
			}
			Delta{Delete: d.Delete}.Apply(pointers, bodies)
			check("deletes")
			Delta{Drop: d.Drop}.Apply(pointers, bodies)
			check("drops")
			want := map[string]string{}
			for _, o := range state.Objects {
				if !o.Keep {
					want[o.Pointer] = o.Hash
				} else if h, ok := before[o.Pointer]; ok {
					want[o.Pointer] = h
				}
			}
			if diff := cmp.Diff(want, pointers); diff != "" {
				t.Fatal(diff)
			}
			used := map[string]bool{}
			for _, h := range pointers {
				used[h] = true
			}
			if len(used) != len(bodies) {
				t.Fatalf("%d bodies for %d hashes in use", len(bodies), len(used))
			}
			if again := Changes(pointers, bodies, state); !again.Empty() {
				t.Fatalf("not done: %+v", again)
			}
		}
	})
}

func BenchmarkDiff(b *testing.B) {
	a, d := applied(), desired()
	a.Pointers, a.Bodies, d.State.Objects = map[string]string{}, map[string]int{}, nil
	for i := range 40_000 {
		o := object(fmt.Sprintf("upstream/%06d", i), fmt.Sprintf("%032x", i), "body")
		a.Pointers[o.Pointer], a.Bodies[o.Hash] = o.Hash, 4
		d.State.Objects = append(d.State.Objects, o)
	}
	d.State.Objects[7].Hash = "other"
	for b.Loop() {
		Diff(a, d)
	}
}
