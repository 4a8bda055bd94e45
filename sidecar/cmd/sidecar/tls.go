package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// certificateFresh is how long a certificate is served before its files are looked at again.
const certificateFresh = 10 * time.Second

// serverTLS is the MCP port's TLS; nil for none. A certificate that is replaced on disk is served to connections that
// come after; one that cannot be read leaves the last good one in place.
func serverTLS(o *options, log *slog.Logger) (*tls.Config, error) {
	if o.tlsCert == "" {
		return nil, nil
	}
	files := &certificateFiles{cert: o.tlsCert, key: o.tlsKey, log: log}
	if err := files.load(); err != nil {
		return nil, fmt.Errorf("--tls-cert, --tls-key: %w", err)
	}
	c := &tls.Config{GetCertificate: files.get, MinVersion: tls.VersionTLS12}
	if o.tlsClientCA == "" {
		return c, nil
	}
	pem, err := os.ReadFile(o.tlsClientCA)
	if err != nil {
		return nil, fmt.Errorf("--tls-client-ca: %w", err)
	}
	c.ClientCAs, c.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
	if o.tlsOptional {
		c.ClientAuth = tls.VerifyClientCertIfGiven
	}
	if !c.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("--tls-client-ca: %s holds no certificate", o.tlsClientCA)
	}
	return c, nil
}

// certificateFiles is a certificate that somebody renews on disk.
type certificateFiles struct {
	cert, key string
	log       *slog.Logger

	mu     sync.Mutex // guards below
	loaded *tls.Certificate
	looked time.Time
}

func (f *certificateFiles) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.looked) > certificateFresh {
		if err := f.loadLocked(); err != nil {
			f.log.Error("the certificate on disk cannot be used; the last good one is served", "error", err)
		}
	}
	return f.loaded, nil
}

func (f *certificateFiles) load() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.loadLocked()
}

func (f *certificateFiles) loadLocked() error {
	f.looked = time.Now()
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return err
	}
	f.loaded = &pair
	return nil
}
