package detect

import (
	"testing"

	"go.uber.org/goleak"
)

// Nothing that a test started goes on after it.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
