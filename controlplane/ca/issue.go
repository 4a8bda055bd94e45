package ca

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"net/url"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// Longest request parts that are looked at, in bytes.
const (
	maxCSR   = 8 << 10
	maxToken = 512
)

// IssueCertificate signs a certificate for a sidecar that proves itself by a join token, or by the certificate that it
// renews. A token's use is counted before the certificate is signed; who then gets no answer may ask again with the same
// key.
func (a *Authority) IssueCertificate(ctx context.Context, req *outriggerv1.IssueCertificateRequest) (
	*outriggerv1.IssueCertificateResponse, error,
) {
	public, err := checkRequest(req)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	admission, err := a.authorize(ctx, req, public)
	if err != nil {
		return nil, err
	}
	ring, err := a.keyRing(ctx)
	if err != nil {
		return nil, a.unavailable("read the sealing keys", err)
	}
	leaf := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "Outrigger sidecar", SerialNumber: admission},
		URIs:        []*url.URL{uriOf(req.NodeId)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := a.sign(leaf, public, a.opts.SidecarLife)
	if err != nil {
		return nil, a.unavailable("sign a certificate", err)
	}
	a.opts.Log.Info("certificate issued", "node", req.NodeId, "expires", leaf.NotAfter, "joined", req.JoinToken != "")
	return &outriggerv1.IssueCertificateResponse{Chain: [][]byte{der}, Authorities: a.Roots(), KeyRing: ring}, nil
}

// checkRequest checks what does not depend on who asks, and returns the key to certify.
func checkRequest(req *outriggerv1.IssueCertificateRequest) (crypto.PublicKey, error) {
	switch {
	case !ValidNodeID(req.NodeId):
		return nil, errors.New("node_id: expected 1 to 128 of [A-Za-z0-9._/-]")
	case len(req.JoinToken) > maxToken:
		return nil, errors.New("join_token: too long")
	case len(req.Csr) == 0 || len(req.Csr) > maxCSR:
		return nil, errors.New("csr: expected a PKCS#10 request of at most 8 KiB")
	}
	csr, err := x509.ParseCertificateRequest(req.Csr)
	if err != nil {
		return nil, errors.New("csr: not a PKCS#10 request in DER")
	}
	switch key := csr.PublicKey.(type) {
	case ed25519.PublicKey:
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() && key.Curve != elliptic.P384() {
			return nil, errors.New("csr: expected a P-256, P-384 or Ed25519 key")
		}
	default:
		return nil, errors.New("csr: expected a P-256, P-384 or Ed25519 key")
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, errors.New("csr: its signature is not of its key")
	}
	return csr.PublicKey, nil
}

// authorize decides whether the caller may have a certificate for the node id, and records it. It returns the admission
// that goes into the certificate.
func (a *Authority) authorize(ctx context.Context, req *outriggerv1.IssueCertificateRequest, public crypto.PublicKey) (admission string, err error) {
	if req.JoinToken == "" {
		return a.authorizeRenewal(ctx, req.NodeId)
	}
	host := peerHost(ctx)
	admission, err = a.admit(ctx, req.NodeId, req.JoinToken, record{Key: hashKey(public), Expires: a.opts.Now().Add(a.opts.SidecarLife)})
	switch {
	case err == nil:
		return admission, nil
	case errors.Is(err, errBadToken):
		if !a.failures.failed(host) {
			return "", status.Error(codes.ResourceExhausted, "too many bad join tokens from this address: try again in a minute")
		}
		a.opts.Log.Warn("join refused", "node", req.NodeId, "peer", host, "error", err)
		return "", status.Error(codes.Unauthenticated, err.Error())
	case errors.Is(err, errTaken):
		a.opts.Log.Warn("join refused", "node", req.NodeId, "peer", host, "error", err)
		return "", status.Error(codes.PermissionDenied, err.Error())
	default:
		return "", a.unavailable("record a sidecar", err)
	}
}

// hashKey names a public key.
func hashKey(public crypto.PublicKey) string {
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		panic("ca: a key that was parsed cannot be marshalled: " + err.Error())
	}
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}

// authorizeRenewal lets a sidecar renew its own certificate while its record stands.
func (a *Authority) authorizeRenewal(ctx context.Context, nodeID string) (admission string, err error) {
	who, err := a.Identify(ctx)
	if err != nil {
		return "", err
	}
	if who.NodeID != nodeID {
		return "", status.Errorf(codes.PermissionDenied, "the client certificate is of %q, not of %q", who.NodeID, nodeID)
	}
	admission, err = a.extend(ctx, nodeID, a.opts.Now().Add(a.opts.SidecarLife))
	if errors.Is(err, errNoRecord) {
		return "", status.Error(codes.PermissionDenied, err.Error())
	}
	if err != nil {
		return "", a.unavailable("record a sidecar", err)
	}
	return admission, nil
}
