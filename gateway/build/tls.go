package build

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"headgate/gateway/model"
	"headgate/gateway/snapshot"
)

// maxGuesses is how many sections of an Ingress are tried for a certificate that fits a host which no section
// names. Without a limit one Ingress of thousands of hosts and sections could cost seconds.
const maxGuesses = 64

// tlsClaim is what one Ingress says about TLS of a host.
type tlsClaim struct {
	in      *ingress
	section *tlsSection
	named   bool // the section names the host, or every host of its Ingress
}

// chooseCertificate finds the oldest Ingress that configures TLS for the host. The second value tells
// whether there is one; the certificate is "" when the default one is to be served.
func (h *hostBuild) chooseCertificate() (model.CertificateID, bool) {
	if h.name == model.AnyHost {
		return "", false // no certificate can be made for every name
	}
	var winner tlsClaim
	for _, e := range h.entries {
		c, ok := h.tlsClaimOf(e.served)
		switch {
		case !ok:
		case winner.in == nil:
			winner = c
		case c.named && c.secret() != winner.secret():
			h.problems = append(h.problems, c.in.warning(fmt.Sprintf("spec.tls[%d]", c.section.index), HostConflict, fmt.Sprintf(
				"TLS of host %q is configured by Ingress %s, the oldest that names it; use its Secret too, or remove the host here",
				h.name, winner.in.key())))
		}
	}
	if winner.in == nil {
		return "", false
	}
	return h.certificateOf(winner), true
}

func (c tlsClaim) secret() snapshot.Key {
	if c.section.secret == "" {
		return snapshot.Key{}
	}
	return snapshot.Key{Namespace: c.in.src.Namespace, Name: c.section.secret}
}

// tlsClaimOf looks for the section that names the host, else for one whose certificate fits it (as
// ingress-nginx does), else for one that means the host with others.
func (h *hostBuild) tlsClaimOf(in *ingress) (tlsClaim, bool) {
	if section := in.sectionNaming(h.name); section != nil {
		return tlsClaim{in, section, true}, true
	}
	for i := range in.tls[:min(len(in.tls), maxGuesses)] {
		c := tlsClaim{in, &in.tls[i], len(in.tls[i].hosts) == 0}
		if c.section.secret == "" {
			continue
		}
		if cert, _ := h.lookUp(c.secret()); cert != nil && cert.covers(h.name) {
			return c, true
		}
	}
	for i := range in.tls {
		if len(in.tls[i].hosts) == 0 {
			return tlsClaim{in, &in.tls[i], true}, true
		}
	}
	if _, rest, found := strings.Cut(string(h.name), "."); found && !h.name.Wildcard() {
		if section := in.sectionNaming(model.HostName("*." + rest)); section != nil {
			return tlsClaim{in, section, false}, true
		}
	}
	return tlsClaim{}, false
}

// certificateOf gives the certificate of a section, or "" for the default one.
func (h *hostBuild) certificateOf(c tlsClaim) model.CertificateID {
	if c.section.secret == "" {
		return ""
	}
	field := fmt.Sprintf("spec.tls[%d].secretName", c.section.index)
	key := c.secret()
	cert, err := h.lookUp(key)
	switch {
	case cert == nil && err == nil:
		h.problems = append(h.problems, c.in.warning(field, SecretNotFound, fmt.Sprintf(
			"there is no Secret %s; host %q is served with the default certificate; create the Secret with type %s",
			key, h.name, tlsSecretType)))
		return ""
	case cert != nil && !cert.covers(h.name):
		h.problems = append(h.problems, c.in.warning(field, CertificateMismatch, fmt.Sprintf(
			"the certificate in Secret %s is made for %s, not for host %q, which is served with the default certificate; write a certificate for the host",
			key, cert.shownNames(), h.name)))
		return ""
	case err != nil:
		h.problems = append(h.problems, c.in.warning(field, InvalidCertificate, fmt.Sprintf(
			"Secret %s cannot be used: %v; the last good certificate of the Secret stays, or the default one where there is none", key, err)))
	}
	return certificateID(key)
}

// lookUp reads the certificate of a Secret. Both results are nil when there is no Secret. With an error the
// certificate is the last good one, if there was any.
func (h *hostBuild) lookUp(key snapshot.Key) (*certificate, error) {
	h.seenSecrets = append(h.seenSecrets, key)
	return h.readSecret(key)
}

// secretState is what is known of one Secret.
type secretState struct {
	src  *snapshot.Secret
	good *certificate // of src
	err  error
}

// readSecret parses a Secret once per version.
func (b *Builder) readSecret(key snapshot.Key) (*certificate, error) {
	src := b.inputs.secrets[key]
	if src == nil {
		return nil, nil
	}
	state := b.secrets[key]
	if state == nil || state.src != src {
		state = &secretState{src: src}
		state.good, state.err = parseCertificate(src)
		b.secrets[key] = state
	}
	last := b.memory.certificates[key]
	if state.err != nil {
		return last, state.err
	}
	if last != nil && reflect.DeepEqual(last.model, state.good.model) {
		state.good = last // the pointer stays when only metadata changed
	}
	b.memory.certificates[key] = state.good
	return state.good, nil
}

// checkCertificates collects the certificates that hosts use, and tells which are broken or out of time.
func (b *Builder) checkCertificates(now time.Time) {
	b.chooseDefault()
	for key := range b.inputs.dirtySecrets {
		b.certificatesChanged = b.certificatesChanged || b.certificateUsers[key] > 0
	}
	clear(b.inputs.dirtySecrets)
	stale := b.certificatesChanged || now.Before(b.checkedFrom) || !now.Before(b.checkedUntil)
	if !stale {
		return
	}
	b.checkedFrom, b.checkedUntil = time.Time{}, time.Unix(1<<40, 0)
	b.certificates = b.certificates[:0:0]
	var problems []Problem
	for key := range b.certificateUsers {
		c, p := b.serveCertificate(key, now)
		b.certificates = append(b.certificates, c)
		problems = append(problems, p...)
	}
	slices.SortFunc(b.certificates, func(x, y *model.Certificate) int { return cmp.Compare(x.ID, y.ID) })
	slices.SortFunc(problems, compareProblems)
	b.notes.set("certificates", "", problems)
	b.certificatesChanged = false
}

// serveCertificate gives what stands in the model for a Secret that exists.
func (b *Builder) serveCertificate(key snapshot.Key, now time.Time) (*model.Certificate, []Problem) {
	cert, err := b.readSecret(key)
	src := b.inputs.secrets[key]
	note := func(field string, reason Reason, message string) []Problem {
		return []Problem{{Object: objectOf("Secret", &src.Meta), Field: field, Reason: reason, Message: message, Warning: err == nil}}
	}
	if err != nil {
		return b.keep(key), note("data", InvalidCertificate, err.Error()+
			"; until then the last good certificate is served, or the default one where there is none")
	}
	delete(b.kept, key)
	switch from, until := cert.begin, cert.end; {
	case now.Before(from):
		b.checkedUntil = earlier(b.checkedUntil, from)
		return cert.model, note("data[tls.crt]", CertificateNotYetValid, fmt.Sprintf(
			"the certificate is valid only from %s on; it is served all the same; check the clock of its issuer", from.UTC().Format(time.RFC3339)))
	case now.After(until):
		b.checkedFrom = later(b.checkedFrom, until.Add(1))
		return cert.model, note("data[tls.crt]", CertificateExpired, fmt.Sprintf(
			"the certificate expired at %s; it is served all the same; renew it", until.UTC().Format(time.RFC3339)))
	default:
		b.checkedFrom = later(b.checkedFrom, from)
		b.checkedUntil = earlier(b.checkedUntil, until.Add(1))
		return cert.model, nil
	}
}

// keep gives the stand-in for a broken Secret, the same one each time.
func (b *Builder) keep(key snapshot.Key) *model.Certificate {
	if b.kept[key] == nil {
		b.kept[key] = &model.Certificate{ID: certificateID(key), Keep: true}
	}
	return b.kept[key]
}

// chooseDefault makes sure that the configured default certificate exists.
func (b *Builder) chooseDefault() {
	wanted := b.options.Settings.DefaultCertificate
	b.settings = b.options.Settings
	b.settings.DefaultProfile = b.profile
	if wanted == "" {
		return
	}
	key := keyOfCertificate(wanted)
	if cert, err := b.readSecret(key); cert == nil && err == nil {
		b.settings.DefaultCertificate = ""
		b.notes.set("default certificate", "", []Problem{{
			Object: Object{Kind: "Secret", Namespace: key.Namespace, Name: key.Name},
			Reason: SecretNotFound,
			Message: fmt.Sprintf("there is no Secret %s; a generated certificate is the default; create the Secret with type %s",
				wanted, tlsSecretType),
			Warning: true,
		}})
		if b.hasDefault {
			b.hasDefault = false
			b.useCertificate(key, -1)
		}
		return
	}
	b.notes.set("default certificate", "", nil)
	if !b.hasDefault {
		b.hasDefault = true
		b.useCertificate(key, 1)
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
