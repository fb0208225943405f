package annotations

import (
	"fmt"

	"headgate/gateway/model"
)

// The limits of buffers. A tenant decides what a connection of everybody's proxy may hold in memory.
const (
	maxBufferBytes  = mib
	minBuffers      = 2
	maxBuffers      = 256
	maxHeldBytes    = 16 * mib // all buffers of a connection
	maxTempBytes    = 1024 * gib
	maxBodyBytes    = 1024 * gib
	defaultBuffer   = 4 // KiB
	defaultBuffers  = 4
	noTemporaryFile = -1
)

func proxyBuffering() Annotation {
	return Annotation{
		Name: "proxy-buffering",
		Doc: "Reads the answer of a peer as fast as it comes and keeps what the client did not take yet, in memory and then in a temporary " +
			"file. Off, the answer is handed on as it comes.",
		Values:  onOffValues,
		Default: "off",
		Example: "on",
		Risk:    Low,
		Scope:   Paths,
		parse:   onOff(func(v *Values, on bool) { v.proxying().Buffering = &on }),
	}
}

func proxyRequestBuffering() Annotation {
	return Annotation{
		Name: "proxy-request-buffering",
		Doc: "Reads the whole body of a request before a peer is asked. Off, it is handed on as it comes, and a request of which " +
			"something was sent is not sent again.",
		Values:  onOffValues,
		Default: "on",
		Example: "off",
		Risk:    Low,
		Scope:   Paths,
		parse:   onOff(func(v *Values, on bool) { v.proxying().RequestBuffering = &on }),
	}
}

func proxyBufferSize() Annotation {
	return Annotation{
		Name: "proxy-buffer-size",
		Doc: "Memory for the header of an answer, and size of each of the buffers of proxy-buffers-number. An answer with a larger header is " +
			"answered with 502. It is rounded up to whole KiB.",
		Values:  sizeValues(kib, maxBufferBytes),
		Default: "4k",
		Example: "8k",
		Risk:    Low,
		Scope:   Paths,
		parse: inSizes(kib, maxBufferBytes, func(v *Values, n int64) {
			v.proxying().BufferSize = uint16(roundUp(n, kib)) //nolint:gosec // at most 1024
		}),
		clash: func(v *Values) error {
			size, number := v.Proxying.buffers()
			if held := int64(size) * kib * int64(number); held > maxHeldBytes {
				return fmt.Errorf("%d buffers of %dk are more than a connection may hold; write sizes whose product is at most %dm",
					number, size, maxHeldBytes/mib)
			}
			return nil
		},
	}
}

// buffers gives size (in KiB) and number, the defaults where they are not set.
func (p *Proxying) buffers() (size, number uint16) {
	size, number = p.BufferSize, p.Buffers
	if size == 0 {
		size = defaultBuffer
	}
	if number == 0 {
		number = defaultBuffers
	}
	return size, number
}

func proxyBuffersNumber() Annotation {
	return Annotation{
		Name:    "proxy-buffers-number",
		Doc:     "How many buffers of proxy-buffer-size keep an answer in memory, once proxy-buffering is on.",
		Values:  numberValues(minBuffers, maxBuffers),
		Default: "4",
		Example: "8",
		Risk:    Low,
		Scope:   Paths,
		parse: inNumbers(minBuffers, maxBuffers, func(v *Values, n int) {
			v.proxying().Buffers = uint16(n) //nolint:gosec // at most 256
		}),
	}
}

func proxyBusyBuffersSize() Annotation {
	return Annotation{
		Name: "proxy-busy-buffers-size",
		Doc: "How much of the buffers may be on its way to the client while the rest of the answer is read, once proxy-buffering is on. At " +
			"least proxy-buffer-size, and at most one buffer less than there are. It is rounded up to whole KiB.",
		Values:  sizeValues(kib, maxHeldBytes),
		Default: "twice proxy-buffer-size",
		Example: "8k",
		Risk:    Low,
		Scope:   Paths,
		parse: inSizes(kib, maxHeldBytes, func(v *Values, n int64) {
			v.proxying().BusyBuffers = uint16(roundUp(n, kib)) //nolint:gosec // at most 16384
		}),
		clash: func(v *Values) error {
			size, number := v.Proxying.buffers()
			busy, most := int(v.Proxying.BusyBuffers), int(size)*(int(number)-1)
			if busy < int(size) || busy > most {
				return fmt.Errorf("%dk does not fit %d buffers of %dk; write a size from %dk to %dk", busy, number, size, size, most)
			}
			return nil
		},
	}
}

func proxyMaxTempFileSize() Annotation {
	return Annotation{
		Name: "proxy-max-temp-file-size",
		Doc: "How much of an answer may wait in a temporary file, once proxy-buffering is on; 0 uses none. It is rounded up to " +
			"whole MiB.",
		Values:  sizeValues(0, maxTempBytes),
		Default: "1024m",
		Example: "0",
		Risk:    Low,
		Scope:   Paths,
		parse: inSizes(0, maxTempBytes, func(v *Values, n int64) {
			v.proxying().MaxTempFile = noTemporaryFile
			if n > 0 {
				v.proxying().MaxTempFile = int32(roundUp(n, mib)) //nolint:gosec // at most 2^20
			}
		}),
	}
}

func proxyHTTPVersion() Annotation {
	return Annotation{
		Name:    "proxy-http-version",
		Doc:     "Version of HTTP that peers are asked in. With 1.0 neither WebSockets nor kept connections work.",
		Values:  `"1.0" or "1.1"`,
		Default: "1.1",
		Example: "1.0",
		Risk:    Low,
		Scope:   Paths,
		parse: inWords([]string{"1.0", "1.1"}, func(v *Values, word string) {
			old := word == "1.0"
			v.proxying().HTTP10 = &old
		}),
		idle: func(v *Values) string {
			switch v.Proxying.Protocol {
			case model.ProtocolGRPC, model.ProtocolGRPCS, model.ProtocolFastCGI:
				return "backend-protocol is neither HTTP nor HTTPS"
			case "", model.ProtocolHTTP, model.ProtocolHTTPS, model.ProtocolTCP:
			}
			return ""
		},
	}
}

func proxyBodySize() Annotation {
	return Annotation{
		Name: "proxy-body-size",
		Doc: "Largest body of a request; a larger one is answered with 413. 0 is no limit. A body that comes in chunks, whose size nobody " +
			"knows before its end, is cut off at the next of 1m, 16m and 256m, or not at all above.",
		Values:  sizeValues(0, maxBodyBytes),
		Default: "the setting maxBodySize (1MiB)",
		Example: "8m",
		Risk:    Medium,
		Scope:   Paths,
		parse:   inSizes(0, maxBodyBytes, func(v *Values, n int64) { v.proxying().MaxBody = &n }),
	}
}
