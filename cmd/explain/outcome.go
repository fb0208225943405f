package explain

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"headgate/gateway/model"
	"headgate/gateway/snapshot"
)

// outcome says what becomes of the request, and why if it is an error.
func (e *explainer) outcome() {
	if e.seen.Sent != nil && e.Upstream != nil {
		e.Outcome = Backend
		return
	}
	e.Status = e.seen.Status
	if e.seen.Location != "" {
		e.Outcome, e.Location = Redirect, e.seen.Location
		return
	}
	e.Outcome = Failure
	switch r := e.seen.Router; {
	case r == nil:
		e.refused()
	case r.Host == nil:
		e.noHost(r.Broken)
	case r.Route == nil:
		e.noRoute(r.Error)
	case r.Route.Unavailable:
		e.Reason, e.Why = RouteUnavailable, "the "+e.Source.Kind+" cannot be served as it is"
		if route := e.modelRoute(); route != nil && route.Unavailable != "" {
			e.Why = route.Unavailable
		}
	case e.Status == http.StatusRequestEntityTooLarge:
		e.Reason = BodyTooLarge
		e.Why = fmt.Sprintf("the Content-Length is larger than the %d bytes that the route allows", e.Profile.MaxBodyBytes)
	case r.Upstream != nil && r.Upstream.Count == 0:
		e.noEndpoints()
	default:
		e.Reason, e.Why = Unexplained, fmt.Sprintf("the proxy answers %d %s by itself; its error log says more", e.Status, http.StatusText(e.Status))
	}
}

func (e *explainer) refused() {
	e.Reason = Refused
	e.Why = fmt.Sprintf("nginx refuses the request before any route is looked for (%d %s): "+
		"its request line, Host or headers are not well-formed, or too large", e.Status, http.StatusText(e.Status))
	if e.Status == http.StatusMethodNotAllowed {
		e.Why = "nginx serves no method " + e.asked.method
	}
}

func (e *explainer) noHost(broken bool) { //nolint:revive // an observed fact, not a switch
	name := e.Request.Host
	if broken {
		e.Reason, e.Why = HostUnusable, fmt.Sprintf("the proxy cannot read its entry for host %q; 'headgate status' shows the worker's error", name)
		return
	}
	e.Reason, e.Why = HostNotFound, fmt.Sprintf("no Ingress that is served names host %q, a wildcard for it, or any host", name)
	e.unserved()
	if _, parent, found := strings.Cut(name, "."); found && e.Result != nil {
		for _, h := range e.Result.Model.Hosts {
			wildcard, is := strings.CutPrefix(string(h.Name), "*.")
			if is && wildcard != parent && strings.HasSuffix(name, "."+wildcard) {
				e.hint("host *.%s stands for one label only: it serves x.%[1]s, not %s", wildcard, name)
			}
		}
	}
}

func (e *explainer) noRoute(regexError string) {
	what := fmt.Sprintf("host %q", *e.seen.Router.Host)
	if *e.seen.Router.Host == "" {
		what = "the entry for any host"
	}
	if regexError != "" {
		e.Reason, e.Why = RegexFailed, fmt.Sprintf("a regular expression of %s cannot be run on this path: %s", what, regexError)
		return
	}
	e.Reason, e.Why = PathNotFound, fmt.Sprintf("no rule of %s matches path %q", what, e.Request.Path)
	h := e.modelHost()
	if h == nil {
		return
	}
	const most = 10
	var rules []string
	for i, r := range h.Routes {
		if i == most {
			rules = append(rules, fmt.Sprintf("and %d more", len(h.Routes)-most))
			break
		}
		rules = append(rules, string(r.Match.Path.Type)+" "+r.Match.Path.Value)
	}
	e.hint("its rules are: %s", strings.Join(rules, ", "))
	e.unserved()
}

// unserved names the Ingresses that have the host and are not ours: the usual cause is their class.
func (e *explainer) unserved() {
	if e.Result == nil {
		return
	}
	for _, i := range e.ingressesOfHost() {
		if slices.Contains(e.Result.Served, i.Key) {
			continue
		}
		class := "no class"
		if name := i.Annotations["kubernetes.io/ingress.class"]; name != "" {
			class = "class " + name
		}
		if i.Spec.IngressClassName != nil {
			class = "class " + *i.Spec.IngressClassName
		}
		e.hint("Ingress %s names the host, and is not served: it is of %s, which is not this gateway's", i.Key, class)
	}
}

func (e *explainer) noEndpoints() {
	e.Reason = NoEndpoints
	s := e.Source
	service := fmt.Sprintf("Service %s", snapshot.Key{Namespace: s.Namespace, Name: s.Service})
	if port := s.Port; port != "" {
		service += " port " + port
	}
	e.Why = service + " has no endpoint that is ready"
	if e.Snapshot == nil {
		return
	}
	all := e.slices(s)
	if len(all) == 0 {
		e.hint("there is no EndpointSlice of the Service: its selector matches no pod, or it has none")
		return
	}
	total, ready := 0, 0
	for _, slice := range all {
		for _, endpoint := range slice.Endpoints {
			total++
			if endpoint.Ready {
				ready++
			}
		}
	}
	e.hint("its EndpointSlices hold %d endpoints, %d of them ready", total, ready)
	if ready > 0 {
		e.hint("those that are ready have no port of that name, or addresses that are refused")
	}
}

// filters names what happens to the request on its way, for people.
func (e Explanation) filters() []string {
	var list []string
	if e.Location != "" {
		list = append(list, fmt.Sprintf("redirect %d to %s", e.Status, e.Location))
	}
	if e.Sent != nil && e.Sent.Rewritten {
		list = append(list, "rewrite")
	}
	return list
}

func (m Match) String() string {
	if m.Type == string(model.PathRegex) {
		return "regular expression " + m.Path
	}
	return m.Type + " " + m.Path
}
