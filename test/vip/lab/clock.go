package lab

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// A process reads the clock through code that the kernel maps into it (vdso(7)). The lab writes its own code there, which asks
// the kernel and adds an offset to what it says of the wall clock. So one host's clock jumps, and that of the machine
// does not; the monotonic clock goes on, as it does when a clock is set.

// SetClock makes the VIP process and the proxy of a host see the wall clock that much later than it is, or earlier, from
// now on. Processes that start later see it as it is.
func (h *Host) SetClock(t testing.TB, later time.Duration) {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("the lab can set the clock of a process on amd64 only")
	}
	pids := append([]int{h.PID(), h.ProxyPID()}, Children(h.ProxyPID())...)
	for _, pid := range pids {
		if err := setClock(pid, later); err != nil {
			t.Fatalf("set the clock of process %d: %v", pid, err)
		}
	}
	near := func(what string, tell func() (time.Time, error)) {
		var off time.Duration
		for deadline := time.Now().Add(Patience); ; rest() {
			at, err := tell()
			if off = time.Until(at) - later; err == nil && off.Abs() < time.Minute {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("the clock of the %s did not jump: it is off by %s (%v)", what, off, err)
			}
		}
	}
	near("VIP process", func() (time.Time, error) {
		s, err := h.ask()
		return s.Time, err
	})
	near("proxy", h.proxyTime)
}

// proxyTime is what the proxy takes for the time: the Date of an answer.
func (h *Host) proxyTime() (time.Time, error) {
	var at time.Time
	err := h.Namespace.Do(func() error {
		conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(h.lab.address(h.Number), 80).String(), time.Second) //nolint:noctx // has a limit
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }() // nothing more is wanted of it
		if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		if _, err := conn.Write([]byte(request)); err != nil {
			return err
		}
		text, err := io.ReadAll(conn)
		if err != nil {
			return err
		}
		_, date, _ := strings.Cut(string(text), "\r\nDate: ")
		date, _, _ = strings.Cut(date, "\r\n")
		at, err = http.ParseTime(date)
		return err
	})
	return at, err
}

// setClock does not stop the process: its peers would miss it. What is written where a thread may be is eight bytes in one place.
func setClock(pid int, later time.Duration) (err error) {
	base, image, err := vdso(pid)
	if err != nil {
		return err
	}
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, memory.Close()) }()
	write := func(at int, text []byte) error {
		_, err := memory.WriteAt(text, base+int64(at))
		return err
	}
	room := len(image) - clockBytes
	if !bytes.HasPrefix(image[room:], []byte(clockMark)) {
		if err := install(image, room, write); err != nil {
			return err
		}
	}
	seconds := binary.LittleEndian.AppendUint64(nil, uint64(int64(later/time.Second))) //nolint:gosec // two's complement is meant
	return write(room+len(clockMark), seconds)
}

// vdso finds the code of the kernel in a process, and reads it.
func vdso(pid int) (int64, []byte, error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, nil, err
	}
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		if !strings.Contains(line, "[vdso]") {
			continue
		}
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
			return 0, nil, err
		}
		memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
		if err != nil {
			return 0, nil, err
		}
		image := make([]byte, to-from)
		_, err = memory.ReadAt(image, from)
		return from, image, errors.Join(err, memory.Close())
	}
	return 0, nil, errors.New("it has no vDSO")
}

// What stands at the end of the vDSO, where it is empty: a mark, the offset in seconds, and the functions.
const (
	clockBytes = 256
	clockMark  = "headgate" // 8 bytes: the offset is aligned
)

// install writes the functions, and jumps to them where those of the kernel begin.
func install(image []byte, room int, write func(at int, text []byte) error) error {
	if strings.Trim(string(image[room:]), "\x00") != "" {
		return errors.New("its vDSO has no room")
	}
	file, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return fmt.Errorf("vDSO: %w", err)
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return fmt.Errorf("vDSO: %w", err)
	}
	offset := room + len(clockMark)
	at := offset + 8
	if err := write(room, []byte(clockMark)); err != nil {
		return err
	}
	for name, parts := range clockFunctions() {
		entry := 0
		for _, s := range symbols {
			if s.Name == name {
				entry = int(s.Value) //nolint:gosec // within the image
			}
		}
		if entry == 0 {
			return fmt.Errorf("its vDSO has no %s", name)
		}
		// Between the two parts stands the offset's distance from the end of the instruction.
		code := append(relative(parts[0], at, offset), parts[1]...)
		jump := relative([]byte{0xe9}, entry, at) // jmp
		if err := errors.Join(write(at, code), write(entry, append(jump, image[entry+len(jump):entry+8]...))); err != nil {
			return err
		}
		at += len(code)
	}
	return nil
}

// relative appends how far the target is from the end of the instruction that begins the code at a place.
func relative(code []byte, at, target int) []byte {
	const distance = 4 // bytes
	end := at + len(code) + distance
	return binary.LittleEndian.AppendUint32(bytes.Clone(code), uint32(int32(target-end))) //nolint:gosec // two's complement is meant
}

// clockFunctions are the three through which a process reads the wall clock, for amd64: the system call, and the offset added
// to the seconds.
func clockFunctions() map[string][2][]byte {
	return map[string][2][]byte{
		"__vdso_clock_gettime": {{
			0xb8, 228, 0, 0, 0, // mov eax, SYS_clock_gettime
			0x0f, 0x05, // syscall
			0x85, 0xc0, 0x75, 0x13, // test eax, eax; jnz end
			0x85, 0xff, 0x74, 0x05, // test edi, edi; jz add (CLOCK_REALTIME)
			0x83, 0xff, 5, 0x75, 0x0a, // cmp edi, CLOCK_REALTIME_COARSE; jne end
			0x48, 0x8b, 0x15, // add: mov rdx, [offset]
		}, {
			0x48, 0x01, 0x16, // add [rsi], rdx
			0xc3, // end: ret
		}},
		"__vdso_gettimeofday": {{
			0xb8, 96, 0, 0, 0, // mov eax, SYS_gettimeofday
			0x0f, 0x05, // syscall
			0x85, 0xc0, 0x75, 0x0f, // test eax, eax; jnz end
			0x48, 0x85, 0xff, 0x74, 0x0a, // test rdi, rdi; jz end
			0x48, 0x8b, 0x15, // mov rdx, [offset]
		}, {
			0x48, 0x01, 0x17, // add [rdi], rdx
			0xc3, // end: ret
		}},
		"__vdso_time": {{
			0x57, 0x31, 0xff, // push rdi; xor edi, edi
			0xb8, 201, 0, 0, 0, // mov eax, SYS_time
			0x0f, 0x05, 0x5f, // syscall; pop rdi
			0x48, 0x03, 0x05, // add rax, [offset]
		}, {
			0x48, 0x85, 0xff, 0x74, 0x03, // test rdi, rdi; jz end
			0x48, 0x89, 0x07, // mov [rdi], rax
			0xc3, // end: ret
		}},
	}
}
