package golden

import (
	"bytes"
	"testing"

	"headgate/gateway/annotations"
	"headgate/gateway/build"
	"headgate/gateway/build/buildtest"
	"headgate/gateway/nginxconf"
)

// TestNoAnnotationIsSyntaxOfNginx gives each annotation values that would be syntax in nginx.conf, beside all that it
// takes to be looked at: none of them may stand there, and what stands there must be what stands there without them
// but for profiles.
func TestNoAnnotationIsSyntaxOfNginx(t *testing.T) {
	const objects = `kind: TestCertificate
metadata: {namespace: shop, name: peers}
dnsNames: [client.example]
ca: too
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: a}
spec: {ports: [{port: 80}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: shop, name: web, annotations: {kubernetes.io/ingress.class: headgate}}
spec: {rules: [{host: h.example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: a, port: {number: 80}}}}]}}]}
`
	for _, a := range annotations.All() {
		for _, hostile := range []string{
			"evil;", "evil }", "{evil", "evil\"", "'evil", "evil\nx", "$evil", "evil#", "evil\\", a.Example + ";evil", a.Example + "\nevil", a.Example + " evil;",
		} {
			s, err := buildtest.Snapshot([]byte(objects))
			if err != nil {
				t.Fatal(err)
			}
			for _, protocol := range []string{"HTTPS", "FCGI", "HTTP"} {
				in := *s.Ingresses[0]
				in.Annotations = map[string]string{"kubernetes.io/ingress.class": "headgate"}
				for name, value := range map[string]string{
					"backend-protocol": protocol, "proxy-ssl-secret": "peers", "affinity": "cookie", a.Name: hostile,
				} {
					in.Annotations[annotations.DefaultPrefix+"/"+name] = value
				}
				next := *s
				next.Ingresses = next.Ingresses[:0:0]
				next.Ingresses = append(next.Ingresses, &in)
				config, err := nginxconf.Render(build.New(buildtest.Defaults()).Build(&next, buildtest.Now()).Model, layout())
				if err != nil {
					t.Fatal(err)
				}
				if bytes.Contains(config.Text, []byte("evil")) || len(config.Refused) > 0 {
					t.Errorf("%s: %q reaches nginx.conf, or its profile is refused there: %v", a.Name, hostile, config.Refused)
				}
			}
		}
	}
}
