package kubewatch

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// roundTrip is an http.RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// breaking is a body that ends with an error.
type breaking struct{ err error }

func (b breaking) Read([]byte) (int, error) { return 0, b.err }
func (breaking) Close() error               { return nil }

func TestSignsOfTrouble(t *testing.T) {
	const list, watch = "/apis/networking.k8s.io/v1/ingresses", "/apis/networking.k8s.io/v1/ingresses?watch=true"
	for _, c := range []struct {
		name, url string
		unsettled bool
		status    int
		err       error
		body      error
		want      string
	}{
		{name: "a watch", url: watch, status: 200, body: io.EOF},
		{name: "the first list", url: list, unsettled: true, status: 200, body: io.EOF},
		{name: "a list again", url: list, status: 200, body: io.EOF, want: "the ingresses were listed anew"},
		{name: "the same as a watch (KEP-3157)", url: watch + "&sendInitialEvents=true", status: 200, body: io.EOF, want: "the ingresses were listed anew"},
		{name: "a probe", url: list + "?limit=1", status: 200, body: io.EOF},
		{name: "no connection", url: watch, err: errors.New("refused"), want: "a request to the API server failed"},
		{name: "a watch that breaks", url: watch, status: 200, body: io.ErrUnexpectedEOF, want: "a watch broke off"},
		{name: "too old", url: watch, status: 410, body: io.EOF, want: "the API server answered with status 410"},
		{name: "busy", url: watch, status: 429, body: io.EOF, want: "the API server answered with status 429"},
		{name: "who are you", url: watch, status: 401, body: io.EOF, want: "the API server answered with status 401"},
		{name: "ill", url: "/apis/coordination.k8s.io/v1/leases", status: 500, body: io.EOF, want: "the API server answered with status 500"},
		{name: "not there", url: "/api/v1/namespaces/n/events/e", status: 404, body: io.EOF},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			h := newHealth(slog.New(slog.DiscardHandler), "k")
			h.mark = func(what string) { got = append(got, what) }
			h.settled.Store(!c.unsettled)
			transport := h.wrap(roundTrip(func(*http.Request) (*http.Response, error) {
				if c.err != nil {
					return nil, c.err
				}
				return &http.Response{StatusCode: c.status, Body: breaking{c.body}}, nil
			}))
			response, err := transport.RoundTrip(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://api"+c.url, nil))
			if err == nil {
				_, _ = io.ReadAll(response.Body)
				_ = response.Body.Close()
			}
			if strings.Join(got, ", ") != c.want {
				t.Errorf("marked %q, want %q", got, c.want)
			}
		})
	}
}
