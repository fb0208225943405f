// Package rbac knows what headgate asks of the Kubernetes API and writes the roles that allow just that: for a
// whole cluster, or for some namespaces of it. It is pure and holds the only list; `headgate rbac` prints the
// roles, packaging/rbac.yaml is generated from them, and `headgate check` asks the API server for each rule.
package rbac

import (
	"slices"
	"strings"

	"headgate/cmd/config"
)

// Options say what headgate will be told to do. The zero value reads the whole cluster and writes nothing.
type Options struct {
	// Namespaces limits what is read; empty means the whole cluster.
	Namespaces []string
	// DefaultCertificate is namespace/name of a Secret that is read whatever the namespaces; "" means none.
	DefaultCertificate string
	// Status tells that status and Events are written, by the host that holds the Lease.
	Status                    bool
	LeaseNamespace, LeaseName string
	// Account is whom the roles are bound to. Its name begins the names of all roles.
	Account Account
}

// Account is a ServiceAccount.
type Account struct{ Namespace, Name string }

// From takes the options from a configuration. The account is the shipped one.
func From(c config.Config) Options {
	return Options{
		Namespaces: c.Namespaces, DefaultCertificate: c.DefaultCertificate,
		Status: c.Status.Enabled, LeaseNamespace: c.Status.LeaseNamespace, LeaseName: c.Status.LeaseName,
		Account: Account{Namespace: "headgate-system", Name: "headgate"},
	}
}

// Rule is one thing that headgate does: the verbs on one resource in one place.
type Rule struct {
	// Why says in one sentence what it is for.
	Why string
	// Namespace is where it holds; "" is the whole cluster.
	Namespace string
	// Group is "" for the core group. Resource may name a subresource ("ingresses/status").
	Group, Resource string
	// Names limits it to objects of these names; empty means all.
	Names []string
	Verbs []string

	role string // what is bound together: the end of the role's name
}

// The roles. Those of one namespace are one role.
const (
	readRole    = "read"
	secretsRole = "secrets"
	statusRole  = "status"
	leaseRole   = "lease"
	classesRole = "classes"
	edgeRole    = "edge"
	defaultRole = "default-certificate"
)

// Rules lists everything, in the order in which it is printed.
//
// Informers list and watch, and get nothing. Servers that stream the first list through the watch (KEP-3157, on by
// default since Kubernetes 1.34) do not even need list; older ones do, and client-go falls back to it.
func Rules(o Options) []Rule {
	classes := Rule{
		Why:   "Which Ingresses are ours: the controller of their IngressClass. IngressClasses belong to no namespace.",
		Group: "networking.k8s.io", Resource: "ingressclasses", Verbs: []string{"list", "watch"}, role: classesRole,
	}
	var rules []Rule
	if len(o.Namespaces) == 0 {
		classes.role = readRole
		rules = append(rules, classes)
		rules = append(rules, o.inOne("")...)
	} else {
		rules = append(rules, classes)
		for _, namespace := range o.Namespaces {
			for _, r := range o.inOne(namespace) {
				r.role = edgeRole
				rules = append(rules, r)
			}
		}
		rules = append(rules, defaultCertificate(o)...)
	}
	if o.Status {
		rules = append(rules, lease(o)...)
	}
	return rules
}

// inOne are the rules of one namespace, or of all with "".
func (o Options) inOne(namespace string) []Rule {
	ingresses := []string{"list", "watch"}
	why := "Hosts, paths and backends."
	if o.Status {
		ingresses = []string{"get", "list", "watch"}
		why += " get: publish.clearOnStop looks again before it takes the addresses out."
	}
	rules := []Rule{
		{Why: why, Group: "networking.k8s.io", Resource: "ingresses", Verbs: ingresses, role: readRole},
		{Why: "Ports of the backends.", Resource: "services", Verbs: []string{"list", "watch"}, role: readRole},
		{Why: "Addresses of the pods.", Group: "discovery.k8s.io", Resource: "endpointslices", Verbs: []string{"list", "watch"}, role: readRole},
		{
			Why:      "Certificates and their keys. Only those of type kubernetes.io/tls, and of type Opaque those named by proxy-ssl-secret, are asked for; RBAC cannot say so.",
			Resource: "secrets", Verbs: []string{"list", "watch"}, role: secretsRole,
		},
	}
	if o.Status {
		rules = append(rules,
			Rule{
				Why:   "publish.addresses, in the status of each served Ingress.",
				Group: "networking.k8s.io", Resource: "ingresses/status", Verbs: []string{"patch"}, role: statusRole,
			},
			Rule{
				Why:   "What is wrong with an object, told as an Event of it; patch counts one that came back.",
				Group: "events.k8s.io", Resource: "events", Verbs: []string{"create", "patch"}, role: statusRole,
			})
	}
	for i := range rules {
		rules[i].Namespace = namespace
	}
	return rules
}

// defaultCertificate is for a Secret outside of the namespaces. A list of one name is allowed by that name.
func defaultCertificate(o Options) []Rule {
	namespace, name, found := strings.Cut(o.DefaultCertificate, "/")
	if !found || slices.Contains(o.Namespaces, namespace) {
		return nil
	}
	return []Rule{{
		Why:       "The default certificate (defaultCertificate), and no other Secret of its namespace.",
		Namespace: namespace, Resource: "secrets", Names: []string{name}, Verbs: []string{"list", "watch"}, role: defaultRole,
	}}
}

func lease(o Options) []Rule {
	return []Rule{
		{
			Why:       "The Lease that elects the one host which writes status and Events. A create cannot be limited to a name.",
			Namespace: o.LeaseNamespace, Group: "coordination.k8s.io", Resource: "leases", Verbs: []string{"create"}, role: leaseRole,
		},
		{
			Why:       "Holding it, and giving it back.",
			Namespace: o.LeaseNamespace, Group: "coordination.k8s.io", Resource: "leases", Names: []string{o.LeaseName},
			Verbs: []string{"get", "update"}, role: leaseRole,
		},
	}
}
