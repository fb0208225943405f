package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const requestTimeout = 10 * time.Second

// Apply applies every document of manifests (server-side, taking over fields that others own), in order. Objects of a
// namespaced kind without a namespace go to "default". After a Namespace it waits until pods can be created there.
func (c *Cluster) Apply(t testing.TB, manifests string) {
	t.Helper()
	c.each(t, manifests, func(ctx context.Context, client dynamic.ResourceInterface, o *unstructured.Unstructured) error {
		_, err := client.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: "test", Force: true})
		if err == nil && o.GetKind() == "Namespace" {
			return c.waitServiceAccount(ctx, o.GetName())
		}
		return err
	})
}

// Delete deletes every object named in manifests, without waiting for finalizers. One that is not there is no error.
func (c *Cluster) Delete(t testing.TB, manifests string) {
	t.Helper()
	c.each(t, manifests, func(ctx context.Context, client dynamic.ResourceInterface, o *unstructured.Unstructured) error {
		if err := client.Delete(ctx, o.GetName(), metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	})
}

// Namespace creates a namespace of a unique name that begins with prefix and is deleted, without waiting, when the
// test ends.
func (c *Cluster) Namespace(t testing.TB, prefix string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), requestTimeout)
	defer cancel()
	ns, err := c.Client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: prefix + "-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), requestTimeout)
		defer cancel()
		_ = c.Client.CoreV1().Namespaces().Delete(ctx, ns.Name, metav1.DeleteOptions{})
	})
	if err := c.waitServiceAccount(ctx, ns.Name); err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

// ServiceAccountKubeconfig returns a file with the credentials of an existing ServiceAccount: a token valid for an hour.
func (c *Cluster) ServiceAccountKubeconfig(t testing.TB, namespace, name string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), requestTimeout)
	defer cancel()
	token, err := c.Client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("token for ServiceAccount %s/%s: %v", namespace, name, err)
	}
	cfg, err := clientcmd.LoadFromFile(c.KubeconfigPath)
	if err != nil {
		t.Fatal(err)
	}
	for user := range cfg.AuthInfos {
		cfg.AuthInfos[user] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*cfg, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// Eventually calls f every 20 ms until it returns nil, and fails the test with f's last error after timeout.
func Eventually(t testing.TB, timeout time.Duration, f func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if err := retry(ctx, f); err != nil {
		t.Fatalf("not within %s: %v", timeout, err)
	}
}

func retry(ctx context.Context, f func() error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

func (c *Cluster) waitServiceAccount(ctx context.Context, namespace string) error {
	return retry(ctx, func() error {
		_, err := c.Client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

type objectFunc func(context.Context, dynamic.ResourceInterface, *unstructured.Unstructured) error

func (c *Cluster) each(t testing.TB, manifests string, f objectFunc) {
	t.Helper()
	objects, err := decode(manifests)
	if err != nil {
		t.Fatalf("decode manifests: %v", err)
	}
	client, err := dynamic.NewForConfig(c.Config())
	if err != nil {
		t.Fatal(err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(c.Client.Discovery()))
	for _, o := range objects {
		ctx, cancel := context.WithTimeout(t.Context(), requestTimeout)
		err := c.one(ctx, client, mapper, o, f)
		cancel()
		if err != nil {
			t.Fatalf("%s %s/%s: %v", o.GetKind(), o.GetNamespace(), o.GetName(), err)
		}
	}
}

func (c *Cluster) one(ctx context.Context, client dynamic.Interface, mapper meta.RESTMapper, o *unstructured.Unstructured, f objectFunc) error {
	kind := o.GroupVersionKind()
	var mapping *meta.RESTMapping
	// A kind defined by a CRD of the same manifests appears a moment after it; the mapper looks again on a miss.
	if err := retry(ctx, func() (err error) {
		mapping, err = mapper.RESTMapping(kind.GroupKind(), kind.Version)
		return err
	}); err != nil {
		return err
	}
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		return f(ctx, client.Resource(mapping.Resource), o)
	}
	if o.GetNamespace() == "" {
		o.SetNamespace(metav1.NamespaceDefault)
	}
	return f(ctx, client.Resource(mapping.Resource).Namespace(o.GetNamespace()), o)
}

// decode splits manifests into objects; Lists are taken apart, empty documents left out.
func decode(manifests string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(manifests), 4096)
	for n := 1; ; n++ {
		o := &unstructured.Unstructured{}
		err := decoder.Decode(&o.Object)
		switch {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, fmt.Errorf("document %d: %w", n, err)
		case len(o.Object) == 0:
			continue
		case o.IsList():
			err = o.EachListItem(func(item runtime.Object) error {
				objects = append(objects, item.(*unstructured.Unstructured))
				return nil
			})
			if err != nil {
				return nil, fmt.Errorf("document %d: %w", n, err)
			}
		default:
			objects = append(objects, o)
		}
	}
}
