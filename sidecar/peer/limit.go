package peer

import (
	"context"
	"fmt"
	"net"
	"sync"

	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// What a sidecar does for others is bounded for each of them, however many connections it opens.
const (
	maxConnections = 1024 // of all together
	maxCalls       = 512  // resumed for one sidecar, at a time; a connection has more streams, so that what is too much is told so
	maxReading     = 4    // of these, whose requests are read at a time: a request is up to maxRequest long
)

// Limit bounds the connections that a listener accepts; more wait to be accepted.
func Limit(l net.Listener) net.Listener { return netutil.LimitListener(l, maxConnections) }

// quota counts what is done for each sidecar that asks.
type quota struct {
	mu    sync.Mutex // guards below
	peers map[string]*share
}

// share is one sidecar's. It is there as long as it has calls.
type share struct {
	calls   int           // guarded by the quota's lock
	reading chan struct{} // capacity maxReading: held while a request is read
}

func newQuota() *quota { return &quota{peers: make(map[string]*share)} }

// intercept is a grpc.StreamServerInterceptor. It comes before the request is read.
func (q *quota) intercept(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	who := caller(stream.Context())
	s := q.enter(who)
	if s == nil {
		return status.Error(codes.ResourceExhausted,
			fmt.Sprintf("the sidecar that holds the call goes on with %d for the one that asks, which is as many as it may: try again later", maxCalls))
	}
	defer q.leave(who)
	return handle(srv, &inTurn{stream, s})
}

// enter counts a call in; nil when there are enough.
func (q *quota) enter(who string) *share {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.peers[who]
	if s == nil {
		s = &share{reading: make(chan struct{}, maxReading)}
		q.peers[who] = s
	}
	if s.calls >= maxCalls {
		return nil
	}
	s.calls++
	return s
}

func (q *quota) leave(who string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.peers[who]
	if s.calls--; s.calls == 0 {
		delete(q.peers, who)
	}
}

// caller is who is at the other end: the name in its certificate, which the handshake has verified.
func caller(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 || len(info.State.PeerCertificates[0].URIs) != 1 {
		return ""
	}
	return info.State.PeerCertificates[0].URIs[0].String()
}

// inTurn is a stream whose messages are read when it is their turn.
type inTurn struct {
	grpc.ServerStream
	share *share
}

// RecvMsg implements grpc.ServerStream.
func (s *inTurn) RecvMsg(m any) error {
	select {
	case s.share.reading <- struct{}{}:
		defer func() { <-s.share.reading }()
	case <-s.Context().Done():
		return status.FromContextError(s.Context().Err()).Err()
	}
	return s.ServerStream.RecvMsg(m)
}
