package annotations

func preserveTrailingSlash() Annotation {
	return Annotation{
		Name:    "preserve-trailing-slash",
		Doc:     "Keeps a slash at the end of the request path in redirects to https; without it the slash is cut off.",
		Values:  `"true" or "false"`,
		Default: "false",
		Example: "true",
		Risk:    Medium,
		Scope:   Paths,
		parse: func(value string, into *Values) error {
			on, err := parseBool(value)
			if err == nil {
				into.PreserveTrailingSlash = on
			}
			return err
		},
	}
}
