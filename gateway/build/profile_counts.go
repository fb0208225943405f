package build

import (
	"cmp"
	"maps"
	"slices"

	"headgate/gateway/model"
)

// profileCounts counts the hosts that use a profile: to look through 50,000 routes takes milliseconds.
type profileCounts struct {
	users map[model.Profile]*profileUsers
	list  []model.Profile // nil when it must be made anew
}

type profileUsers struct {
	name  string
	hosts int
}

func newProfileCounts() profileCounts { return profileCounts{users: map[model.Profile]*profileUsers{}} }

func (c *profileCounts) use(profiles []model.Profile) {
	for _, p := range profiles {
		if c.users[p] == nil {
			c.users[p] = &profileUsers{name: p.Name()}
			c.list = nil
		}
		c.users[p].hosts++
	}
}

func (c *profileCounts) unuse(profiles []model.Profile) {
	for _, p := range profiles {
		c.users[p].hosts--
		if c.users[p].hosts == 0 {
			delete(c.users, p)
			c.list = nil
		}
	}
}

// sorted gives the profiles in use by their names; never nil. The slice is not changed later.
func (c *profileCounts) sorted() []model.Profile {
	if c.list == nil {
		c.list = slices.AppendSeq(make([]model.Profile, 0, len(c.users)), maps.Keys(c.users))
		slices.SortFunc(c.list, func(a, b model.Profile) int { return cmp.Compare(c.users[a].name, c.users[b].name) })
	}
	return c.list
}
