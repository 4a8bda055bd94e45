package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"

	"google.golang.org/grpc"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/bridge/tolegacy"
	"github.com/outrigger-mesh/outrigger/sidecar/config"
	"github.com/outrigger-mesh/outrigger/sidecar/peer"
	"github.com/outrigger-mesh/outrigger/sidecar/seal"
)

// kin is what a sidecar has in common with the others of its control plane: the keys to seal with, and the way to those
// that hold calls. Without an identity it has neither: its keys are its own, and it asks nobody.
type kin struct {
	holder   tolegacy.Holder
	sealer   *seal.Sealer
	client   *peer.Client
	deleted  *peer.Revoked // sidecars that are neither answered nor asked
	log      *slog.Logger
	listener net.Listener // nil for none

	identity *config.Identity // set before has is closed
	has      chan struct{}

	joins    bool                   // whether there is an identity to wait for
	pepper   atomic.Pointer[[]byte] // of the fleet's keys; nil until the identity is there
	peppered func()                 // told of another pepper; nil for nobody

	server atomic.Pointer[grpc.Server] // nil until the port is served
}

var errNoIdentity = errors.New("this sidecar has not joined a control plane yet")

// newKin opens the port for other sidecars, if there is to be one. It is served once the sidecar has joined.
func newKin(o *options, log *slog.Logger) (*kin, error) {
	k := &kin{sealer: seal.New(), deleted: new(peer.Revoked), log: log, has: make(chan struct{})}
	k.client = peer.NewClient(k.self, k.deleted)
	if len(o.controlPlanes) == 0 || o.plaintext {
		return k, nil
	}
	k.holder.ID, k.joins = o.nodeID, true
	if o.peerListen == "" {
		return k, nil
	}
	var err error
	if k.listener, err = net.Listen("tcp", o.peerListen); err != nil {
		return nil, fmt.Errorf("--peer-listen: %w", err)
	}
	k.holder.Address = o.peerAddress
	if k.holder.Address == "" {
		k.holder.Address = k.listener.Addr().String()
	}
	return k, nil
}

// self is who this sidecar is to the others.
func (k *kin) self() (peer.Identity, error) {
	select {
	case <-k.has:
		return k.identity, nil
	default:
		return nil, errNoIdentity
	}
}

// peers are the other sidecars; nil for one that shares nothing with others.
func (k *kin) peers() tolegacy.Peers {
	if k.holder.ID == "" {
		return nil
	}
	return k.client
}

// seal takes over the keys that came with a certificate.
func (k *kin) seal(r *outriggerv1.KeyRing) error {
	if k == nil {
		return nil
	}
	if err := k.sealer.Swap(r); err != nil {
		return err
	}
	pepper := r.GetPepper()
	if old := k.pepper.Swap(&pepper); (old == nil || !bytes.Equal(*old, pepper)) && k.peppered != nil {
		k.peppered()
	}
	return nil
}

var errNoPepper = errors.New("what they are hashed with comes with this sidecar's identity, which it does not have yet")

// saltOfKeys is what the hashes of Keys are made with. Without a control plane there is nothing to make them with.
func (k *kin) saltOfKeys() ([]byte, error) {
	if !k.joins {
		return nil, nil
	}
	pepper := k.pepper.Load()
	if pepper == nil {
		return nil, errNoPepper
	}
	return *pepper, nil
}

// revoked takes over which sidecars were deleted.
func (k *kin) revoked(all []*outriggerv1.RevokedSidecar) {
	if k == nil {
		return
	}
	if ended := k.deleted.Set(all); ended > 0 {
		k.log.Info("connections with sidecars that were deleted are ended", "connections", ended)
	}
}

// joined takes over the identity. It is called once.
func (k *kin) joined(id *config.Identity) {
	if k != nil {
		k.identity = id
		close(k.has)
	}
}

// serve answers other sidecars until ctx ends, once there is an identity to answer with.
func (k *kin) serve(ctx context.Context, r peer.Resumer) error {
	if k.listener == nil {
		return nil
	}
	select {
	case <-ctx.Done():
		return k.listener.Close()
	case <-k.has:
	}
	s := peer.NewServer(r, k.identity, k.deleted, k.log)
	k.server.Store(s)
	stop := context.AfterFunc(ctx, s.Stop)
	defer stop()
	return s.Serve(peer.Limit(k.listener))
}

// drain takes no calls of other sidecars any more, and waits for those that are under way. At the end of ctx what is left
// is cut.
func (k *kin) drain(ctx context.Context) {
	s := k.server.Load()
	if s == nil {
		return
	}
	stop := context.AfterFunc(ctx, s.Stop)
	defer stop()
	s.GracefulStop()
}

// close ends what was asked of others.
func (k *kin) close() {
	k.client.Close()
	if k.listener != nil {
		_ = k.listener.Close() // it may be closed already
	}
}
