package annotations

func affinity() Annotation {
	return Annotation{
		Name: "affinity",
		Doc: "Binds clients to peers by a cookie that headgate sets. The cookie is HttpOnly, and Secure when the request came over " +
			"https. A peer that is going keeps its sessions until it is gone.",
		Values:  `"cookie"`,
		Default: "clients are not bound; the Service may bind them by address (sessionAffinity: ClientIP)",
		Example: "cookie",
		Risk:    Low,
		Scope:   Paths,
		parse:   inWords([]string{"cookie"}, func(v *Values, _ string) { v.balancing().Affinity = true }),
	}
}

func affinityMode() Annotation {
	return Annotation{
		Name: "affinity-mode",
		Doc: "What becomes of bound clients when peers are added: balanced moves some of them to the new peers, persistent moves none " +
			"while their peer is there.",
		Values:  `"balanced" or "persistent"`,
		Default: "balanced",
		Example: "persistent",
		Risk:    Medium,
		Scope:   Paths,
		parse: inWords([]string{"balanced", "persistent"}, func(v *Values, word string) {
			v.balancing().Cookie.Persistent = word == "persistent"
		}),
		idle: withoutAffinity,
	}
}

func withoutAffinity(v *Values) string {
	if !v.Balancing.Affinity {
		return `there is no affinity: "cookie"; write it, or remove this one`
	}
	return ""
}
