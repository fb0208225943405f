package gossip

import (
	"bytes"
	"log"
	"log/slog"
	"net"
	"regexp"
	"strings"
	"sync"
	"time"
)

// memberlist writes lines such as "[ERR] memberlist: Decrypt packet failed: … from=10.0.0.3:7946". Some of them are
// conditions and become such; the others go to slog, none more often than once in linePause.
type lines struct {
	log  *slog.Logger
	note func(Kind, string, string)

	mu   sync.Mutex // guards last
	last map[string]time.Time
}

const (
	linePause = time.Minute
	maxLines  = 64 // kinds of lines that are remembered
)

func newLines(to *slog.Logger, note func(Kind, string, string)) *log.Logger { //nolint:forbidigo // the type that memberlist asks for
	return log.New(&lines{log: to, note: note, last: map[string]time.Time{}}, "", 0) //nolint:forbidigo // likewise
}

var (
	fromPattern    = regexp.MustCompile(` from=(\S+)$`)
	decryptPattern = regexp.MustCompile(`Decrypt packet failed|[Nn]o installed keys could decrypt|failed to receive: .*(decrypt|encrypt)`)
	labelPattern   = regexp.MustCompile(`unacceptable label|cannot decode label|label header`)
	udpPattern     = regexp.MustCompile(`Was able to connect to (\S+) over TCP but UDP probes failed`)
)

// Write takes one line.
func (l *lines) Write(b []byte) (int, error) {
	text := string(bytes.TrimSpace(b))
	level, rest := slog.LevelInfo, text
	if strings.HasPrefix(text, "[") {
		if word, after, found := strings.Cut(text[1:], "] "); found {
			level, rest = lineLevel(word), after
		}
	}
	rest = strings.TrimPrefix(rest, "memberlist: ")
	if !l.condition(rest) && l.due(rest) {
		l.write(level, rest)
	}
	return len(b), nil
}

func (l *lines) write(level slog.Level, text string) {
	switch level {
	case slog.LevelWarn:
		l.log.Warn("memberlist", "text", text)
	case slog.LevelInfo:
		l.log.Info("memberlist", "text", text)
	default:
		l.log.Debug("memberlist", "text", text)
	}
}

// lineLevel gives memberlist's words our meaning: its errors are of single packets and probes, and are retried.
func lineLevel(word string) slog.Level {
	switch word {
	case "WARN", "ERR", "ERROR":
		return slog.LevelWarn
	}
	return slog.LevelDebug // members that come and go are told by their own lines
}

// condition turns lines that mean one into it.
func (l *lines) condition(text string) bool {
	if m := udpPattern.FindStringSubmatch(text); m != nil {
		l.note(UDPBlocked, m[1], "the host answers by TCP and not by UDP: let UDP pass on the gossip port")
		return true
	}
	m := fromPattern.FindStringSubmatch(text)
	if m == nil {
		return strings.HasPrefix(text, "Conflicting address") // NotifyConflict tells
	}
	peer := hostOf(m[1])
	switch {
	case decryptPattern.MatchString(text):
		l.note(WrongKey, peer, "packets cannot be decrypted: the host has another gossip secret, or is none of ours")
		return true
	case labelPattern.MatchString(text):
		return true // told by the transport, which sees every label
	}
	return false
}

// hostOf leaves out the port, which a client has by chance.
func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}

// due says whether a line of this kind (its letters, without numbers) may be written again.
func (l *lines) due(text string) bool {
	key := strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, text)
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, known := l.last[key]; known && now.Sub(at) < linePause {
		return false
	}
	if len(l.last) >= maxLines {
		clear(l.last)
	}
	l.last[key] = now
	return true
}
