package model_test

import (
	"errors"
	"strings"
	"testing"

	"headgate/gateway/model"
)

func TestParseHostName(t *testing.T) {
	label63 := strings.Repeat("a", 63)
	for in, want := range map[string]model.HostName{
		"": model.AnyHost, "a": "a", "Shop.EXAMPLE.org": "shop.example.org", "*.Example.org": "*.example.org",
		"xn--bcher-kva.example": "xn--bcher-kva.example", "1.2.3": "1.2.3", "0x1.example": "0x1.example",
		label63 + ".example":            model.HostName(label63 + ".example"),
		strings.Repeat("a.", 126) + "b": model.HostName(strings.Repeat("a.", 126) + "b"),
	} {
		if got, err := model.ParseHostName(in); got != want || err != nil {
			t.Errorf("ParseHostName(%q) = %q, %v, want %q", in, string(got), err, string(want))
		}
	}
	for in, hint := range map[string]string{
		"10.0.0.1": "address", "::1": "address", "fe80::1%eth0": "address", "a.example.": "without the dot",
		".": "without the dot", "a..b": "empty", ".a": "empty", "*": "wildcard", "*.": "empty", "**.a": "wildcard",
		"a.*": "wildcard", "*a.example": "wildcard", "*.*.a": "wildcard", "a_b.example": `"_"`, "-a.example": "begins or ends",
		"a-.example": "begins or ends", "a.example:80": "port", "http://a": "port", "a b": `" "`, "a\n": "letters", "ä.example": "letters",
		"a;b": "letters", "a\x00": "letters", "a\"b": "letters", "$host": "letters", "\u212a.example": "letters",
		label63 + "a.example": "63", strings.Repeat("a.", 127) + "b": "253",
	} {
		_, err := model.ParseHostName(in)
		if !errors.Is(err, model.ErrHostName) || !strings.Contains(err.Error(), hint) {
			t.Errorf("ParseHostName(%q): error %v, want one with %q", in, err, hint)
		}
	}
}

func TestCovers(t *testing.T) {
	for _, c := range []struct {
		host model.HostName
		name string
		want bool
	}{
		{"a.example", "a.example", true}, {"a.example", "b.example", false},
		{"*.example", "a.example", true}, {"*.example", "a.b.example", false}, {"*.example", "example", false},
		{"*.example", ".example", false}, {"*.example", "*.example", false}, {"*.b.example", "a.b.example", true},
		{"", "anything", true},
	} {
		if got := c.host.Covers(c.name); got != c.want {
			t.Errorf("%q.Covers(%q) = %v", string(c.host), c.name, got)
		}
	}
}

func FuzzParseHostName(f *testing.F) {
	for _, s := range []string{"", "a.example", "*.A.example", "10.0.0.1", "a..b", "a_b", "*", "a.example.", "a\nb", "\u017f.example", "\u212a.example"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		h, err := model.ParseHostName(s)
		if err != nil {
			if h != "" || !errors.Is(err, model.ErrHostName) {
				t.Errorf("ParseHostName(%q) = %q, %v", s, string(h), err)
			}
			return
		}
		if again, err := model.ParseHostName(string(h)); again != h || err != nil {
			t.Errorf("%q parses to %q, and that to %q, %v", s, string(h), string(again), err)
		}
		if strings.Trim(string(h), "abcdefghijklmnopqrstuvwxyz0123456789-.*") != "" || strings.Contains(string(h)+".", "..") {
			t.Errorf("%q was accepted as %q", s, string(h))
		}
		if strings.Count(string(h), "*") > 1 || strings.LastIndex(string(h), "*") > 0 {
			t.Errorf("%q has a wildcard in a wrong place", string(h))
		}
	})
}
