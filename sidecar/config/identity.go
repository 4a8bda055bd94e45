package config

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	mrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// issueTimeout bounds one request for a certificate.
const issueTimeout = 20 * time.Second

// minRenewWait keeps a clock that is wrong, here or there, from making a loop of renewals.
const minRenewWait = time.Second

// lastRenewRetry bounds the back-off of renewals; a third of a certificate's life is left to them.
const lastRenewRetry = 5 * time.Minute

// IdentityOptions say who a sidecar is and how it proves it.
type IdentityOptions struct {
	// Addresses of control planes, as host:port: required.
	Addresses []string
	// NodeID is the name that the certificate is for: required.
	NodeID string
	// Token is the join token. It is used once; a sidecar that has joined needs none.
	Token string
	// StateDir keeps key and certificates, readable by the owner only: required.
	StateDir string
	Log      *slog.Logger // required
}

// Identity is a sidecar's key and certificate: got with a join token, kept on disk, renewed at two thirds of its life
// over mutual TLS. It is safe for concurrent use. A renewal does not touch connections that are open.
type Identity struct {
	o    IdentityOptions
	path string

	mu  sync.Mutex // guards below
	now *keyPair
}

// OpenIdentity loads the identity of a state directory, or joins when it has none. While no control plane answers it
// tries again until ctx ends; a token that was refused is an error at once. An expired certificate is replaced by
// joining anew, but never with the token that it was got with.
func OpenIdentity(ctx context.Context, o IdentityOptions) (*Identity, error) {
	if len(o.Addresses) == 0 || o.NodeID == "" || o.StateDir == "" || o.Log == nil {
		return nil, errors.New("identity: addresses, node id, state directory and log are required")
	}
	id := &Identity{o: o, path: filepath.Join(o.StateDir, "identity.pem")}
	kept, err := loadKeyPair(id.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = id.join(ctx, "")
	case err != nil:
		return nil, fmt.Errorf("identity: %s: %w", id.path, err)
	case kept.nodeID() != o.NodeID:
		return nil, fmt.Errorf("identity: %s is that of %q, not of %q: give that node id, or another state directory", id.path, kept.nodeID(), o.NodeID)
	case time.Now().After(kept.leaf.NotAfter):
		o.Log.Warn("the certificate has expired", "node", o.NodeID, "expired", kept.leaf.NotAfter)
		err = id.join(ctx, kept.tokenID)
	default:
		id.now = kept
	}
	if err != nil {
		return nil, err
	}
	return id, nil
}

// NodeID is the name that the certificate is for.
func (id *Identity) NodeID() string { return id.o.NodeID }

// Expires is when the certificate does.
func (id *Identity) Expires() time.Time { return id.current().leaf.NotAfter }

func (id *Identity) current() *keyPair {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.now
}

// TLSConfig is for connections to the control plane: it presents the certificate that is current at each handshake
// and trusts the control plane's authorities that are current now.
func (id *Identity) TLSConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		RootCAs:    id.current().roots(),
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return id.current().certificate(), nil
		},
	}
}

// Credentials is TLSConfig for gRPC.
func (id *Identity) Credentials() credentials.TransportCredentials {
	return credentials.NewTLS(id.TLSConfig())
}

// Run renews the certificate at two thirds of its life until ctx ends, whose error it returns.
func (id *Identity) Run(ctx context.Context) error {
	for failures := 0; ; {
		wait := max(minRenewWait, time.Until(id.current().renewAt()))
		if failures > 0 {
			wait = mrand.N(min(lastRenewRetry, time.Second<<min(failures, 20)))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		pair, err := id.issue(ctx, id.Credentials, "")
		if err != nil {
			failures++
			id.o.Log.Warn("the certificate was not renewed", "node", id.o.NodeID, "expires", id.Expires(), "error", err)
			continue
		}
		failures = 0
		pair.tokenID = id.current().tokenID
		id.keep(pair)
	}
}

// join gets the first certificate. spent is the id of the token that has been used already.
func (id *Identity) join(ctx context.Context, spent string) error {
	if id.o.Token == "" {
		return fmt.Errorf("identity: %q has no valid certificate in %s and no join token to get one with", id.o.NodeID, id.o.StateDir)
	}
	token, err := parseJoinToken(id.o.Token)
	if err != nil {
		return err
	}
	if token.id == spent {
		return fmt.Errorf("identity: the certificate of %q has expired and its join token is spent: make another", id.o.NodeID)
	}
	if err := os.MkdirAll(id.o.StateDir, 0o700); err != nil { // before the token is spent
		return fmt.Errorf("identity: %w", err)
	}
	for failures := 0; ; failures++ {
		pair, err := id.issue(ctx, func() credentials.TransportCredentials { return nil }, token.text)
		switch {
		case err == nil:
			pair.tokenID = token.id
			id.keep(pair)
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("identity: join: %w (last: %v)", ctx.Err(), err)
		case final(err):
			return fmt.Errorf("identity: join as %q: %w", id.o.NodeID, err)
		}
		wait := retryAfter(failures)
		id.o.Log.Warn("joining: no control plane answers", "addresses", id.o.Addresses, "error", err, "retry_in", wait.Round(time.Millisecond))
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// final reports whether asking again with the same token cannot help.
func final(err error) bool {
	switch status.Code(err) {
	case codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument, codes.Unimplemented:
		return true
	}
	return false
}

// issue asks each control plane in turn to certify a new key.
func (id *Identity) issue(ctx context.Context, with func() credentials.TransportCredentials, token string) (*keyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, err
	}
	req := &outriggerv1.IssueCertificateRequest{Csr: csr, NodeId: id.o.NodeID, JoinToken: token}
	var failed []error
	for _, address := range id.o.Addresses {
		creds := with()
		if creds == nil {
			if creds, err = joinCredentials(address, token); err != nil {
				return nil, err
			}
		}
		resp, err := call(ctx, address, creds, req)
		if err == nil {
			return newKeyPair(key, resp, id.o.NodeID)
		}
		if final(err) {
			return nil, err
		}
		failed = append(failed, fmt.Errorf("%s: %w", address, err))
	}
	return nil, errors.Join(failed...)
}

// call makes one request on a connection of its own.
func call(ctx context.Context, address string, creds credentials.TransportCredentials, req *outriggerv1.IssueCertificateRequest) (*outriggerv1.IssueCertificateResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, issueTimeout)
	defer cancel()
	conn, err := grpc.NewClient("dns:///"+address, grpc.WithTransportCredentials(creds))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return outriggerv1.NewIdentityServiceClient(conn).IssueCertificate(ctx, req)
}

// keep makes a key pair the current one, on disk too. Without the disk it is good until the sidecar restarts.
func (id *Identity) keep(pair *keyPair) {
	if err := writeFile(id.path, pair.encode()); err != nil {
		id.o.Log.Error("the certificate cannot be kept on disk", "path", id.path, "error", err)
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	id.now = pair
	id.o.Log.Info("certificate issued", "node", id.o.NodeID, "expires", pair.leaf.NotAfter)
}

// joinCredentials trusts whoever presents a chain to the root with the token's fingerprint: the sidecar knows no other
// authority yet. The token is sent only after that.
func joinCredentials(address, token string) (credentials.TransportCredentials, error) {
	t, err := parseJoinToken(token)
	if err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", address, err)
	}
	return credentials.NewTLS(&tls.Config{
		MinVersion:         tls.VersionTLS13,
		ServerName:         host,
		InsecureSkipVerify: true, // VerifyConnection verifies, against the fingerprint
		VerifyConnection: func(cs tls.ConnectionState) error {
			return verifyPinned(cs.PeerCertificates, t.fingerprint, host)
		},
	}), nil
}

// verifyPinned checks that a chain leads to the root with a fingerprint and that its leaf is for a host.
func verifyPinned(chain []*x509.Certificate, fingerprint [sha256.Size]byte, host string) error {
	roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
	found := false
	for _, c := range chain {
		if sha256.Sum256(c.Raw) == fingerprint && c.IsCA {
			roots.AddCert(c)
			found = true
		} else {
			intermediates.AddCert(c)
		}
	}
	if !found {
		return errors.New("the control plane does not present the authority that the join token names: is it another control plane's token?")
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, DNSName: host,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	return err
}
