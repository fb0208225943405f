package main

import (
	"slices"
	"strings"
	"testing"
)

const config = `{"config": {"protocol_version": "v1.0.0"}}`

func TestReadTellsCalledFromRequired(t *testing.T) {
	stream := config + `
{"osv": {"id": "GO-1"}}
{"finding": {"osv": "GO-1", "fixed_version": "v1.2.3", "trace": [{"module": "example.org/dep", "version": "v1.0.0"}]}}
{"finding": {"osv": "GO-1", "fixed_version": "v1.2.3", "trace": [
  {"module": "example.org/dep", "version": "v1.0.0", "package": "example.org/dep/p", "function": "Parse", "receiver": "T"},
  {"module": "headgate", "package": "headgate/cmd/headgate", "function": "main"}]}}
{"finding": {"osv": "GO-2", "trace": [{"module": "example.org/unused", "version": "v1.0.0", "package": "example.org/unused"}]}}
{"finding": {"osv": "GO-3", "fixed_version": "v1.26.9", "trace": [
  {"module": "stdlib", "version": "v1.26.8", "package": "net/http", "function": "Get"},
  {"module": "headgate", "package": "headgate/cmd/headgate", "function": "main"}]}}`
	got, err := read(strings.NewReader(stream))
	if err != nil {
		t.Fatal(err)
	}
	called := []string{"GO-1 in example.org/dep v1.0.0: example.org/dep/p.T.Parse is called from headgate/cmd/headgate.main; fixed in v1.2.3"}
	warnings := []string{"GO-3 in stdlib v1.26.8: net/http.Get is called from headgate/cmd/headgate.main; fixed in v1.26.9"}
	if !slices.Equal(got.called, called) {
		t.Errorf("called:\n got %q\nwant %q", got.called, called)
	}
	if !slices.Equal(got.warnings, warnings) {
		t.Errorf("warnings:\n got %q\nwant %q", got.warnings, warnings)
	}
}

func TestReadRefusesAStreamThatIsNotGovulnchecks(t *testing.T) {
	for name, stream := range map[string]string{"empty": "", "cut": config + `{"finding": {"osv"`, "text": "No vulnerabilities found."} {
		if _, err := read(strings.NewReader(stream)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
