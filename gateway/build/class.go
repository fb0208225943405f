package build

import (
	"fmt"
	"slices"

	"headgate/gateway/annotations"
	"headgate/gateway/snapshot"
)

// What ingress-nginx calls itself by default; Options.TakeOver serves what is meant for it.
const (
	nginxController = "k8s.io/ingress-nginx"
	nginxClass      = "nginx"
)

// classes knows which IngressClasses are ours.
type classes struct {
	ours         map[string]bool // by name; false: somebody else's
	defaultIsOur bool
}

func (b *Builder) readClasses(list []*snapshot.IngressClass) classes {
	c := classes{ours: make(map[string]bool, len(list))}
	for _, class := range list {
		ours := slices.Contains(b.options.ControllerNames, class.Controller) ||
			(b.options.TakeOver && class.Controller == nginxController)
		c.ours[class.Name] = ours
		c.defaultIsOur = c.defaultIsOur || (ours && class.Default)
	}
	return c
}

// claims tells whether an Ingress is ours. spec.ingressClassName decides before the annotation, and that
// before the rule for Ingresses without a class.
func (b *Builder) claims(in *ingress) (bool, []Problem) {
	if name := in.src.Spec.IngressClassName; name != nil && *name != "" {
		ours, exists := b.inputs.classes.ours[*name]
		if !exists && b.isOurAnnotation(*name) {
			return false, []Problem{in.problem("spec.ingressClassName", ClassNotFound, fmt.Sprintf(
				"there is no IngressClass %q, so the Ingress is not served; create it with spec.controller %q, or write the annotation %s instead",
				*name, b.anyController(), annotations.IngressClass))}
		}
		return ours, nil
	}
	if value := in.src.Annotations[annotations.IngressClass]; value != "" {
		return b.isOurAnnotation(value), nil
	}
	return b.options.WatchWithoutClass || b.inputs.classes.defaultIsOur, nil
}

func (b *Builder) isOurAnnotation(value string) bool {
	return value == b.options.IngressClass || (b.options.TakeOver && value == nginxClass)
}

// anyController is a controller name to write into an IngressClass.
func (b *Builder) anyController() string {
	if len(b.options.ControllerNames) > 0 {
		return b.options.ControllerNames[0]
	}
	return nginxController
}
