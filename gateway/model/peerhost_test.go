package model_test

import (
	"errors"
	"strings"
	"testing"

	"headgate/gateway/model"
)

func TestParsePeerHost(t *testing.T) {
	for _, good := range []string{"a", "Shop.Internal", "my_app", "a-b.c_d.svc:8080", "10.0.0.1", "10.0.0.1:1", "x:65535", strings.Repeat("a", 253)} {
		if got, err := model.ParsePeerHost(good); got != good || err != nil {
			t.Errorf("%q: %q, %v", good, got, err)
		}
	}
	for bad, hint := range map[string]string{
		"": "empty", ":80": "empty", "a:": "1 to 65535", "a:0": "1 to 65535", "a:65536": "1 to 65535", "a:+1": "1 to 65535", "a:80:80": "1 to 65535",
		"a b": "letters", "a\r\nX: y": "1 to 65535", "a\n": "letters", "a/b": "letters", "a;": "letters", "$host": "letters", "é": "letters", "a\x00": "letters",
		".a": "dot", "a.": "dot", "a..b": "dot", "[::1]": "1 to 65535", strings.Repeat("a", 254): "at most 253",
	} {
		if _, err := model.ParsePeerHost(bad); !errors.Is(err, model.ErrPeerHost) || !strings.Contains(err.Error(), hint) {
			t.Errorf("%.40q: %v, want an error with %q", bad, err, hint)
		}
	}
}
