package externalname

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// FuzzResolvConf: any resolv.conf gives servers to ask within bounds, or an error.
func FuzzResolvConf(f *testing.F) {
	for _, text := range []string{
		"nameserver 10.0.0.53\noptions timeout:3 attempts:4\n", "nameserver fe80::1%eth0\nnameserver not-an-address\n",
		"options timeout:-1 attempts:99999999999999999999 ndots:x\n", "", "nameserver\n\x00", "search " + "a.b.c. d",
	} {
		f.Add([]byte(text))
	}
	path := filepath.Join(f.TempDir(), "resolv.conf")
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := readResolvConf(path)
		if err != nil {
			return
		}
		if len(got.list) == 0 || got.attempts < 1 || got.attempts > 5 || got.timeout < time.Second || got.timeout > 30*time.Second {
			t.Errorf("%+v", got)
		}
		for _, server := range got.list {
			if !server.IsValid() || server.Port() == 0 {
				t.Errorf("server %v", server)
			}
		}
	})
}
