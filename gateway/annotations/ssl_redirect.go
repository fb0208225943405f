package annotations

func sslRedirect() Annotation {
	return Annotation{
		Name: "ssl-redirect",
		Doc: "Redirects http requests to https with status 308 where TLS is configured for the host. Without TLS it " +
			"does nothing; see force-ssl-redirect. Path prefixes in the setting noTLSRedirectLocations are never redirected.",
		Values:  `"true" or "false"`,
		Default: "the setting sslRedirect (true)",
		Example: "false",
		Risk:    Low,
		Scope:   Paths,
		parse: func(value string, into *Values) error {
			on, err := parseBool(value)
			if err == nil {
				into.SSLRedirect = &on
			}
			return err
		},
	}
}
