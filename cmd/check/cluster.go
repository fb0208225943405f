package check

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"headgate/cmd/rbac"
	"headgate/cmd/shell"
)

const apiTimeout = 10 * time.Second

// The clock may be off by this much before tokens and certificates that are valid begin to look as if they were not,
// and by this much before Leases are lost.
const (
	skewToWarn = 5 * time.Second
	skewToFail = time.Minute
)

// oldestMinor is the Kubernetes 1.x that first served discovery.k8s.io/v1.
const oldestMinor = 21

// cluster asks the API server who it is, what time it is there, and what we may do.
func (r *run) cluster(ctx context.Context, config *rest.Config) {
	config = rest.CopyConfig(config)
	config.Timeout = apiTimeout
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		r.fail(r.newKubeconfig(), "no client can be made from the kubeconfig: %v", err)
		return
	}
	defer client.CloseIdleConnections()
	if !r.version(ctx, config, client) {
		return
	}
	r.area = "rbac"
	clientset, err := kubernetes.NewForConfigAndClient(config, client)
	if err != nil {
		r.fail(r.newKubeconfig(), "no client can be made from the kubeconfig: %v", err)
		return
	}
	r.rights(ctx, clientset)
	if r.deep {
		r.pods(ctx, clientset)
	}
}

// version reads /version, which is open to everybody, and the clock in the head of the answer.
func (r *run) version(ctx context.Context, config *rest.Config, client *http.Client) bool {
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		r.fail("correct the server's URL in the kubeconfig", "the API server's URL cannot be read: %v", err)
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath("/version").String(), nil)
	if err != nil {
		r.fail("correct the server's URL in the kubeconfig", "the API server's URL cannot be asked: %v", err)
		return false
	}
	request.Header.Set("Accept", "application/json")
	sent := r.Host.Now()
	res, err := client.Do(request)
	if err != nil {
		r.fail(adviceOnConnection(err, config.Host), "the API server does not answer: %v", err)
		return false
	}
	defer func() { _ = res.Body.Close() }() // read as far as we need
	r.clock(res.Header.Get("Date"), sent, r.Host.Now())
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	switch {
	case res.StatusCode == http.StatusUnauthorized:
		r.fail(r.newKubeconfig(), "the API server refuses our credentials (401)")
		return false
	case err != nil || res.StatusCode != http.StatusOK:
		r.warn("see whether the URL in the kubeconfig is that of an API server (kubectl --kubeconfig "+shell.Word(r.Config.Kubeconfig)+" version)", "the API server does not tell its version: status %d", res.StatusCode)
		return true
	}
	r.judgeVersion(body)
	return true
}

func (r *run) judgeVersion(body []byte) {
	var info version.Info
	if err := json.Unmarshal(body, &info); err != nil {
		r.warn("see whether the URL in the kubeconfig is that of an API server", "what answers does not tell its version: %v", err)
		return
	}
	minor, err := strconv.Atoi(strings.TrimRight(info.Minor, "+"))
	if err == nil && info.Major == "1" && minor < oldestMinor {
		r.fail(fmt.Sprintf("upgrade the cluster to 1.%d or newer", oldestMinor), "Kubernetes %s does not serve discovery.k8s.io/v1", info.GitVersion)
		return
	}
	r.ok("the API server answers: Kubernetes %s", info.GitVersion)
}

// clock compares the server's time, which is in whole seconds, with the middle of the request.
func (r *run) clock(date string, sent, received time.Time) {
	there, err := http.ParseTime(date)
	if err != nil {
		return // no clock, no skew
	}
	here := sent.Add(received.Sub(sent) / 2)
	skew := here.Sub(there.Add(500 * time.Millisecond)).Round(time.Second)
	const fix = "timedatectl set-ntp true, on the host whose clock is wrong"
	switch {
	case skew.Abs() > skewToFail:
		r.fail(fix, "the clocks differ: this host is %s relative to the API server; tokens, certificates and the Lease depend on them", signed(skew))
	case skew.Abs() > skewToWarn:
		r.warn(fix, "the clocks differ: this host is %s relative to the API server", signed(skew))
	default:
		r.ok("the clock agrees with the API server's")
	}
}

func signed(d time.Duration) string {
	if d < 0 {
		return (-d).String() + " behind"
	}
	return d.String() + " ahead"
}

func adviceOnConnection(err error, host string) string {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &unknown):
		return "write the cluster's CA into certificate-authority-data of the kubeconfig"
	case errors.As(err, &name):
		return "write a server URL whose host is in the API server's certificate, or set tls-server-name in the kubeconfig"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "see whether this host's clock is right; if so, the API server's certificate must be renewed"
	}
	return "see whether " + host + " can be reached from this host (curl -k " + host + "/version)"
}

// rights asks for each rule by SelfSubjectAccessReview, which every user may create.
func (r *run) rights(ctx context.Context, client kubernetes.Interface) {
	options := rbac.From(r.Config)
	rules := rbac.Rules(options)
	missing := 0
	for _, rule := range rules {
		var verbs []string
		for _, verb := range rule.Verbs {
			allowed, err := may(ctx, client, rule, verb)
			if err != nil {
				fix := "see whether the API server is well"
				if apierrors.IsUnauthorized(err) {
					fix = r.newKubeconfig()
				}
				r.fail(fix, "the API server does not say what we may do: %v", err)
				return
			}
			if !allowed {
				verbs = append(verbs, verb)
			}
		}
		if len(verbs) > 0 {
			missing++
			r.fail(r.grant(), "may not %s %s: %s", strings.Join(verbs, ", "), where(rule), rule.Why)
		}
	}
	if missing == 0 {
		r.ok("all %d rules are granted", len(rules))
	}
}

func may(ctx context.Context, client kubernetes.Interface, rule rbac.Rule, verb string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	resource, sub, _ := strings.Cut(rule.Resource, "/")
	attributes := &authorizationv1.ResourceAttributes{
		Namespace: rule.Namespace, Verb: verb, Group: rule.Group, Resource: resource, Subresource: sub,
	}
	if len(rule.Names) == 1 {
		attributes.Name = rule.Names[0]
	}
	review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: attributes},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("review access: %w", err)
	}
	return review.Status.Allowed, nil
}

func where(rule rbac.Rule) string {
	text := rule.Resource
	if rule.Group != "" {
		text += "." + rule.Group
	}
	if len(rule.Names) > 0 {
		text += " " + strings.Join(rule.Names, ", ")
	}
	if rule.Namespace == "" {
		return text + " in the whole cluster"
	}
	return text + " in namespace " + rule.Namespace
}

// grant is the command that mends it; who runs it needs another kubeconfig than ours.
func (r *run) grant() string {
	text := "headgate rbac"
	if r.File != "" {
		text += " --config " + shell.Word(r.File)
	}
	return text + " | kubectl apply -f - (with an administrator's kubeconfig; --service-account NS/NAME if it is not headgate-system/headgate)"
}
