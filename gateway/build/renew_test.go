package build_test

import (
	"slices"
	"strings"
	"testing"

	"headgate/gateway/build"
	"headgate/gateway/build/buildtest"
	"headgate/gateway/model"
)

const renewed = `
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: shop
  namespace: shop
  uid: u1
  annotations: {kubernetes.io/ingress.class: headgate, nginx.ingress.kubernetes.io/proxy-read-timeout: "TIME"}
spec:
  rules: [{host: shop.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {ports: [{port: 80}]}
`

// TestRenew: the last good version outlives a change of the options, the new options hold, and the old Builder is as it was.
func TestRenew(t *testing.T) {
	good, err := buildtest.Snapshot([]byte(strings.Replace(renewed, "TIME", "77", 1)))
	if err != nil {
		t.Fatal(err)
	}
	broken, err := buildtest.Snapshot([]byte(strings.Replace(renewed, "TIME", "soon", 1)))
	if err != nil {
		t.Fatal(err)
	}
	old := build.New(buildtest.Defaults())
	old.Build(good, buildtest.Now())
	before := old.Build(broken, buildtest.Now())

	options := buildtest.Defaults()
	options.Settings.WorkerConnections = 99
	next := old.Renew(options).Build(broken, buildtest.Now())
	if next.Model.Settings.WorkerConnections != 99 {
		t.Errorf("settings %+v", next.Model.Settings)
	}
	dump := string(buildtest.Dump(next))
	if !strings.Contains(dump, "1m17s") || string(buildtest.Problems(before)) != string(buildtest.Problems(next)) {
		t.Errorf("the last good version is not served:\n%s\n%s", dump, buildtest.Problems(next))
	}
	fresh := build.New(options).Build(broken, buildtest.Now())
	if strings.Contains(string(buildtest.Dump(fresh)), "1m17s") {
		t.Error("a Builder that remembers nothing serves the last good version: the test shows nothing")
	}

	options.IngressClass = "another"
	if r := old.Renew(options).Build(broken, buildtest.Now()); len(r.Served) != 0 {
		t.Errorf("served %v of another class", r.Served)
	}
	again := old.Build(broken, buildtest.Now())
	same := func(a, b *model.Host) bool { return a == b }
	if !slices.EqualFunc(before.Model.Hosts, again.Model.Hosts, same) {
		t.Error("the old Builder has built a host anew")
	}
}
