package annotations

// later is an annotation that ingress-nginx knows and headgate does not serve yet.
type later struct {
	name string
	risk Risk
	// meanwhile is what its Ingress gets until then. The zero value leaves out the annotation alone: right for
	// comfort and tuning, wrong where its author keeps somebody out or means another Ingress.
	meanwhile Meanwhile
	lacking   lacking
}

// lacking is what is to be built before an annotation can be served, in words for the reference page.
type lacking string

const (
	canaries       lacking = "canary Ingresses"
	authentication lacking = "authentication"
	clientCerts    lacking = "client certificates"
	addressLists   lacking = "lists of client addresses"
	redirection    lacking = "redirects that annotations ask for"
	headers        lacking = "headers to peers and clients that annotations ask for"
	configMaps     lacking = "ConfigMaps, which are not read yet"
	cors           lacking = "CORS"
	errorPages     lacking = "error pages and default backends of annotations"
	rateLimits     lacking = "limits of rate and bandwidth"
	mirroring      lacking = "mirrored requests"
	firewall       lacking = "a web application firewall"
	tracing        lacking = "traces"
	answers        lacking = "rewritten cookies and Locations of answers"
	aliases        lacking = "aliases of hosts"
	hostTLS        lacking = "TLS settings of single hosts"
	passthrough    lacking = "TLS that is passed through"
	snippets       lacking = "snippets: text for nginx.conf is never taken from an Ingress; ask for a typed annotation instead"
	nothing        lacking = "nothing: it does not do anything in ingress-nginx either; remove it"
	rewriteLog     lacking = "nothing to log: paths are not rewritten by nginx; see headgate explain"
)

// notYet lists what of ingress-nginx v1.15's 138 annotation names (136 and two older spellings) is not in All,
// sorted by name. An annotation that gets served moves from here to All.
func notYet() []later {
	return []later{
		{"affinity-canary-behavior", Low, ServeWithout, canaries},
		{"allowlist-source-range", Medium, Withhold, addressLists},
		{"app-root", Medium, ServeWithout, redirection},
		{"auth-always-set-cookie", Low, ServeWithout, authentication},
		{"auth-cache-duration", Medium, ServeWithout, authentication},
		{"auth-cache-key", Medium, ServeWithout, authentication},
		{"auth-keepalive", Low, ServeWithout, authentication},
		{"auth-keepalive-requests", Low, ServeWithout, authentication},
		{"auth-keepalive-share-vars", Low, ServeWithout, authentication},
		{"auth-keepalive-timeout", Low, ServeWithout, authentication},
		{"auth-method", Low, ServeWithout, authentication},
		{"auth-proxy-set-headers", Medium, ServeWithout, configMaps},
		{"auth-realm", Medium, ServeWithout, authentication},
		{"auth-request-redirect", Medium, ServeWithout, authentication},
		{"auth-response-headers", Medium, ServeWithout, authentication},
		{"auth-secret", Medium, ServeWithout, authentication},
		{"auth-secret-type", Low, ServeWithout, authentication},
		{"auth-signin", High, ServeWithout, authentication},
		{"auth-signin-redirect-param", Medium, ServeWithout, authentication},
		{"auth-snippet", Critical, ServeWithout, snippets},
		{"auth-tls-error-page", High, ServeWithout, clientCerts},
		{"auth-tls-match-cn", High, ServeWithout, clientCerts},
		{"auth-tls-pass-certificate-to-upstream", Low, ServeWithout, clientCerts},
		{"auth-tls-secret", Medium, Withhold, clientCerts},
		{"auth-tls-verify-client", Medium, ServeWithout, clientCerts},
		{"auth-tls-verify-depth", Low, ServeWithout, clientCerts},
		{"auth-type", Low, Withhold, authentication},
		{"auth-url", High, Withhold, authentication},
		{"canary", Low, LeaveOut, canaries},
		{"canary-by-cookie", Medium, ServeWithout, canaries},
		{"canary-by-header", Medium, ServeWithout, canaries},
		{"canary-by-header-pattern", Medium, ServeWithout, canaries},
		{"canary-by-header-value", Medium, ServeWithout, canaries},
		{"canary-weight", Low, ServeWithout, canaries},
		{"canary-weight-total", Low, ServeWithout, canaries},
		{"configuration-snippet", Critical, ServeWithout, snippets},
		{"connection-proxy-header", Low, ServeWithout, headers},
		{"cors-allow-credentials", Low, ServeWithout, cors},
		{"cors-allow-headers", Medium, ServeWithout, cors},
		{"cors-allow-methods", Medium, ServeWithout, cors},
		{"cors-allow-origin", Medium, ServeWithout, cors},
		{"cors-expose-headers", Medium, ServeWithout, cors},
		{"cors-max-age", Low, ServeWithout, cors},
		{"custom-headers", Medium, ServeWithout, configMaps},
		{"custom-http-errors", Low, ServeWithout, errorPages},
		{"default-backend", Low, ServeWithout, errorPages},
		{"denylist-source-range", Medium, Withhold, addressLists},
		{"disable-proxy-intercept-errors", Low, ServeWithout, errorPages},
		{"enable-cors", Low, ServeWithout, cors},
		{"enable-global-auth", Low, ServeWithout, authentication},
		{"enable-modsecurity", Low, ServeWithout, firewall},
		{"enable-opentelemetry", Low, ServeWithout, tracing},
		{"enable-owasp-core-rules", Low, ServeWithout, firewall},
		{"enable-rewrite-log", Low, ServeWithout, rewriteLog},
		{"fastcgi-params-configmap", Medium, ServeWithout, configMaps},
		{"from-to-www-redirect", Low, ServeWithout, redirection},
		{"http2-push-preload", Low, ServeWithout, nothing},
		{"limit-allowlist", Low, ServeWithout, rateLimits},
		{"limit-burst-multiplier", Low, ServeWithout, rateLimits},
		{"limit-connections", Low, ServeWithout, rateLimits},
		{"limit-rate", Low, ServeWithout, rateLimits},
		{"limit-rate-after", Low, ServeWithout, rateLimits},
		{"limit-rpm", Low, ServeWithout, rateLimits},
		{"limit-rps", Low, ServeWithout, rateLimits},
		{"limit-whitelist", Low, ServeWithout, rateLimits},
		{"mirror-host", High, ServeWithout, mirroring},
		{"mirror-request-body", Low, ServeWithout, mirroring},
		{"mirror-target", High, ServeWithout, mirroring},
		{"modsecurity-snippet", Critical, ServeWithout, snippets},
		{"modsecurity-transaction-id", High, ServeWithout, firewall},
		{"opentelemetry-operation-name", Medium, ServeWithout, tracing},
		{"opentelemetry-trust-incoming-span", Low, ServeWithout, tracing},
		{"permanent-redirect", Medium, ServeWithout, redirection},
		{"permanent-redirect-code", Low, ServeWithout, redirection},
		{"proxy-cookie-domain", Medium, ServeWithout, answers},
		{"proxy-cookie-path", Medium, ServeWithout, answers},
		{"proxy-redirect-from", Medium, ServeWithout, answers},
		{"proxy-redirect-to", Medium, ServeWithout, answers},
		{"relative-redirects", Low, ServeWithout, redirection},
		{"satisfy", Low, ServeWithout, authentication},
		{"server-alias", High, ServeWithout, aliases},
		{"server-snippet", Critical, ServeWithout, snippets},
		{"ssl-ciphers", Low, ServeWithout, hostTLS},
		{"ssl-passthrough", Low, ServeWithout, passthrough},
		{"ssl-prefer-server-ciphers", Low, ServeWithout, hostTLS},
		{"stream-snippet", Critical, ServeWithout, snippets},
		{"temporal-redirect", Medium, ServeWithout, redirection},
		{"temporal-redirect-code", Low, ServeWithout, redirection},
		{"use-port-in-redirects", Low, ServeWithout, redirection},
		{"whitelist-source-range", Medium, Withhold, addressLists},
		{"x-forwarded-prefix", Medium, ServeWithout, headers},
	}
}

// Pending is an annotation that ingress-nginx knows and headgate does not serve yet.
type Pending struct {
	Name      string // without the prefix
	Meanwhile Meanwhile
	Lacking   string // what is to be built before it can be served
}

// NotYet lists what of ingress-nginx's annotations is not in All, sorted by name.
func NotYet() []Pending {
	var all []Pending
	for _, k := range notYet() {
		all = append(all, Pending{k.name, k.meanwhile, string(k.lacking)})
	}
	return all
}

// Known tells whether ingress-nginx knows an annotation of that name, which is written without its prefix, and
// how risky it is.
func Known(name string) (Risk, bool) {
	for _, a := range All() {
		if a.Name == name {
			return a.Risk, true
		}
	}
	for _, k := range notYet() {
		if k.name == name {
			return k.risk, true
		}
	}
	return "", false
}

// Names lists every name that Known knows, sorted by kind: served ones first.
func Names() []string {
	var names []string
	for _, a := range All() {
		names = append(names, a.Name)
	}
	for _, k := range notYet() {
		names = append(names, k.name)
	}
	return names
}
