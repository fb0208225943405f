package annotations

import "headgate/gateway/model"

// algorithmValues documents what load-balance takes on Ingresses and Services.
const algorithmValues = `"round_robin" (in turn, by weight), "least_conn" (fewest requests in flight), "p2c" (the less loaded of two random ones), ` +
	`"ewma" (the faster of two random ones, by response time) or "random"`

func algorithms() []string {
	return []string{
		string(model.RoundRobin), string(model.LeastConnections), string(model.PowerOfTwo), string(model.EWMA), string(model.Random),
	}
}

func loadBalance() Annotation {
	return Annotation{
		Name: "load-balance",
		Doc: "How a peer is picked. round_robin and ewma are those of ingress-nginx, the others are ours. upstream-hash-by " +
			"goes before it, and affinity before both.",
		Values:  algorithmValues,
		Default: "headgate.io/load-balance of the Service, else the setting upstreams.loadBalance (round_robin)",
		Example: "ewma",
		Risk:    Low,
		Scope:   Paths,
		parse:   inWords(algorithms(), func(v *Values, word string) { v.balancing().Algorithm = model.Algorithm(word) }),
	}
}

func serviceLoadBalance() Annotation {
	return Annotation{
		Name:    "load-balance",
		Doc:     "How a peer is picked. The annotations load-balance, upstream-hash-by and affinity of an Ingress go before it.",
		Values:  algorithmValues,
		Default: "the setting upstreams.loadBalance (round_robin)",
		Example: "p2c",
		Risk:    Low,
		Scope:   Service,
		parse:   inWords(algorithms(), func(v *Values, word string) { v.balancing().Algorithm = model.Algorithm(word) }),
	}
}
