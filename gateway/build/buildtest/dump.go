package buildtest

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"

	"headgate/gateway/build"
	"headgate/gateway/model"
)

// Dump writes a result as text, for people and goldens. What every route has by default is left out.
func Dump(r *build.Result) []byte {
	var w bytes.Buffer
	for _, h := range r.Model.Hosts {
		dumpHost(&w, h)
	}
	for _, u := range r.Model.Upstreams {
		dumpUpstream(&w, u)
	}
	for _, i := range r.Model.Identities {
		dumpIdentity(&w, i)
	}
	for _, f := range r.Model.FastCGI {
		fmt.Fprintf(&w, "fastcgi %s index=%q\n", f.ID, f.Index)
	}
	for _, c := range r.Checks {
		fmt.Fprintf(&w, "check %s %+v of %d peers\n", c.Upstream, c.Check, len(c.Peers))
	}
	for _, c := range r.Model.Certificates {
		dumpCertificate(&w, c)
	}
	if id := r.Model.Settings.DefaultCertificate; id != "" {
		fmt.Fprintf(&w, "default certificate %s\n", id)
	}
	for _, key := range r.Served {
		fmt.Fprintf(&w, "served %s\n", key)
	}
	for _, name := range r.ExternalNames {
		fmt.Fprintf(&w, "resolve %s\n", name)
	}
	for _, pattern := range r.UnknownRegexes {
		fmt.Fprintf(&w, "check %q\n", pattern)
	}
	return w.Bytes()
}

// Problems writes problems as text, one a line.
func Problems(r *build.Result) []byte {
	var w bytes.Buffer
	for _, p := range r.Problems {
		fmt.Fprintln(&w, p)
	}
	return w.Bytes()
}

func dumpHost(w io.Writer, h *model.Host) {
	fmt.Fprintf(w, "host %q", string(h.Name))
	if h.Regex {
		fmt.Fprint(w, " regex")
	}
	if h.TLS {
		fmt.Fprint(w, " tls")
	}
	if h.Certificate != "" {
		fmt.Fprintf(w, " certificate=%s", h.Certificate)
	}
	fmt.Fprintln(w)
	for _, r := range h.Routes {
		dumpRoute(w, r)
	}
}

func dumpRoute(w io.Writer, r *model.Route) {
	fmt.Fprintf(w, "  %s %q ->", r.Match.Path.Type, r.Match.Path.Value)
	for _, b := range r.Backends {
		fmt.Fprintf(w, " %s", b.Upstream)
	}
	if r.Unavailable != "" {
		fmt.Fprintf(w, " 503 (%s)", r.Unavailable)
	}
	for _, f := range r.Filters {
		fmt.Fprintf(w, " %s", filter(f))
	}
	if r.MaxBodyBytes != 1<<20 {
		fmt.Fprintf(w, " body=%d", r.MaxBodyBytes)
	}
	if r.Profile.BodyClass != model.Body1M {
		fmt.Fprintf(w, " class=%s", r.Profile.BodyClass)
	}
	dumpTuning(w, r)
	fmt.Fprintf(w, " of %s/%s\n", r.Source.Namespace, r.Source.Name)
}

// dumpTuning writes what a route and its profile say besides the defaults.
func dumpTuning(w io.Writer, r *model.Route) {
	if t := r.Timeouts; t != (model.Timeouts{Connect: 5 * time.Second, Send: time.Minute, Read: time.Minute}) {
		fmt.Fprintf(w, " timeouts=%s,%s,%s", t.Connect, t.Send, t.Read)
	}
	if r.Retry != (model.Retry{Tries: 3}) {
		fmt.Fprintf(w, " retry=%+v", r.Retry)
	}
	if r.CookiePath != "" {
		fmt.Fprintf(w, " cookiePath=%q", r.CookiePath)
	}
	if r.PeerHost != "" {
		fmt.Fprintf(w, " peerHost=%q", r.PeerHost)
	}
	if r.NoAccessLog {
		fmt.Fprint(w, " noLog")
	}
	p := r.Profile
	p.BodyClass = ""
	writeSet(w, " ", p)
}

// writeSet writes the fields of a struct that are not zero.
func writeSet(w io.Writer, before string, v any) {
	value := reflect.ValueOf(v)
	for i := range value.NumField() {
		if f := value.Field(i); !f.IsZero() {
			if f.Kind() == reflect.Pointer {
				f = f.Elem()
			}
			fmt.Fprintf(w, "%s%s=%+v", before, value.Type().Field(i).Name, f.Interface())
		}
	}
}

func dumpUpstream(w io.Writer, u *model.Upstream) {
	fmt.Fprintf(w, "upstream %s", u.ID)
	policy := *u
	policy.ID, policy.Peers, policy.Check = "", nil, nil // checks have lines of their own
	if policy.Algorithm == model.RoundRobin {
		policy.Algorithm = ""
	}
	if policy.Cookie != nil {
		fmt.Fprint(w, " cookie(")
		writeSet(w, " ", *policy.Cookie)
		fmt.Fprint(w, ")")
		policy.Cookie = nil
	}
	writeSet(w, " ", policy)
	fmt.Fprintln(w)
	for _, p := range u.Peers {
		fmt.Fprintf(w, "  %s", p.Address)
		if p.Draining {
			fmt.Fprint(w, " draining")
		}
		if p.Down {
			fmt.Fprint(w, " down")
		}
		fmt.Fprintln(w)
	}
}

// dumpIdentity writes no key: that there is one must be enough.
func dumpIdentity(w io.Writer, i *model.Identity) {
	shown := *i
	fmt.Fprintf(w, "identity %s certificates=%d key=%v ca=%d", i.ID,
		bytes.Count(i.Certificate, []byte("BEGIN CERTIFICATE")), len(i.Key) > 0, bytes.Count(i.CA, []byte("BEGIN CERTIFICATE")))
	shown.ID, shown.Certificate, shown.Key, shown.CA = "", nil, nil, nil
	writeSet(w, " ", shown)
	fmt.Fprintln(w)
}

func filter(f model.Filter) string {
	switch f := f.(type) {
	case model.RedirectHTTPS:
		if f.KeepTrailingSlash {
			return fmt.Sprintf("https(%d, keeps slash)", f.Status)
		}
		return fmt.Sprintf("https(%d)", f.Status)
	case model.RewritePath:
		var parts []string
		for _, p := range f.Parts {
			if p.Group > 0 {
				parts = append(parts, fmt.Sprintf("$%d", p.Group))
			} else {
				parts = append(parts, fmt.Sprintf("%q", p.Literal))
			}
		}
		return "rewrite(" + strings.Join(parts, " ") + ")"
	}
	return fmt.Sprintf("%T", f)
}

func dumpCertificate(w io.Writer, c *model.Certificate) {
	if c.Keep {
		fmt.Fprintf(w, "certificate %s keep\n", c.ID)
		return
	}
	leaf, err := x509.ParseCertificate(c.Chain[0])
	if err != nil {
		fmt.Fprintf(w, "certificate %s: %v\n", c.ID, err)
		return
	}
	fmt.Fprintf(w, "certificate %s names=%v cn=%q chain=%d until=%s\n",
		c.ID, leaf.DNSNames, leaf.Subject.CommonName, len(c.Chain), c.NotAfter.UTC().Format(time.RFC3339))
}
