package main

import (
	"encoding/json"
	"fmt"
	"strings"
)

// backendPort is that of every peer. The backend listens on it at all addresses of the namespace.
const backendPort = 9000

// site is what both sides serve: hosts h0.test, h1.test, …; host i has the path / and the peers of upstream
// i modulo upstreams.
type site struct {
	hosts     int
	upstreams int
	peers     int // of each upstream
	tls       *identity
}

func (site) host(i int) string { return fmt.Sprintf("h%d.test", i) }

func (s site) peer(upstream, i int) string {
	n := upstream*s.peers + i + 1
	return fmt.Sprintf("10.244.%d.%d", n/250, n%250+1)
}

type object = map[string]any

func meta(name string) object { return object{"name": name, "namespace": "default"} }

// manifests writes the site as a Kubernetes List in JSON, one Ingress a host.
func (s site) manifests() ([]byte, error) {
	items := []object{{
		"apiVersion": "networking.k8s.io/v1", "kind": "IngressClass", "metadata": object{"name": "headgate"},
		"spec": object{"controller": "headgate.io/ingress"},
	}}
	for u := range s.upstreams {
		items = append(items, s.service(u)...)
	}
	for i := range s.hosts {
		items = append(items, s.ingress(i))
	}
	if s.tls != nil {
		items = append(items, object{
			"apiVersion": "v1", "kind": "Secret", "metadata": meta("tls"), "type": "kubernetes.io/tls",
			"data": object{"tls.crt": s.tls.certificate, "tls.key": s.tls.key}, // base64, as []byte is in JSON
		})
	}
	b, err := json.Marshal(object{"apiVersion": "v1", "kind": "List", "items": items})
	if err != nil {
		return nil, fmt.Errorf("encode manifests: %w", err)
	}
	return b, nil
}

func (s site) service(u int) []object {
	name := fmt.Sprintf("s%d", u)
	endpoints := make([]object, s.peers)
	for i := range endpoints {
		endpoints[i] = object{"addresses": []string{s.peer(u, i)}}
	}
	slice := meta(name)
	slice["labels"] = object{"kubernetes.io/service-name": name}
	return []object{
		{
			"apiVersion": "v1", "kind": "Service", "metadata": meta(name),
			"spec": object{"ports": []object{{"name": "http", "port": 80, "targetPort": backendPort}}},
		},
		{
			"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": slice, "addressType": "IPv4",
			"ports": []object{{"name": "http", "port": backendPort, "protocol": "TCP"}}, "endpoints": endpoints,
		},
	}
}

func (s site) ingress(i int) object {
	backend := object{"service": object{"name": fmt.Sprintf("s%d", i%s.upstreams), "port": object{"number": 80}}}
	spec := object{
		"ingressClassName": "headgate",
		"rules": []object{{
			"host": s.host(i),
			"http": object{"paths": []object{{"path": "/", "pathType": "Prefix", "backend": backend}}},
		}},
	}
	if s.tls != nil {
		spec["tls"] = []object{{"hosts": []string{s.host(i)}, "secretName": "tls"}}
	}
	return object{"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": meta(fmt.Sprintf("h%d", i)), "spec": spec}
}

// nginxServers writes the site as static nginx has it: an upstream block for each upstream and a server block
// for each host.
func (s site) nginxServers(listen string) string {
	var b strings.Builder
	for u := range s.upstreams {
		fmt.Fprintf(&b, "upstream s%d {\n", u)
		for i := range s.peers {
			fmt.Fprintf(&b, "    server %s:%d;\n", s.peer(u, i), backendPort)
		}
		b.WriteString("    keepalive 320;\n    keepalive_time 1h;\n    keepalive_timeout 60s;\n    keepalive_requests 10000;\n}\n")
	}
	for i := range s.hosts {
		fmt.Fprintf(&b, "server {\n    listen %s;\n    server_name %s;\n    location / { proxy_pass http://s%d; }\n}\n", listen, s.host(i), i%s.upstreams)
	}
	return b.String()
}
