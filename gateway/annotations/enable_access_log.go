package annotations

func enableAccessLog() Annotation {
	return Annotation{
		Name:    "enable-access-log",
		Doc:     "Writes the requests to these paths into the access log, where there is one.",
		Values:  boolValues,
		Default: "true",
		Example: "false",
		Risk:    Low,
		Scope:   Paths,
		parse:   inBooleans(func(v *Values, on bool) { v.NoAccessLog = !on }),
	}
}
