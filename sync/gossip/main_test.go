package gossip

import (
	"testing"

	"go.uber.org/goleak"
)

// Nothing that a test started goes on after it, but for what memberlist's Shutdown does not wait for: a probe or a sync that is
// under way, and the answer to an indirect ping. Their own timeouts end them.
func TestMain(m *testing.M) {
	const list = "github.com/hashicorp/memberlist.(*Memberlist)."
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction(list+"triggerFunc"),
		goleak.IgnoreAnyFunction(list+"pushPullTrigger"),
		goleak.IgnoreAnyFunction(list+"sendPingAndWaitForAck"),
		goleak.IgnoreAnyFunction(list+"handleIndirectPing.func2"),
	)
}
