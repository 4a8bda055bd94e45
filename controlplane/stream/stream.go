package stream

import (
	"context"
	"errors"
	"maps"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/delta/v3"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/controlplane/ca"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// stream is one sidecar's connection: the delta server's cache and its callbacks, for this stream alone.
type stream struct {
	// Set before the delta server starts, never changed.
	server   *Server
	identity ca.Identity     // zero in plaintext mode
	peer     context.Context // of the call: who the peer is
	revokes  int64           // Server.revokes from before identity was known
	end      context.CancelCauseFunc
	silent   *time.Timer // ends the stream unless stopped by a first request

	// Owned by the delta server's loop, which calls every method but offerLocked.
	node    *node // nil before the first request
	unknown map[string]bool

	// Guarded by node.shard.mu.
	types  [typeCount]subscription
	queued []*offer // given to the delta server, not sent yet: at most two for each type
}

var (
	_ delta.Callbacks     = (*stream)(nil)
	_ cache.ConfigWatcher = (*stream)(nil)
)

// subscription is one type on one stream. All of it is guarded by node.shard.mu.
type subscription struct {
	// watch is where the next response goes. Nil between a response and its answer.
	watch chan<- cache.DeltaResponse
	// offered is what the sidecar has or will have once it has read what was queued, by name. Nil before it subscribes.
	offered map[string]string
	// greeted is whether the subscription had its first response, which is sent even when there is nothing to say.
	greeted bool
	exchange
}

// OnDeltaStreamOpen has nothing to do: the identity is known, and the node is with the first request.
func (s *stream) OnDeltaStreamOpen(context.Context, int64, string) error { return nil }

// OnDeltaStreamClosed is called last, after every watch was cancelled.
func (s *stream) OnDeltaStreamClosed(int64, *core.Node) {
	if s.node != nil {
		s.server.detach(s)
	}
}

// OnStreamDeltaRequest checks a request and takes note of the answer in it.
func (s *stream) OnStreamDeltaRequest(_ int64, req *discovery.DeltaDiscoveryRequest) error {
	if err := s.checkNode(req.GetNode()); err != nil {
		return err
	}
	if err := checkNames(req); err != nil {
		return err
	}
	i := typeIndex(req.GetTypeUrl())
	if i < 0 {
		return s.noteUnknown(req.GetTypeUrl())
	}
	s.node.shard.mu.Lock()
	defer s.node.shard.mu.Unlock()
	if s.node.stream != s {
		return errReplaced
	}
	t := &s.types[i]
	if t.offered == nil {
		t.offered = map[string]string{}
		maps.Copy(t.offered, req.GetInitialResourceVersions())
		if i == manifestType {
			s.node.running = clip(t.offered[s.node.id])
		}
	}
	if req.GetErrorDetail() != nil || req.GetResponseNonce() != "" {
		s.answeredLocked(t, req)
	}
	return nil
}

// checkNode makes the first request's node this stream's, and refuses requests in another's name. Later requests
// usually have no node.
func (s *stream) checkNode(n *core.Node) error {
	if s.node == nil {
		s.silent.Stop()
		if err := s.server.attach(s, n); err != nil {
			return err
		}
		return s.stillAdmitted()
	}
	if id := n.GetId(); id != "" && id != s.node.id {
		return status.Errorf(codes.PermissionDenied, "this stream is of node %q, not of %q", s.node.id, id)
	}
	return nil
}

// stillAdmitted identifies the peer again if any sidecar was revoked since it was identified: that may have been this
// one, whose stream Revoke could not find before it was attached.
func (s *stream) stillAdmitted() error {
	if s.server.opts.Identify == nil || s.server.revokes.Load() == s.revokes {
		return nil
	}
	_, err := s.server.opts.Identify(s.peer)
	if status.Code(err) == codes.PermissionDenied {
		s.server.Revoke(s.node.id)
	}
	return err
}

// checkNames refuses subscriptions to single names: a sidecar gets everything in its view. It also keeps the delta
// server from editing its own copy of what was offered.
func checkNames(req *discovery.DeltaDiscoveryRequest) error {
	for _, name := range req.GetResourceNamesSubscribe() {
		if name != "*" {
			return status.Errorf(codes.InvalidArgument, `subscribe to "*": resources are not served by name`)
		}
	}
	if len(req.GetResourceNamesUnsubscribe()) > 0 {
		return status.Error(codes.InvalidArgument, `unsubscribe is not served: what a sidecar should not run is removed`)
	}
	return nil
}

// noteUnknown lets a newer sidecar subscribe to types that this control plane does not have; they stay silent.
func (s *stream) noteUnknown(typeURL string) error {
	if s.unknown[typeURL] {
		return nil
	}
	if len(s.unknown) >= maxUnknownTypes {
		return status.Error(codes.InvalidArgument, "too many unknown types on one stream")
	}
	if s.unknown == nil {
		s.unknown = map[string]bool{}
	}
	s.unknown[typeURL] = true
	s.server.opts.Log.Warn("subscription to an unknown type stays silent", "node", s.node.id, "type", clip(typeURL))
	return nil
}

// answeredLocked steps a subscription by an ACK or NACK and settles the node's standings by it.
func (s *stream) answeredLocked(t *subscription, req *discovery.DeltaDiscoveryRequest) {
	now := s.server.opts.Now()
	e := event{kind: ack, nonce: req.GetResponseNonce(), at: now}
	if req.GetErrorDetail() != nil {
		e.kind = nack
	}
	var counts bool
	if t.exchange, counts = t.step(e); !counts {
		return
	}
	o := t.offer
	s.server.metrics.answered(order[o.index], e.kind, now.Sub(t.at))
	a, ok := s.node.read(o, req)
	if !ok {
		return
	}
	if e.kind == nack {
		s.server.opts.Log.Warn("sidecar refused configuration", "node", s.node.id, "type", order[o.index],
			"generation", o.view.Manifest.Version, "error", clip(req.GetErrorDetail().GetMessage()))
	}
	if o.index == manifestType {
		s.node.answered(e.kind == ack, o.view.Manifest.Version)
	}
	s.node.stands = settle(s.node.view.Resources, s.node.stands, a, now)
}

// read is what a request's ACK or NACK of an offer says. The ACK of upstreams or bindings only says that they arrived,
// which is reported as false. A NACK that names no resource, or the manifest itself, refuses all of what it answers
// that does not run yet.
func (n *node) read(o *offer, req *discovery.DeltaDiscoveryRequest) (answer, bool) {
	a := answer{offered: o.view.Resources}
	detail := req.GetErrorDetail()
	if detail == nil {
		a.runs = o.index == manifestType
		return a, a.runs
	}
	reason := detail.GetMessage()
	if refusals := refusalsIn(detail); refusals != nil {
		a.refused, a.runs = named(refusals.Refusals), o.index == manifestType
		whole, refusedWhole := a.refused[keyOf(o.view.Manifest)]
		if !refusedWhole {
			return a, true
		}
		reason = whole.reason
	}
	whole := o.resources
	if o.index == manifestType {
		whole = o.view.Resources
	}
	a.refused, a.runs = unexplained(n.pending(whole), reason), false
	return a, true
}

// refusalsIn are a NACK's details, or nil.
func refusalsIn(s *spb.Status) *outriggerv1.Refusals {
	for _, d := range s.GetDetails() {
		r := &outriggerv1.Refusals{}
		if d.UnmarshalTo(r) == nil && len(r.Refusals) > 0 {
			return r
		}
	}
	return nil
}

// CreateWatch is of the state-of-the-world protocol, whose methods are unimplemented.
func (s *stream) CreateWatch(*cache.Request, cache.Subscription, chan cache.Response) (func(), error) {
	return nil, errors.New("only delta is served")
}

// CreateDeltaWatch asks for the next response of a type, which comes at once if there is something to say.
func (s *stream) CreateDeltaWatch(req *cache.DeltaRequest, _ cache.Subscription, out chan cache.DeltaResponse) (func(), error) {
	i := typeIndex(req.GetTypeUrl())
	if i < 0 {
		return nil, nil
	}
	mu := &s.node.shard.mu
	mu.Lock()
	defer mu.Unlock()
	if s.node.stream != s {
		return nil, errReplaced
	}
	t := &s.types[i]
	t.watch = out
	s.offerLocked()
	return func() {
		mu.Lock()
		defer mu.Unlock()
		t.watch = nil
	}, nil
}

// offerLocked queues what each open watch has yet to be told, in order, the manifest only when the rest is out.
func (s *stream) offerLocked() {
	for i := range order {
		t := &s.types[i]
		if t.offered == nil || i == revocationsType && s.node.view.Revocations == nil {
			continue
		}
		o := difference(s.node.view, i, t.offered)
		if o.empty() && t.greeted {
			continue
		}
		if t.watch == nil {
			return // what is left to say waits for the answer, and the types after it too
		}
		o.note(t.offered)
		t.greeted = true
		select {
		case t.watch <- o.response():
			s.queued = append(s.queued, o)
			t.watch = nil
		default: // cannot be: the channel has room for two responses of each of ten types
			s.end(status.Error(codes.Internal, "the queue of responses is full"))
			return
		}
		if o.more {
			return
		}
	}
}

// OnStreamDeltaResponse notes that a response is about to be sent, under its nonce.
func (s *stream) OnStreamDeltaResponse(_ int64, _ *discovery.DeltaDiscoveryRequest, m *discovery.DeltaDiscoveryResponse) {
	s.node.shard.mu.Lock()
	defer s.node.shard.mu.Unlock()
	o := s.queued[0] // the delta server sends in the order in which it was given them
	s.queued = s.queued[1:]
	if len(s.queued) == 0 {
		s.queued = nil
	}
	t := &s.types[o.index]
	t.exchange, _ = t.step(event{kind: push, nonce: m.GetNonce(), at: s.server.opts.Now(), offer: o})
	s.server.metrics.pushed(order[o.index])
}

// kindOf is the kind of a type URL of a view's resource.
func kindOf(typeURL string) string {
	kind, _ := resource.KindOfTypeURL(typeURL)
	return kind
}
