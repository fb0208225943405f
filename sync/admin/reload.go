package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"headgate/sync/socket"
)

// Reconfiguration is what became of the configuration file, or would: the keys whose values changed since the daemon read
// them, by what brings them into force.
type Reconfiguration struct {
	// File is the one that the daemon reads; "" when it was started without any and the default one does not exist.
	File string `json:"file"`
	// Reload are keys that a reload brings into force, Restart and RestartVIP those for which the daemon or the VIP
	// process must be restarted. Each is sorted as the reference is.
	Reload     []string `json:"reload"`
	Restart    []string `json:"restart"`
	RestartVIP []string `json:"restartVIP"`
	// Done tells that the keys of Reload are in force now. It is false in the answer to the mere question.
	Done bool `json:"done"`
	// Pending says why the proxy does not have them yet, although they are in force in the daemon; "" when it has.
	Pending string `json:"pending,omitempty"`
}

func (r Reconfiguration) normal() Reconfiguration {
	r.Reload, r.Restart, r.RestartVIP = append([]string{}, r.Reload...), append([]string{}, r.Restart...), append([]string{}, r.RestartVIP...)
	return r
}

// Changed tells whether any key differs.
func (r Reconfiguration) Changed() bool {
	return len(r.Reload)+len(r.Restart)+len(r.RestartVIP) > 0
}

// Reloader reads the configuration again.
type Reloader interface {
	// Compare says what a reload would do, and changes nothing.
	Compare() (Reconfiguration, error)
	// Reload does it. After an error everything is as it was.
	Reload(ctx context.Context) (Reconfiguration, error)
}

// ReloadHandler makes Answers.Reload: GET compares, POST reloads; 409 says, in lines, why not. A reload that has begun is
// brought to its end when who asked for it has left.
func ReloadHandler(r Reloader) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		var answer Reconfiguration
		var err error
		if request.Method == http.MethodPost {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(request.Context()), reloadPatience)
			defer cancel()
			answer, err = r.Reload(ctx)
		} else {
			answer, err = r.Compare()
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		writeJSON(w, answer.normal())
	})
}

// reloadPatience is how long the loop may be busy before a reload begins; reloadTimeout is for the whole of it: nginx has half a
// minute to test a configuration and as long to come up with it, and may have to go back.
const (
	reloadPatience = 30 * time.Second
	reloadTimeout  = 5 * time.Minute
)

// ErrNotReloaded tells that the daemon goes on with the configuration that it had, and why.
var ErrNotReloaded = errors.New("nothing is changed, the configuration in force stays")

// AskReload has the daemon read its configuration again. The error wraps ErrUnreachable like that of Ask, or ErrNotReloaded
// with what the daemon says, in lines.
func AskReload(ctx context.Context, runtimeDir string) (Reconfiguration, error) {
	return askReload(ctx, runtimeDir, http.MethodPost)
}

// AskCompare asks what a reload would do. Errors as those of AskReload.
func AskCompare(ctx context.Context, runtimeDir string) (Reconfiguration, error) {
	return askReload(ctx, runtimeDir, http.MethodGet)
}

func askReload(ctx context.Context, runtimeDir, method string) (Reconfiguration, error) {
	var r Reconfiguration
	status, body, err := call(ctx, runtimeDir, socket.Question{Method: method, Path: "/v1/reload", Timeout: reloadTimeout})
	switch {
	case err != nil:
		return r, err
	case status == http.StatusNotFound:
		return r, fmt.Errorf("%w: the daemon is of a version that cannot reload; restart it with this one", ErrNotReloaded)
	case status != http.StatusOK:
		return r, fmt.Errorf("%w: %s", ErrNotReloaded, printable(strings.TrimSpace(string(body))))
	}
	if err := json.Unmarshal(body, &r); err != nil {
		return r, fmt.Errorf("decode the answer from %s: %w", SocketPath(runtimeDir), err)
	}
	return r, nil
}

// printable keeps the lines of a text and nothing else that moves the cursor.
func printable(text string) string {
	lines := slices.Collect(strings.SplitSeq(text, "\n"))
	for i := range lines {
		lines[i] = oneLine(lines[i])
	}
	return strings.Join(lines, "\n")
}
