package annotations

func useRegex() Annotation {
	return Annotation{
		Name: "use-regex",
		Doc: "Reads the paths of the Ingress as regular expressions (PCRE). As in ingress-nginx this changes the whole " +
			"host: all of its paths are then matched from the start of the request path, without regard to case, " +
			"longer ones first, whatever their pathType. Paths of other Ingresses of the host stand for themselves, " +
			"letter by letter. A path without an end anchor also matches what only begins with it.",
		Values:  `"true" or "false"`,
		Default: "false",
		Example: "true",
		Risk:    Low,
		Scope:   Host,
		parse: func(value string, into *Values) error {
			on, err := parseBool(value)
			if err == nil {
				into.UseRegex = on
			}
			return err
		},
	}
}
