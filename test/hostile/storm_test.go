package hostile

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// tunnelled is an open WebSocket to the backend "one".
type tunnelled struct {
	net.Conn
	r *bufio.Reader
}

func (g *gateway) tunnel(host string) *tunnelled {
	g.t.Helper()
	conn, err := net.DialTimeout("tcp", g.http, patience)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(10 * patience))
	_, err = fmt.Fprintf(conn, "GET /ws HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", host)
	if err != nil {
		g.t.Fatal(err)
	}
	r := bufio.NewReader(conn)
	if a, err := readAnswer(r, "GET"); err != nil || a.status != 101 {
		g.t.Fatalf("to open a WebSocket: %s %v", a, err)
	}
	return &tunnelled{conn, r}
}

// says sends a line, which must come back.
func (w *tunnelled) says(line string) error {
	if _, err := io.WriteString(w, line+"\n"); err != nil {
		return err
	}
	got, err := w.r.ReadString('\n')
	if err == nil && got != "one:"+line+"\n" {
		err = fmt.Errorf("%q came back for %q", got, line)
	}
	return err
}

// TestStormOfProfiles: Ingresses ask for one profile after the other that nginx.conf does not hold yet, faster than it can be
// loaded. What comes together is one reload; no request fails; a WebSocket outlives them all; and when that is closed nothing
// is left of the old workers, neither processes nor memory of the shared dicts.
func TestStormOfProfiles(t *testing.T) {
	g := start(t, "")
	site(t, g)
	const many = 24
	stormy := func(n, kib int) string {
		return ingress(fmt.Sprintf("storm-%d", n), fmt.Sprintf("storm-%d.test", n), prefix("/", "one"),
			annotated("proxy-buffer-size", fmt.Sprintf("%dk", kib)))
	}
	reloads := func() int { return g.status().Reloads["new-profile"] }
	socket := g.tunnel("one.test")
	l := g.load("one.test")
	l.await(g, 20)

	before := reloads()
	var burst strings.Builder
	for n := range many {
		burst.WriteString(stormy(n, 5+n))
	}
	g.write("burst.yaml", burst.String())
	g.settle()
	// The folder may be read while the marker is written behind the burst.
	if n := reloads() - before; n < 1 || n > 2 {
		t.Errorf("%d new profiles at once: %d reloads", many, n)
	}
	for _, n := range []int{0, many - 1} {
		g.wants(fmt.Sprintf("storm-%d.test", n), "/", "200 one")
	}

	storm := func(from int) int {
		before, last := reloads(), 0
		for n := range many {
			last = from + n
			g.write("storm.yaml", stormy(many, last))
			l.await(g, 16)
			if err := socket.says(fmt.Sprintf("change %d", n)); err != nil {
				t.Fatalf("the WebSocket: %v", err)
			}
		}
		g.settle()
		g.wants(fmt.Sprintf("storm-%d.test", many), "/", "200 one")
		conf, err := os.ReadFile(filepath.Join(g.dir, "run", "nginx.conf"))
		if want := fmt.Sprintf("proxy_buffer_size %dk;", last); err != nil || !strings.Contains(string(conf), want) {
			t.Errorf("nginx.conf has no %q: %v", want, err)
		}
		n := reloads() - before
		if n < 1 || n > many+1 {
			t.Errorf("%d changes: %d reloads", many, n)
		}
		return n
	}
	free := func() map[string]float64 {
		s, err := g.scrape()
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]float64{}
		for _, dict := range []string{"meta", "peers", "clients"} { // those of metrics remember each marker for minutes
			all[dict] = s.sum("headgate_proxy_dict_free_bytes", `dict="`+dict+`"`)
		}
		return all
	}
	first := storm(100)
	room := free()
	t.Logf("%d changes: %d reloads, then %d", many, first, storm(200))
	l.await(g, 40)
	l.stop()
	if err := socket.says("after it all"); err != nil {
		t.Errorf("the WebSocket: %v", err)
	}
	_ = socket.Close()

	g.await("two workers are left", func() bool { return len(g.children()) == 2 })
	g.await("the metrics tell of two workers", func() bool {
		s, err := g.scrape()
		return err == nil && s["headgate_proxy_workers"] == 2 && s["headgate_proxy_websockets"] == 0
	})
	g.await("the dicts have as much room as before", func() bool {
		for dict, now := range free() {
			if now < room[dict] {
				return false
			}
		}
		return true
	})
	g.await("the status tells of two workers", func() bool { return len(g.status().Proxy.Workers) == 2 })
	g.stillWell(t, "one.test", "200 one")
}
