package netns

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"
)

// ChildRuns is what a child of KillAfter says in a line of its own when it begins.
const ChildRuns = "runs"

// KillAfter runs the test's own binary once more, inside the namespace and with one more variable in its environment, for which
// TestMain must look. It kills the child, with -9, a while after that began; a child that ended by itself fails the test, and
// what it said then is told.
func (n *Namespace) KillAfter(t testing.TB, variable, value string, after time.Duration) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), variable+"="+value)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = n.Start(cmd)
	}
	if err != nil {
		t.Fatal(err)
	}
	told := bufio.NewReader(out)
	if line, err := told.ReadString('\n'); line != ChildRuns+"\n" {
		t.Fatalf("the child told %q, %v", line, err)
	}
	// The moment is what such tests are about.
	time.Sleep(after)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(told)
	_ = cmd.Wait()
	if len(rest) > 0 {
		t.Fatalf("the child ended by itself: %s", rest)
	}
}
