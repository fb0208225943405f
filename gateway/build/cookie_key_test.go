package build

import (
	"regexp"
	"testing"
	"time"

	"headgate/gateway/model"
	"headgate/gateway/snapshot"
)

// TestCookieKey: the key of persistent cookies is the same wherever the Service is read, differs between Services,
// and tells nothing of the UID that it is made of.
func TestCookieKey(t *testing.T) {
	const uid = "6f9619ff-8b86-4d01-b42d-00c04fc964ff"
	cookie := func(mode, uid string) *model.Cookie {
		t.Helper()
		s := oneService(nil, map[string]map[string]string{"a": {"affinity": "cookie", "affinity-mode": mode}})
		s.Services[0].UID = uid
		_, u := routeOf(t, New(Options{ControllerNames: []string{"us"}, AnnotationPrefix: "nginx.ingress.kubernetes.io"}).Build(s, time.Unix(0, 0)).Model, "a")
		if u.Cookie == nil {
			t.Fatalf("%s: no cookie", mode)
		}
		return u.Cookie
	}
	key := cookie("persistent", uid).Key
	if !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(key) {
		t.Errorf("key %q", key)
	}
	if again := cookie("persistent", uid).Key; again != key {
		t.Errorf("%q, then %q", key, again)
	}
	if other := cookie("persistent", uid[:35]+"e").Key; other == key {
		t.Error("two Services have one key")
	}
	if k := cookie("balanced", uid).Key; k != "" {
		t.Errorf("a balanced cookie has the key %q", k)
	}
	if manifest := cookie("persistent", "").Key; manifest == key || manifest != cookieKey(&snapshot.Meta{Key: snapshot.Key{Namespace: "n", Name: "s"}}) {
		t.Errorf("without a UID: %q", manifest)
	}
}
