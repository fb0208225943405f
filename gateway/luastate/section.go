package luastate

import "slices"

// section remembers the objects of one list of the model, one for each part.
type section[T any] struct {
	parts   []*T // a list of its own: whoever made the model may make the next one in place
	objects []*Object
}

// inPlace is how many parts of a list that kept its length are encoded where they stand. Of more it is likely that
// they were moved by one that came and one that went.
const inPlace = 64

// encode brings the section to a list, and tells whether anything changed. A part that is known by its pointer is not encoded
// again, unless the list is not sorted by name.
func (s *section[T]) encode(parts []*T, name func(*T) string, encode func(*T) *Object) (changed bool) {
	if len(parts) == len(s.parts) {
		if places := s.differing(parts); len(places) <= inPlace {
			for _, i := range places {
				s.parts[i], s.objects[i] = parts[i], encode(parts[i])
			}
			return len(places) > 0
		}
	}
	objects := make([]*Object, len(parts))
	at := 0
	for i, p := range parts {
		for at < len(s.parts) && s.parts[at] != p && name(s.parts[at]) < name(p) {
			at++
		}
		if at < len(s.parts) && s.parts[at] == p {
			objects[i] = s.objects[at]
			at++
		} else {
			objects[i] = encode(p)
		}
	}
	s.parts, s.objects = slices.Clone(parts), objects
	return true
}

// differing lists the places of parts that are not the remembered ones: at most inPlace of them and one more.
func (s *section[T]) differing(parts []*T) []int {
	var places []int
	for i, p := range parts {
		if p != s.parts[i] {
			places = append(places, i)
			if len(places) > inPlace {
				break
			}
		}
	}
	return places
}
