// Package fetch gets small documents from where a configuration says that issuers are: their metadata, their keys, their
// tokens.
//
// A client of it goes where it was told and nowhere else. It follows no redirect and asks no proxy of the environment's. An
// address is judged when it is dialled, so that a name cannot lead elsewhere than where it was looked up: plain HTTP goes to
// loopback alone, and TLS to public addresses, or to any where that is allowed. Answers are bounded in time and in bytes.
//
// Clients are safe for concurrent use. They start no goroutines but net/http's for connections, which end when
// CloseIdleConnections is called, or after half a minute. Not here: what the documents mean (packages jwt and credential).
package fetch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"syscall"
	"time"
)

const (
	defaultTimeout = 10 * time.Second
	defaultBytes   = 1 << 20
	maxHead        = 64 << 10 // bytes of an answer's head
	idleTime       = 30 * time.Second
	maxIdle        = 4 // connections to one host, kept while unused
)

// Options are what a client may do.
type Options struct {
	// CAFile is a PEM file with the authorities to trust. Default: the system's.
	CAFile string
	// PrivateAddresses is whether https may go to private, link-local and loopback addresses.
	PrivateAddresses bool
	// Timeout bounds a whole exchange, the body included. Default 10s.
	Timeout time.Duration
	// MaxBytes bounds an answer's body, which fails with ErrTooLong beyond it. Default 1 MiB.
	MaxBytes int64
	// Dial takes the place of the network, and of the judgement of addresses, in tests.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

var (
	// ErrAddress is a request to an address where its client may not go.
	ErrAddress = errors.New("an address that may not be asked")
	// ErrTooLong is an answer with more bytes than its client takes.
	ErrTooLong = errors.New("an answer longer than is read")
)

// New makes a client. It connects to nothing. Errors say what is wrong with CAFile.
func New(o Options) (*http.Client, error) {
	roots, err := authorities(o.CAFile)
	if err != nil {
		return nil, err
	}
	timeout := o.Timeout
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	g := &guarded{
		plain:    transport(o, timeout, roots, isLoopback),
		overTLS:  transport(o, timeout, roots, isPublic),
		maxBytes: o.MaxBytes,
	}
	if o.PrivateAddresses {
		g.overTLS = transport(o, timeout, roots, isUnicast)
	}
	if g.maxBytes <= 0 {
		g.maxBytes = defaultBytes
	}
	return &http.Client{
		Transport:     g,
		Timeout:       timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// authorities are those of a PEM file, or nil for the system's.
func authorities(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("caFile: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("caFile: no certificate in %q", file)
	}
	return pool, nil
}

// transport dials what may be asked only.
func transport(o Options, timeout time.Duration, roots *x509.CertPool, may func(netip.Addr) bool) *http.Transport {
	dial := o.Dial
	if dial == nil {
		dialer := &net.Dialer{Timeout: timeout, Control: func(_, address string, _ syscall.RawConn) error {
			at, err := netip.ParseAddrPort(address)
			if err != nil || !may(at.Addr().Unmap()) {
				return ErrAddress
			}
			return nil
		}}
		dial = dialer.DialContext
	}
	return &http.Transport{
		DialContext:            dial,
		TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    timeout,
		ResponseHeaderTimeout:  timeout,
		MaxResponseHeaderBytes: maxHead,
		MaxIdleConnsPerHost:    maxIdle,
		IdleConnTimeout:        idleTime,
		DisableCompression:     true,
	}
}

// guarded is a transport for each scheme. It is an http.RoundTripper.
type guarded struct {
	plain, overTLS *http.Transport
	maxBytes       int64
}

// RoundTrip implements http.RoundTripper.
func (g *guarded) RoundTrip(r *http.Request) (*http.Response, error) {
	t := g.overTLS
	switch {
	case r.URL.Scheme == "http":
		t = g.plain
	case r.URL.Scheme != "https":
		return nil, ErrAddress
	}
	res, err := t.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	res.Body = &bounded{res.Body, g.maxBytes}
	return res, nil
}

// CloseIdleConnections is what http.Client's calls.
func (g *guarded) CloseIdleConnections() {
	g.plain.CloseIdleConnections()
	g.overTLS.CloseIdleConnections()
}

// bounded is a body of which left bytes are read at most.
type bounded struct {
	io.ReadCloser
	left int64
}

// Read implements io.Reader. A body that is longer fails when a byte beyond the bound has come.
func (b *bounded) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, ErrTooLong
	}
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return n - 1, ErrTooLong
	}
	return n, err
}
