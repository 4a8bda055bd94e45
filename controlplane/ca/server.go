package ca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"os"
)

// ServerTLS is the configuration of the port that sidecars dial. A client certificate is optional in the handshake,
// since a sidecar that joins has none; Identify asks for it. The chain presented ends with the root, so that a joining
// sidecar can check it against its token's fingerprint.
func (a *Authority) ServerTLS() *tls.Config {
	clients := x509.NewCertPool()
	clients.AddCert(a.root)
	return &tls.Config{
		MinVersion:     tls.VersionTLS13,
		GetCertificate: a.GetCertificate,
		ClientCAs:      clients,
		ClientAuth:     tls.VerifyClientCertIfGiven,
		Time:           a.opts.Now,
	}
}

// GetCertificate is this replica's current server certificate.
func (a *Authority) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.server, nil
}

// serverDue reports whether a third or less is left of the server certificate's life.
func (a *Authority) serverDue() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.server.Leaf.NotAfter.Sub(a.opts.Now()) <= serverLife/3
}

// renewServer issues a server certificate with a new key; the next handshake presents it.
func (a *Authority) renewServer() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		// Not the root's subject: OpenSSL takes a leaf that is named as its issuer for self-signed.
		Subject:     pkix.Name{CommonName: "Outrigger control plane server"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	addNames(template, a.opts.ServerNames)
	der, err := a.sign(template, key.Public(), serverLife)
	if err != nil {
		return fmt.Errorf("server certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return fmt.Errorf("server certificate: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.server = &tls.Certificate{Certificate: [][]byte{der, a.root.Raw}, PrivateKey: key, Leaf: leaf}
	return nil
}

// addNames puts the given names and those of this host into a certificate, each once.
func addNames(c *x509.Certificate, names []string) {
	names = append([]string{"localhost", "127.0.0.1", "::1"}, names...)
	if host, err := os.Hostname(); err == nil {
		names = append(names, host)
	}
	seen := map[string]bool{}
	for _, name := range names {
		if seen[name] {
			continue
		}
		seen[name] = true
		if ip := net.ParseIP(name); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, name)
		}
	}
}
