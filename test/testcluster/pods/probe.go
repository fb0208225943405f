package pods

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	probeFast    = 25 * time.Millisecond  // until the first success: start-up is what tests wait for
	probeSlow    = 250 * time.Millisecond // afterwards; periodSeconds and thresholds of the probe are not looked at
	probeTimeout = time.Second
)

// probe sends the container's readiness whenever it changes, until ctx ends.
func probe(ctx context.Context, c corev1.Container, ip string, changed func(ready bool)) {
	transport := &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // as a kubelet does
	}
	client := &http.Client{Transport: transport, Timeout: probeTimeout}
	if p := c.ReadinessProbe; p != nil && p.InitialDelaySeconds > 0 && !sleep(ctx, time.Duration(p.InitialDelaySeconds)*time.Second) {
		return
	}
	ready, period := false, probeFast
	for {
		if now := check(ctx, client, c, ip); now != ready {
			ready, period = now, probeSlow
			changed(ready)
		}
		if !sleep(ctx, period) {
			return
		}
	}
}

// check looks once: by HTTP or TCP where the readiness probe says so, else by a connection to each TCP port.
func check(ctx context.Context, client *http.Client, c corev1.Container, ip string) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if p := c.ReadinessProbe; p != nil {
		switch {
		case p.HTTPGet != nil:
			return httpOK(ctx, client, c, p.HTTPGet, ip)
		case p.TCPSocket != nil:
			return dial(ctx, ip, portNumber(c, p.TCPSocket.Port))
		}
	}
	for _, p := range c.Ports {
		if (p.Protocol == "" || p.Protocol == corev1.ProtocolTCP) && !dial(ctx, ip, int(p.ContainerPort)) {
			return false
		}
	}
	return true
}

func dial(ctx context.Context, ip string, port int) bool {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(ip, strconv.Itoa(port)))
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

func httpOK(ctx context.Context, client *http.Client, c corev1.Container, get *corev1.HTTPGetAction, ip string) bool {
	scheme := "http"
	if get.Scheme == corev1.URISchemeHTTPS {
		scheme = "https"
	}
	url := fmt.Sprintf("%s://%s%s", scheme, net.JoinHostPort(ip, strconv.Itoa(portNumber(c, get.Port))), get.Path)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	for _, h := range get.HTTPHeaders {
		if http.CanonicalHeaderKey(h.Name) == "Host" {
			req.Host = h.Value
			continue
		}
		req.Header.Add(h.Name, h.Value)
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode >= 200 && resp.StatusCode < 400
}

func portNumber(c corev1.Container, port intstr.IntOrString) int {
	for _, p := range c.Ports {
		if port.Type == intstr.String && p.Name == port.StrVal {
			return int(p.ContainerPort)
		}
	}
	return port.IntValue()
}

// sleep waits for d and reports false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
