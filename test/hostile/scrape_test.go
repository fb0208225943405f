package hostile

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// scrapeBound is what Prometheus waits for a scrape by default: an answer that comes later is none.
const scrapeBound = 10 * time.Second

// series are the values of one scrape, by name and labels as they are written.
type series map[string]float64

// scrape reads /metrics as Prometheus does.
func (g *gateway) scrape() (series, error) {
	client := &http.Client{Timeout: scrapeBound}
	res, err := client.Get("http://" + g.metrics + "/metrics")
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", res.StatusCode)
	}
	all := series{}
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		at := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || at < 0 {
			continue
		}
		if all[line[:at]], err = strconv.ParseFloat(line[at+1:], 64); err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
	}
	return all, lines.Err()
}

// sum adds the series of a family whose labels hold all parts, such as `status="200"`.
func (s series) sum(family string, parts ...string) float64 {
	total := 0.0
next:
	for name, value := range s {
		if name != family && !strings.HasPrefix(name, family+"{") {
			continue
		}
		for _, part := range parts {
			if !strings.Contains(name, part) {
				continue next
			}
		}
		total += value
	}
	return total
}

// back lists the counters of before that are less now, or gone.
func (s series) back(before series) []string {
	var list []string
	for name, had := range before {
		family, _, _ := strings.Cut(name, "{")
		counts := strings.HasSuffix(family, "_total") || strings.HasSuffix(family, "_count") || strings.HasSuffix(family, "_bucket")
		if have, ok := s[name]; counts && strings.HasPrefix(name, "headgate_") && (!ok || have < had) {
			list = append(list, fmt.Sprintf("%s was %v and is %v", name, had, have))
		}
	}
	return list
}

// goroutines counts those of the daemon.
func (g *gateway) goroutines() int {
	g.t.Helper()
	client := &http.Client{Timeout: patience, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(g.dir, "run", "admin", "admin.sock"))
		},
		DisableKeepAlives: true,
	}}
	res, err := client.Get("http://admin/debug/pprof/goroutine?debug=1")
	if err != nil {
		g.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	var n int
	if _, err := fmt.Fscanf(bufio.NewReader(res.Body), "goroutine profile: total %d\n", &n); err != nil {
		g.t.Fatal(err)
	}
	return n
}
