package stage

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// clockTick is USER_HZ, the unit of times in /proc/PID/stat; it is 100 on every Linux that Go supports.
const clockTick = 10 * time.Millisecond

// ProcessCPU is the time that all threads of a process have spent on a core so far, in steps of 10 ms.
func ProcessCPU(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
	}
	// The name in parentheses may hold anything; utime and stime are the 12th and 13th field behind it (proc(5)).
	const utime, stime = 11, 12
	_, rest, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	if len(fields) <= stime {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	var ticks int64
	for _, field := range []string{fields[utime], fields[stime]} {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick, nil
}

// Memory of a process, in bytes.
type Memory struct {
	Resident int64 // VmRSS: everything that is in memory
	Shared   int64 // RssShmem: what of it are shared mappings
}

// MemoryOf reads the memory of a process.
func MemoryOf(pid int) (Memory, error) {
	m := Memory{}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return m, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	into := map[string]*int64{"VmRSS": &m.Resident, "RssShmem": &m.Shared}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		if field := into[name]; field != nil {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			if err != nil {
				return m, fmt.Errorf("%s of process %d: %w", name, pid, err)
			}
			*field = kib << 10
		}
	}
	return m, nil
}
