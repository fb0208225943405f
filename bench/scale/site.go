package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"headgate/bench/cluster"
)

const (
	// A service for each two Ingresses, ten endpoints each, and a certificate for every other Ingress.
	ingressesPerService = 2
	endpointsPerService = 10
)

// bed is the cluster and how much of it is filled.
type bed struct {
	*cluster.Cluster
	ingresses int
}

func host(i int) string { return fmt.Sprintf("h%d", i) }

func hasCertificate(i int) bool { return i%2 == 0 }

// grow fills the cluster up to so many Ingresses.
func (s *bed) grow(ctx context.Context, ingresses int) error {
	from := s.ingresses
	s.ingresses = ingresses
	return cluster.Each(ctx, ingresses-from, func(ctx context.Context, i int) error { //nolint:wrapcheck // add did
		return s.add(ctx, from+i)
	})
}

func (s *bed) add(ctx context.Context, i int) error {
	service := fmt.Sprintf("s%d", i/ingressesPerService)
	if i%ingressesPerService == 0 {
		if err := s.Service(ctx, service, peers(i/ingressesPerService, 0)...); err != nil {
			return err //nolint:wrapcheck // it says what it made
		}
	}
	ingress := cluster.Ingress(host(i), service, cluster.FivePaths()...)
	if hasCertificate(i) {
		secret, err := certificate(host(i))
		if err != nil {
			return err
		}
		if _, err := s.Client.CoreV1().Secrets(cluster.Namespace).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create secret %s: %w", secret.Name, err)
		}
		ingress.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{host(i) + ".test"}, SecretName: secret.Name}}
	}
	// Without it the hosts with a certificate would answer http by a redirect, and their peers stay untouched.
	ingress.Annotations = map[string]string{"nginx.ingress.kubernetes.io/ssl-redirect": "false"}
	return s.Create(ctx, ingress) //nolint:wrapcheck // it says what it made
}

// peers are the endpoints of a service; another turn has others.
func peers(service, turn int) []string {
	const all = 50000
	var list []string
	for p := range endpointsPerService {
		list = append(list, cluster.Peer((service*endpointsPerService+p+turn)%all))
	}
	return list
}

// certificate makes a Secret with a self-signed ECDSA certificate (P-256).
func certificate(name string) (*corev1.Secret, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{name + ".test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{
			corev1.TLSCertKey:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
			corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
		},
	}, nil
}
