package detect

import "golang.org/x/sys/unix"

// realTime says whether the process runs under SCHED_FIFO or SCHED_RR (sched(7)).
func realTime() bool {
	attr, err := unix.SchedGetAttr(0, 0)
	return err == nil && (attr.Policy == unix.SCHED_FIFO || attr.Policy == unix.SCHED_RR)
}
