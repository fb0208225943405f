package annotations

// maxBodyBuffer bounds what the body of one request may hold in memory: as much as the buffers of an answer.
const maxBodyBuffer = maxHeldBytes

func clientBodyBufferSize() Annotation {
	return Annotation{
		Name: "client-body-buffer-size",
		Doc: "Memory for the body of a request, which is taken as far as the body needs it. What does not fit is written to a temporary " +
			"file, or, with proxy-request-buffering off, handed on in pieces of that size. It is rounded up to whole KiB.",
		Values:  sizeValues(kib, maxBodyBuffer),
		Default: "8k",
		Example: "64k",
		Risk:    Low,
		Scope:   Paths,
		parse: inSizes(kib, maxBodyBuffer, func(v *Values, n int64) {
			v.proxying().BodyBuffer = uint16(roundUp(n, kib)) //nolint:gosec // at most 16384
		}),
	}
}
