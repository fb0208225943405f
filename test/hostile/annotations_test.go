package hostile

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"headgate/gateway/annotations"
)

// hostileValues are what people, or those who want to be taken for them, write where a number, a time, a size, a word
// or a list belongs.
func hostileValues() []string {
	var few []string
	for i, s := range hostileStrings() { // the others are for strings that go further than a parser
		if i%3 == 0 {
			few = append(few, s)
		}
	}
	return append(few,
		"", " ", "-1", "-0", "+1", "00", "01", "1 ", " 1", "1\n", "1e3", "1.5", "0x10", "0b1", "1_000", "NaN", "Inf", "-Inf", "١٢", "１２", "½",
		"2147483647", "2147483648", "4294967296", "9223372036854775807", "9223372036854775808", "99999999999999999999", strings.Repeat("9", 400),
		"1s", "1ms", "-1s", "1h1h", "106751d", "9223372036854775807s", "1S", "1 s", "s", "1k", "1K", "1T", "9223372036854775807g", "k",
		"on", "ON", "true", "TRUE", "True ", "off;", "none", "null", "~", "[]", "{}", "200", "99", "600", "200-", "-200", "200-100", strings.Repeat("500,", 40)+"500",
		"error", "error timeout", "error;timeout", "http_999", "off error", "$request_uri", "${request_uri", "$evil", "$http_", "$cookie_", "$arg_"+strings.Repeat("evil", 100),
		"default/evil", "kube-system/evil", "default/../evil", "HTTP", "HTTPS", "GRPCS", "http", "TLSv1.3", "TLSv1 TLSv9", "SSLv2", "ALL:!evil", "HIGH:!aNULL", "@SECLEVEL=0",
	)
}

// beside are the annotations without which one does nothing, so that its value is used.
func beside(name string) []string {
	switch {
	case strings.HasPrefix(name, "session-cookie-"), name == "affinity-mode":
		return []string{"affinity", "cookie"}
	case name == "proxy-ssl-ciphers": // used, each list that OpenSSL does not know would cost several runs of nginx -t
		return []string{"backend-protocol", "HTTPS"}
	case strings.HasPrefix(name, "proxy-ssl-"):
		return []string{"backend-protocol", "HTTPS", "proxy-ssl-secret", "peers"}
	case strings.HasPrefix(name, "fastcgi-"):
		return []string{"backend-protocol", "FCGI"}
	case name == "proxy-busy-buffers-size", name == "proxy-buffers-number":
		return []string{"proxy-buffering", "on"}
	case strings.HasPrefix(name, "upstream-hash-by-"):
		return []string{"upstream-hash-by", "$request_uri"}
	case strings.HasPrefix(name, "health-check-"):
		return []string{"headgate.io/health-check", "http"}
	case name == "queue", name == "queue-timeout":
		return []string{"headgate.io/max-requests-per-peer", "2", "headgate.io/queue", "2"}
	}
	return nil
}

// dressed is a Service with annotations, name, value, name, value…, at the address of a backend.
func (g *gateway) dressed(name, backend string, pairs ...string) string {
	var notes []string
	for i := 0; i+1 < len(pairs); i += 2 {
		notes = append(notes, strings.TrimPrefix(pairs[i], annotations.ServicePrefix+"/")+": "+pairs[i+1])
	}
	return serviceWith(name, notes, g.backend(backend).address)
}

// mute is the address of a peer that takes connections and closes them.
func mute(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		done.Wait()
	})
	return listener.Addr().String()
}

// dress is one hostile value of one annotation.
type dress struct {
	host, object, annotation, value string
	key                             string // the annotation with its prefix
	refused                         bool   // it does not parse
}

// wardrobe gives an Ingress of its own, or one with a Service of its own, for each value of each annotation.
func wardrobe(g *gateway) (map[string]string, []dress) {
	files := map[string]string{}
	var all []dress
	add := func(kind string, list []annotations.Annotation, object func(name, host string, pairs []string) string) {
		for i, a := range list {
			var b strings.Builder
			for j, v := range hostileValues() {
				if !utf8.ValidString(v) {
					continue // cannot stand in YAML; a NUL can
				}
				d := dress{object: fmt.Sprintf("%s%d-%d", kind, i, j), annotation: a.Name, value: v}
				d.host = d.object + ".test"
				d.key = annotations.DefaultPrefix + "/" + a.Name
				if kind == "s" {
					d.key = annotations.ServicePrefix + "/" + a.Name
				}
				d.refused = a.Parse(v, &annotations.Values{}) != nil
				pairs := []string{d.key, v}
				more := beside(a.Name)
				for k := 0; k+1 < len(more); k += 2 {
					if !strings.HasSuffix(d.key, more[k]) {
						pairs = append(pairs, more[k], more[k+1])
					}
				}
				b.WriteString(object(d.object, d.host, pairs))
				all = append(all, d)
			}
			files[fmt.Sprintf("%s%d.yaml", kind, i)] = b.String()
		}
	}
	add("i", annotations.All(), func(name, host string, pairs []string) string {
		backend := "good"
		if strings.Contains(strings.Join(pairs, " "), "backend-protocol") {
			backend = "mute" // the backend speaks HTTP alone
		}
		return ingress(name, host, prefix("/", backend), annotated(pairs...))
	})
	add("s", annotations.OfService(), func(name, host string, pairs []string) string {
		return ingress(name, host, prefix("/", name)) + g.dressed(name, "good", pairs...)
	})
	return files, all
}

// Annotations of every kind hold whatever their authors like: each value is served, or told with the name of the
// annotation and what to write; neighbours do not notice, and no byte of a value is syntax anywhere.
func TestHostileAnnotations(t *testing.T) {
	t.Parallel()
	g := start(t, "")
	goodSite(g)
	chain, key := tlsPair(t, "peers.test")
	g.write("mute.yaml", service("mute", mute(t))+secret("peers", chain, key))
	files, all := wardrobe(g)
	for name, text := range files {
		g.write(name, text)
	}
	g.settle()
	g.wants("good.test", "/", "200 good")
	conf, err := os.ReadFile(filepath.Join(g.dir, "run", "nginx.conf"))
	if err != nil {
		t.Fatal(err)
	}
	list, err := parseConf(string(conf))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range hostileValues() {
		takeOut(list, []string{"fastcgi_index", "proxy_ssl_name", "grpc_ssl_name"}, v) // where it may stand, as a word
	}
	if found := unexpected(list, "", mark); len(found) > 0 {
		t.Errorf("not expected: %s", cut(strings.Join(found, ", "), 2000))
	}
	refused := 0
	for _, d := range all {
		if d.refused {
			refused++
		}
	}
	var status daemonStatus
	g.await("the problems are told", func() bool {
		status = g.status()
		return len(status.Problems) >= refused
	})
	told := map[string]bool{}
	for _, p := range status.Problems {
		told[p.Name+" "+p.Field] = true
		if p.Message == "" || len(p.Message) > 2000 {
			t.Errorf("%s %s: a message of %d bytes", p.Name, p.Field, len(p.Message))
		}
	}
	for _, d := range all {
		if field := "metadata.annotations[" + d.key + "]"; d.refused && !told[d.object+" "+field] {
			t.Errorf("nothing is told of %s of %s: %q", field, d.object, cut(d.value, 80))
		}
	}
	for reason := range status.Reloads {
		if reason != "first-start" && reason != "new-profile" && reason != "new-identity" {
			t.Errorf("reloads for other reasons than profiles: %v", status.Reloads)
		}
	}
	queue := make(chan dress)
	var clients sync.WaitGroup
	for range 16 {
		clients.Go(func() {
			for d := range queue {
				a, err := g.exchange(get("/x", "Host: "+d.host, "Connection: close"), "GET")
				if err != nil {
					t.Errorf("%s: %q: %v", d.annotation, cut(d.value, 80), err)
					continue
				}
				dressedAnswer(t, d, a)
			}
		})
	}
	for _, d := range all {
		queue <- d
	}
	close(queue)
	clients.Wait()
	t.Logf("%d values, %d problems, nginx.conf of %d bytes", len(all), len(status.Problems), len(conf))
	g.stillWell(t, "good.test", "200 good")
}

// dressedAnswer looks at what a client gets: an answer of ours or of the backend, with no header that a value made.
func dressedAnswer(t *testing.T, d dress, a answer) {
	t.Helper()
	what := fmt.Sprintf("%s: %q", d.annotation, cut(d.value, 80))
	switch a.status {
	case http.StatusOK, http.StatusServiceUnavailable, http.StatusPermanentRedirect, http.StatusBadGateway, http.StatusGatewayTimeout, http.StatusNotFound:
	default:
		t.Errorf("%s: %s", what, a)
	}
	for name, values := range a.header {
		switch name {
		case "Server", "Content-Type", "Content-Length", "Connection", "Date", "Location", "Strict-Transport-Security", "Retry-After":
		case "Set-Cookie":
			if c, err := http.ParseSetCookie(values[0]); err != nil || len(values) != 1 || len(c.Unparsed) > 0 {
				t.Errorf("%s: Set-Cookie %q: %v", what, values, err)
			}
		default:
			t.Errorf("%s: the answer has the header %s: %q", what, name, values)
		}
	}
}
