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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
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
	// Token is the join token. It is used once; a sidecar that has joined needs none until its certificate expires.
	Token string
	// TokenFile has the join token instead, and is read whenever one is needed.
	TokenFile string
	// StateDir keeps key and certificates, readable by the owner only: required.
	StateDir string
	// Sealing is told with what sidecars seal, at once and whenever a certificate brings other keys. Nil: nobody is.
	Sealing func(*outriggerv1.KeyRing) error
	Log     *slog.Logger          // required
	Reg     prometheus.Registerer // nil registers nothing
}

// Identity is a sidecar's key and certificate: got with a join token, kept on disk, renewed at two thirds of its life
// over mutual TLS. It is safe for concurrent use. A renewal does not touch connections that are open.
type Identity struct {
	o    IdentityOptions
	path string

	refused chan struct{} // capacity 1: that a control plane does not take the certificate, not how often
	useless string        // owned by Run: id of a token with which joining again was refused

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
	id := &Identity{o: o, path: filepath.Join(o.StateDir, "identity.pem"), refused: make(chan struct{}, 1)}
	kept, err := loadKeyPair(id.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = id.join(ctx, "")
	case err != nil:
		return nil, fmt.Errorf("identity: %s: %w", id.path, err)
	case kept.nodeID() != o.NodeID:
		return nil, fmt.Errorf("identity: %s is that of %q, not of %q: give that node id, or another state directory", id.path, kept.nodeID(), o.NodeID)
	case kept.expired():
		o.Log.Warn("the certificate has expired", "node", o.NodeID, "expired", kept.leaf.NotAfter)
		err = id.join(ctx, kept.tokenID)
	default:
		id.now = kept
		id.tellSealing(kept)
	}
	if err != nil {
		return nil, err
	}
	promauto.With(o.Reg).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "outrigger_identity_expiry_timestamp_seconds",
		Help: "When the certificate that identifies this sidecar to the control plane expires, in Unix time.",
	}, func() float64 { return float64(id.Expires().Unix()) })
	return id, nil
}

// NodeID is the name that the certificate is for.
func (id *Identity) NodeID() string { return id.o.NodeID }

// Expires is when the certificate does.
func (id *Identity) Expires() time.Time { return id.current().leaf.NotAfter }

// Certificate is the one that is current, with its key.
func (id *Identity) Certificate() *tls.Certificate { return id.current().certificate() }

// Roots are the authorities of the control plane that are current.
func (id *Identity) Roots() *x509.CertPool { return id.current().roots() }

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

// PeerServerTLS is for connections from other sidecars of the same control plane. Each handshake presents, and asks for
// certificates of, what is current then. Which of them were deleted is for package peer.
func (id *Identity) PeerServerTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			now := id.current()
			return &tls.Config{
				MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*now.certificate()},
				ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: now.roots(), NextProtos: []string{"h2"},
			}, nil
		},
	}
}

// PeerClientTLS is for a connection to the sidecar with a node id, and no other.
func (id *Identity) PeerClientTLS(nodeID string) *tls.Config {
	config := id.TLSConfig()
	config.InsecureSkipVerify = true // VerifyConnection verifies: a sidecar's certificate has a node id, and no host
	config.VerifyConnection = func(cs tls.ConnectionState) error {
		leaf, intermediates := cs.PeerCertificates[0], x509.NewCertPool()
		for _, c := range cs.PeerCertificates[1:] {
			intermediates.AddCert(c)
		}
		_, err := leaf.Verify(x509.VerifyOptions{
			Roots: id.current().roots(), Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		})
		if err != nil {
			return err
		}
		if len(leaf.URIs) != 1 || leaf.URIs[0].String() != uriPrefix+nodeID {
			return fmt.Errorf("the other side is not the sidecar %q", nodeID)
		}
		return nil
	}
	return config
}

// NotAdmitted tells that a control plane does not take the certificate though it is valid: the sidecar was deleted
// there. Run then joins anew, if the token that is configured by now is another. It never blocks.
func (id *Identity) NotAdmitted() {
	select {
	case id.refused <- struct{}{}:
	default:
	}
}

// Run renews the certificate at two thirds of its life until ctx ends, whose error it returns. One that expired before
// a control plane answered, or is not admitted, is replaced by joining anew, once there is a token for it.
func (id *Identity) Run(ctx context.Context) error {
	for failures := 0; ; {
		wait := max(minRenewWait, time.Until(id.current().renewAt()))
		if failures > 0 {
			wait = mrand.N(min(lastRenewRetry, time.Second<<min(failures, 20)))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-id.refused:
			id.rejoin(ctx)
			continue
		case <-time.After(wait):
		}
		if err := id.renew(ctx); err != nil {
			failures++
			id.logNotRenewed(err)
			continue
		}
		failures = 0
	}
}

// renew gets a certificate after the current one: against that one or, when it has expired, against a token.
func (id *Identity) renew(ctx context.Context) error {
	now := id.current()
	token := joinToken{id: now.tokenID}
	if now.expired() {
		var err error
		if token, err = id.token(now.tokenID); err != nil {
			return err
		}
	}
	return id.replace(ctx, token)
}

// rejoin gets a certificate in place of one that is not admitted. A token that was refused for good is not sent again.
func (id *Identity) rejoin(ctx context.Context) {
	token, err := id.token(id.current().tokenID)
	if err == nil && token.id == id.useless {
		err = errors.New("identity: the join token was refused: make another")
	} else if err == nil {
		if err = id.replace(ctx, token); err != nil && final(err) {
			id.useless = token.id
		}
	}
	if err != nil {
		id.o.Log.Error("this sidecar is not admitted: what runs goes on, without news from the control plane, until there is a new join token",
			"node", id.o.NodeID, "error", err)
	}
}

// replace gets the certificate after the current one, against a token or, when it has no text, against the current one.
func (id *Identity) replace(ctx context.Context, token joinToken) error {
	r, err := newRequest()
	if err != nil {
		return err
	}
	pair, err := id.issue(ctx, r, token)
	if err != nil {
		return err
	}
	pair.tokenID = token.id
	id.keep(pair)
	return nil
}

func (id *Identity) logNotRenewed(err error) {
	log := id.o.Log.With("node", id.o.NodeID, "expires", id.Expires(), "error", err)
	if id.current().expired() {
		log.Error("the certificate has expired: what runs goes on, without news from the control plane")
		return
	}
	log.Warn("the certificate was not renewed")
}

// join gets the first certificate. spent is the id of the token that has been used already.
func (id *Identity) join(ctx context.Context, spent string) error {
	token, err := id.token(spent)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(id.o.StateDir, 0o700); err != nil { // before the token is spent
		return fmt.Errorf("identity: %w", err)
	}
	// One key for all attempts: an answer that got lost is given again to the key that it was for.
	r, err := newRequest()
	if err != nil {
		return err
	}
	for failures := 0; ; failures++ {
		pair, err := id.issue(ctx, r, token)
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

// token is the join token to use now. spent is the id of one that is of no use any more.
func (id *Identity) token(spent string) (joinToken, error) {
	text := id.o.Token
	if id.o.TokenFile != "" {
		b, err := os.ReadFile(id.o.TokenFile)
		if err != nil {
			return joinToken{}, fmt.Errorf("identity: join token: %w", err)
		}
		text = strings.TrimSpace(string(b))
	}
	if text == "" {
		return joinToken{}, fmt.Errorf("identity: %q has no certificate of use in %s and no join token to get one with: give one in --join-token-file or OUTRIGGER_JOIN_TOKEN", id.o.NodeID, id.o.StateDir)
	}
	token, err := parseJoinToken(text)
	if err == nil && token.id == spent {
		err = fmt.Errorf("identity: %q needs a new certificate and its join token is spent: make another", id.o.NodeID)
	}
	return token, err
}

// errOtherAuthority is that a token and a control plane do not belong together.
var errOtherAuthority = errors.New("the control plane does not present the authority that the join token names: it is another control plane's token, or address")

// final reports whether asking again with the same token cannot help.
func final(err error) bool {
	if errors.Is(err, errOtherAuthority) {
		return true
	}
	switch status.Code(err) {
	case codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument, codes.Unimplemented:
		return true
	}
	return false
}

// request is a new key and what asks for its certificate.
type request struct {
	key *ecdsa.PrivateKey
	csr []byte
}

func newRequest() (request, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return request{}, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	return request{key, csr}, err
}

// issue asks each control plane in turn to certify a key: against a token or, when it has no text, against the
// certificate that is current.
func (id *Identity) issue(ctx context.Context, r request, token joinToken) (*keyPair, error) {
	req := &outriggerv1.IssueCertificateRequest{Csr: r.csr, NodeId: id.o.NodeID, JoinToken: token.text}
	var failed []error
	for _, address := range id.o.Addresses {
		resp, err := id.ask(ctx, address, req, token)
		if err == nil {
			return newKeyPair(r.key, resp, id.o.NodeID)
		}
		if final(err) && !errors.Is(err, errOtherAuthority) { // another address may still be of the right authority
			return nil, err
		}
		failed = append(failed, fmt.Errorf("%s: %w", address, err))
	}
	return nil, oneLine(failed)
}

// ask makes one request for a certificate.
func (id *Identity) ask(ctx context.Context, address string, req *outriggerv1.IssueCertificateRequest, token joinToken) (*outriggerv1.IssueCertificateResponse, error) {
	if token.text == "" {
		return call(ctx, address, id.Credentials(), req)
	}
	pin := &pinned{fingerprint: token.fingerprint}
	creds, err := pin.credentials(address)
	if err != nil {
		return nil, err
	}
	resp, err := call(ctx, address, creds, req)
	if err != nil && pin.mismatch.Load() {
		err = errOtherAuthority // gRPC passes on no more than the text
	}
	return resp, err
}

// oneLine is several errors in one line of a log.
func oneLine(errs []error) error {
	if len(errs) < 2 {
		return errors.Join(errs...)
	}
	return fmt.Errorf("%w; %w", errs[0], oneLine(errs[1:]))
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
	resp, err := outriggerv1.NewIdentityServiceClient(conn).IssueCertificate(ctx, req)
	return resp, advised(err)
}

// keep makes a key pair the current one, on disk too. Without the disk it is good until the sidecar restarts.
func (id *Identity) keep(pair *keyPair) {
	if err := writeFile(id.path, pair.encode()); err != nil {
		id.o.Log.Error("the certificate cannot be kept on disk", "path", id.path, "error", err)
	}
	id.tellSealing(pair)
	id.mu.Lock()
	defer id.mu.Unlock()
	id.now = pair
	id.o.Log.Info("certificate issued", "node", id.o.NodeID, "expires", pair.leaf.NotAfter)
}

// tellSealing hands on the keys that came with a certificate. Keys of no use leave those from before in use.
func (id *Identity) tellSealing(pair *keyPair) {
	if pair.ring == nil || id.o.Sealing == nil {
		return
	}
	if err := id.o.Sealing(pair.ring); err != nil {
		id.o.Log.Error("the sealing keys that came with the certificate are not usable", "error", err)
	}
}

// pinned trusts whoever presents a chain to the root with a token's fingerprint: a sidecar that joins knows no other
// authority yet. The token is sent only after that.
type pinned struct {
	fingerprint [sha256.Size]byte
	mismatch    atomic.Bool // a server presented another root
}

func (p *pinned) credentials(address string) (credentials.TransportCredentials, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", address, err)
	}
	return credentials.NewTLS(&tls.Config{
		MinVersion:         tls.VersionTLS13,
		ServerName:         host,
		InsecureSkipVerify: true, // VerifyConnection verifies, against the fingerprint
		VerifyConnection: func(cs tls.ConnectionState) error {
			return p.verify(cs.PeerCertificates, host)
		},
	}), nil
}

// verify checks that a chain leads to the root with the fingerprint and that its leaf is for a host.
func (p *pinned) verify(chain []*x509.Certificate, host string) error {
	roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
	found := false
	for _, c := range chain {
		if sha256.Sum256(c.Raw) == p.fingerprint && c.IsCA {
			roots.AddCert(c)
			found = true
		} else {
			intermediates.AddCert(c)
		}
	}
	if !found {
		p.mismatch.Store(true)
		return errOtherAuthority
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, DNSName: host,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	return err
}
