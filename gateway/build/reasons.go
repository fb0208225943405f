package build

// Reason says what is wrong with an object. It is the Reason of the Event that tells the author.
type Reason string

// The reasons of Ingress v1. An object that is served all the same has Problem.Warning set.
const (
	// UnreadableInput: an input is not an object at all, such as a broken YAML file.
	UnreadableInput Reason = "UnreadableInput"
	// DoubtfulInput: an input could be read, but should be written otherwise, such as an old API version.
	DoubtfulInput Reason = "DoubtfulInput"
	// ClassNotFound: spec.ingressClassName names our class, and no such IngressClass exists.
	ClassNotFound Reason = "ClassNotFound"
	// InvalidAnnotation: the value of an annotation cannot be read.
	InvalidAnnotation Reason = "InvalidAnnotation"
	// UnknownAnnotation: an annotation under our prefix that nobody knows.
	UnknownAnnotation Reason = "UnknownAnnotation"
	// UnusedAnnotation: an annotation that does nothing beside the others, or with this Service.
	UnusedAnnotation Reason = "UnusedAnnotation"
	// Unsupported: an annotation of ingress-nginx that headgate does not serve yet.
	Unsupported Reason = "Unsupported"
	// InvalidHost: a host is not a DNS name or a one-label wildcard.
	InvalidHost Reason = "InvalidHost"
	// InvalidPath: a path does not begin with "/", is too long or holds control bytes.
	InvalidPath Reason = "InvalidPath"
	// InvalidRegex: the proxy's PCRE does not accept the path as a regular expression.
	InvalidRegex Reason = "InvalidRegex"
	// InvalidBackend: a backend names neither a service nor a port that could exist.
	InvalidBackend Reason = "InvalidBackend"
	// NoRules: an Ingress has neither rules nor a default backend.
	NoRules Reason = "NoRules"
	// HostConflict: an older object holds what this one wants to say about a host.
	HostConflict Reason = "HostConflict"
	// PathConflict: an older object holds the same path of a host.
	PathConflict Reason = "PathConflict"
	// BackendNotFound: a backend's service does not exist.
	BackendNotFound Reason = "BackendNotFound"
	// PortNotFound: a backend's service has no such TCP port.
	PortNotFound Reason = "PortNotFound"
	// InvalidExternalName: spec.externalName of a service is not a DNS name.
	InvalidExternalName Reason = "InvalidExternalName"
	// UnresolvedExternalName: spec.externalName of a service does not resolve.
	UnresolvedExternalName Reason = "UnresolvedExternalName"
	// AllPeersDown: the health check of an upstream fails for all of its peers; they are used all the same.
	AllPeersDown Reason = "AllPeersDown"
	// AddressRefused: an upstream address stands on the deny-list.
	AddressRefused Reason = "AddressRefused"
	// SecretNotFound: a TLS Secret does not exist; the default certificate is served.
	SecretNotFound Reason = "SecretNotFound"
	// InvalidCertificate: a TLS Secret holds no usable certificate and key.
	InvalidCertificate Reason = "InvalidCertificate"
	// CertificateMismatch: a certificate is not made for the host; the default certificate is served.
	CertificateMismatch Reason = "CertificateMismatch"
	// CertificateExpired: a certificate's time is over; it is served all the same.
	CertificateExpired Reason = "CertificateExpired"
	// CertificateNotYetValid: a certificate's time has not come; it is served all the same.
	CertificateNotYetValid Reason = "CertificateNotYetValid"
	// TLSHostUnused: spec.tls names a host that no rule of the Ingress names.
	TLSHostUnused Reason = "TLSHostUnused"
	// TooManySettings: the annotations of a namespace ask nginx for too many different combinations of settings.
	TooManySettings Reason = "TooManySettings"
	// ConfigRejected: nginx does not accept what the routes ask of it.
	ConfigRejected Reason = "ConfigRejected"
)
