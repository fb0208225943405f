package pods

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/third_party/forked/golang/expansion"
)

// starter starts commands from one operating system thread that lives as long as the runner. Pdeathsig is sent when
// the *thread* that started the child ends, and Go ends threads as it likes.
type starter chan<- startRequest

type startRequest struct {
	cmd *exec.Cmd
	err chan error
}

func newStarter(ctx context.Context) starter {
	requests := make(chan startRequest)
	go func() {
		runtime.LockOSThread()
		for {
			select {
			case r := <-requests:
				r.err <- r.cmd.Start()
			case <-ctx.Done():
				return
			}
		}
	}()
	return requests
}

func (s starter) start(cmd *exec.Cmd) error {
	r := startRequest{cmd: cmd, err: make(chan error, 1)}
	s <- r
	return <-r.err
}

// startContainer runs one container's program in a process group of its own, its output appended to a file.
func startContainer(start starter, cfg Config, pod *corev1.Pod, c corev1.Container, ip string) (*exec.Cmd, error) {
	binary, ok := binaryFor(cfg.Images, c.Image)
	if !ok {
		return nil, fmt.Errorf("no program for image %q", c.Image)
	}
	log, err := os.OpenFile(filepath.Join(cfg.LogDir, pod.Namespace+"_"+pod.Name+"_"+c.Name+".log"),
		os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	env := containerEnv(pod, c, ip)
	cmd := exec.Command(binary, containerArgs(c, env)...)
	cmd.Dir = "/"
	cmd.Env = env
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := start.start(cmd); err != nil {
		return nil, err
	}
	return cmd, nil
}

func binaryFor(images []Image, name string) (string, bool) {
	for _, i := range images {
		if ok, _ := path.Match(i.Pattern, name); ok {
			return i.Binary, true
		}
	}
	return "", false
}

// containerEnv is what the pod asks for and what every program here may rely on. POD_IP tells where to listen,
// POD_IMAGE and POD_PORTS (comma-separated containerPorts) let one binary play many roles.
func containerEnv(pod *corev1.Pod, c corev1.Container, ip string) []string {
	ports := make([]string, 0, len(c.Ports))
	for _, p := range c.Ports {
		ports = append(ports, strconv.Itoa(int(p.ContainerPort)))
	}
	env := []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/", "HOSTNAME=" + pod.Name,
		"POD_IP=" + ip, "POD_NAME=" + pod.Name, "POD_NAMESPACE=" + pod.Namespace, "NODE_NAME=" + NodeName,
		"POD_IMAGE=" + c.Image, "POD_PORTS=" + strings.Join(ports, ","),
	}
	for _, v := range c.Env {
		value := v.Value
		if v.ValueFrom != nil && v.ValueFrom.FieldRef != nil {
			value = fieldValue(pod, v.ValueFrom.FieldRef.FieldPath, ip)
		}
		env = append(env, v.Name+"="+value)
	}
	return env
}

func fieldValue(pod *corev1.Pod, field, ip string) string {
	switch field {
	case "metadata.name":
		return pod.Name
	case "metadata.namespace":
		return pod.Namespace
	case "metadata.uid":
		return string(pod.UID)
	case "spec.nodeName":
		return NodeName
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName
	case "status.podIP", "status.podIPs":
		return ip
	case "status.hostIP":
		return hostIP
	default:
		return ""
	}
}

// containerArgs takes the mapped program in place of command[0] and expands $(VAR) as a kubelet does.
func containerArgs(c corev1.Container, env []string) []string {
	vars := make(map[string]string, len(env))
	for _, e := range env {
		k, v, _ := strings.Cut(e, "=")
		vars[k] = v
	}
	mapping := expansion.MappingFuncFor(vars)
	var args []string
	if len(c.Command) > 1 {
		args = append(args, c.Command[1:]...)
	}
	args = append(args, c.Args...)
	for i := range args {
		args[i] = expansion.Expand(args[i], mapping)
	}
	return args
}

// unsupported says why a pod cannot run here; empty means it can.
func unsupported(images []Image, pod *corev1.Pod) string {
	if len(pod.Spec.InitContainers) > 0 {
		return "init containers are not supported"
	}
	for _, c := range pod.Spec.Containers {
		if _, ok := binaryFor(images, c.Image); !ok {
			return fmt.Sprintf("no program is mapped to image %q", c.Image)
		}
		for _, v := range c.Env {
			if v.ValueFrom != nil && v.ValueFrom.FieldRef == nil {
				return fmt.Sprintf("environment variable %s is taken from what is not supported", v.Name)
			}
		}
		if len(c.EnvFrom) > 0 {
			return "envFrom is not supported"
		}
	}
	return ""
}

func signalGroup(cmd *exec.Cmd, sig syscall.Signal) { _ = syscall.Kill(-cmd.Process.Pid, sig) }
