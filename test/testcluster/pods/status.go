package pods

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// status is the pod's status as observed now.
func (w *worker) status() corev1.PodStatus {
	status := corev1.PodStatus{
		Phase:     w.phase(),
		HostIP:    hostIP,
		HostIPs:   []corev1.HostIP{{IP: hostIP}},
		PodIP:     w.ip,
		PodIPs:    []corev1.PodIP{{IP: w.ip}},
		StartTime: &w.started,
		QOSClass:  w.pod.Status.QOSClass,
	}
	ready := status.Phase == corev1.PodRunning
	for _, c := range w.containers {
		status.ContainerStatuses = append(status.ContainerStatuses, c.status())
		ready = ready && c.ready
	}
	status.Conditions = []corev1.PodCondition{
		w.condition(corev1.PodScheduled, true),
		w.condition(corev1.PodInitialized, true),
		w.condition(corev1.ContainersReady, ready),
		w.condition(corev1.PodReady, ready && w.gatesOpen()),
	}
	return status
}

// gatesOpen reports whether the conditions named by spec.readinessGates, which others set, are all true.
func (w *worker) gatesOpen() bool {
	for _, gate := range w.pod.Spec.ReadinessGates {
		if c := findCondition(w.pod.Status.Conditions, gate.ConditionType); c == nil || c.Status != corev1.ConditionTrue {
			return false
		}
	}
	return true
}

// condition keeps the transition time of an unchanged condition: minReadySeconds and our own "nothing changed" need it.
func (w *worker) condition(kind corev1.PodConditionType, ok bool) corev1.PodCondition {
	c := corev1.PodCondition{Type: kind, Status: corev1.ConditionFalse}
	if ok {
		c.Status = corev1.ConditionTrue
	}
	if old := findCondition(w.conditions, kind); old != nil && old.Status == c.Status {
		return *old
	}
	c.LastTransitionTime = metav1.Now()
	w.conditions = append(dropCondition(w.conditions, kind), c)
	return c
}

func findCondition(list []corev1.PodCondition, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range list {
		if list[i].Type == kind {
			return &list[i]
		}
	}
	return nil
}

func dropCondition(list []corev1.PodCondition, kind corev1.PodConditionType) []corev1.PodCondition {
	var kept []corev1.PodCondition
	for _, c := range list {
		if c.Type != kind {
			kept = append(kept, c)
		}
	}
	return kept
}

// phase is Running while something runs or will run again; a pod that never restarts ends Succeeded or Failed.
func (w *worker) phase() corev1.PodPhase {
	failed := false
	for _, c := range w.containers {
		if c.cmd != nil || c.last == nil || w.restarts(c.last.ExitCode) {
			return corev1.PodRunning
		}
		failed = failed || c.last.ExitCode != 0
	}
	if failed {
		return corev1.PodFailed
	}
	return corev1.PodSucceeded
}

func (c *container) status() corev1.ContainerStatus {
	running := c.cmd != nil
	s := corev1.ContainerStatus{
		Name: c.spec.Name, Image: c.spec.Image, ImageID: c.spec.Image,
		Ready: c.ready, Started: &running, RestartCount: c.restarts,
	}
	if c.last != nil {
		s.LastTerminationState.Terminated = c.last
	}
	switch {
	case running:
		s.State.Running = &corev1.ContainerStateRunning{StartedAt: c.since}
	case c.last != nil:
		s.State.Terminated = c.last
	default:
		s.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
	}
	return s
}
