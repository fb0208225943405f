package nginxproc

import (
	"regexp"
	"testing"
)

// FuzzParseVersion: a version that is read is plain, since it decides how nginx.conf is written.
func FuzzParseVersion(f *testing.F) {
	f.Add(debianVersion)
	f.Add(openRestyVersion)
	f.Add("nginx version: nginx/1.22.1\nconfigure arguments: --modules-path='/a b' --add-module=../ngx_lua-0.10")
	f.Add("nginx version: nginx/99999999999999999999.0.0")
	f.Add("")
	plain := regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+$`)
	f.Fuzz(func(t *testing.T, text string) {
		b, err := parseVersion(text)
		if err == nil && !plain.MatchString(b.version) {
			t.Errorf("version %q", b.version)
		}
		if err != nil && b != (build{}) {
			t.Errorf("an error, and yet %+v", b)
		}
	})
}
