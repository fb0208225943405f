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

// Memory of a process, in bytes: what of it is resident.
type Memory struct {
	// Own are the pages of private mappings that no other process has: what goes when this process ends.
	Own int64
	// Common are pages that other processes have, too: libraries, and what it has from its parent and never wrote to.
	Common int64
	// Zones are shared mappings, as nginx's zones are, however many processes have touched their pages.
	Zones int64
}

// Resident is all of it: VmRSS, as of the same moment.
func (m Memory) Resident() int64 { return m.Own + m.Common + m.Zones }

// MemoryOf reads the memory of a process from /proc/PID/smaps (proc(5)).
func MemoryOf(pid int) (Memory, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		return Memory{}, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	m, err := memoryIn(string(b))
	if err != nil {
		return m, fmt.Errorf("the memory of process %d: %w", pid, err)
	}
	return m, nil
}

// memoryIn sums mappings: each begins with a line "address permissions …", followed by lines "Name: n kB".
func memoryIn(smaps string) (Memory, error) {
	m := Memory{}
	private := map[string]*int64{"Private_Clean:": &m.Own, "Private_Dirty:": &m.Own, "Shared_Clean:": &m.Common, "Shared_Dirty:": &m.Common}
	zone := map[string]*int64{"Private_Clean:": &m.Zones, "Private_Dirty:": &m.Zones, "Shared_Clean:": &m.Zones, "Shared_Dirty:": &m.Zones}
	mapping := private
	for line := range strings.Lines(smaps) {
		fields := strings.Fields(line)
		switch {
		case len(fields) < 2:
		case !strings.HasSuffix(fields[0], ":"):
			mapping = private
			if strings.HasSuffix(fields[1], "s") {
				mapping = zone
			}
		case mapping[fields[0]] != nil:
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				return m, fmt.Errorf("%s %w", fields[0], err)
			}
			*mapping[fields[0]] += kib << 10
		}
	}
	return m, nil
}
