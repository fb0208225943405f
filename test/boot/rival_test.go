package boot

import (
	"strings"
	"testing"
	"time"

	"headgate/test/netns"
)

// freedLimit is how long after its ports are freed the gateway may take to have them: they are tried every five seconds.
const freedLimit = 30 * time.Second

// TestAnNginxThatRanBefore: somebody's own nginx has port 80. It is left alone, named with the command that stops it wherever an
// administrator looks, and its port is taken once that was done.
func TestAnNginxThatRanBefore(t *testing.T) {
	l := theLab()
	l.index(t)
	startBackend(t)
	h := newHost(t, l, "edge7", 27)
	h.apt(t, "install nginx")
	if s := h.state(t, "nginx"); s != "active" {
		t.Fatalf("the distribution's nginx is %s", s)
	}
	out := h.apt(t, "install headgate="+oldVersion)
	if !strings.Contains(out, "nginx.service is left running, and does not start again while headgate is installed") {
		t.Errorf("the install does not tell of nginx.service:\n%s", out)
	}
	if s := h.state(t, "nginx"); s != "active" {
		t.Errorf("the nginx that ran before is %s", s)
	}
	h.write(t, "/etc/headgate/manifests/shop.yaml", objects)
	h.write(t, "/etc/headgate/headgate.yaml", "manifests: [/etc/headgate/manifests]\n")
	h.must(t, "systemctl enable --now --no-block headgate")

	const holder, fix = "0.0.0.0:80 is taken by nginx (PID ", "systemctl disable --now nginx.service"
	for what, command := range map[string]string{
		"status": "headgate status", "journal": "journalctl -u headgate -o cat --no-pager", "systemctl status": "systemctl show --value -p StatusText headgate",
		"doctor": "headgate doctor", "doctor of another user": "setpriv --reuid=headgate --regid=headgate --init-groups headgate doctor",
	} {
		last := ""
		netns.Eventually(t, bootLimit, what+" to name who has the port", func() bool {
			last, _ = h.run(t.Context(), "sh", "-c", command+" 2>&1")
			return strings.Contains(last, holder) && strings.Contains(last, ", unit nginx.service)")
		})
		if what != "systemctl status" && !strings.Contains(last, fix) {
			t.Errorf("%s does not say how to free the port:\n%s", what, last)
		}
	}
	h.must(t, fix)
	t.Logf("served %s after the port was free", serves(t, h.address, freedLimit).Round(time.Millisecond))
	netns.Eventually(t, bootLimit, "headgate status to be ok", func() bool {
		_, err := h.run(t.Context(), "headgate", "status")
		return err == nil
	})

	// At a boot nobody is there before us.
	h.reboot(t, l)
	serves(t, h.address, serveLimit)
	if s := h.state(t, "nginx"); s != "inactive" {
		t.Errorf("nginx.service is %s after a boot", s)
	}
}
