package annotations

func forceSSLRedirect() Annotation {
	return Annotation{
		Name: "force-ssl-redirect",
		Doc: "Redirects http requests to https with status 308 even where no TLS is configured for the host, for " +
			"example when TLS ends in front of headgate. Path prefixes in the setting noTLSRedirectLocations are never redirected.",
		Values:  `"true" or "false"`,
		Default: "false",
		Example: "true",
		Risk:    Medium,
		Scope:   Paths,
		parse: func(value string, into *Values) error {
			on, err := parseBool(value)
			if err == nil {
				into.ForceSSLRedirect = on
			}
			return err
		},
	}
}
