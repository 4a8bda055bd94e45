package ca

import (
	"context"
	"crypto/x509"
	"errors"
	"net/url"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// uriPrefix goes before the node id in a sidecar certificate's only URI SAN, its SPIFFE id.
const uriPrefix = "spiffe://outrigger/sidecar/"

// maxNodeID is the longest node id, as identity.proto says.
const maxNodeID = 128

// Identity is who a sidecar is, by its certificate and its record.
type Identity struct {
	NodeID string
	Labels map[string]string
	// Expires is when its certificate does.
	Expires time.Time
}

// Identify tells who is at the other end of a connection. Errors are gRPC statuses: UNAUTHENTICATED without a valid
// client certificate, PERMISSION_DENIED when its sidecar's record is gone, or the admission that it was issued by was
// revoked: the record is then that of another sidecar with the node id.
func (a *Authority) Identify(ctx context.Context) (Identity, error) {
	leaf := clientCertificate(ctx)
	if leaf == nil {
		return Identity{}, status.Error(codes.Unauthenticated, "a client certificate is required: join first")
	}
	nodeID, ok := nodeIDOf(leaf)
	if !ok {
		return Identity{}, status.Errorf(codes.Unauthenticated, "the client certificate has no URI %s…", uriPrefix)
	}
	if !a.opts.Now().Before(leaf.NotAfter) {
		return Identity{}, status.Errorf(codes.Unauthenticated, "the client certificate of %q has expired", nodeID)
	}
	r, _, err := a.record(ctx, nodeID)
	if errors.Is(err, errNoRecord) {
		return Identity{}, status.Error(codes.PermissionDenied, err.Error())
	}
	if err == nil {
		err = a.notRevoked(ctx, leaf.Subject.SerialNumber)
	}
	if errors.Is(err, errRevoked) {
		return Identity{}, status.Errorf(codes.PermissionDenied, "%q: %v", nodeID, err)
	}
	if err != nil {
		return Identity{}, a.unavailable("read a sidecar's record", err)
	}
	return Identity{NodeID: nodeID, Labels: r.Labels, Expires: leaf.NotAfter}, nil
}

// clientCertificate is the verified certificate of a call's peer, or nil.
func clientCertificate(ctx context.Context) *x509.Certificate {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return nil
	}
	return info.State.VerifiedChains[0][0]
}

// nodeIDOf is the node id in a sidecar's certificate.
func nodeIDOf(leaf *x509.Certificate) (string, bool) {
	if len(leaf.URIs) != 1 {
		return "", false
	}
	id, ok := strings.CutPrefix(leaf.URIs[0].String(), uriPrefix)
	return id, ok && ValidNodeID(id)
}

// uriOf is the SPIFFE id of a valid node id.
func uriOf(nodeID string) *url.URL {
	return &url.URL{Scheme: "spiffe", Host: "outrigger", Path: "/sidecar/" + nodeID}
}

// ValidNodeID reports whether id is 1 to 128 of [A-Za-z0-9._/-], as identity.proto requires.
func ValidNodeID(id string) bool {
	for _, c := range []byte(id) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && !strings.ContainsRune("._/-", rune(c)) {
			return false
		}
	}
	return id != "" && len(id) <= maxNodeID
}

// unavailable hides a failure of ours behind a status that asks the caller to try again.
func (a *Authority) unavailable(doing string, err error) error {
	a.opts.Log.Error(doing, "error", err)
	return status.Error(codes.Unavailable, "the control plane could not "+doing+": try again")
}
