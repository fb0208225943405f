package pods

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// registerNode creates the node, or takes over the one of an earlier start, and says it is ready. Nobody watches
// heartbeats here, so none are sent.
func registerNode(ctx context.Context, client kubernetes.Interface) error {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: NodeName, Labels: map[string]string{corev1.LabelHostname: NodeName}},
		Spec:       corev1.NodeSpec{PodCIDR: podCIDR, PodCIDRs: []string{podCIDR}},
	}
	nodes := client.CoreV1().Nodes()
	if _, err := nodes.Create(ctx, node, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("register node: %w", err)
	}
	current, err := nodes.Get(ctx, NodeName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("register node: %w", err)
	}
	current.Status = nodeStatus()
	if _, err := nodes.UpdateStatus(ctx, current, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update node status: %w", err)
	}
	return nil
}

func nodeStatus() corev1.NodeStatus {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("2"),
		corev1.ResourceMemory: resource.MustParse("4Gi"),
		corev1.ResourcePods:   resource.MustParse("1000"),
	}
	return corev1.NodeStatus{
		Capacity:    capacity,
		Allocatable: capacity,
		Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: hostIP},
			{Type: corev1.NodeHostName, Address: NodeName},
		},
		Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "TestClusterReady",
			LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		}},
	}
}

// allocator hands out addresses of a prefix in turn, so that one just given back is the last to be used again.
type allocator struct {
	prefix netip.Prefix
	mu     sync.Mutex // guards used and last
	used   map[netip.Addr]bool
	last   netip.Addr
}

func newAllocator(prefix netip.Prefix) *allocator {
	return &allocator{
		prefix: prefix, last: prefix.Addr(),
		used: map[netip.Addr]bool{netip.MustParseAddr(hostIP): true},
	}
}

func (a *allocator) reserve(ip string) {
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.used[addr] = true
}

func (a *allocator) next() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	for {
		a.last = a.last.Next()
		if !a.prefix.Contains(a.last) {
			a.last = a.prefix.Addr().Next()
		}
		if !a.used[a.last] {
			a.used[a.last] = true
			return a.last.String()
		}
	}
}

func (a *allocator) release(ip string) {
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.used, addr)
}
