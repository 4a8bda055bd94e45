// Package peer is how the sidecars of one control plane reach each other: a retry that came to one of them is carried on
// by the one that holds its call (outrigger.v1.PeerService).
//
// They speak gRPC over mutual TLS with the certificates that the control plane gave them; each is known by the node id
// in it, and a state that names a holder is handed to that node alone. One that was deleted at the control plane is neither
// answered nor asked (Revoked). Who calls comes as an assertion that the sidecar which let the caller in has signed (package
// assertion). Not here: what is held, and who may go on with it (package tolegacy).
package peer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/assertion"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	// maxMessage is the longest message to the sidecar that asks, in bytes: what an upstream may send as one event.
	maxMessage = 64 << 20
	// maxRequest is the longest retry that is handed on, in bytes.
	maxRequest = 16 << 20
	// connectTime is how long a handshake may take.
	connectTime = 3 * time.Second
)

// Identity is a sidecar's, as others of its control plane know it: a *config.Identity.
type Identity interface {
	// NodeID is its name.
	NodeID() string
	// Certificate proves the name, and Roots are the authorities by which those of others are proved, as of now.
	Certificate() *tls.Certificate
	Roots() *x509.CertPool
	// PeerServerTLS is for connections from others, and PeerClientTLS for one to the sidecar with a node id.
	PeerServerTLS() *tls.Config
	PeerClientTLS(nodeID string) *tls.Config
}

// Resumer goes on with calls that this sidecar holds.
type Resumer interface {
	// Resume is the holder's part of a retry, whose principal is proved. It fails with upstream.ErrNotHere when nothing of the upstream is here.
	Resume(ctx context.Context, r *outriggerv1.ResumeRequest) (*upstream.Answer, error)
}

// service is the PeerService.
type service struct {
	outriggerv1.UnimplementedPeerServiceServer
	resumer  Resumer
	identity Identity
	log      *slog.Logger
}

// NewServer makes the server of other sidecars' requests to the one that id is of. Those that were deleted are not answered.
// It is for a listener that Limit made.
func NewServer(r Resumer, id Identity, deleted *Revoked, log *slog.Logger) *grpc.Server {
	creds := deleted.guard(credentials.NewTLS(id.PeerServerTLS()))
	s := grpc.NewServer(
		grpc.Creds(creds), grpc.MaxRecvMsgSize(maxRequest), grpc.MaxSendMsgSize(maxMessage), grpc.ConnectionTimeout(connectTime),
		grpc.MaxConcurrentStreams(2*maxCalls), grpc.MaxHeaderListSize(16<<10), grpc.StreamInterceptor(newQuota().intercept),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: 10 * time.Minute, Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	)
	outriggerv1.RegisterPeerServiceServer(s, &service{resumer: r, identity: id, log: log})
	return s
}

// Resume implements PeerServiceServer.
func (s *service) Resume(r *outriggerv1.ResumeRequest, stream grpc.ServerStreamingServer[outriggerv1.ResumeResponse]) error {
	if err := s.prove(stream.Context(), r); err != nil {
		return err
	}
	if err := stream.SendHeader(nil); err != nil { // it is here: from now on nobody can say that nothing happened
		return err
	}
	a, err := s.resumer.Resume(stream.Context(), r)
	if err != nil {
		return s.failure(err)
	}
	defer a.Close()
	send := func(b []byte) error { return stream.Send(&outriggerv1.ResumeResponse{Message: b}) }
	if a.Body != nil {
		b, err := io.ReadAll(io.LimitReader(a.Body, maxMessage))
		if err != nil {
			return s.failure(err)
		}
		return send(b)
	}
	for a.Events != nil {
		ev, err := a.Events.Next()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return s.failure(err)
		}
		if err := send(ev.Data); err != nil {
			return err
		}
	}
	return nil
}

// prove makes the principal of a request the one that the sidecar which asks has signed for, whatever else the request says.
func (s *service) prove(ctx context.Context, r *outriggerv1.ResumeRequest) (err error) {
	asks := caller(ctx)
	r.Principal, err = assertion.Verify(r.GetCaller(), asks, s.identity.Roots(), claimOf(s.identity.NodeID(), r), time.Now())
	if err != nil {
		s.log.Warn("a sidecar does not prove who makes the call that it hands on", "sidecar", asks, "error", err)
		return status.Error(codes.Unauthenticated, err.Error())
	}
	return nil
}

// claimOf is what an assertion about a request to a sidecar says beside who calls.
func claimOf(audience string, r *outriggerv1.ResumeRequest) assertion.Claim {
	return assertion.Claim{Audience: audience, Binding: r.GetBinding(), Message: r.GetMessage()}
}

// kinds are an upstream's failures as gRPC has them, and back. What is not here is UNKNOWN.
var kinds = map[upstream.Kind]codes.Code{
	upstream.Unreachable: codes.Unavailable, upstream.Lost: codes.Aborted, upstream.TimedOut: codes.DeadlineExceeded,
	upstream.BadAnswer: codes.DataLoss, upstream.Unauthorized: codes.PermissionDenied,
	upstream.SessionGone: codes.FailedPrecondition, upstream.Overloaded: codes.ResourceExhausted,
}

// failure is an error as the asking sidecar gets it.
func (s *service) failure(err error) error {
	var up *upstream.Error
	switch {
	case errors.Is(err, upstream.ErrNotHere):
		return status.Error(codes.NotFound, err.Error())
	case errors.As(err, &up) && kinds[up.Kind] != 0:
		return status.Error(kinds[up.Kind], up.Detail)
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, "cancelled")
	}
	s.log.Error("a call resumed for another sidecar failed", "error", err)
	return status.Error(codes.Internal, "the sidecar that holds the call failed; its log says why")
}

// known is the reverse of failure: an *upstream.Error where the holder gave one, else err as it is.
func known(err error, name string) error {
	code := status.Code(err)
	for kind, c := range kinds {
		if c == code && code != codes.Unavailable { // which gRPC itself gives for a holder that is not there
			return &upstream.Error{Kind: kind, Upstream: name, Detail: status.Convert(err).Message()}
		}
	}
	if code == codes.NotFound {
		return fmt.Errorf("resume: %w: %v", upstream.ErrNotHere, err)
	}
	return fmt.Errorf("resume: %w", err)
}
