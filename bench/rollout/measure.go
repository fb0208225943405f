package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/util/retry"

	"headgate/bench/cluster"
	"headgate/bench/edge"
	"headgate/bench/load"
	"headgate/bench/stage"
	"headgate/sync/admin"
)

const (
	address = "127.0.0.1:8000"
	name    = "web"
	image   = "bench.test/pod:v"
	// rolloutTimeout is for one rollout to end.
	rolloutTimeout = 2 * time.Minute
)

// figures are what was measured.
type figures struct {
	load.Segment
	rollouts int
	reloads  uint64
}

func measure(ctx context.Context, s *stage.Stage, p plan) (figures, error) {
	self, err := os.Executable()
	if err != nil {
		return figures{}, fmt.Errorf("find the program itself: %w", err)
	}
	c, err := cluster.Start(ctx, s, cluster.Config{
		Binary: p.testcluster, Flags: []string{"--pods", "--image", image + "*=" + self},
	})
	if err != nil {
		return figures{}, err //nolint:wrapcheck // it says what it did
	}
	if err := deploy(ctx, c, p); err != nil {
		return figures{}, err
	}
	g, err := edge.Start(ctx, s, edge.Config{
		Name: "edge", Binary: p.headgate, Kubeconfig: c.Kubeconfig, HTTP: address, HTTPS: "127.0.0.1:8443", Workers: runtime.NumCPU(),
	}, func(status admin.Status) error {
		if status.Counts.Routes != 1 || status.Counts.Peers != int(p.replicas) || len(status.Problems) > 0 {
			return fmt.Errorf("%d routes, %d peers, problems: %v", status.Counts.Routes, status.Counts.Peers, status.Problems)
		}
		return nil
	})
	if err != nil {
		return figures{}, err //nolint:wrapcheck // it says what it did
	}
	return roll(ctx, c, g, p)
}

// roll sends requests while one rollout follows the other.
func roll(ctx context.Context, c *cluster.Cluster, g *edge.Gateway, p plan) (figures, error) {
	before, err := g.Status(ctx)
	if err != nil {
		return figures{}, err //nolint:wrapcheck // it says what it did
	}
	generator := load.Start(ctx, load.Config{
		Address: address, Rate: p.rate, Host: func(int64) string { return name + ".test" },
		Good: func(a load.Answer) bool { return a.Status == 200 && strings.HasPrefix(a.Body, image) },
	})
	f := figures{}
	for f.Requests < p.requests && err == nil {
		f.rollouts++
		err = rollOut(ctx, c, p, f.rollouts+1)
		f.Add(generator.Cut())
	}
	f.Add(generator.Stop())
	if err != nil {
		return f, err
	}
	after, err := g.Status(ctx)
	f.reloads = edge.Reloads(after) - edge.Reloads(before)
	return f, err //nolint:wrapcheck // it says what it did
}

// deploy makes the Deployment, its Service and an Ingress, and waits for the pods.
func deploy(ctx context.Context, c *cluster.Cluster, p plan) error {
	labels := map[string]string{"app": name}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(cluster.BackendPort)}}},
	}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &p.replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name: name, Image: image + "1", Ports: []corev1.ContainerPort{{ContainerPort: cluster.BackendPort}},
				}}},
			},
		},
	}
	_, errService := c.Client.CoreV1().Services(cluster.Namespace).Create(ctx, service, metav1.CreateOptions{})
	_, errDeployment := c.Client.AppsV1().Deployments(cluster.Namespace).Create(ctx, deployment, metav1.CreateOptions{})
	if err := errors.Join(errService, errDeployment, c.Create(ctx, cluster.Ingress(name, name, "/"))); err != nil {
		return fmt.Errorf("make the deployment: %w", err)
	}
	return finished(ctx, c, p)
}

// rollOut changes the image and waits for the end of the rollout.
func rollOut(ctx context.Context, c *cluster.Cluster, p plan, version int) error {
	deployments := c.Client.AppsV1().Deployments(cluster.Namespace)
	// Its controller writes to it, too.
	if err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		deployment, err := deployments.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err //nolint:wrapcheck // told below
		}
		deployment.Spec.Template.Spec.Containers[0].Image = fmt.Sprintf("%s%d", image, version)
		_, err = deployments.Update(ctx, deployment, metav1.UpdateOptions{})
		return err //nolint:wrapcheck // told below
	}); err != nil {
		return fmt.Errorf("change the deployment: %w", err)
	}
	return finished(ctx, c, p)
}

// finished waits until all pods are of the newest template, ready, and the old ones gone.
func finished(ctx context.Context, c *cluster.Cluster, p plan) error {
	const every = 100 * time.Millisecond
	end := time.Now().Add(rolloutTimeout)
	for {
		d, err := c.Client.AppsV1().Deployments(cluster.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("read the deployment: %w", err)
		}
		s := d.Status
		if s.ObservedGeneration == d.Generation && s.UpdatedReplicas == p.replicas && s.AvailableReplicas == p.replicas && s.Replicas == p.replicas {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("the rollout did not end within %s: %d updated, %d available, %d in all", rolloutTimeout, s.UpdatedReplicas, s.AvailableReplicas, s.Replicas)
		}
		if err := stage.Wait(ctx, every); err != nil {
			return err //nolint:wrapcheck // Ctrl-C
		}
	}
}
