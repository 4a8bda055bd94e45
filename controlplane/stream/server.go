// Package stream delivers configuration to sidecars by delta ADS and keeps what each of them made of it.
//
// A sidecar opens a stream, is identified by its certificate, and subscribes to
// three types: Upstreams, Bindings, and the Manifest that names the versions of
// all it should run; and to the Revocations of other sidecars, which SetRevoked
// brings and which wait for none of these. SetCompiled brings new desired state; each sidecar whose
// view changed gets the difference, manifest last. It ACKs Upstreams and
// Bindings on receipt and the manifest when it has swapped to it, or NACKs with
// the resources that it refuses. Status and Sidecars tell how that stands.
//
// What has changed is offered once: a slow sidecar has at most one unanswered
// response per type and then gets the latest state, never a queue of old ones.
// Only the delta method is served; the state-of-the-world ones are unimplemented.
//
// A Server is safe for concurrent use. Its goroutines are those of its streams
// and its caller's in Run. Not here: who may get a certificate (package ca),
// what a sidecar should run (package compile).
package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	xds "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/delta/v3"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/controlplane/ca"
	"github.com/outrigger-mesh/outrigger/controlplane/compile"
	"github.com/outrigger-mesh/outrigger/controlplane/store"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// Bounds on what peers can make this server hold or wait for.
const (
	defaultMaxStreams    = 20_000
	firstRequestTimeout  = 10 * time.Second
	maxRequestBytes      = 4 << 20 // a request names each resource that the sidecar holds: about 25,000
	maxStreamsPerConn    = 256
	maxConnections       = 24_000           // the streams', and room for those that join, renew or come back
	connectTimeout       = 10 * time.Second // to finish the TLS and HTTP/2 handshakes
	maxConnectionIdle    = time.Minute      // without a stream
	keepaliveTime        = 60 * time.Second // a silent peer is asked after this long,
	keepaliveTimeout     = 20 * time.Second // and given up after this
	minClientKeepalive   = 10 * time.Second // sidecars ask every 30 s
	maxConnectionAge     = 30 * time.Minute // spreads sidecars over replicas; gRPC varies it by a tenth
	connectionAgeGrace   = 10 * time.Second
	maxUnknownTypes      = 16
	maxResponseBytes     = 1 << 20 // a longer response is sent in parts, each after the ACK of the one before
	maxReason            = 1024    // bytes kept of a refusal's text
	defaultKeepFor       = 24 * time.Hour
	defaultMaxRemembered = 20_000
)

// Options say how a Server works.
type Options struct {
	// Identify tells who opened a stream, or refuses with a gRPC status. Nil is plaintext mode: sidecars are who they
	// say, with the labels that they say.
	Identify func(context.Context) (ca.Identity, error)
	// Secrets opens what sidecars are given of Secrets. Default nil: Secrets are not delivered.
	Secrets *store.Secrets
	// MaxStreams is how many sidecars may be connected. Default 20,000.
	MaxStreams int
	// KeepFor is how long a disconnected sidecar stays listed. Default 24h.
	KeepFor time.Duration
	// MaxRemembered is how many disconnected sidecars stay listed; the longest gone are forgotten first. Default 20,000.
	MaxRemembered int
	// Now is the clock. Default time.Now.
	Now func() time.Time
	// Log is required.
	Log *slog.Logger
	// Metrics is where metrics are registered. Required.
	Metrics prometheus.Registerer
}

// Server is the AggregatedDiscoveryService, and the api package's Fleet.
type Server struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer

	// Set by New, never changed.
	opts    Options
	metrics *metrics
	open    context.Context // ends with Close, and every stream with it
	close   context.CancelCauseFunc

	streams atomic.Int64
	revokes atomic.Int64 // calls of Revoke so far
	known   atomic.Int64 // nodes in all shards

	setting  sync.Mutex // held by SetCompiled and SetRevoked, so that state never goes back
	compiled atomic.Pointer[compile.Compiled]
	revoked  atomic.Pointer[[]*compile.Encoded] // nil before SetRevoked
	reached  atomic.Int64                       // revision to which every node was brought

	shards [shardCount]shard
}

// Reasons for which a stream ends before the sidecar ends it.
var (
	errClosing  = status.Error(codes.Unavailable, "the control plane is stopping: connect again")
	errRevoked  = status.Error(codes.PermissionDenied, "the sidecar was deleted: it needs a new join token")
	errReplaced = status.Error(codes.Aborted, "another stream of the same node id has taken over")
	errExpired  = status.Error(codes.Unauthenticated, "the client certificate has expired")
	errSilent   = status.Error(codes.DeadlineExceeded, "no request came on this stream")
)

// New makes a Server. It refuses streams until SetCompiled was called once.
func New(o Options) *Server {
	if o.MaxStreams == 0 {
		o.MaxStreams = defaultMaxStreams
	}
	if o.KeepFor == 0 {
		o.KeepFor = defaultKeepFor
	}
	if o.MaxRemembered == 0 {
		o.MaxRemembered = defaultMaxRemembered
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Identify == nil {
		o.Log.Warn("xDS IN PLAINTEXT: any client can be any sidecar with any labels, and read what that one is sent")
	}
	s := &Server{opts: o, metrics: newMetrics(o.Metrics)}
	s.open, s.close = context.WithCancelCause(context.Background())
	for i := range s.shards {
		s.shards[i].nodes = map[string]*node{}
	}
	return s
}

// Run forgets sidecars that have been gone for long, until ctx ends.
func (s *Server) Run(ctx context.Context) {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.forget()
		}
	}
}

// Close ends every stream, with a status that makes sidecars connect again.
func (s *Server) Close() { s.close(errClosing) }

// GRPCOptions are what a grpc.Server that carries this service needs beside its credentials.
func GRPCOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: keepaliveTime, Timeout: keepaliveTimeout, MaxConnectionIdle: maxConnectionIdle,
			MaxConnectionAge: maxConnectionAge, MaxConnectionAgeGrace: connectionAgeGrace,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime: minClientKeepalive, PermitWithoutStream: true,
		}),
		grpc.MaxRecvMsgSize(maxRequestBytes),
		grpc.MaxConcurrentStreams(maxStreamsPerConn),
		grpc.ConnectionTimeout(connectTimeout),
	}
}

// LimitConnections bounds the connections that a listener has open at once to 24,000; the next wait to be accepted until
// one ends. A stranger holds one for connectTimeout, or with a handshake for maxConnectionIdle.
func LimitConnections(l net.Listener) net.Listener { return netutil.LimitListener(l, maxConnections) }

// DeltaAggregatedResources serves one sidecar until either side ends the stream.
func (s *Server) DeltaAggregatedResources(wire discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	if s.streams.Add(1) > int64(s.opts.MaxStreams) {
		s.streams.Add(-1)
		return status.Errorf(codes.ResourceExhausted, "%d sidecars are connected, which is the most", s.opts.MaxStreams)
	}
	defer s.streams.Add(-1)
	if s.compiled.Load() == nil {
		return status.Error(codes.Unavailable, "the control plane has not read its configuration yet: connect again")
	}
	ctx, end := context.WithCancelCause(s.open)
	defer end(nil)
	st := &stream{server: s, peer: wire.Context(), end: end, revokes: s.revokes.Load()}
	if s.opts.Identify != nil {
		who, err := s.opts.Identify(wire.Context())
		if err != nil {
			return err
		}
		st.identity = who
		deadline, cancel := context.WithDeadlineCause(ctx, who.Expires, errExpired)
		defer cancel()
		ctx = deadline
	}
	st.silent = time.AfterFunc(firstRequestTimeout, func() { end(errSilent) })
	defer st.silent.Stop()
	// One delta server for each stream: ctx then ends this stream alone, and st need not look streams up by id.
	err := delta.NewServer(ctx, st, st).DeltaStreamHandler(wire, xds.AnyType)
	if ctx.Err() != nil {
		err = context.Cause(ctx) // a request that came meanwhile may have failed for a lesser reason
	}
	s.logEnd(st, err)
	return err
}

// logEnd writes the line for a stream that ended. A sidecar that left by itself has no error.
func (s *Server) logEnd(st *stream, err error) {
	switch {
	case st.node == nil:
		s.opts.Log.Warn("stream refused", "node", st.identity.NodeID, "error", err)
	case err != nil:
		s.opts.Log.Warn("sidecar disconnected", "node", st.node.id, "error", err)
	default:
		s.opts.Log.Info("sidecar disconnected", "node", st.node.id)
	}
}

// SetCompiled makes c what sidecars should run. It recomputes the view of every known sidecar and offers what changed
// to those connected; it never waits for one. c must not be of an earlier revision than the one before.
func (s *Server) SetCompiled(c *compile.Compiled) {
	s.setting.Lock()
	defer s.setting.Unlock()
	s.compiled.Store(c)
	s.refresh()
	s.reached.Store(c.Revision())
}

// SetRevoked makes these the sidecars that others are told not to talk to, as ca.FollowRevoked brings them. Until it is
// called nothing is said of that: what sidecars know stays.
func (s *Server) SetRevoked(all []*outriggerv1.Revocations) {
	s.setting.Lock()
	defer s.setting.Unlock()
	encoded := compile.Revocations(all)
	s.revoked.Store(&encoded)
	if s.compiled.Load() != nil { // or there are no streams yet
		s.refresh()
	}
}

// refresh brings every known sidecar to what is set, and offers what changed.
func (s *Server) refresh() {
	for i := range s.shards {
		s.shards[i].refresh(s)
	}
}

// Revision is the store revision that Status and Sidecars are about, or an earlier one; 0 before SetCompiled.
func (s *Server) Revision() int64 { return s.reached.Load() }

// Ready reports why streams are refused, if they are.
func (s *Server) Ready() error {
	if s.open.Err() != nil {
		return errors.New("stopping")
	}
	if s.compiled.Load() == nil {
		return errors.New("no configuration has been read")
	}
	if n := s.streams.Load(); n >= int64(s.opts.MaxStreams) {
		return fmt.Errorf("%d sidecars are connected, which is the most", n)
	}
	return nil
}
