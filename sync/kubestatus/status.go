package kubestatus

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"

	"headgate/gateway/snapshot"
)

const statusDenied = `may not patch ingresses/status: add to the ClusterRole of headgate's ServiceAccount: ` +
	`{apiGroups: ["networking.k8s.io"], resources: [ingresses/status], verbs: [patch]}`

// servedHistory remembers, by UID, which Ingresses were ours: true while they are, false once they are not and their
// status is still to be looked at.
type servedHistory map[string]bool

// sameServed is true when there is nothing new about Ingresses, as after most passes: then their list is the same slice.
func sameServed(a, b *Desired) bool {
	was, is := a.Snapshot.Ingresses, b.Snapshot.Ingresses
	return len(was) == len(is) && (len(is) == 0 || &was[0] == &is[0]) && slices.Equal(a.Served, b.Served)
}

// update takes a pass in. What is gone from the cluster is forgotten. Both lists are sorted by key, so that each of 10,000
// Ingresses costs a look into the history and no search.
func (h servedHistory) update(d *Desired) {
	served, present := d.Served, 0
	for _, ingress := range d.Snapshot.Ingresses {
		for len(served) > 0 && served[0].Compare(ingress.Key) < 0 {
			served = served[1:]
		}
		mine := len(served) > 0 && served[0] == ingress.Key && ingress.UID != ""
		before, known := h[ingress.UID]
		if mine != before {
			h[ingress.UID] = mine
		}
		if mine || known {
			present++
		}
	}
	if present < len(h) {
		h.forget(d.Snapshot.Ingresses)
	}
}

// forget takes out what is not among the present ones.
func (h servedHistory) forget(present []*snapshot.Ingress) {
	alive := ingressUIDs(present)
	maps.DeleteFunc(h, func(uid string, _ bool) bool { return !alive[uid] })
}

func ingressUIDs(ingresses []*snapshot.Ingress) map[string]bool {
	all := make(map[string]bool, len(ingresses))
	for _, ingress := range ingresses {
		all[ingress.UID] = true
	}
	return all
}

func find(sorted []*snapshot.Ingress, key snapshot.Key) *snapshot.Ingress {
	at, ok := slices.BinarySearchFunc(sorted, key, func(o *snapshot.Ingress, key snapshot.Key) int { return o.Compare(key) })
	if !ok {
		return nil
	}
	return sorted[at]
}

// statusJobs compares what is with what should be. It is called with w.mu held.
func (w *Writer) statusJobs(d *Desired, t *tries) []job {
	if len(w.addresses) == 0 {
		return nil
	}
	var jobs []job
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, ingress := range d.Snapshot.Ingresses {
		mine, known := w.served[ingress.UID]
		if !known {
			continue
		}
		if t.written[ingress.UID] == ingress.ResourceVersion {
			continue // written already; the snapshot has not shown it yet
		}
		delete(t.written, ingress.UID)
		ours := sameAddresses(ingress.Published, w.addresses)
		switch {
		case mine && !ours:
			jobs = append(jobs, w.statusJob(ingress, w.addresses, t))
		case !mine && ours:
			jobs = append(jobs, w.statusJob(ingress, nil, t))
		case !mine:
			// Others write there now, or it is empty: it is none of our business any more.
			delete(w.served, ingress.UID)
		}
	}
	if len(t.written) > 0 { // which is so only until the snapshot shows what was written
		alive := ingressUIDs(d.Snapshot.Ingresses)
		maps.DeleteFunc(t.written, func(uid, _ string) bool {
			_, known := w.served[uid]
			return !known || !alive[uid]
		})
	}
	return jobs
}

func (w *Writer) statusJob(ingress *snapshot.Ingress, addresses []networkingv1.IngressLoadBalancerIngress, t *tries) job {
	verb := "publish"
	if len(addresses) == 0 {
		verb = "withdraw"
	}
	return job{
		name:   verb + " " + ingress.UID,
		denied: statusDenied,
		do: func(ctx context.Context) error {
			if err := wait(ctx, w.statuses); err != nil {
				return err
			}
			if err := w.patchStatus(ctx, ingress, addresses); err != nil {
				return err
			}
			t.mu.Lock()
			t.written[ingress.UID] = ingress.ResourceVersion
			t.mu.Unlock()
			w.log.Debug("status written", "ingress", ingress.String(), "action", verb)
			return nil
		},
	}
}

// patchStatus writes the addresses on top of the version that was looked at, and of no other: a version or an object that
// was replaced meanwhile is a conflict.
func (w *Writer) patchStatus(ctx context.Context, ingress *snapshot.Ingress, addresses []networkingv1.IngressLoadBalancerIngress) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]string{"uid": ingress.UID, "resourceVersion": ingress.ResourceVersion},
		"status":   map[string]any{"loadBalancer": map[string]any{"ingress": addresses}},
	})
	if err != nil {
		return fmt.Errorf("encoding the status of Ingress %s: %w", ingress.Key, err)
	}
	_, err = w.config.Client().NetworkingV1().Ingresses(ingress.Namespace).
		Patch(ctx, ingress.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager}, "status")
	if apierrors.IsNotFound(err) {
		return nil // deleted meanwhile
	}
	if err != nil {
		return fmt.Errorf("writing the status of Ingress %s: %w", ingress.Key, err)
	}
	return nil
}

// sameAddresses compares as sets; ports, which some controllers add, do not matter.
func sameAddresses(a, b []networkingv1.IngressLoadBalancerIngress) bool {
	return slices.Equal(addressSet(a), addressSet(b))
}

func addressSet(list []networkingv1.IngressLoadBalancerIngress) []string {
	set := make([]string, 0, len(list))
	for _, one := range list {
		set = append(set, one.IP+" "+strings.ToLower(one.Hostname))
	}
	slices.Sort(set)
	return slices.Compact(set)
}

func wait(ctx context.Context, limiter flowcontrol.RateLimiter) error {
	if err := limiter.Wait(ctx); err != nil {
		return fmt.Errorf("waiting for the rate limit: %w", err)
	}
	return nil
}

// clearUnlessSucceeded removes our addresses after this host, which wrote them, has released the Lease. Another host
// takes it over within two retry periods and a fifth; then the addresses are its own, and stay.
func (w *Writer) clearUnlessSucceeded(ctx context.Context) {
	patience := w.config.RetryPeriod*22/10 + time.Second
	ctx, cancel := context.WithTimeout(ctx, patience+30*time.Second)
	defer cancel()
	succeeded, err := w.awaitSuccessor(ctx, patience)
	if err != nil {
		w.log.Error("the addresses stay in the status of the Ingresses", "err", err)
		return
	}
	if succeeded {
		return
	}
	d, cleared := w.latest.Load(), 0
	for _, key := range d.Served {
		ingress := find(d.Snapshot.Ingresses, key)
		if ingress == nil || ingress.UID == "" {
			continue
		}
		if err := w.clear(ctx, ingress); err != nil {
			w.log.Error("an Ingress keeps its addresses", "ingress", key.String(), "err", err)
			continue
		}
		cleared++
	}
	w.log.Info("the addresses were removed: this was the last host", "ingresses", cleared)
}

// clear removes our addresses from what is there now, which may be newer than the last snapshot.
func (w *Writer) clear(ctx context.Context, seen *snapshot.Ingress) error {
	if err := wait(ctx, w.statuses); err != nil {
		return err
	}
	now, err := w.config.Client().NetworkingV1().Ingresses(seen.Namespace).Get(ctx, seen.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading Ingress %s: %w", seen.Key, err)
	}
	addresses, _ := w.published()
	if string(now.UID) != seen.UID || !sameAddresses(now.Status.LoadBalancer.Ingress, addresses) {
		return nil
	}
	return w.patchStatus(ctx, snapshot.FromIngress(now), nil)
}

// awaitSuccessor watches the Lease for another holder.
func (w *Writer) awaitSuccessor(ctx context.Context, patience time.Duration) (bool, error) {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	poll := time.NewTicker(max(w.config.RetryPeriod/8, 10*time.Millisecond))
	defer poll.Stop()
	for {
		lease, err := w.config.Client().CoordinationV1().Leases(w.config.LeaseNamespace).Get(ctx, w.config.LeaseName, metav1.GetOptions{})
		if err != nil {
			return false, fmt.Errorf("reading Lease %s/%s: %w", w.config.LeaseNamespace, w.config.LeaseName, err)
		}
		if holder := lease.Spec.HolderIdentity; holder != nil && *holder != "" && *holder != w.config.Identity {
			return true, nil
		}
		select {
		case <-deadline.C:
			return false, nil
		case <-poll.C:
		}
	}
}
