package hostile

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"headgate/gateway/model"
	"headgate/gateway/nginxconf"
	"headgate/test/product"
)

// profileModel has one profile with a TLS identity and one with FastCGI parameters, neither seen by any parser of ours;
// change puts the hostile string somewhere.
func profileModel(change func(*model.Identity, *model.FastCGI)) *model.Model {
	identity := &model.Identity{
		ID: "0123456789ab", Certificate: []byte("certificate"), Key: model.Secret("key"), CA: []byte("ca"), Verify: true, Name: "peer.test",
		ServerName: true, Protocols: []string{"TLSv1.2"}, Ciphers: "HIGH",
	}
	fastcgi := &model.FastCGI{ID: "0123456789ab", Index: "index.php", Params: []model.FastCGIParam{{Name: "A", Value: "b"}, {Name: "C", Variable: "uri"}}}
	change(identity, fastcgi)
	route := func(p model.Profile) *model.Route {
		return &model.Route{Match: model.Match{Path: model.PathMatch{Type: model.PathPrefix, Value: "/"}}, Profile: p}
	}
	return &model.Model{
		Identities: []*model.Identity{identity}, FastCGI: []*model.FastCGI{fastcgi},
		Hosts: []*model.Host{{Name: "a.test", Routes: []*model.Route{
			route(model.Profile{Protocol: model.ProtocolHTTPS, Identity: identity.ID}), route(model.Profile{Protocol: model.ProtocolGRPCS, Identity: identity.ID}),
			route(model.Profile{Protocol: model.ProtocolFastCGI, FastCGI: fastcgi.ID}),
		}}},
	}
}

// places are where a string of a user could stand in a profile, with the directives that may hold it: there and nowhere
// else, as one argument, byte by byte.
func places(s string) map[string]struct {
	change     func(*model.Identity, *model.FastCGI)
	directives []string
} {
	type place = struct {
		change     func(*model.Identity, *model.FastCGI)
		directives []string
	}
	return map[string]place{
		"ID of an identity": {func(i *model.Identity, _ *model.FastCGI) { i.ID = model.IdentityID(s) }, nil},
		"name":              {func(i *model.Identity, _ *model.FastCGI) { i.Name = model.HostName(s) }, []string{"proxy_ssl_name", "grpc_ssl_name"}},
		"ciphers":           {func(i *model.Identity, _ *model.FastCGI) { i.Ciphers = s }, []string{"proxy_ssl_ciphers", "grpc_ssl_ciphers"}},
		"protocol":          {func(i *model.Identity, _ *model.FastCGI) { i.Protocols = []string{s} }, nil},
		"PEM": {func(i *model.Identity, _ *model.FastCGI) {
			i.Certificate, i.CA, i.Key = []byte(s), []byte(s), model.Secret(s)
		}, nil},
		"ID of parameters":    {func(_ *model.Identity, f *model.FastCGI) { f.ID = model.FastCGIID(s) }, nil},
		"index":               {func(_ *model.Identity, f *model.FastCGI) { f.Index = s }, []string{"fastcgi_index"}},
		"name of a parameter": {func(_ *model.Identity, f *model.FastCGI) { f.Params[0].Name = s }, []string{"fastcgi_param"}},
		"value":               {func(_ *model.Identity, f *model.FastCGI) { f.Params[0].Value = s }, []string{"fastcgi_param"}},
		"variable":            {func(_ *model.Identity, f *model.FastCGI) { f.Params[1].Variable = s }, nil},
	}
}

// takeOut takes the arguments that are the string out of the directives that may hold it.
func takeOut(list []directive, directives []string, s string) {
	for i := range list {
		if slices.Contains(directives, list[i].name) {
			list[i].args = slices.DeleteFunc(list[i].args, func(a string) bool { return a == s })
		}
		takeOut(list[i].block, directives, s)
	}
}

func checkProfiles(tb testing.TB, l nginxconf.Layout, s string) {
	tb.Helper()
	for name, place := range places(s) {
		text := confOf(tb, profileModel(place.change), l)
		list, err := parseConf(text)
		if err != nil {
			tb.Errorf("%s %q: %v", name, cut(s, 80), err)
			continue
		}
		takeOut(list, place.directives, s)
		if found := unexpected(list, "", s); len(found) > 0 && s != "" && strings.Contains(s, mark) {
			tb.Errorf("%s %q: not expected: %s", name, cut(s, 80), strings.Join(found, ", "))
		}
	}
}

// Strings that went around every check of build: what is no name, no cipher list, no parameter leaves its profile out;
// what is one stands where it belongs, as data.
func TestHostileProfiles(t *testing.T) {
	l, _ := layout(t, product.PublicDir(t))
	l.TLSDir = "/run/headgate/tls"
	for _, s := range hostileStrings() {
		checkProfiles(t, l, s)
	}
	written := func(m *model.Model) int {
		m.Settings = settings()
		c, err := nginxconf.Render(m, l)
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Profiles)+len(c.Refused) != 3 {
			t.Errorf("%d profiles and %v refused", len(c.Profiles), c.Refused)
		}
		return len(c.Profiles)
	}
	if n := written(profileModel(func(*model.Identity, *model.FastCGI) {})); n != 3 {
		t.Errorf("of harmless profiles %d are written", n)
	}
	// Each place refuses what it cannot hold: a test whose strings were all refused, or all taken, would show nothing.
	for name, want := range map[string]int{
		"ID of an identity": 1, "name": 1, "ciphers": 1, "protocol": 1, "PEM": 3, "ID of parameters": 3, "index": 2, "name of a parameter": 2, "value": 2, "variable": 2,
	} {
		if got := written(profileModel(places("evil; } $x \n")[name].change)); got != want {
			t.Errorf("%s: %d profiles are written, want %d", name, got, want)
		}
	}
	if got := written(profileModel(places(`evil"; } # \`)["value"].change)); got != 3 {
		t.Errorf("a value of odd but harmless bytes: %d profiles are written", got)
	}
}

func FuzzProfileStrings(f *testing.F) {
	for _, s := range hostileStrings()[:10] { // TestHostileProfiles has them all
		f.Add(s)
	}
	l, _ := layout(f, f.TempDir())
	l.TLSDir = "/run/headgate/tls"
	f.Fuzz(func(t *testing.T, s string) {
		checkProfiles(t, l, fmt.Sprintf("%s%s", mark, s))
	})
}
