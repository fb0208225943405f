package main

import (
	"fmt"
	"strings"

	"headgate/bench/cluster"
)

const serviceText = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {ports: [{name: http, port: 80, targetPort: %[1]d}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: %[1]d, protocol: TCP}]
endpoints: [%[2]s]
`

const ingressText = `---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: %[1]s, namespace: default, annotations: {kubernetes.io/ingress.class: headgate%[2]s}}
spec:
  rules:
  - host: %[1]s.test
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}
`

// site is one service and its hosts.
func site() string {
	var endpoints []string
	for i := range peers {
		endpoints = append(endpoints, fmt.Sprintf("{addresses: [%s]}", cluster.Peer(i)))
	}
	var b strings.Builder
	fmt.Fprintf(&b, serviceText, cluster.BackendPort, strings.Join(endpoints, ", "))
	for i := range hosts {
		fmt.Fprintf(&b, ingressText, fmt.Sprintf("h%d", i), "")
	}
	return b.String()
}

// newProfile is an Ingress with native settings that no other has: its number of proxy_buffers.
func newProfile(n int) string {
	const firstBuffers = 5
	return fmt.Sprintf(ingressText, fmt.Sprintf("more-%d", n), fmt.Sprintf(`, nginx.ingress.kubernetes.io/proxy-buffers-number: "%d"`, firstBuffers+n))
}
