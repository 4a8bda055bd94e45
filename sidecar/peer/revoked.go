package peer

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"

	"google.golang.org/grpc/credentials"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/config"
)

// Revoked are the sidecars that were deleted at the control plane. Their certificates go on being valid for a while, so
// connections with them are refused, whoever dials, and those that are open when it is heard of are ended. The zero value
// has none; it is safe for concurrent use. Nil refuses nobody.
type Revoked struct {
	mu    sync.Mutex          // guards below
	nodes map[string][]string // admissions that were taken back, by node id
	open  map[*guarded]bool
}

// Set makes these the deleted sidecars, and returns how many connections with them it ended. It waits for none of them.
func (r *Revoked) Set(all []*outriggerv1.RevokedSidecar) (ended int) {
	nodes := make(map[string][]string, len(all))
	for _, v := range all {
		nodes[v.NodeId] = append(nodes[v.NodeId], v.Admission)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nodes = nodes
	for g := range r.open {
		if r.hasLocked(g.nodeID, g.admission) {
			delete(r.open, g)
			g.raw.Close() // under TLS, which would say goodbye to a peer that may not listen
			ended++
		}
	}
	return ended
}

// hasLocked reports whether a certificate is a deleted sidecar's. One without an admission, of an older control plane, is
// if any of its node id is.
func (r *Revoked) hasLocked(nodeID, admission string) bool {
	admissions, found := r.nodes[nodeID]
	return found && (admission == "" || slices.Contains(admissions, admission))
}

// guard makes credentials refuse deleted sidecars.
func (r *Revoked) guard(creds credentials.TransportCredentials) credentials.TransportCredentials {
	if r == nil {
		return creds
	}
	return &guard{creds, r}
}

// guard is credentials that look at who is at the other end.
type guard struct {
	credentials.TransportCredentials
	revoked *Revoked
}

// ClientHandshake implements credentials.TransportCredentials.
func (g *guard) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := g.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		return nil, nil, err
	}
	return g.revoked.admit(raw, conn, info)
}

// ServerHandshake implements credentials.TransportCredentials.
func (g *guard) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := g.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	return g.revoked.admit(raw, conn, info)
}

// Clone implements credentials.TransportCredentials.
func (g *guard) Clone() credentials.TransportCredentials {
	return &guard{g.TransportCredentials.Clone(), g.revoked}
}

// admit lets a connection in, unless it is with a deleted sidecar, and notes it to be ended when it is. What is no TLS
// tells nobody's name.
func (r *Revoked) admit(raw, conn net.Conn, info credentials.AuthInfo) (net.Conn, credentials.AuthInfo, error) {
	state, ok := info.(credentials.TLSInfo)
	if !ok || len(state.State.PeerCertificates) == 0 {
		return conn, info, nil
	}
	g := &guarded{Conn: conn, raw: raw, revoked: r}
	g.nodeID, g.admission = config.PeerOf(state.State.PeerCertificates[0])
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hasLocked(g.nodeID, g.admission) {
		raw.Close()
		return nil, nil, fmt.Errorf("the sidecar %q was deleted at the control plane", g.nodeID)
	}
	if r.open == nil {
		r.open = make(map[*guarded]bool)
	}
	r.open[g] = true
	return g, info, nil
}

// guarded is a connection that is ended when its other side is deleted.
type guarded struct {
	net.Conn
	raw               net.Conn // under it
	revoked           *Revoked
	nodeID, admission string // of the other side
}

// Close implements net.Conn.
func (g *guarded) Close() error {
	g.revoked.mu.Lock()
	delete(g.revoked.open, g)
	g.revoked.mu.Unlock()
	return g.Conn.Close()
}
