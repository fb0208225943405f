package product

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// Children lists the processes that pid has started and that were not waited for (proc(5), children: the main thread's are
// all there are, nginx has one thread that forks).
func Children(tb testing.TB, pid int) []int {
	tb.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", pid))
	if err != nil {
		tb.Fatal(err)
	}
	var pids []int
	for field := range strings.FieldsSeq(string(text)) {
		child, err := strconv.Atoi(field)
		if err != nil {
			tb.Fatal(err)
		}
		pids = append(pids, child)
	}
	return pids
}
