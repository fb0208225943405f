package nginx_test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"headgate/gateway/model"
)

// TestMoreCertificatesThanAreHeld: a worker frees parsed certificates as soon as it holds too many. Whoever asks for one of
// them gets it all the same, connections that were made with it go on, and nothing is freed twice.
func TestMoreCertificatesThanAreHeld(t *testing.T) {
	const held, all = 1024, 1100 // CERTIFICATES of lua/headgate/worker.lua
	settings := dpSettings()
	settings.WorkerProcesses = 1
	p := dpStart(t, settings)
	name := func(i int) string { return fmt.Sprintf("c%d.test", i) }
	for i := range all {
		id := model.CertificateID(fmt.Sprintf("d/c%d", i))
		p.model.Certificates = append(p.model.Certificates, dpCertificate(t, id, name(i)))
		p.model.Hosts = append(p.model.Hosts, &model.Host{Name: model.HostName(name(i)), TLS: true, Certificate: id})
	}
	p.push()
	before := p.state().Workers
	shake := func(i int) *tls.Conn {
		t.Helper()
		conn, err := tls.Dial("tcp", p.https.String(), &tls.Config{InsecureSkipVerify: true, ServerName: name(i)}) //nolint:gosec // the test's own
		if err != nil {
			t.Fatalf("%s: %v", name(i), err)
		}
		if got := conn.ConnectionState().PeerCertificates[0].Subject.CommonName; got != name(i) {
			t.Fatalf("SNI %s: %s", name(i), got)
		}
		return conn
	}
	first := shake(0)
	defer func() { _ = first.Close() }()
	for range 2 { // in turn: each is one that is not held
		for i := range all {
			_ = shake(i).Close()
		}
	}
	for range 2 { // a renewed one takes the place of another while it is held
		renewed := dpCertificate(t, p.model.Certificates[all-1].ID, name(all-1))
		p.model.Certificates[all-1] = renewed
		p.push()
		conn := shake(all - 1)
		if !bytes.Equal(conn.ConnectionState().PeerCertificates[0].Raw, renewed.Chain[0]) {
			t.Error("the certificate before is still served")
		}
		_ = conn.Close()
	}
	for i := all - held/2; i < all; i++ { // these are held
		_ = shake(i).Close()
	}
	if _, err := io.WriteString(first, "GET / HTTP/1.1\r\nHost: "+name(0)+"\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if answer, err := io.ReadAll(first); err != nil || !strings.Contains(string(answer), http.StatusText(http.StatusNotFound)) {
		t.Errorf("the first connection got %q, %v", answer, err)
	}
	after := p.state().Workers
	if len(before) != 1 || len(after) != 1 || before[0].PID != after[0].PID || len(after[0].Errors) > 0 {
		t.Errorf("the workers were %+v and are %+v", before, after)
	}
}
