package annotations_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"headgate/gateway/annotations"
	"headgate/gateway/model"
)

// TestValues gives each annotation what it must take, at the ends of its range, and what it must refuse with a hint.
func TestValues(t *testing.T) {
	known := map[string]annotations.Annotation{}
	for _, a := range annotations.All() {
		known[a.Name] = a
	}
	for _, a := range annotations.OfService() {
		known["headgate.io/"+a.Name] = a
	}
	for name, c := range map[string]struct {
		good []string
		bad  map[string]string // value → hint
	}{
		"affinity":      {[]string{"cookie"}, map[string]string{"Cookie": `"cookie"`, "ip": `"cookie"`}},
		"affinity-mode": {[]string{"balanced", "persistent"}, map[string]string{"sticky": "persistent"}},
		"backend-protocol": {
			[]string{"HTTP", "https", "Grpc", "GRPCS", "FCGI"}, map[string]string{"AUTO_HTTP": "either TLS or not", "auto_http": "write", "AJP": `"FCGI"`},
		},
		"client-body-buffer-size": {[]string{"1k", "8192", "16m"}, map[string]string{"1023": "1k", "17m": "16m", "8": "1k", "8b": "whole number", "0": "1k"}},
		"upstream-vhost": {
			[]string{"a", "Shop.Internal:8080", "my_app", "10.0.0.1", "$service_name.$namespace.svc", "${service_name}-x:$service_port", "$ingress_name"},
			map[string]string{"$host": "$service_name", "$": "$service_name", "${namespace": "$service_name", "$namespaces": "$service_name", "a b": "letters", "http://a": "1 to 65535", "a:": "1 to 65535", "a.": "dot", "a\r\nb": "letters", "$service_port:x": "1 to 65535"},
		},
		"enable-access-log": {[]string{"true", "false", "0"}, map[string]string{"on": "true"}},
		"fastcgi-index":     {[]string{"index.php", "a-b_c.d"}, map[string]string{"a/b": "index.php", "a b": "index.php", "$x": "index.php"}},
		"load-balance":      {[]string{"round_robin", "least_conn", "p2c", "ewma", "random"}, map[string]string{"chash": "ewma", "EWMA": "ewma"}},
		"proxy-body-size":   {[]string{"0", "1", "1k", "8M", "1g", "1024g"}, map[string]string{"1t": "8m", "-1": "8m", "1025g": "1024g", "9223372036854775807k": "1024g", "9223372036854775808": "1024g", "-0": "8m", "+1": "8m", "١k": "8m", "1.5m": "8m"}},
		"proxy-buffer-size": {[]string{"1k", "4096", "1m"}, map[string]string{"1023": "1k", "1025k": "1m", "k": "whole number"}},
		"proxy-buffering":   {[]string{"on", "off"}, map[string]string{"true": `"on"`}},

		"proxy-buffers-number":        {[]string{"2", "256"}, map[string]string{"1": "2", "257": "256", "4 8k": "whole number"}},
		"proxy-busy-buffers-size":     {[]string{"8k"}, map[string]string{"8x": "8m"}},
		"proxy-connect-timeout":       {[]string{"1", "1ms", "1h"}, map[string]string{"0": "1ms", "61m": "1h", "5 s": "seconds", "1us": "1ms"}},
		"proxy-http-version":          {[]string{"1.0", "1.1"}, map[string]string{"2": "1.1", "1": "1.1"}},
		"proxy-max-temp-file-size":    {[]string{"0", "1", "1024g"}, map[string]string{"x": "8m", "1025g": "1024g"}},
		"proxy-next-upstream-timeout": {[]string{"0", "1h"}, map[string]string{"-1": "seconds", "3601": "1h"}},
		"proxy-next-upstream-tries":   {[]string{"0", "100"}, map[string]string{"-1": "0", "101": "100", "-0": "0", "+1": "0", "99999999999999999999": "out of range", "1\n": "0", "1\x00": "0"}},
		"proxy-read-timeout":          {[]string{"2073600", "576h", "5000000000ns"}, map[string]string{"2073601": "576h", "99999999999": "576h", "-0": "seconds", "+5": "seconds", "-0s": "seconds", "9223372036854775807s": "seconds", "1e9": "seconds", "NaN": "seconds", "٥": "seconds"}},
		"proxy-send-timeout":          {[]string{"60", "1m30s"}, map[string]string{"never": "seconds"}},
		"proxy-request-buffering":     {[]string{"on", "off"}, map[string]string{"no": `"off"`}},
		"proxy-ssl-ciphers":           {[]string{"DEFAULT", "HIGH:!aNULL", "DEFAULT@SECLEVEL=0"[:7] + ":@SECLEVEL=0"}, map[string]string{"a b": "HIGH", "a;b": "HIGH"}},
		"proxy-ssl-name":              {[]string{"a.example", "A"}, map[string]string{"*.a": "one host", "10.0.0.1": "DNS name", "$host": "letters"}},
		"proxy-ssl-protocols":         {[]string{"TLSv1.2", "TLSv1.3 TLSv1"}, map[string]string{"SSLv3": "TLSv1.2", "TLSv1.2,TLSv1.3": "TLSv1.2", " ": "TLSv1.2"}},
		"proxy-ssl-secret":            {[]string{"a/b.c", "b", "1-2"}, map[string]string{"a/b/c": "namespace/name", "A/b": "namespace/name", "/b": "namespace/name", "-b": "namespace/name", strings.Repeat("a", 254): "namespace/name"}},
		"proxy-ssl-server-name":       {[]string{"on"}, map[string]string{"true": `"on"`}},
		"proxy-ssl-verify":            {[]string{"on", "off"}, map[string]string{"optional": `"on"`}},
		"proxy-ssl-verify-depth":      {[]string{"1", "100"}, map[string]string{"0": "1", "101": "100"}},
		"service-upstream":            {[]string{"true"}, map[string]string{"ClusterIP": "true"}},

		"session-cookie-change-on-failure":         {[]string{"true"}, map[string]string{"on": "true"}},
		"session-cookie-conditional-samesite-none": {[]string{"true"}, map[string]string{"on": "true"}},
		"session-cookie-domain":                    {[]string{"example.com", ".Example.com"}, map[string]string{"*.a": "one host", "a;b": "letters", ".": "empty"}},
		"session-cookie-expires":                   {[]string{"1", "315360000"}, map[string]string{"0": "1", "-1": "1", "315360001": "315360000", "1h": "whole number"}},
		"session-cookie-max-age":                   {[]string{"1"}, map[string]string{"0": "1"}},
		"session-cookie-name":                      {[]string{"a", "A_-.~!#%&'*+^`0", strings.Repeat("n", 128)}, map[string]string{"a;": "letters", "a=b": "letters", "ä": "letters", "a\n": "letters", strings.Repeat("n", 129): "128"}},
		"session-cookie-path":                      {[]string{"/", "/a/b%20"}, map[string]string{"a": `"/"`, "/a;b": "percent", "/a\r\nb": "percent", "/é": "percent", "/" + strings.Repeat("p", 1024): "1024"}},
		"session-cookie-samesite":                  {[]string{"None", "lax", "STRICT"}, map[string]string{"no": "Lax"}},
		"session-cookie-secure":                    {[]string{"true", "false"}, map[string]string{"auto": "true"}},
		"upstream-hash-by-subset":                  {[]string{"true"}, map[string]string{"3": "true"}},
		"upstream-hash-by-subset-size":             {[]string{"1", "1000"}, map[string]string{"0": "1", "1001": "1000"}},

		"headgate.io/eject":                 {[]string{"on", "off"}, map[string]string{"false": `"off"`}},
		"headgate.io/eject-failures":        {[]string{"1", "1000"}, map[string]string{"0": "1", "1001": "1000"}},
		"headgate.io/eject-max-time":        {[]string{"100ms", "24h"}, map[string]string{"25h": "24h"}},
		"headgate.io/eject-statuses":        {[]string{"400", "502,503 599"}, map[string]string{"399": "400", "600": "599", ",": "empty", "5xx": "400"}},
		"headgate.io/eject-time":            {[]string{"100ms", "1h"}, map[string]string{"99ms": "100ms"}},
		"headgate.io/health-check":          {[]string{"http", "https", "tcp"}, map[string]string{"grpc": "tcp"}},
		"headgate.io/health-check-fall":     {[]string{"1", "100"}, map[string]string{"0": "1"}},
		"headgate.io/health-check-host":     {[]string{"a.example"}, map[string]string{"*.a": "one host", "a\r\nb": "letters"}},
		"headgate.io/health-check-interval": {[]string{"1", "1h"}, map[string]string{"999ms": "1s"}},
		"headgate.io/health-check-path":     {[]string{"/", "/a?b=c"}, map[string]string{"a": `"/"`, "/a b": "percent", "/a#b": "percent", "/\r\n": "percent", "/" + strings.Repeat("p", 1024): "1024"}},
		"headgate.io/health-check-rise":     {[]string{"1", "100"}, map[string]string{"101": "100"}},
		"headgate.io/health-check-status": {
			[]string{"200", "100-599", "200-299, 404"}, map[string]string{"99": "100", "300-200": "100", "600": "599", ", ": "empty", strings.Repeat("200,", 17): "at most 16", "2xx": "200-299"},
		},
		"headgate.io/health-check-timeout":  {[]string{"50ms", "1m"}, map[string]string{"49ms": "50ms"}},
		"headgate.io/load-balance":          {[]string{"p2c"}, map[string]string{"sticky": "ewma"}},
		"headgate.io/max-requests":          {[]string{"1", "10000000"}, map[string]string{"0": "1"}},
		"headgate.io/max-requests-per-peer": {[]string{"1", "1000000"}, map[string]string{"0": "1"}},
		"headgate.io/queue":                 {[]string{"0", "100000"}, map[string]string{"-1": "0"}},
		"headgate.io/queue-timeout":         {[]string{"10ms", "60"}, map[string]string{"61": "1m"}},
		"headgate.io/slow-start":            {[]string{"0", "1h"}, map[string]string{"2h": "1h"}},
	} {
		a, ok := known[name]
		if !ok {
			t.Errorf("there is no annotation %s", name)
			continue
		}
		for _, value := range c.good {
			if err := a.Parse(value, &annotations.Values{}); err != nil {
				t.Errorf("%s: %q: %v", name, value, err)
			}
		}
		for value, hint := range c.bad {
			var v annotations.Values
			err := a.Parse(value, &v)
			if err == nil || !strings.Contains(err.Error(), hint) {
				t.Errorf("%s: %q: error %v, want one with %q", name, value, err, hint)
			}
			if diff := cmp.Diff(annotations.Values{}, v); diff != "" {
				t.Errorf("%s: %q is refused and changes the values:\n%s", name, value, diff)
			}
		}
	}
}

func TestParseHashBy(t *testing.T) {
	part := func(kind model.HashKind, name string) model.HashPart { return model.HashPart{Kind: kind, Name: name} }
	for in, want := range map[string][]model.HashPart{
		"$request_uri":           {part(model.HashVariable, "request_uri")},
		"$Request_URI":           {part(model.HashVariable, "request_uri")},
		"$request_uri$host":      {part(model.HashVariable, "request_uri"), part(model.HashVariable, "host")},
		"a-${host}b":             {part(model.HashLiteral, "a-"), part(model.HashVariable, "host"), part(model.HashLiteral, "b")},
		"$http_X_User_Id":        {part(model.HashHeader, "x-user-id")},
		"$cookie_Session":        {part(model.HashCookie, "Session")},
		"$arg_q:$arg_Q":          {part(model.HashArgument, "q"), part(model.HashLiteral, ":"), part(model.HashArgument, "Q")},
		"$binary_remote_addr":    {part(model.HashVariable, "remote_addr")},
		"$the_real_ip":           {part(model.HashVariable, "remote_addr")},
		"$best_http_host":        {part(model.HashHeader, "host")},
		"$host;}{\"'\\ location": {part(model.HashVariable, "host"), part(model.HashLiteral, ";}{\"'\\ location")},
	} {
		got, err := annotations.ParseHashBy(in)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%q: error %v, parts (-want +got):\n%s", in, err, diff)
		}
	}
	for in, hint := range map[string]string{
		"": "empty", "text": "no variable", "$": "cannot be hashed", "$$host": "cannot be hashed", "$no_such_thing": "$request_uri",
		"$hostname": "cannot be hashed", "${host": "brace", "${ho st}": "letters", "${}": "cannot be hashed", "$http_": "cannot be hashed",
		"$host\n": "control byte", strings.Repeat("x", 512) + "$host": "at most 512", strings.Repeat("$host", 9): "at most 8",
	} {
		if _, err := annotations.ParseHashBy(in); err == nil || !strings.Contains(err.Error(), hint) {
			t.Errorf("%.20q: error %v, want one with %q", in, err, hint)
		}
	}
}

func FuzzParseHashBy(f *testing.F) {
	for _, s := range []string{"$request_uri", "a-${host}b$", "$http_x_y", "$cookie_C$arg_q", "$$", "${", "$host\n", "\xff$uri"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		parts, err := annotations.ParseHashBy(s)
		if err != nil {
			return
		}
		varies := false
		for i, p := range parts {
			if p.Name == "" {
				t.Errorf("%q: part %d is empty", s, i)
			}
			if p.Kind == model.HashLiteral {
				if i > 0 && parts[i-1].Kind == model.HashLiteral || strings.ContainsAny(p.Name, "$\n") {
					t.Errorf("%q: literal %q", s, p.Name)
				}
				continue
			}
			varies = true
			if strings.Trim(strings.ToLower(p.Name), "abcdefghijklmnopqrstuvwxyz0123456789_-") != "" {
				t.Errorf("%q: name %q", s, p.Name)
			}
		}
		if !varies {
			t.Errorf("%q hashes nothing", s)
		}
	})
}

func TestParseNextUpstream(t *testing.T) {
	for in, want := range map[string]model.RetryOn{
		"error": model.RetryError, "error timeout": model.RetryError | model.RetryTimeout, " http_429  http_404 http_403 ": model.Retry429 | model.Retry404 | model.Retry403,
		"off": model.RetryNever, "invalid_header http_500 http_502 http_503 http_504": model.RetryInvalidHeader | model.Retry500 | model.Retry502 | model.Retry503 | model.Retry504,
	} {
		if got, also, err := annotations.ParseNextUpstream(in); got != want || also || err != nil {
			t.Errorf("%q: %b, %v, %v; want %b", in, got, also, err, want)
		}
	}
	if on, also, err := annotations.ParseNextUpstream("non_idempotent error"); on != model.RetryError || !also || err != nil {
		t.Errorf("non_idempotent: %b, %v, %v", on, also, err)
	}
	for in, hint := range map[string]string{"": "empty", "off off": "alone", "error off": "alone", "http_200": "no condition", "non_idempotent": "when"} {
		if _, _, err := annotations.ParseNextUpstream(in); err == nil || !strings.Contains(err.Error(), hint) {
			t.Errorf("%q: error %v, want one with %q", in, err, hint)
		}
	}
}

func TestParseRetryBudget(t *testing.T) {
	for in, want := range map[string]model.RetryBudget{"1%": {Percent: 1}, "100": {Percent: 100}, "off": {Unlimited: true}} {
		if got, err := annotations.ParseRetryBudget(in); got != want || err != nil {
			t.Errorf("%q: %+v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "0%", "101%", "20%%", "-5%", "on", "300"} {
		if _, err := annotations.ParseRetryBudget(in); err == nil || !strings.Contains(err.Error(), `"off"`) {
			t.Errorf("%q: error %v", in, err)
		}
	}
}

// TestTogether: what each annotation says is right, and not beside the others.
func TestTogether(t *testing.T) {
	type set map[string]string
	for name, c := range map[string]struct {
		in     set
		faults map[string]annotations.FaultKind
		hint   string
	}{
		"busy buffers of the default":       {set{"proxy-busy-buffers-size": "12k"}, nil, ""},
		"busy buffers above all but one":    {set{"proxy-busy-buffers-size": "13k"}, map[string]annotations.FaultKind{"proxy-busy-buffers-size": annotations.Invalid}, "from 4k to 12k"},
		"busy buffers below one":            {set{"proxy-buffer-size": "8k", "proxy-busy-buffers-size": "4k"}, map[string]annotations.FaultKind{"proxy-busy-buffers-size": annotations.Invalid}, "from 8k to 24k"},
		"too much memory":                   {set{"proxy-buffer-size": "64k", "proxy-buffers-number": "257"}, map[string]annotations.FaultKind{"proxy-buffers-number": annotations.Invalid}, "256"},
		"as much memory as there may be":    {set{"proxy-buffer-size": "64k", "proxy-buffers-number": "256"}, nil, ""},
		"cookie without affinity":           {set{"session-cookie-name": "x"}, map[string]annotations.FaultKind{"session-cookie-name": annotations.Idle}, "affinity"},
		"cookie with affinity":              {set{"session-cookie-name": "x", "affinity": "cookie"}, nil, ""},
		"conditional none without none":     {set{"affinity": "cookie", "session-cookie-conditional-samesite-none": "true"}, map[string]annotations.FaultKind{"session-cookie-conditional-samesite-none": annotations.Idle}, "None"},
		"conditional none off without none": {set{"affinity": "cookie", "session-cookie-conditional-samesite-none": "false"}, nil, ""},
		"http version of gRPC":              {set{"backend-protocol": "GRPC", "proxy-http-version": "1.0"}, map[string]annotations.FaultKind{"proxy-http-version": annotations.Idle}, "HTTP"},
		"verify without secret":             {set{"backend-protocol": "HTTPS", "proxy-ssl-verify": "on"}, map[string]annotations.FaultKind{"proxy-ssl-verify": annotations.Idle}, "proxy-ssl-secret"},
		"secret without TLS":                {set{"backend-protocol": "GRPC", "proxy-ssl-secret": "x"}, map[string]annotations.FaultKind{"proxy-ssl-secret": annotations.Idle}, "GRPCS"},
		"secret with TLS":                   {set{"backend-protocol": "GRPCS", "proxy-ssl-secret": "x", "proxy-ssl-name": "y"}, nil, ""},
		// What cannot be read says nothing about what goes with it.
		"cookie beside a broken affinity": {set{"session-cookie-name": "x", "affinity": "ip"}, map[string]annotations.FaultKind{"affinity": annotations.Invalid}, "cookie"},
	} {
		in := map[string]string{}
		for k, v := range c.in {
			in[annotations.DefaultPrefix+"/"+k] = v
		}
		_, faults := annotations.NewReader("").Read(in)
		got := map[string]annotations.FaultKind{}
		for _, f := range faults {
			got[strings.TrimPrefix(f.Name, annotations.DefaultPrefix+"/")] = f.Kind
			if !strings.Contains(f.Message, c.hint) {
				t.Errorf("%s: %q does not say %q", name, f.Message, c.hint)
			}
		}
		if len(got) == 0 {
			got = nil
		}
		if diff := cmp.Diff(c.faults, got); diff != "" {
			t.Errorf("%s: faults (-want +got):\n%s", name, diff)
		}
	}
}

func TestServiceReader(t *testing.T) {
	values, faults := annotations.NewServiceReader().Read(map[string]string{
		"headgate.io/load-balance": "p2c", "headgate.io/eject": "off", "headgate.io/slow-start": "30s", "headgate.io/nonsense-of-mine": "x",
		"nginx.ingress.kubernetes.io/load-balance": "wrong",
	})
	off := false
	want := annotations.Values{Balancing: &annotations.Balancing{Algorithm: model.PowerOfTwo, Eject: &off, SlowStart: 30 * time.Second}}
	if diff := cmp.Diff(want, values); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
	if len(faults) != 1 || faults[0].Kind != annotations.Unknown || !strings.Contains(faults[0].Message, "the Service is served without it") {
		t.Errorf("faults %+v", faults)
	}
}

// TestServiceAnnotationOnAnIngress: it does nothing there, which nobody would notice before the peers fail.
func TestServiceAnnotationOnAnIngress(t *testing.T) {
	in := map[string]string{"headgate.io/eject": "nonsense", "headgate.io/nothing-of-ours": "x"}
	values, faults := annotations.NewReader("").Read(in)
	if diff := cmp.Diff(annotations.Values{}, values); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
	if len(faults) != 1 || faults[0].Name != "headgate.io/eject" || faults[0].Kind != annotations.Idle || !strings.Contains(faults[0].Message, "on the Service") {
		t.Errorf("faults %+v", faults)
	}
	// Where the administrator gives Ingresses that prefix, the names are theirs.
	if _, faults := annotations.NewReader("headgate.io").Read(map[string]string{"headgate.io/load-balance": "ewma"}); len(faults) > 0 {
		t.Errorf("under a prefix of Ingresses: %+v", faults)
	}
}

// readable tells whether a value parses. What parses and does not go with the other values is refused only later.
func readable(list []annotations.Annotation, name, value string) bool {
	for _, a := range list {
		if a.Name == name {
			return a.Parse(value, &annotations.Values{}) == nil
		}
	}
	return false
}

// FuzzServiceReader gives every annotation of a Service every value.
func FuzzServiceReader(f *testing.F) {
	for _, a := range annotations.OfService() {
		f.Add(a.Name, a.Example)
	}
	f.Fuzz(func(t *testing.T, name, value string) {
		values, faults := annotations.NewServiceReader().Read(map[string]string{annotations.ServicePrefix + "/" + name: value})
		if len(faults) > 1 {
			t.Errorf("%q: %d faults for one annotation", name, len(faults))
		}
		if len(faults) == 1 && !readable(annotations.OfService(), name, value) {
			if diff := cmp.Diff(annotations.Values{}, values); diff != "" {
				t.Errorf("a refused annotation changed the values:\n%s", diff)
			}
		}
	})
}
