package annotations

func serviceUpstream() Annotation {
	return Annotation{
		Name: "service-upstream",
		Doc: "Sends requests to the address and port of the Service (clusterIP) instead of its endpoints, so that the cluster picks the " +
			"pod. Retries, health and balancing then see one peer only. The host must be able to reach addresses of Services.",
		Values:  boolValues,
		Default: "the setting upstreams.serviceUpstream (false)",
		Example: "true",
		Risk:    Low,
		Scope:   Paths,
		parse:   inBooleans(func(v *Values, on bool) { v.balancing().ServiceUpstream = &on }),
	}
}
