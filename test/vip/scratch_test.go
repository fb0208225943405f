package vip
import ("testing";"time";"headgate/test/vip/lab";"fmt";"strings")
func TestScratch(t *testing.T) {
	e := open(t, lab.Config{Hosts: []string{"a", "b"}, VIPs: []lab.VIP{{Name:"web",Addresses:[]string{"192.0.2.100","2001:db8::100"},Settings:"preemptDelay: 1s"}}})
	e.Hosts[0].Settings = []string{"priority: 150"}
	e.Start(t); e.ask(t)
	a, b := e.Hosts[0], e.Hosts[1]
	for i := 0; i < 5; i++ {
	if o := e.Settled(t); o != a { pause(t, 2*time.Second); fmt.Println(e.Settled(t)==a) }
	e.mark(t)
	n := len(b.Log())
	at := time.Now()
	a.KillBoth(t); dead := time.Now(); pause(t, 500*time.Millisecond);
	four, six := e.damage(t)
	fmt.Printf("%s..%s kill both v4 %+v v6 %+v\n%s\n", at.Format("05.000000"), dead.Format("05.000000"),four, six, b.Log()[n:])
	for _, ev := range e.kernel.Events(t, lab.Web4(), at) { fmt.Println(ev.At.Format("05.000000"), ev) }
	a.StartProxy(t); a.StartVIP(t); e.Settled(t); pause(t, 1500*time.Millisecond)
	}
	_ = strings.ToUpper
}
