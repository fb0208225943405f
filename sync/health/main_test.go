package health

import (
	"net"
	"net/http"
	"os"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// roleVariable makes the test binary play something else than the tests, as a child of them.
const roleVariable = "HEADGATE_TEST_HEALTH_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "server":
		serveForever(os.Getenv("HEADGATE_TEST_HEALTH_ADDRESS"))
	case "checker":
		checkForever(os.Getenv("HEADGATE_TEST_HEALTH_ADDRESS"))
	default:
		goleak.VerifyTestMain(m)
	}
}

// serveForever answers every request on address with 200, and prints where it listens.
func serveForever(address string) {
	l, err := net.Listen("tcp4", address)
	if err != nil {
		panic(err)
	}
	println(l.Addr().String()) //nolint:forbidigo // to the parent
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok"))
	})}
	panic(server.Serve(l))
}

// processTime is the CPU time of this process.
func processTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
