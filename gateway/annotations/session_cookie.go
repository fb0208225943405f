package annotations

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"headgate/gateway/model"
)

// The limits of the sticky cookie. Browsers keep 4096 bytes of a cookie with its attributes.
const (
	maxCookieNameBytes = 128
	maxCookiePathBytes = 1024
	maxCookieAge       = 10 * 365 * 24 * time.Hour
)

func sessionCookieName() Annotation {
	return Annotation{
		Name:    "session-cookie-name",
		Doc:     "Name of the cookie of affinity. Other paths of the same host that use the same name share the cookie where its path lets them.",
		Values:  fmt.Sprintf("a token (RFC 6265): letters, digits and !#%%&'*+-.^_`~ without spaces; at most %d bytes", maxCookieNameBytes),
		Default: "INGRESSCOOKIE",
		Example: "route",
		Risk:    Medium,
		Scope:   Paths,
		parse: func(value string, into *Values) error {
			if err := checkCookieName(value); err != nil {
				return err
			}
			into.balancing().Cookie.Name = value
			return nil
		},
		idle: withoutAffinity,
	}
}

// checkCookieName accepts a token (RFC 9110 section 5.6.2) without "$" and "|", which other readers of cookies misread.
func checkCookieName(value string) error {
	switch {
	case value == "":
		return errors.New("the value is empty; write a name or remove the annotation")
	case len(value) > maxCookieNameBytes:
		return fmt.Errorf("the name has %d bytes; write at most %d", len(value), maxCookieNameBytes)
	}
	for i := range len(value) {
		c := value[i]
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && (c < '0' || c > '9') && !strings.ContainsRune("!#%&'*+-.^_`~", rune(c)) {
			return fmt.Errorf("%s holds %q; write letters, digits, \"-\" and \"_\"", shown(value), value[i:i+1])
		}
	}
	return nil
}

func sessionCookiePath() Annotation {
	return Annotation{
		Name: "session-cookie-path",
		Doc: "Path attribute of the cookie of affinity. Paths that are regular expressions cannot stand in a cookie: without this " +
			"annotation theirs is \"/\".",
		Values:  fmt.Sprintf("a path that begins with \"/\", without spaces, \";\" and control bytes; at most %d bytes", maxCookiePathBytes),
		Default: "the path of the rule",
		Example: "/shop",
		Risk:    Medium,
		Scope:   Paths,
		parse: func(value string, into *Values) error {
			if err := checkCookiePath(value); err != nil {
				return err
			}
			into.balancing().Cookie.Path = value
			return nil
		},
		idle: withoutAffinity,
	}
}

// checkCookiePath accepts a path-value (RFC 6265 section 4.1.1) that begins with "/".
func checkCookiePath(value string) error {
	if !strings.HasPrefix(value, "/") {
		return fmt.Errorf("%s is not a path; begin it with \"/\"", shown(value))
	}
	if len(value) > maxCookiePathBytes {
		return fmt.Errorf("the path has %d bytes; write at most %d", len(value), maxCookiePathBytes)
	}
	for i := range len(value) {
		if c := value[i]; c <= ' ' || c > '~' || c == ';' || c == ',' {
			return fmt.Errorf("%s holds %q, which a cookie cannot; write it percent-encoded", shown(value), value[i:i+1])
		}
	}
	return nil
}

func sessionCookieDomain() Annotation {
	return Annotation{
		Name:    "session-cookie-domain",
		Doc:     "Domain attribute of the cookie of affinity: the client sends it to this name and all below it.",
		Values:  "a DNS name; a dot in front is ignored",
		Default: "none: the cookie belongs to the host of the request alone",
		Example: "example.com",
		Risk:    Medium,
		Scope:   Paths,
		parse: func(value string, into *Values) error {
			name, err := parseSingleName(strings.TrimPrefix(value, "."))
			if err == nil {
				into.balancing().Cookie.Domain = string(name)
			}
			return err
		},
		idle: withoutAffinity,
	}
}

// parseSingleName reads the name of one host.
func parseSingleName(value string) (model.HostName, error) {
	if value == "" {
		return "", errors.New("the value is empty; write a DNS name or remove the annotation")
	}
	name, err := model.ParseHostName(value)
	if err == nil && name.Wildcard() {
		return "", fmt.Errorf("%w: %s is a wildcard; write the name of one host", model.ErrHostName, shown(value))
	}
	return name, err
}

func sessionCookieExpires() Annotation {
	return Annotation{
		Name:    "session-cookie-expires",
		Doc:     "Expires attribute of the cookie of affinity, so many seconds after the answer. Clients prefer session-cookie-max-age.",
		Values:  ageValues(),
		Default: "none: the cookie ends with the browser's session",
		Example: "172800",
		Risk:    Medium,
		Scope:   Paths,
		parse:   inAges(func(v *Values, d time.Duration) { v.balancing().Cookie.Expires = d }),
		idle:    withoutAffinity,
	}
}

func sessionCookieMaxAge() Annotation {
	return Annotation{
		Name:    "session-cookie-max-age",
		Doc:     "Max-Age attribute of the cookie of affinity.",
		Values:  ageValues(),
		Default: "none: the cookie ends with the browser's session",
		Example: "172800",
		Risk:    Medium,
		Scope:   Paths,
		parse:   inAges(func(v *Values, d time.Duration) { v.balancing().Cookie.MaxAge = d }),
		idle:    withoutAffinity,
	}
}

// inAges makes a parse function for whole seconds: a cookie knows nothing finer.
func inAges(set func(*Values, time.Duration)) func(string, *Values) error {
	return inNumbers(1, int(maxCookieAge/time.Second), func(v *Values, n int) { set(v, time.Duration(n)*time.Second) })
}

func ageValues() string { return "seconds, " + numberValues(1, int(maxCookieAge/time.Second)) }

func sessionCookieSameSite() Annotation {
	words := []string{string(model.SameSiteNone), string(model.SameSiteLax), string(model.SameSiteStrict)}
	return Annotation{
		Name:    "session-cookie-samesite",
		Doc:     "SameSite attribute of the cookie of affinity. Browsers take None only together with Secure.",
		Values:  wordValues(words),
		Default: "none: the browser decides",
		Example: "Lax",
		Risk:    Low,
		Scope:   Paths,
		parse:   inWordsOfAnyCase(words, func(v *Values, word string) { v.balancing().Cookie.SameSite = model.SameSite(word) }),
		idle:    withoutAffinity,
	}
}

func sessionCookieConditionalSameSiteNone() Annotation {
	return Annotation{
		Name:    "session-cookie-conditional-samesite-none",
		Doc:     "Leaves SameSite=None out for clients that are known to misread it.",
		Values:  boolValues,
		Default: "false",
		Example: "true",
		Risk:    Low,
		Scope:   Paths,
		parse:   inBooleans(func(v *Values, on bool) { v.balancing().Cookie.ConditionalSameSiteNone = on }),
		idle: func(v *Values) string {
			if why := withoutAffinity(v); why != "" {
				return why
			}
			if v.Balancing.Cookie.ConditionalSameSiteNone && v.Balancing.Cookie.SameSite != model.SameSiteNone {
				return "session-cookie-samesite is not " + strconv.Quote(string(model.SameSiteNone))
			}
			return ""
		},
	}
}

func sessionCookieSecure() Annotation {
	return Annotation{
		Name:    "session-cookie-secure",
		Doc:     "Secure attribute of the cookie of affinity, whatever the scheme of the request.",
		Values:  boolValues,
		Default: "Secure when the request came over https",
		Example: "true",
		Risk:    Low,
		Scope:   Paths,
		parse:   inBooleans(func(v *Values, on bool) { v.balancing().Cookie.Secure = &on }),
		idle:    withoutAffinity,
	}
}

func sessionCookieChangeOnFailure() Annotation {
	return Annotation{
		Name:    "session-cookie-change-on-failure",
		Doc:     "Binds a client to the peer that answered when its own could not.",
		Values:  boolValues,
		Default: "false: the client goes back to its own peer",
		Example: "true",
		Risk:    Low,
		Scope:   Paths,
		parse:   inBooleans(func(v *Values, on bool) { v.balancing().Cookie.ChangeOnFailure = on }),
		idle:    withoutAffinity,
	}
}
