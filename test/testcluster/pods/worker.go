package pods

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

const (
	retryDelay   = 250 * time.Millisecond // after an API request that did not work
	restartDelay = time.Second            // constant: a kubelet's growing back-off would only slow tests down
)

// worker is one pod's life, owned by its run goroutine: bind, start, tell, end.
type worker struct {
	cfg   Config
	ips   *allocator
	start starter

	pods    chan *corev1.Pod // capacity 1, holds the newest object only
	deleted chan struct{}    // closed when the object is gone
	events  chan event       // unbuffered: ends and probes wait their turn

	pod        *corev1.Pod
	ip         string
	containers []*container
	started    metav1.Time
	conditions []corev1.PodCondition // as last computed, for their transition times
	sent       string                // the last status the API server accepted, as a patch
	wg         sync.WaitGroup
}

// container is one container's observed state.
type container struct {
	spec     corev1.Container
	cmd      *exec.Cmd // nil while no process runs
	stop     context.CancelFunc
	ready    bool
	restarts int32
	since    metav1.Time
	last     *corev1.ContainerStateTerminated
}

// event is something that happened to a container; exactly one field besides index is set.
type event struct {
	index   int
	ended   *exec.Cmd
	ready   *bool
	restart bool
}

func newWorker(cfg Config, ips *allocator, start starter, pod *corev1.Pod) *worker {
	w := &worker{
		cfg: cfg, ips: ips, start: start, pod: pod, ip: pod.Status.PodIP,
		pods: make(chan *corev1.Pod, 1), deleted: make(chan struct{}), events: make(chan event),
	}
	for _, c := range pod.Spec.Containers {
		w.containers = append(w.containers, &container{spec: c, stop: func() {}})
	}
	return w
}

// update hands over a newer object; the runner is the only caller of update and gone.
func (w *worker) update(pod *corev1.Pod) {
	select {
	case <-w.pods:
	default:
	}
	w.pods <- pod
}

func (w *worker) gone() { close(w.deleted) }

func (w *worker) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer w.wg.Wait()
	defer w.kill()
	defer cancel()
	if reason := unsupported(w.cfg.Images, w.pod); reason != "" {
		w.refuse(ctx, reason)
		return
	}
	if !w.bind(ctx) {
		return
	}
	if w.ip == "" {
		w.ip = w.ips.next()
	}
	defer w.ips.release(w.ip)
	w.started = metav1.Now()
	if w.pod.DeletionTimestamp == nil {
		for i := range w.containers {
			w.startContainer(ctx, i)
		}
	}
	w.loop(ctx)
}

// loop follows processes and object until the pod has ended.
func (w *worker) loop(ctx context.Context) {
	retry := time.NewTicker(retryDelay)
	defer retry.Stop()
	for w.pod.DeletionTimestamp == nil {
		w.report(ctx)
		select {
		case <-ctx.Done():
			return
		case <-w.deleted:
			return
		case w.pod = <-w.pods:
		case e := <-w.events:
			w.handle(ctx, e)
		case <-retry.C:
		}
	}
	w.terminate(ctx)
}

func (w *worker) handle(ctx context.Context, e event) {
	c := w.containers[e.index]
	switch {
	case e.ready != nil:
		c.ready = *e.ready
	case e.restart:
		c.restarts++
		w.startContainer(ctx, e.index)
	case e.ended == c.cmd:
		w.ended(ctx, e.index)
	}
}

func (w *worker) ended(ctx context.Context, index int) {
	c := w.containers[index]
	code := int32(c.cmd.ProcessState.ExitCode())
	c.last = &corev1.ContainerStateTerminated{
		ExitCode: code, Reason: "Exited", StartedAt: c.since, FinishedAt: metav1.Now(),
	}
	c.stop()
	c.cmd, c.ready = nil, false
	if w.pod.DeletionTimestamp == nil && w.restarts(code) {
		w.wg.Go(func() {
			if sleep(ctx, restartDelay) {
				w.send(ctx, event{index: index, restart: true})
			}
		})
	}
}

func (w *worker) restarts(code int32) bool {
	switch w.pod.Spec.RestartPolicy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return code != 0
	default:
		return true
	}
}

func (w *worker) startContainer(ctx context.Context, index int) {
	c := w.containers[index]
	cmd, err := startContainer(w.start, w.cfg, w.pod, c.spec, w.ip)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Container not started", "pod", klog.KObj(w.pod), "container", c.spec.Name)
		c.last = &corev1.ContainerStateTerminated{ExitCode: 128, Reason: "StartError", Message: err.Error(), FinishedAt: metav1.Now()}
		return
	}
	probeCtx, stop := context.WithCancel(ctx)
	c.cmd, c.stop, c.since = cmd, stop, metav1.Now()
	w.wg.Go(func() {
		_ = cmd.Wait()
		w.send(ctx, event{index: index, ended: cmd})
	})
	w.wg.Go(func() {
		probe(probeCtx, c.spec, w.ip, func(ready bool) { w.send(probeCtx, event{index: index, ready: &ready}) })
	})
}

// send gives an event to the run goroutine, or drops it when nobody will ask any more.
func (w *worker) send(ctx context.Context, e event) {
	select {
	case w.events <- e:
	case <-ctx.Done():
	}
}

// bind assigns the pod to the node the way a scheduler does.
func (w *worker) bind(ctx context.Context) bool {
	for w.pod.Spec.NodeName == "" {
		err := w.cfg.Client.CoreV1().Pods(w.pod.Namespace).Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: w.pod.Name, UID: w.pod.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: NodeName},
		}, metav1.CreateOptions{})
		if err == nil || apierrors.IsConflict(err) {
			return true
		}
		if apierrors.IsNotFound(err) || !w.wait(ctx) {
			return false
		}
	}
	return true
}

// wait pauses before a retry; false means the pod or the runner has ended.
func (w *worker) wait(ctx context.Context) bool {
	select {
	case <-w.deleted:
		return false
	default:
		return sleep(ctx, retryDelay)
	}
}

// refuse leaves the pod Pending and says why.
func (w *worker) refuse(ctx context.Context, reason string) {
	status := corev1.PodStatus{Conditions: []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: reason,
		LastTransitionTime: metav1.Now(),
	}}}
	for {
		err := w.patch(ctx, w.statusPatch(status))
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) || !w.wait(ctx) {
			return
		}
	}
}

// report brings the API server up to date. What it could not tell now it tells at the next event or tick.
func (w *worker) report(ctx context.Context) {
	patch := w.statusPatch(w.status())
	if patch == w.sent {
		return
	}
	if err := w.patch(ctx, patch); err != nil {
		if ctx.Err() == nil && !apierrors.IsNotFound(err) {
			klog.FromContext(ctx).Error(err, "Status not written", "pod", klog.KObj(w.pod))
		}
		return
	}
	w.sent = patch
}

func (w *worker) statusPatch(status corev1.PodStatus) string {
	b, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": w.pod.UID}, "status": status})
	if err != nil {
		panic(fmt.Sprintf("marshal pod status: %v", err))
	}
	return string(b)
}

func (w *worker) patch(ctx context.Context, patch string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := w.cfg.Client.CoreV1().Pods(w.pod.Namespace).Patch(ctx, w.pod.Name, types.StrategicMergePatchType,
		[]byte(patch), metav1.PatchOptions{}, "status")
	return err
}

// terminate ends the pod as a kubelet does: pre-stop pause, SIGTERM, grace period, SIGKILL, and only then the object.
// Until the process has ended it is probed and reported, so that endpoints can be "serving and terminating".
func (w *worker) terminate(ctx context.Context) {
	grace := 30 * time.Second
	if s := w.pod.DeletionGracePeriodSeconds; s != nil {
		grace = time.Duration(*s) * time.Second
	}
	deadline := time.NewTimer(grace)
	defer deadline.Stop()
	terms := make(chan int) // unbuffered: the index of a container whose pre-stop pause is over
	termCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	for i, c := range w.containers {
		w.wg.Go(func() {
			if sleep(termCtx, preStopPause(c.spec)) {
				select {
				case terms <- i:
				case <-termCtx.Done():
				}
			}
		})
	}
	for w.running() > 0 {
		w.report(ctx)
		select {
		case <-ctx.Done():
			return
		case <-w.deleted:
			return
		case w.pod = <-w.pods:
		case i := <-terms:
			if cmd := w.containers[i].cmd; cmd != nil {
				signalGroup(cmd, syscall.SIGTERM)
			}
		case e := <-w.events:
			w.handle(ctx, e)
		case <-deadline.C:
			w.kill()
		}
	}
	w.remove(ctx)
}

func preStopPause(c corev1.Container) time.Duration {
	if c.Lifecycle == nil || c.Lifecycle.PreStop == nil || c.Lifecycle.PreStop.Sleep == nil {
		return 0
	}
	return time.Duration(c.Lifecycle.PreStop.Sleep.Seconds) * time.Second
}

func (w *worker) running() (n int) {
	for _, c := range w.containers {
		if c.cmd != nil {
			n++
		}
	}
	return n
}

func (w *worker) kill() {
	for _, c := range w.containers {
		if c.cmd != nil {
			signalGroup(c.cmd, syscall.SIGKILL)
		}
	}
}

func (w *worker) remove(ctx context.Context) {
	now := int64(0)
	for {
		err := w.cfg.Client.CoreV1().Pods(w.pod.Namespace).Delete(ctx, w.pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: &now, Preconditions: metav1.NewUIDPreconditions(string(w.pod.UID)),
		})
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) || errors.Is(err, context.Canceled) || !w.wait(ctx) {
			return
		}
	}
}
