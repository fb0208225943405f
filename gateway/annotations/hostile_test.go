package annotations_test

import (
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"headgate/gateway/annotations"
)

// The grammars below say what may be taken at most, in words of their own: a parser that takes more has a hole. Whether a
// value is in range, TestValues looks at.
const (
	aBoolean = `1|t|T|TRUE|true|True|0|f|F|FALSE|false|False`
	aFlag    = `on|off`
	aNumber  = `[0-9]+`
	aSize    = `[0-9]+[kKmMgG]?`
	aTime    = `[0-9]+|([0-9]*\.?[0-9]*(ns|us|µs|μs|ms|s|m|h))+`
	aName    = `\.?([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\.)*[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?`
	aToken   = "[A-Za-z0-9!#%&'*+\\-.^_`~]{1,128}"
	aTarget  = `/[!-"$-~]*`
)

// grammars gives that of each annotation of ingress-nginx's prefix; those of ours begin with "headgate.io/".
func grammars() map[string]string {
	return map[string]string{
		"affinity": `cookie`, "affinity-mode": `balanced|persistent`, "backend-protocol": `(?i)HTTP|HTTPS|GRPC|GRPCS|FCGI`,
		"client-body-buffer-size": aSize, "enable-access-log": aBoolean, "fastcgi-index": `[A-Za-z0-9._-]{1,128}`, "force-ssl-redirect": aBoolean,
		"load-balance": `round_robin|least_conn|p2c|ewma|random`, "preserve-trailing-slash": aBoolean,
		"proxy-body-size": aSize, "proxy-buffer-size": aSize, "proxy-buffering": aFlag, "proxy-buffers-number": aNumber,
		"proxy-busy-buffers-size": aSize, "proxy-connect-timeout": aTime, "proxy-http-version": `1\.[01]`, "proxy-max-temp-file-size": aSize,
		"proxy-next-upstream":         `[\s\pZ]*(off|(error|timeout|invalid_header|http_(500|502|503|504|403|404|429)|non_idempotent|[\s\pZ])+)[\s\pZ]*`,
		"proxy-next-upstream-timeout": aTime, "proxy-next-upstream-tries": aNumber, "proxy-read-timeout": aTime, "proxy-request-buffering": aFlag,
		"proxy-send-timeout": aTime, "proxy-ssl-ciphers": `[A-Za-z0-9!+:@=_.-]+`, "proxy-ssl-name": aName,
		"proxy-ssl-protocols": `[\s\pZ]*(TLSv1(\.[123])?[\s\pZ]*)+`, "proxy-ssl-secret": `([a-z0-9.-]+/)?[a-z0-9.-]+`, "proxy-ssl-server-name": aFlag,
		"proxy-ssl-verify": aFlag, "proxy-ssl-verify-depth": aNumber, "rewrite-target": `(/|\$[1-9])([^$\x00-\x1f\x7f]|\$[1-9])*`, "service-upstream": aBoolean,
		"session-cookie-change-on-failure": aBoolean, "session-cookie-conditional-samesite-none": aBoolean, "session-cookie-domain": aName,
		"session-cookie-expires": aNumber, "session-cookie-max-age": aNumber, "session-cookie-name": aToken, "session-cookie-path": `/[!-+\--:<-~]*`,
		"session-cookie-samesite": `(?i)none|lax|strict`, "session-cookie-secure": aBoolean, "ssl-redirect": aBoolean,
		"upstream-hash-by":        `([^$\x00-\x1f\x7f]|\$[A-Za-z0-9_]+|\$\{[A-Za-z0-9_]+\})*\$([^\x00-\x1f\x7f])*`,
		"upstream-hash-by-subset": aBoolean, "upstream-hash-by-subset-size": aNumber, "use-regex": aBoolean,
		"upstream-vhost": `([A-Za-z0-9._-]|\$(ingress_name|namespace|service_name|service_port)|\$\{(ingress_name|namespace|service_name|service_port)\})+(:([0-9]+|\$service_port|\$\{service_port\}))?`,

		"headgate.io/eject": aFlag, "headgate.io/eject-failures": aNumber, "headgate.io/eject-max-time": aTime,
		"headgate.io/eject-statuses": `[ ,\t\n]*([45][0-9]{2}[ ,\t\n]*)+`, "headgate.io/eject-time": aTime, "headgate.io/health-check": `http|https|tcp`,
		"headgate.io/health-check-fall": aNumber, "headgate.io/health-check-host": aName, "headgate.io/health-check-interval": aTime,
		"headgate.io/health-check-path": aTarget, "headgate.io/health-check-rise": aNumber,
		"headgate.io/health-check-status":  `[ ,\t\n]*(0*[1-5][0-9]{2}(-0*[1-5][0-9]{2})?[ ,\t\n]*)+`,
		"headgate.io/health-check-timeout": aTime, "headgate.io/load-balance": `round_robin|least_conn|p2c|ewma|random`, "headgate.io/max-requests": aNumber,
		"headgate.io/max-requests-per-peer": aNumber, "headgate.io/queue": aNumber, "headgate.io/queue-timeout": aTime,
		"headgate.io/retry-budget": `off|[0-9]+%?`, "headgate.io/slow-start": aTime,
	}
}

// hostile are values that nobody means, or that somebody means badly. %s stands for the example of the annotation.
func hostile() []string {
	const large = 64 << 10
	return []string{
		"", " ", "\x00", "%s\x00", "\x00%s", "%s\n", "\n%s", "%s\r\nX: y", "%s ", " %s", "%s\t", "%s;", "%s}", "%s; } server {", "}", ";", "{", `"`, `'`, `\`, "#", "%s#",
		"$var", "${var}", "$host", "%s$host", "$(id)", "`id`", "%s%00", "%s,%s", "%s %s", "%s\u00a0", "%s\u2028", "\ufeff%s", "%s\u202e", "\xff", "%s\xff\xfe",
		"-0", "+0", "-1", "+1", "1e9", "1E9", "1e-9", "0x10", "0b1", "0o7", "1_000", "NaN", "nan", "Inf", "-Inf", "infinity", ".5", "5.", "1.5", "1,5", "½", "²",
		"٣", "１２", "१", "𝟙", "9223372036854775807", "9223372036854775808", "18446744073709551616", strings.Repeat("9", 400), strings.Repeat("0", large),
		"-0s", "+5s", "-1ms", "1d", "1w", "1h1h", "1e3s", "NaNs", "9223372036854775807h", "1 s", "s", ".s", "k", "-1k", "1kk", "1kb", "1T", "9223372036854775807g",
		"%", "0%", "-5%", "+5%", "101%", "20%%", "NaN%", "5 %", strings.Repeat("%s ", 2000), strings.Repeat("x", large), strings.Repeat("$host", large/5), strings.Repeat("/", large),
		strings.Repeat("500 ", large/4), strings.Repeat("200-", 1000), strings.Repeat("A:", large/2), strings.Repeat("a.", large/2), "true\n", "TRUE ", "yes", "On", "OFF", "null", "~", "[]",
		"../../etc/passwd", "/../..", "a/b/c", "a/../b", "*", "*.*", "a..b", "[::1]", "127.0.0.1", "localhost:80", "a_b", "-a", "a-", "ſ", "K", "cooKie", "\u212a",
	}
}

// TestHostileValues: what is taken is what the grammar of the annotation has; what is refused says so in words that can be
// printed anywhere, and changes nothing.
func TestHostileValues(t *testing.T) {
	all := map[string]annotations.Annotation{}
	for _, a := range annotations.All() {
		all[a.Name] = a
	}
	for _, a := range annotations.OfService() {
		all[annotations.ServicePrefix+"/"+a.Name] = a
	}
	known := grammars()
	for name, a := range all {
		grammar, ok := known[name]
		if !ok {
			t.Errorf("%s has no grammar here", name)
			continue
		}
		exact := regexp.MustCompile(`^(?:` + grammar + `)$`)
		for _, pattern := range hostile() {
			value := strings.ReplaceAll(pattern, "%s", a.Example)
			var v annotations.Values
			err := a.Parse(value, &v)
			switch {
			case err == nil && !exact.MatchString(value):
				t.Errorf("%s takes %.60q, which is not in its grammar", name, value)
			case err == nil:
			case len(err.Error()) > 1000 || !printable(err.Error()):
				t.Errorf("%s: %.60q: the message cannot be shown: %.200q", name, value, err)
			default:
				if diff := cmp.Diff(annotations.Values{}, v); diff != "" {
					t.Errorf("%s: %.60q is refused and changes the values:\n%s", name, value, diff)
				}
			}
		}
		if !exact.MatchString(a.Example) {
			t.Errorf("%s: its example %q is not in the grammar here", name, a.Example)
		}
	}
}

// printable tells whether a message is text of one line.
func printable(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}
