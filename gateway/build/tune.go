package build

import (
	"strings"
	"time"

	"headgate/gateway/annotations"
	"headgate/gateway/model"
)

// tune lays what the annotations say of single requests over a route.
func (h *hostBuild) tune(r *model.Route, v *annotations.Values) {
	r.NoAccessLog = v.NoAccessLog
	p := v.Proxying
	if p == nil {
		return
	}
	for _, t := range []struct {
		to   *time.Duration
		from time.Duration
	}{{&r.Timeouts.Connect, p.Connect}, {&r.Timeouts.Send, p.Send}, {&r.Timeouts.Read, p.Read}} {
		if t.from > 0 {
			*t.to = t.from
		}
	}
	if p.Tries > 0 {
		r.Retry.Tries = p.Tries
	}
	if p.RetryTotal != nil {
		r.Retry.Total = *p.RetryTotal
	}
	if p.MaxBody != nil {
		r.MaxBodyBytes = *p.MaxBody
		r.Profile.BodyClass = bodyClass(*p.MaxBody)
	}
	tuneProfile(&r.Profile, p)
	r.Retry.NonIdempotent = r.Profile.RetryNonIdempotent
}

// tuneProfile writes what is the default as zero, so that one profile has one name.
func tuneProfile(to *model.Profile, p *annotations.Proxying) {
	switch p.Protocol {
	case "":
	case model.ProtocolHTTP:
		to.Protocol = ""
	default:
		to.Protocol = p.Protocol
	}
	if p.RetryOn != 0 {
		to.RetryOn, to.RetryNonIdempotent = usualAsZero(p.RetryOn, model.RetryError|model.RetryTimeout), p.NonIdempotent
	}
	if p.Buffering != nil {
		to.Buffering = *p.Buffering
	}
	if p.RequestBuffering != nil {
		to.RequestUnbuffered = !*p.RequestBuffering
	}
	if p.HTTP10 != nil {
		to.HTTP10 = *p.HTTP10
	}
	if p.BodyBuffer > 0 {
		to.BodyBuffer = usualAsZero(p.BodyBuffer, usualBodyBuffer)
	}
	if p.MaxTempFile != 0 {
		to.MaxTempFile = usualAsZero(p.MaxTempFile, usualTempFile)
	}
	tuneBuffers(to, p)
}

// What nginx does where a profile says nothing: KiB of a buffer, number of buffers, MiB of a temporary file, KiB of a body.
const (
	usualBuffer     = 4
	usualBuffers    = 4
	usualTempFile   = 1024
	usualBodyBuffer = 8
)

func tuneBuffers(to *model.Profile, p *annotations.Proxying) {
	if p.BufferSize > 0 {
		to.BufferSize = usualAsZero(p.BufferSize, usualBuffer)
	}
	if p.Buffers > 0 {
		to.Buffers = usualAsZero(p.Buffers, usualBuffers)
	}
	size := to.BufferSize
	if size == 0 {
		size = usualBuffer
	}
	busy := p.BusyBuffers
	if busy == 0 && to.Buffers == 2 {
		busy = size // nginx's own default, twice the size, is more than it allows with two buffers
	}
	if busy > 0 {
		to.BusyBuffers = usualAsZero(busy, 2*size)
	}
}

func usualAsZero[T comparable](value, usual T) T {
	if value == usual {
		var zero T
		return zero
	}
	return value
}

// cookiePath writes the path of a rule as it stands in requests, which is what clients compare the attribute with.
func cookiePath(path string) string {
	plain := func(c byte) bool {
		return c > ' ' && c <= '~' && c != ';' && c != ',' && c != '%' && c != '"' && c != '\\'
	}
	i := 0
	for i < len(path) && plain(path[i]) {
		i++
	}
	if i == len(path) {
		return path
	}
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	b.WriteString(path[:i])
	for ; i < len(path); i++ {
		if c := path[i]; plain(c) {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', digits[c>>4], digits[c&0xf]})
		}
	}
	return b.String()
}
