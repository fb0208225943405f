package luastate

import (
	"maps"
	"slices"
	"strconv"
)

// jsonWriter writes JSON without reflection. Unlike encoding/json it passes bytes that are no UTF-8
// through: a path is data, and the proxy compares bytes.
type jsonWriter struct {
	buf []byte
}

func (j *jsonWriter) object(fields func()) {
	j.buf = append(j.buf, '{')
	fields()
	j.buf = append(j.buf, '}')
}

// field starts a member of an object; its value follows.
func (j *jsonWriter) field(name string) *jsonWriter {
	if j.buf[len(j.buf)-1] != '{' {
		j.buf = append(j.buf, ',')
	}
	j.text(name)
	j.buf = append(j.buf, ':')
	return j
}

func (j *jsonWriter) array(n int, element func(int)) {
	j.buf = append(j.buf, '[')
	for i := range n {
		if i > 0 {
			j.buf = append(j.buf, ',')
		}
		element(i)
	}
	j.buf = append(j.buf, ']')
}

func (j *jsonWriter) numbers(ns []int64) {
	j.array(len(ns), func(i int) { j.number(ns[i]) })
}

func (j *jsonWriter) number(n int64) { j.buf = strconv.AppendInt(j.buf, n, 10) }

func (j *jsonWriter) bool(b bool) { j.buf = strconv.AppendBool(j.buf, b) }

// yes writes a field that is true. What is false is left out.
func (j *jsonWriter) yes(name string) { j.field(name).bool(true) }

// positive writes a field that is greater than zero; nothing for any other.
func (j *jsonWriter) positive(name string, n int64) {
	if n > 0 {
		j.field(name).number(n)
	}
}

// nonEmpty writes a field that holds text; nothing for "".
func (j *jsonWriter) nonEmpty(name, text string) {
	if text != "" {
		j.field(name).text(text)
	}
}

// paths writes a map from path to route number, in the order of the paths; nothing when it is empty.
func (j *jsonWriter) paths(name string, m map[string]int) {
	if len(m) == 0 {
		return
	}
	j.field(name).object(func() {
		for _, p := range slices.Sorted(maps.Keys(m)) {
			j.field(p).number(int64(m[p]))
		}
	})
}

const hexDigits = "0123456789abcdef"

// text writes a string (RFC 8259 section 7).
func (j *jsonWriter) text(s string) {
	j.buf = append(j.buf, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			j.buf = append(j.buf, '\\', c)
		case c < 0x20 || c == 0x7f:
			j.buf = append(j.buf, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xf])
		default:
			j.buf = append(j.buf, c)
		}
	}
	j.buf = append(j.buf, '"')
}
