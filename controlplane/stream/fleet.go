package stream

import (
	"cmp"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/outrigger-mesh/outrigger/controlplane/ca"
	"github.com/outrigger-mesh/outrigger/controlplane/compile"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// shardCount divides the fleet so that streams seldom wait for each other, or for a SetCompiled under way.
const shardCount = 64

// shard is a part of the fleet under one lock.
type shard struct {
	mu    sync.Mutex // guards below, all of each node but its id and shard, and what streams say it guards
	nodes map[string]*node
}

// node is one sidecar, connected or remembered.
type node struct {
	// Set by attach, never changed.
	id    string
	shard *shard

	// Guarded by shard.mu.
	labels map[string]string
	build  string // version that it reports
	view   *compile.View
	stands []standing // one for each of view.Resources
	stream *stream    // nil while disconnected
	since  time.Time  // of being connected, or disconnected
	// answeredManifest is whether this connection has answered a manifest. Until then nobody knows what it runs.
	answeredManifest bool
	running          string // generation of the last manifest it ACKed, or said it holds
}

// answered notes the answer to a manifest.
func (n *node) answered(acked bool, generation string) {
	n.answeredManifest = true
	if acked {
		n.running = generation
	}
}

var hashSeed = maphash.MakeSeed()

func (s *Server) shardOf(id string) *shard {
	return &s.shards[maphash.String(hashSeed, id)%shardCount]
}

// attach makes st the stream of the node that it belongs to, in place of an earlier one.
func (s *Server) attach(st *stream, n *core.Node) error {
	who, err := s.whoIs(st, n)
	if err != nil {
		return err
	}
	if s.known.Load() >= int64(s.opts.MaxStreams+s.opts.MaxRemembered) {
		s.forget()
	}
	sh := s.shardOf(who.NodeID)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	nd := sh.nodes[who.NodeID]
	if nd == nil {
		nd = &node{id: who.NodeID, shard: sh, view: &compile.View{Manifest: &compile.Encoded{}}}
		sh.nodes[who.NodeID] = nd
		s.known.Add(1)
	}
	if nd.stream != nil {
		nd.stream.end(errReplaced)
		s.metrics.connected.Dec()
	}
	now := s.opts.Now()
	nd.labels, nd.build, nd.stream = who.Labels, clip(n.GetUserAgentVersion()), st
	nd.since, nd.answeredManifest = now, false
	nd.refreshLocked(s, now)
	st.node = nd
	s.metrics.connected.Inc()
	s.opts.Log.Info("sidecar connected", "node", nd.id, "version", nd.build, "labels", nd.labels)
	return nil
}

// whoIs is the stream's identity, which the request's node must not contradict; in plaintext mode it is the node's word.
func (s *Server) whoIs(st *stream, n *core.Node) (ca.Identity, error) {
	if s.opts.Identify != nil {
		if id := n.GetId(); id != "" && id != st.identity.NodeID {
			return ca.Identity{}, status.Errorf(codes.PermissionDenied,
				"the client certificate is of node %q, not of %q", st.identity.NodeID, id)
		}
		return st.identity, nil
	}
	if !ca.ValidNodeID(n.GetId()) {
		return ca.Identity{}, status.Error(codes.InvalidArgument, "node.id: expected 1 to 128 of [A-Za-z0-9._/-]")
	}
	labels := map[string]string{}
	for k, v := range n.GetMetadata().GetFields()["labels"].GetStructValue().GetFields() {
		labels[k] = v.GetStringValue()
	}
	if errs := resource.ValidLabels("node.metadata.labels", labels); len(errs) > 0 {
		return ca.Identity{}, status.Error(codes.InvalidArgument, errs.Error())
	}
	return ca.Identity{NodeID: n.GetId(), Labels: labels}, nil
}

// detach makes the node of a stream that ended disconnected, unless another stream has taken over.
func (s *Server) detach(st *stream) {
	n := st.node
	n.shard.mu.Lock()
	defer n.shard.mu.Unlock()
	if n.stream != st {
		return
	}
	n.stream, n.since = nil, s.opts.Now()
	s.metrics.connected.Dec()
}

// Revoke ends a sidecar's stream and forgets the sidecar. Call it after what admitted it is gone: a stream that was
// identified before then and is attached after is refused.
func (s *Server) Revoke(nodeID string) {
	s.revokes.Add(1)
	sh := s.shardOf(nodeID)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	n := sh.nodes[nodeID]
	if n == nil {
		return
	}
	delete(sh.nodes, nodeID)
	s.known.Add(-1)
	if n.stream != nil {
		n.stream.end(errRevoked)
		n.stream = nil
		s.metrics.connected.Dec()
	}
}

// refresh brings every node of the shard to what s has.
func (sh *shard) refresh(s *Server) {
	now := s.opts.Now()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, n := range sh.nodes {
		if n.refreshLocked(s, now) && n.stream != nil {
			n.stream.offerLocked()
		}
	}
}

// refreshLocked brings the node to what s has and reports whether its view changed.
func (n *node) refreshLocked(s *Server, now time.Time) bool {
	v := s.compiled.Load().View(n.id, n.labels)
	if revoked := s.revoked.Load(); revoked != nil {
		v.Revocations = *revoked
	}
	switch {
	case v.Manifest.Version != n.view.Manifest.Version:
		n.stands = carry(n.view.Resources, n.stands, v.Resources, now)
	case slices.Equal(v.Revocations, n.view.Revocations) && (v.Revocations == nil) == (n.view.Revocations == nil):
		return false
	default:
		v.Manifest, v.Resources = n.view.Manifest, n.view.Resources
	}
	n.view = v
	return true
}

// forget drops disconnected nodes: those gone for KeepFor, and when more than MaxRemembered are left, the longest gone
// down to nine tenths of it, so that it is not done for every one.
func (s *Server) forget() {
	type gone struct {
		id    string
		since time.Time
	}
	var left []gone
	s.each(func(n *node) {
		if n.stream == nil {
			left = append(left, gone{n.id, n.since})
		}
	})
	slices.SortFunc(left, func(a, b gone) int { return a.since.Compare(b.since) })
	surplus := 0
	if len(left) > s.opts.MaxRemembered {
		surplus = len(left) - s.opts.MaxRemembered*9/10
	}
	horizon := s.opts.Now().Add(-s.opts.KeepFor)
	for i, g := range left {
		if i >= surplus && g.since.After(horizon) {
			break
		}
		s.drop(g.id)
	}
}

// drop removes a node that is still disconnected.
func (s *Server) drop(id string) {
	sh := s.shardOf(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if n := sh.nodes[id]; n != nil && n.stream == nil {
		delete(sh.nodes, id)
		s.known.Add(-1)
	}
}

// each calls f for every node with its shard's lock held.
func (s *Server) each(f func(*node)) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for _, n := range sh.nodes {
			f(n)
		}
		sh.mu.Unlock()
	}
}

// Status tells what became of one resource on every sidecar that should run it, or nil when none should.
func (s *Server) Status(kind, name string) *outriggerv1.Status {
	st := &outriggerv1.Status{}
	wanted := key{resource.TypeURL(kind), name}
	places := places{}
	s.each(func(n *node) {
		i := places.find(n.view.Resources, wanted)
		if i < 0 {
			return
		}
		now := n.standingLocked(i)
		st.Sidecars = append(st.Sidecars, &outriggerv1.SidecarResourceState{
			Sidecar: n.id, State: now.state, Reason: now.reason, Since: timestamppb.New(now.since),
		})
		switch now.state {
		case outriggerv1.State_STATE_RUNNING:
			st.Running++
		case outriggerv1.State_STATE_REFUSED:
			st.Refused++
		default:
			st.Behind++
		}
	})
	if len(st.Sidecars) == 0 {
		return nil
	}
	slices.SortFunc(st.Sidecars, func(a, b *outriggerv1.SidecarResourceState) int { return cmp.Compare(a.Sidecar, b.Sidecar) })
	return st
}

// places remembers where a resource is in lists of resources that many views share.
type places map[**compile.Encoded]int

// find returns the resource's index in a list, or -1.
func (p places) find(in []*compile.Encoded, wanted key) int {
	if len(in) == 0 {
		return -1
	}
	if i, ok := p[&in[0]]; ok {
		return i
	}
	i := slices.IndexFunc(in, func(e *compile.Encoded) bool { return keyOf(e) == wanted })
	p[&in[0]] = i
	return i
}

// standingLocked is how the i-th resource of the view stands: behind while the node is away, or back and yet to say.
func (n *node) standingLocked(i int) standing {
	if n.stream == nil || !n.answeredManifest {
		return standing{state: outriggerv1.State_STATE_BEHIND, since: n.since}
	}
	return n.stands[i]
}

// Sidecars tells of every sidecar that is connected or remembered, ordered by id.
func (s *Server) Sidecars() []*outriggerv1.Sidecar {
	var all []*outriggerv1.Sidecar
	s.each(func(n *node) { all = append(all, n.sidecarLocked()) })
	slices.SortFunc(all, func(a, b *outriggerv1.Sidecar) int { return cmp.Compare(a.Id, b.Id) })
	return all
}

// pending returns those of the resources that this connection has not said to run.
func (n *node) pending(resources []*compile.Encoded) (left []*compile.Encoded) {
	at := index(n.view.Resources)
	for _, e := range resources {
		i, ok := at[keyOf(e)]
		runs := ok && n.view.Resources[i].Version == e.Version && n.stands[i].state == outriggerv1.State_STATE_RUNNING
		if !runs || !n.answeredManifest {
			left = append(left, e)
		}
	}
	return left
}

// sidecarLocked is the node as the management API shows it.
func (n *node) sidecarLocked() *outriggerv1.Sidecar {
	sc := &outriggerv1.Sidecar{
		Id: n.id, Labels: n.labels, Version: n.build,
		Connected: n.stream != nil, Since: timestamppb.New(n.since),
		RunningGeneration: n.running, DesiredGeneration: n.view.Manifest.Version,
	}
	for i, e := range n.view.Resources {
		now := n.standingLocked(i)
		sc.Resources = append(sc.Resources, &outriggerv1.SidecarResource{
			Kind: kindOf(e.TypeURL), Name: e.Name, State: now.state, Reason: now.reason, Since: timestamppb.New(now.since),
		})
	}
	slices.SortFunc(sc.Resources, func(a, b *outriggerv1.SidecarResource) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	return sc
}
