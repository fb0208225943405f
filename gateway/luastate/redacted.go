package luastate

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
)

// Redacted writes the state for people, as "headgate render" and dumps show it: an object by
// pointer, indented, with private keys as the SHA-256 of their PEM text, and keys of cookies as that of theirs. Equal states
// give equal bytes.
func Redacted(s State) []byte {
	var j jsonWriter
	j.object(func() {
		for _, o := range s.Objects {
			j.field(o.Pointer)
			if o.Keep {
				j.object(func() { j.field("keep").bool(true) })
				continue
			}
			j.object(func() {
				j.field("hash").text(o.Hash)
				j.field("body")
				j.buf = append(j.buf, redactedBody(o)...)
			})
		}
	})
	var out bytes.Buffer
	if err := json.Indent(&out, j.buf, "", "  "); err != nil {
		// Bodies are written by this package; anything else in a State is a programmer's fault.
		panic("luastate: a body is not JSON: " + err.Error())
	}
	out.WriteByte('\n')
	return out.Bytes()
}

// redactedBody never shows a body under cert/ that it cannot read: it may hold a key.
func redactedBody(o *Object) []byte {
	switch {
	case strings.HasPrefix(o.Pointer, "upstream/"):
		return redactedCookie(o.Body)
	case !strings.HasPrefix(o.Pointer, "cert/"):
		return o.Body
	}
	var c struct{ Chain, Key string }
	if err := json.Unmarshal(o.Body, &c); err != nil {
		return []byte(`"[redacted]"`)
	}
	sum := sha256.Sum256([]byte(c.Key))
	var j jsonWriter
	j.object(func() {
		j.field("chain").text(c.Chain)
		j.field("key").text("sha256:" + hex.EncodeToString(sum[:]))
	})
	return j.buf
}

// redactedCookie puts the hash of a cookie's key in its place. What does not look as this package writes it is not shown.
func redactedCookie(body []byte) []byte {
	var u struct{ Cookie struct{ Key string } }
	if err := json.Unmarshal(body, &u); err != nil {
		return []byte(`"[redacted]"`)
	}
	if u.Cookie.Key == "" {
		return body
	}
	sum := sha256.Sum256([]byte(u.Cookie.Key))
	shown, hidden := keyField(u.Cookie.Key), keyField("sha256:"+hex.EncodeToString(sum[:]))
	start := bytes.Index(body, []byte(`"cookie":{`))
	if start < 0 || !bytes.Contains(body[start:], shown) {
		return []byte(`"[redacted]"`)
	}
	out := append([]byte{}, body[:start]...)
	return append(out, bytes.Replace(body[start:], shown, hidden, 1)...)
}

// keyField is `"key":"…"`, as it stands in an object.
func keyField(key string) []byte {
	var j jsonWriter
	j.object(func() { j.field("key").text(key) })
	return j.buf[1 : len(j.buf)-1]
}
