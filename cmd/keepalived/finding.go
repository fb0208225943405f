package keepalived

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Place is a line of a file. The zero value is the whole of it.
type Place struct {
	File string
	Line int // from 1
}

// String is file:line.
func (p Place) String() string { return p.File + ":" + strconv.Itoa(p.Line) }

// Kind says how much a finding matters.
type Kind int

// The kinds: something is missing now; something is there and works differently; nothing has to be done.
const (
	LeftOut Kind = iota
	Differs
	Note
)

// String is the word in front of a finding.
func (k Kind) String() string {
	switch k {
	case LeftOut:
		return "left out"
	case Differs:
		return "differs"
	default:
		return "note"
	}
}

// Finding is something of the file that the configuration lacks, or that means something else there. It holds no secret.
type Finding struct {
	Kind    Kind
	Places  []Place // sorted; empty: about the whole file
	Message string  // what, and what to do instead
}

// String is one line.
func (f Finding) String() string {
	text := f.Kind.String() + ": " + f.Message
	if len(f.Places) == 0 {
		return text
	}
	var b strings.Builder
	for i, p := range f.Places {
		switch {
		case i == maxPlaces:
			fmt.Fprintf(&b, " and %d more", len(f.Places)-i)
		case i > maxPlaces:
		case i > 0 && p.File == f.Places[i-1].File:
			fmt.Fprintf(&b, ",%d", p.Line)
		case i > 0:
			b.WriteString(", " + p.String())
		default:
			b.WriteString(p.String())
		}
	}
	return b.String() + ": " + text
}

const (
	maxPlaces   = 8   // lines that one finding names
	maxFindings = 200 // a file of mistakes must not cost a terminal
	maxShown    = 64  // characters of a name
)

// findings collects; the same one of several lines is told once.
type findings struct {
	list  []Finding
	index map[string]int // by kind and message
	lost  int
}

func (f *findings) add(k Kind, at Place, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	key := k.String() + message
	if i, found := f.index[key]; found {
		if at.Line > 0 {
			f.list[i].Places = append(f.list[i].Places, at)
		}
		return
	}
	if len(f.list) == maxFindings {
		f.lost++
		return
	}
	if f.index == nil {
		f.index = map[string]int{}
	}
	f.index[key] = len(f.list)
	finding := Finding{Kind: k, Message: message}
	if at.Line > 0 {
		finding.Places = []Place{at}
	}
	f.list = append(f.list, finding)
}

func (f *findings) sorted() []Finding {
	list := slices.Clone(f.list)
	for i := range list {
		places := slices.Clone(list[i].Places)
		slices.SortFunc(places, comparePlaces)
		list[i].Places = slices.Compact(places)
	}
	slices.SortStableFunc(list, func(a, b Finding) int {
		if len(a.Places) == 0 || len(b.Places) == 0 {
			return cmp.Compare(len(b.Places), len(a.Places))
		}
		return comparePlaces(a.Places[0], b.Places[0])
	})
	if f.lost > 0 {
		list = append(list, Finding{Kind: LeftOut, Message: fmt.Sprintf("%d further findings are not shown: mend these, and import again", f.lost)})
	}
	return list
}

func comparePlaces(a, b Place) int {
	return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
}

var simpleName = regexp.MustCompile(`^[A-Za-z0-9_.:@/%+-]+$`)

// shown is a name of the file for a message or a comment: in one line, and not longer than a name is.
func shown(name string) string {
	if len(name) > maxShown {
		name = name[:maxShown] + "..."
	}
	if simpleName.MatchString(name) {
		return name
	}
	return strconv.QuoteToASCII(name)
}
