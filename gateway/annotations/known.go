package annotations

// later is an annotation that ingress-nginx knows and headgate does not serve yet.
type later struct {
	name string
	risk Risk
	// meanwhile is what its Ingress gets until then. The zero value leaves out the annotation alone: right for
	// comfort and tuning, wrong where its author keeps somebody out or means another Ingress.
	meanwhile Meanwhile
}

// notYet lists what of ingress-nginx v1.15's 138 annotation names (136 and two older spellings) is not in All,
// sorted by name. An annotation that gets served moves from here to All.
func notYet() []later {
	return []later{
		{"affinity-canary-behavior", Low, ServeWithout},
		{"allowlist-source-range", Medium, Withhold},
		{"app-root", Medium, ServeWithout},
		{"auth-always-set-cookie", Low, ServeWithout},
		{"auth-cache-duration", Medium, ServeWithout},
		{"auth-cache-key", Medium, ServeWithout},
		{"auth-keepalive", Low, ServeWithout},
		{"auth-keepalive-requests", Low, ServeWithout},
		{"auth-keepalive-share-vars", Low, ServeWithout},
		{"auth-keepalive-timeout", Low, ServeWithout},
		{"auth-method", Low, ServeWithout},
		{"auth-proxy-set-headers", Medium, ServeWithout},
		{"auth-realm", Medium, ServeWithout},
		{"auth-request-redirect", Medium, ServeWithout},
		{"auth-response-headers", Medium, ServeWithout},
		{"auth-secret", Medium, ServeWithout},
		{"auth-secret-type", Low, ServeWithout},
		{"auth-signin", High, ServeWithout},
		{"auth-signin-redirect-param", Medium, ServeWithout},
		{"auth-snippet", Critical, ServeWithout},
		{"auth-tls-error-page", High, ServeWithout},
		{"auth-tls-match-cn", High, ServeWithout},
		{"auth-tls-pass-certificate-to-upstream", Low, ServeWithout},
		{"auth-tls-secret", Medium, Withhold},
		{"auth-tls-verify-client", Medium, ServeWithout},
		{"auth-tls-verify-depth", Low, ServeWithout},
		{"auth-type", Low, Withhold},
		{"auth-url", High, Withhold},
		{"canary", Low, LeaveOut},
		{"canary-by-cookie", Medium, ServeWithout},
		{"canary-by-header", Medium, ServeWithout},
		{"canary-by-header-pattern", Medium, ServeWithout},
		{"canary-by-header-value", Medium, ServeWithout},
		{"canary-weight", Low, ServeWithout},
		{"canary-weight-total", Low, ServeWithout},
		{"client-body-buffer-size", Low, ServeWithout},
		{"configuration-snippet", Critical, ServeWithout},
		{"connection-proxy-header", Low, ServeWithout},
		{"cors-allow-credentials", Low, ServeWithout},
		{"cors-allow-headers", Medium, ServeWithout},
		{"cors-allow-methods", Medium, ServeWithout},
		{"cors-allow-origin", Medium, ServeWithout},
		{"cors-expose-headers", Medium, ServeWithout},
		{"cors-max-age", Low, ServeWithout},
		{"custom-headers", Medium, ServeWithout},
		{"custom-http-errors", Low, ServeWithout},
		{"default-backend", Low, ServeWithout},
		{"denylist-source-range", Medium, Withhold},
		{"disable-proxy-intercept-errors", Low, ServeWithout},
		{"enable-cors", Low, ServeWithout},
		{"enable-global-auth", Low, ServeWithout},
		{"enable-modsecurity", Low, ServeWithout},
		{"enable-opentelemetry", Low, ServeWithout},
		{"enable-owasp-core-rules", Low, ServeWithout},
		{"enable-rewrite-log", Low, ServeWithout},
		{"fastcgi-params-configmap", Medium, ServeWithout},
		{"from-to-www-redirect", Low, ServeWithout},
		{"http2-push-preload", Low, ServeWithout},
		{"limit-allowlist", Low, ServeWithout},
		{"limit-burst-multiplier", Low, ServeWithout},
		{"limit-connections", Low, ServeWithout},
		{"limit-rate", Low, ServeWithout},
		{"limit-rate-after", Low, ServeWithout},
		{"limit-rpm", Low, ServeWithout},
		{"limit-rps", Low, ServeWithout},
		{"limit-whitelist", Low, ServeWithout},
		{"mirror-host", High, ServeWithout},
		{"mirror-request-body", Low, ServeWithout},
		{"mirror-target", High, ServeWithout},
		{"modsecurity-snippet", Critical, ServeWithout},
		{"modsecurity-transaction-id", High, ServeWithout},
		{"opentelemetry-operation-name", Medium, ServeWithout},
		{"opentelemetry-trust-incoming-span", Low, ServeWithout},
		{"permanent-redirect", Medium, ServeWithout},
		{"permanent-redirect-code", Low, ServeWithout},
		{"proxy-cookie-domain", Medium, ServeWithout},
		{"proxy-cookie-path", Medium, ServeWithout},
		{"proxy-redirect-from", Medium, ServeWithout},
		{"proxy-redirect-to", Medium, ServeWithout},
		{"relative-redirects", Low, ServeWithout},
		{"satisfy", Low, ServeWithout},
		{"server-alias", High, ServeWithout},
		{"server-snippet", Critical, ServeWithout},
		{"ssl-ciphers", Low, ServeWithout},
		{"ssl-passthrough", Low, ServeWithout},
		{"ssl-prefer-server-ciphers", Low, ServeWithout},
		{"stream-snippet", Critical, ServeWithout},
		{"temporal-redirect", Medium, ServeWithout},
		{"temporal-redirect-code", Low, ServeWithout},
		{"upstream-vhost", Low, ServeWithout},
		{"use-port-in-redirects", Low, ServeWithout},
		{"whitelist-source-range", Medium, Withhold},
		{"x-forwarded-prefix", Medium, ServeWithout},
	}
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
