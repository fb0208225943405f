package rbac

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// role is what is bound together: a Role, or without a namespace a ClusterRole.
type role struct {
	namespace, name string
	why             string
	rules           []Rule
}

func (r role) kind() string {
	if r.namespace == "" {
		return "ClusterRole"
	}
	return "Role"
}

// roles puts the rules together, in their order.
func roles(o Options) []role {
	var all []role
	for _, rule := range Rules(o) {
		name := o.Account.Name + "-" + rule.role
		i := slices.IndexFunc(all, func(r role) bool { return r.name == name && r.namespace == rule.Namespace })
		if i < 0 {
			all = append(all, role{namespace: rule.Namespace, name: name, why: whyOf(rule.role)})
			i = len(all) - 1
		}
		all[i].rules = append(all[i].rules, rule)
	}
	return all
}

func whyOf(role string) string {
	switch role {
	case readRole:
		return "What is served, in all namespaces."
	case secretsRole:
		return "The Secrets of all namespaces. To allow those of some namespaces only: headgate rbac --namespaces a,b"
	case statusRole:
		return "What is written back. A spec is never written."
	case leaseRole:
		return "Who writes, where several hosts serve one cluster (status.leaseNamespace, status.leaseName)."
	case classesRole:
		return "The one thing that belongs to no namespace."
	case edgeRole:
		return "Everything that headgate does in this namespace."
	default:
		return "One Secret outside of the namespaces."
	}
}

// namespaces are those that the roles need besides those that are served.
func namespaces(o Options) []string {
	list := []string{o.Account.Namespace}
	if o.Status && !slices.Contains(list, o.LeaseNamespace) {
		list = append(list, o.LeaseNamespace)
	}
	return list
}

// text quotes what YAML would not take for text: a namespace may be called 123, or null.
func text(name string) string {
	var read any
	if err := yaml.Unmarshal([]byte(name), &read); err == nil && read == name {
		return name
	}
	return `"` + name + `"`
}

func texts(names []string) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = text(name)
	}
	return strings.Join(quoted, ", ")
}

// YAML writes the manifest for people: each rule says what it is for. command is what made it, for the head.
func YAML(o Options, command string) []byte {
	var b strings.Builder
	scope := "in a whole cluster"
	if len(o.Namespaces) > 0 {
		scope = "in the namespaces " + strings.Join(o.Namespaces, ", ")
	}
	fmt.Fprintf(&b, `# Made by: %s
# What headgate may do %s, and nothing else: each rule is needed, and together
# they are enough. It never writes a spec and never reads a pod.
`, command, scope)
	for i, n := range namespaces(o) {
		if i > 0 {
			b.WriteString("---\n")
		}
		fmt.Fprintf(&b, "apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", text(n))
	}
	fmt.Fprintf(&b, "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {namespace: %s, name: %s}\n", text(o.Account.Namespace), text(o.Account.Name))
	for _, r := range roles(o) {
		r.yaml(&b, o.Account)
	}
	return []byte(b.String())
}

func (r role) yaml(b *strings.Builder, account Account) {
	metadata := "{name: " + text(r.name) + "}"
	if r.namespace != "" {
		metadata = "{namespace: " + text(r.namespace) + ", name: " + text(r.name) + "}"
	}
	fmt.Fprintf(b, "---\n# %s\napiVersion: rbac.authorization.k8s.io/v1\nkind: %s\nmetadata: %s\nrules:\n", r.why, r.kind(), metadata)
	for _, rule := range r.rules {
		group := rule.Group
		if group == "" {
			group = `""`
		}
		names := ""
		if len(rule.Names) > 0 {
			names = ", resourceNames: [" + texts(rule.Names) + "]"
		}
		fmt.Fprintf(b, "  # %s\n  - {apiGroups: [%s], resources: [%s]%s, verbs: [%s]}\n",
			rule.Why, group, rule.Resource, names, strings.Join(rule.Verbs, ", "))
	}
	fmt.Fprintf(b, `---
apiVersion: rbac.authorization.k8s.io/v1
kind: %[1]sBinding
metadata: %[2]s
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: %[1]s, name: %[3]s}
subjects:
  - {kind: ServiceAccount, namespace: %[4]s, name: %[5]s}
`, r.kind(), metadata, text(r.name), text(account.Namespace), text(account.Name))
}

// JSON writes the same objects as one List.
func JSON(o Options) ([]byte, error) {
	type object = map[string]any
	const group = "rbac.authorization.k8s.io"
	items := []object{}
	for _, n := range namespaces(o) {
		items = append(items, object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": n}})
	}
	items = append(items, object{
		"apiVersion": "v1", "kind": "ServiceAccount",
		"metadata": object{"namespace": o.Account.Namespace, "name": o.Account.Name},
	})
	for _, r := range roles(o) {
		metadata := object{"name": r.name}
		if r.namespace != "" {
			metadata["namespace"] = r.namespace
		}
		rules := []object{}
		for _, rule := range r.rules {
			one := object{"apiGroups": []string{rule.Group}, "resources": []string{rule.Resource}, "verbs": rule.Verbs}
			if len(rule.Names) > 0 {
				one["resourceNames"] = rule.Names
			}
			rules = append(rules, one)
		}
		items = append(items,
			object{"apiVersion": group + "/v1", "kind": r.kind(), "metadata": metadata, "rules": rules},
			object{
				"apiVersion": group + "/v1", "kind": r.kind() + "Binding", "metadata": metadata,
				"roleRef":  object{"apiGroup": group, "kind": r.kind(), "name": r.name},
				"subjects": []object{{"kind": "ServiceAccount", "namespace": o.Account.Namespace, "name": o.Account.Name}},
			})
	}
	text, err := json.MarshalIndent(object{"apiVersion": "v1", "kind": "List", "items": items}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the roles: %w", err)
	}
	return append(text, '\n'), nil
}
