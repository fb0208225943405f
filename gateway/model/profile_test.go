package model

import (
	"errors"
	"strings"
	"testing"
)

func TestParseCiphers(t *testing.T) {
	for _, good := range []string{
		"DEFAULT", "HIGH:!aNULL:!MD5", "ECDHE+AESGCM", "ECDHE-RSA-AES128-GCM-SHA256:DHE-RSA-AES128-SHA", "-RC4:+kDHE", "ALL:@STRENGTH", "DEFAULT:@SECLEVEL=0", strings.Repeat("A", 2048),
	} {
		if got, err := ParseCiphers(good); err != nil || got != good {
			t.Errorf("%q: %q, %v", good, got, err)
		}
	}
	for _, bad := range []string{
		"", ":", "A::B", "A:", "HIGH;", "HIGH}", "a b", "$x", `"`, "'", "\\", "A\n", "@X", "@SECLEVEL=9", "!", "A+", "+", "é", strings.Repeat("A", 2049), // nginx reads 4 KiB of a word
	} {
		if got, err := ParseCiphers(bad); !errors.Is(err, ErrCiphers) || got != "" {
			t.Errorf("%q: %q, %v", bad, got, err)
		}
	}
}

func FuzzParseCiphers(f *testing.F) {
	f.Add("HIGH:!aNULL")
	f.Add("HIGH;daemon on")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseCiphers(s)
		if err == nil && (got != s || strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-+!:@=") != "") {
			t.Errorf("%q", s)
		}
	})
}

func TestParseFastCGIParam(t *testing.T) {
	for _, c := range []struct {
		name, value string
		want        FastCGIParam
	}{
		{"SCRIPT_FILENAME", "/var/www/index.php", FastCGIParam{Name: "SCRIPT_FILENAME", Value: "/var/www/index.php"}},
		{"A", `quotes " ' and \ ; { } # are data`, FastCGIParam{Name: "A", Value: `quotes " ' and \ ; { } # are data`}},
		{"EMPTY_1", "", FastCGIParam{Name: "EMPTY_1"}},
		{"U", "$request_uri", FastCGIParam{Name: "U", Variable: "request_uri"}},
	} {
		if got, err := ParseFastCGIParam(c.name, c.value); err != nil || got != c.want {
			t.Errorf("%s=%q: %+v, %v", c.name, c.value, got, err)
		}
	}
	for _, c := range [][2]string{
		{"", "x"}, {"a", "x"}, {"1A", "x"}, {"A B", "x"}, {"A;", "x"}, {strings.Repeat("A", 200), "x"},
		{"A", "a$b"}, {"A", "$"}, {"A", "$http_authorization"}, {"A", "${uri}"}, {"A", "a\nb"}, {"A", "a\x00"}, {"A", "a\x7f"}, {"A", "\xff"},
		{"A", strings.Repeat("x", 5000)},
	} {
		if got, err := ParseFastCGIParam(c[0], c[1]); !errors.Is(err, ErrFastCGI) || got != (FastCGIParam{}) {
			t.Errorf("%.20q=%.20q: %+v, %v", c[0], c[1], got, err)
		}
	}
	for in, good := range map[string]bool{"index.php": true, "": false, "a/b": false, "a b": false, "$x": false, "a;": false} {
		if _, err := ParseFastCGIIndex(in); (err == nil) != good {
			t.Errorf("index %q: %v", in, err)
		}
	}
}

func TestPool(t *testing.T) {
	for want, p := range map[string]Profile{
		"":                      {Protocol: ProtocolHTTP, Buffering: true},
		"_https":                {Protocol: ProtocolHTTPS},
		"_grpc":                 {Protocol: ProtocolGRPC},
		"_grpcs":                {Protocol: ProtocolGRPCS},
		"headgate_fastcgi":      {Protocol: ProtocolFastCGI, FastCGI: "0123456789ab"},
		"headgate_grpcs_0123ab": {Protocol: ProtocolGRPCS, Identity: "0123ab"},
	} {
		if got := p.Pool(); got != want {
			t.Errorf("%+v: %q, want %q", p, got, want)
		}
	}
}
