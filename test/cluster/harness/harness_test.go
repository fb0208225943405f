package harness_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"headgate/test/cluster/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

const edgeObjects = `
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: edge}
spec: {controller: example.test/edge}
---
apiVersion: v1
kind: Service
metadata: {name: shop}
spec:
  ports: [{name: http, port: 80}]
---
apiVersion: v1
kind: Secret
metadata: {name: shop}
stringData: {word: open}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: shop-1, labels: {kubernetes.io/service-name: shop}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.244.0.7]}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: shop}
spec:
  ingressClassName: edge
  rules:
  - host: shop.test
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: shop, port: {number: 80}}}}]}
`

func TestObjects(t *testing.T) {
	cluster := harness.Start(t)
	client, ctx := cluster.Client, t.Context()
	watch, err := client.NetworkingV1().Ingresses("default").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()

	cluster.Apply(t, edgeObjects)
	select {
	case event := <-watch.ResultChan():
		if ingress, ok := event.Object.(*networkingv1.Ingress); !ok || ingress.Name != "shop" {
			t.Errorf("watch event %v, want ingress shop", event)
		}
	case <-time.After(10 * time.Second):
		t.Error("no watch event for the new ingress")
	}
	slice, err := client.DiscoveryV1().EndpointSlices("default").Get(ctx, "shop-1", metav1.GetOptions{})
	if err != nil || slice.Endpoints[0].Addresses[0] != "10.244.0.7" {
		t.Errorf("endpoint slice %v, %v", slice, err)
	}
	status := []byte(`{"status":{"loadBalancer":{"ingress":[{"ip":"10.0.0.9"}]}}}`)
	if _, err := client.NetworkingV1().Ingresses("default").Patch(ctx, "shop", types.MergePatchType, status, metav1.PatchOptions{}, "status"); err != nil {
		t.Errorf("patch ingress status: %v", err)
	}

	t.Run("validation", func(t *testing.T) {
		bad := slice.DeepCopy()
		bad.Endpoints[0].Addresses[0] = "127.0.0.1"
		if _, err := client.DiscoveryV1().EndpointSlices("default").Update(ctx, bad, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("slice with a loopback address: %v, want invalid", err)
		}
	})
	t.Run("outage", func(t *testing.T) {
		url := cluster.URL
		for name, halt := range map[string]func(testing.TB){"stop": cluster.Stop, "kill": cluster.Kill} {
			halt(t)
			if _, err := client.NetworkingV1().Ingresses("default").Get(ctx, "shop", metav1.GetOptions{}); err == nil {
				t.Errorf("%s: the API server still answers", name)
			}
			cluster.Resume(t)
			ingress, err := client.NetworkingV1().Ingresses("default").Get(ctx, "shop", metav1.GetOptions{})
			if err != nil || len(ingress.Status.LoadBalancer.Ingress) != 1 || cluster.URL != url {
				t.Errorf("after %s at %s (was %s): %v, %v", name, cluster.URL, url, ingress, err)
			}
		}
		cluster.Restart(t)
	})
	t.Run("delete", func(t *testing.T) {
		cluster.Delete(t, edgeObjects)
		if _, err := client.NetworkingV1().Ingresses("default").Get(ctx, "shop", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("deleted ingress: %v, want not found", err)
		}
	})
}

const reader = `
apiVersion: v1
kind: Namespace
metadata: {name: edge}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, namespace: edge}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reader}
rules:
- {apiGroups: [""], resources: [services], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reader}
subjects:
- {kind: ServiceAccount, name: reader, namespace: edge}
`

func TestServiceAccount(t *testing.T) {
	cluster := harness.Start(t)
	cluster.Apply(t, reader)
	config, err := clientcmd.BuildConfigFromFlags("", cluster.ServiceAccountKubeconfig(t, "edge", "reader"))
	if err != nil {
		t.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(config)
	harness.Eventually(t, 5*time.Second, func() error { // the authorizer learns of roles by a watch of its own
		_, err := client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
		return err
	})
	if _, err := client.CoreV1().Secrets("edge").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("list secrets: %v, want forbidden", err)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "reader", Annotations: map[string]string{corev1.ServiceAccountNameKey: "reader"}},
		Type:       corev1.SecretTypeServiceAccountToken,
	}
	if _, err := cluster.Client.CoreV1().Secrets("edge").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 5*time.Second, func() error {
		s, err := cluster.Client.CoreV1().Secrets("edge").Get(t.Context(), "reader", metav1.GetOptions{})
		if err == nil && len(s.Data[corev1.ServiceAccountTokenKey]) == 0 {
			err = fmt.Errorf("the token secret is still empty")
		}
		return err
	})
}

const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 2
      containers:
      - {name: web, image: "%s", ports: [{name: http, containerPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: http}]
`

func TestPods(t *testing.T) {
	cluster := harness.Start(t, harness.WithPods())
	apply := func(replicas int, image string) { cluster.Apply(t, fmt.Sprintf(deployment, replicas, image)) }
	start := time.Now()
	apply(3, harness.EchoImage+":v1")
	waitImages(t, cluster, 3, harness.EchoImage+":v1")
	t.Logf("3 pods ready after %s", time.Since(start))

	cluster.Kill(t)
	if echo, err := ask(t.Context(), firstPodIP); err != nil || echo.Image != harness.EchoImage+":v1" {
		t.Errorf("pod %s while the API server is away: %+v, %v", firstPodIP, echo, err)
	}
	cluster.Resume(t)

	for _, step := range []struct {
		name     string
		replicas int
		image    string
	}{
		{"scale up", 5, "v1"}, {"rollout", 5, "v2"}, {"scale down", 1, "v2"}, {"to zero", 0, "v2"},
	} {
		start := time.Now()
		apply(step.replicas, harness.EchoImage+":"+step.image)
		waitImages(t, cluster, step.replicas, harness.EchoImage+":"+step.image)
		t.Logf("%s after %s", step.name, time.Since(start))
	}

	apply(1, "unknown.test/image:v1")
	harness.Eventually(t, 5*time.Second, func() error {
		pods, err := cluster.Client.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
		if err != nil {
			return err
		}
		for _, pod := range pods.Items {
			for _, c := range pod.Status.Conditions {
				if pod.Status.Phase == corev1.PodPending && strings.Contains(c.Message, "unknown.test/image:v1") {
					return nil
				}
			}
		}
		return fmt.Errorf("no pending pod that names its image among %d", len(pods.Items))
	})
}

// firstPodIP is where a fresh cluster puts its first pod.
const firstPodIP = "10.244.128.1"

// waitImages waits until the Service has exactly n ready endpoints and each answers as a pod of image.
func waitImages(t *testing.T, cluster *harness.Cluster, n int, image string) {
	t.Helper()
	harness.Eventually(t, 30*time.Second, func() error {
		slices, err := cluster.Client.DiscoveryV1().EndpointSlices("default").List(t.Context(),
			metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=web"})
		if err != nil {
			return err
		}
		found := 0
		for _, slice := range slices.Items {
			for _, endpoint := range slice.Endpoints {
				if endpoint.Conditions.Ready == nil || !*endpoint.Conditions.Ready {
					continue
				}
				echo, err := ask(t.Context(), endpoint.Addresses[0])
				if err != nil {
					return err
				}
				if echo.Image != image || echo.IP != endpoint.Addresses[0] {
					return fmt.Errorf("endpoint %s answers %+v, want image %s", endpoint.Addresses[0], echo, image)
				}
				found++
			}
		}
		if found != n {
			return fmt.Errorf("%d ready endpoints, want %d", found, n)
		}
		return nil
	})
}

func ask(ctx context.Context, ip string) (harness.Echo, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var echo harness.Echo
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(ip, "8080")+"/", nil)
	if err != nil {
		return echo, err
	}
	resp, err := (&http.Client{Timeout: time.Second}).Do(req)
	if err != nil {
		return echo, err
	}
	defer func() { _ = resp.Body.Close() }()
	return echo, json.NewDecoder(resp.Body).Decode(&echo)
}

func TestNothingStays(t *testing.T) {
	var dir string
	t.Run("cluster", func(t *testing.T) {
		cluster := harness.Start(t, harness.WithPods())
		dir = filepath.Dir(cluster.KubeconfigPath)
		cluster.Apply(t, fmt.Sprintf(deployment, 2, harness.EchoImage+":v1"))
		waitImages(t, cluster, 2, harness.EchoImage+":v1")
	})
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("folder %s: %v, want none", dir, err)
	}
	if left := processesIn(t, dir); len(left) > 0 {
		t.Errorf("processes left: %q", left)
	}
	if echo, err := ask(t.Context(), firstPodIP); err == nil {
		t.Errorf("a pod still answers: %+v", echo)
	}
}

// processesIn returns the command lines that name dir.
func processesIn(t *testing.T, dir string) (found []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.Contains(string(b), dir) {
			found = append(found, strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return found
}
