// Package ca is the control plane's certificate authority: one root for the
// whole control plane, a server certificate for each replica, and short-lived
// client certificates for sidecars.
//
// A sidecar is admitted once against a join token, which decides its labels, and
// from then on renews with the certificate it holds. What is known of it is its
// record in the store; Revoke deletes that, which ends its renewals and, by
// FollowRevocations in each replica, its stream.
//
// Root, tokens and records live in the store, so that replicas agree
// and a restart changes nothing. The root's private key is in there too: who
// reads the store can be any sidecar.
//
// An Authority is safe for concurrent use. Its only goroutines are the caller's
// in Run and FollowRevocations. Not here: what a sidecar may receive (package compile).
package ca

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"log/slog"
	"math/big"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/store"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// How long certificates live, and how far back they begin for clocks that are behind.
const (
	rootLife    = 10 * 365 * 24 * time.Hour
	serverLife  = 30 * 24 * time.Hour
	sidecarLife = 24 * time.Hour
	backdate    = 5 * time.Minute
)

// upkeepEvery is the pace of renewing the server certificate when due, and of removing what has expired.
const upkeepEvery = 10 * time.Minute

// Options say how an Authority works.
type Options struct {
	// ServerNames are DNS names and IP addresses by which sidecars dial this control plane, beside the host's own
	// name, localhost, 127.0.0.1 and ::1.
	ServerNames []string
	// SidecarLife is how long a sidecar's certificate is valid. Default 24h.
	SidecarLife time.Duration
	// Now is the clock. Default time.Now.
	Now func() time.Time
	// Log gets admissions and refusals. Required.
	Log *slog.Logger
}

// Authority issues certificates. It is the IdentityService, and the api package's Authority.
type Authority struct {
	outriggerv1.UnimplementedIdentityServiceServer

	// Set by Open, never changed.
	store       *store.Store
	root        *x509.Certificate
	key         crypto.Signer
	fingerprint string // hex SHA-256 of the root's DER, the last part of a join token
	opts        Options
	failures    *throttle

	joining sync.Mutex // held while a token's use is counted, so that only other replicas can conflict

	mu     sync.Mutex // guards below
	server *tls.Certificate
}

// Open reads the root from the store, or creates it there. Replicas that start together on an empty store agree on
// one root.
func Open(ctx context.Context, s *store.Store, o Options) (*Authority, error) {
	if o.SidecarLife == 0 {
		o.SidecarLife = sidecarLife
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	root, key, err := loadOrCreateRoot(ctx, s, o.Now())
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	sum := sha256.Sum256(root.Raw)
	a := &Authority{
		store: s, root: root, key: key, opts: o,
		fingerprint: hex.EncodeToString(sum[:]),
		failures:    newThrottle(),
	}
	if err := a.renewServer(); err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	return a, nil
}

// Run renews the server certificate at two thirds of its life and removes expired tokens and records, until ctx ends.
func (a *Authority) Run(ctx context.Context) {
	tick := time.NewTicker(upkeepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := a.upkeep(ctx); err != nil && ctx.Err() == nil {
			a.opts.Log.Warn("certificate upkeep failed; it is tried again", "error", err)
		}
	}
}

// upkeep is one round of Run.
func (a *Authority) upkeep(ctx context.Context) error {
	if a.serverDue() {
		if err := a.renewServer(); err != nil {
			return err
		}
		a.opts.Log.Info("server certificate renewed")
	}
	return a.sweep(ctx)
}

// Roots are the authorities by which to verify what this one issued, in DER.
func (a *Authority) Roots() [][]byte { return [][]byte{a.root.Raw} }

// sign issues a leaf for a public key. The caller has filled in what the leaf is for.
func (a *Authority) sign(leaf *x509.Certificate, public crypto.PublicKey, life time.Duration) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	now := a.opts.Now()
	leaf.SerialNumber = serial
	leaf.NotBefore, leaf.NotAfter = now.Add(-backdate), now.Add(life)
	leaf.KeyUsage = x509.KeyUsageDigitalSignature
	leaf.BasicConstraintsValid = true
	return x509.CreateCertificate(rand.Reader, leaf, a.root, public, a.key)
}
