package assemble

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"headgate/gateway/build"
	"headgate/gateway/model"
	"headgate/gateway/plan"
	"headgate/sync/admin"
	"headgate/sync/luapush"
	"headgate/sync/nginxproc"
	"headgate/sync/reconcile"
)

func TestStatus(t *testing.T) {
	at := time.Date(2026, 11, 29, 3, 0, 0, 0, time.UTC)
	base := Base("v1", 42, at)
	base.Proxy.Mode = "managed"
	base.Source = admin.Source{Kind: "manifests", Detail: "/m", Healthy: true}
	base.Certificates = []admin.Certificate{{ID: "default", NotAfter: at}}
	problem := build.Problem{
		Object: build.Object{Kind: "Ingress", Namespace: "a", Name: "b", Origin: "a.yaml:1"},
		Field:  "spec", Reason: build.HostConflict, Message: "m", Warning: true,
	}
	got := Status(base, Told{
		Loop: reconcile.Status{
			Synced: true, Ready: true, Desired: 7, Applied: 6, Err: errors.New("push"), LogErr: errors.New("disk"), Rival: "r", TooLarge: []string{"host/x"},
			Result: &build.Result{Model: &model.Model{
				Hosts:     []*model.Host{{Routes: []*model.Route{{}, {}}}, {Routes: []*model.Route{{}}}},
				Upstreams: []*model.Upstream{{Peers: []model.Peer{{Address: netip.MustParseAddrPort("10.0.0.1:80")}}}},
				Certificates: []*model.Certificate{
					{ID: "a/b", NotAfter: at.Add(time.Hour), Key: model.Secret("secret")}, {ID: "a/kept", Keep: true},
				},
			}},
			Problems: []build.Problem{problem},
			Proxy: luapush.State{
				Boot: "b", MasterPID: 9, NginxVersion: "1.22.1", LuaBuild: "l", Generation: "g",
				Workers: []luapush.Worker{{PID: 10, Generation: "g", Revision: 6, SeenMs: 5, Errors: []string{"e"}}},
				Dict:    luapush.Dict{Capacity: 100, Free: 40},
			},
			LastReload: reconcile.Reload{Time: at, Reasons: []plan.Reason{plan.FirstStart}, Err: errors.New("no")},
			Passes:     3, Pushes: 2, Failures: 1, Reloads: map[plan.Reason]uint64{plan.FirstStart: 1},
		},
		Process: nginxproc.Condition{Restarts: 4}, LogRevision: 6, LogBytes: 1000,
	})
	want := admin.Status{
		Version: "v1", PID: 42, Started: at,
		Source:   admin.Source{Kind: "manifests", Detail: "/m", Synced: true, Healthy: true},
		Revision: admin.Revision{Desired: 7, Applied: 6},
		Proxy: admin.Proxy{
			Mode: "managed", Reachable: true, Restarts: 4, MasterPID: 9, NginxVersion: "1.22.1", LuaBuild: "l", Generation: "g",
			Workers:           []admin.Worker{{PID: 10, Generation: "g", Revision: 6, SeenMs: 5, Errors: []string{"e"}}},
			DictCapacityBytes: 100, DictFreeBytes: 40,
		},
		StateLog: admin.StateLog{Revision: 6, SizeBytes: 1000, Error: "disk"},
		Ready:    true, Error: "push", Rival: "r", TooLarge: []string{"host/x"},
		Counts:     admin.Counts{Hosts: 2, Routes: 3, Upstreams: 1, Peers: 1, Certificates: 2},
		LastReload: &admin.Reload{Time: at, Reasons: []string{"first-start"}, Error: "no"},
		Reloads:    map[string]uint64{"first-start": 1}, Passes: 3, Pushes: 2, Failures: 1,
		Problems: []admin.Problem{{
			Kind: "Ingress", Namespace: "a", Name: "b", Origin: "a.yaml:1", Field: "spec", Reason: "HostConflict", Message: "m", Warning: true,
		}},
		Certificates: []admin.Certificate{{ID: "default", NotAfter: at}, {ID: "a/b", NotAfter: at.Add(time.Hour)}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	if len(base.Certificates) != 1 {
		t.Error("the base was changed")
	}
}

func TestStatusOfTheLastKnownGood(t *testing.T) {
	got := Status(admin.Status{}, Told{Loop: reconcile.Status{LastKnownGood: true, Proxy: luapush.State{Boot: "b", Revision: 5}}})
	if want := (admin.Revision{Desired: 5, Applied: 5}); got.Revision != want || !got.LastKnownGood {
		t.Errorf("revision %+v, want %+v", got.Revision, want)
	}
}

func TestStatusOfADeadProxy(t *testing.T) {
	got := Status(admin.Status{}, Told{
		Loop:    reconcile.Status{ProxyErr: luapush.ErrUnreachable, Proxy: luapush.State{Boot: "b", MasterPID: 9}},
		Process: nginxproc.Condition{Err: errors.New("port 80 is taken")},
	})
	if got.Proxy.Reachable || got.Proxy.Error != "port 80 is taken" || got.LastReload != nil {
		t.Errorf("proxy %+v, last reload %v", got.Proxy, got.LastReload)
	}
}
