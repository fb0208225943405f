package gossip

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// ErrUnreachable tells that no process that gossips answers on the socket, or that the caller may not ask it.
var ErrUnreachable = errors.New("no process that gossips answers")

// maxAnswer bounds what is read of an answer.
const maxAnswer = 1 << 20

// Ask gets the status from the process that mounts Handler on the unix socket. The error wraps ErrUnreachable.
func Ask(ctx context.Context, socket string) (Status, error) {
	var s Status
	return s, call(ctx, socket, http.MethodGet, StatusPath, &s)
}

// AskToRotate makes the process rotate the key; see RotateKey. The error wraps ErrUnreachable, or ErrRotation with
// what the process says; then the outcomes are in the rotation.
func AskToRotate(ctx context.Context, socket string) (Rotation, error) {
	return askForRotation(ctx, socket, RotatePath)
}

// AskToFinish makes the process finish a rotation; see FinishRotation. Errors as those of AskToRotate.
func AskToFinish(ctx context.Context, socket string) (Rotation, error) {
	return askForRotation(ctx, socket, FinishPath)
}

func askForRotation(ctx context.Context, socket, path string) (Rotation, error) {
	var r Reply
	if err := call(ctx, socket, http.MethodPost, path, &r); err != nil {
		return Rotation{}, err
	}
	if text, failed := strings.CutPrefix(r.Error, ErrRotation.Error()+": "); failed {
		return r.Rotation, fmt.Errorf("%w: %s", ErrRotation, text)
	}
	if r.Error != "" {
		return r.Rotation, fmt.Errorf("%w: %s", ErrRotation, r.Error)
	}
	return r.Rotation, nil
}

func call(ctx context.Context, socket, method, path string, into any) error {
	client := &http.Client{Timeout: rotationLimit + controlTimeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	request, err := http.NewRequestWithContext(ctx, method, "http://gossip"+path, nil)
	if err != nil {
		return fmt.Errorf("ask for %s: %w", path, err)
	}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("%w on %s: %w", ErrUnreachable, socket, err)
	}
	defer func() { _ = response.Body.Close() }() // it was read
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	switch {
	case err != nil:
		return fmt.Errorf("%w on %s: %w", ErrUnreachable, socket, err)
	case response.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%w on %s: the process there does not gossip: configure gossip, and restart it", ErrUnreachable, socket)
	}
	if err := json.NewDecoder(bytes.NewReader(body)).Decode(into); err != nil {
		return fmt.Errorf("%w on %s: status %d and no answer of ours", ErrUnreachable, socket, response.StatusCode)
	}
	return nil
}

// WriteText prints the status for a person: what is wrong first. It ends at the first error of w.
func (s Status) WriteText(w io.Writer) error {
	var b strings.Builder
	line := func(label, format string, args ...any) {
		fmt.Fprintf(&b, "%-11s %s\n", label, fmt.Sprintf(format, args...))
	}
	if s.Clash != "" {
		line("REFUSED", "%s", s.Clash)
	}
	for _, c := range s.Conditions {
		line("problem", "%s %s for %s: %s", c.Kind, c.Peer, time.Since(c.Since).Round(time.Second), c.Message)
	}
	line("host", "%s at %s, cluster %s", s.Host, s.Address, s.Cluster)
	for _, m := range s.Members {
		line("member", "%s at %s", m.Name, m.Address)
	}
	for i, id := range s.Keys {
		if i == 0 {
			line("key", "%s in use", id)
			continue
		}
		line("key", "%s accepted: the rotation is not finished", id)
	}
	for _, r := range s.Retired {
		line("key", "%s retired at %s", r.ID, r.At.UTC().Format(time.RFC3339))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Degraded says whether something is wrong.
func (s Status) Degraded() bool { return s.Clash != "" || len(s.Conditions) > 0 }

// WriteText prints the rotation for a person. It ends at the first error of w.
func (r Rotation) WriteText(w io.Writer) error {
	var b strings.Builder
	for _, o := range r.Hosts {
		word := "ok"
		if !o.OK {
			word = "MISSING"
		}
		fmt.Fprintf(&b, "%-8s %s: %s\n", word, o.Host, o.Message)
	}
	switch {
	case r.Finished:
		fmt.Fprintf(&b, "the key %s is in use, and no other is accepted\n", r.New)
	case r.Used:
		fmt.Fprintf(&b, "the key %s is in use, and %s is still accepted: when every host has the new one, run 'headgate gossip rotate-key --finish'\n", r.New, r.Old)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
