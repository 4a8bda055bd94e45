package ca

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/store"
)

// Keys in the store. They are a promise to stored state. The private key has a prefix of its own, so that an etcd
// role can keep it from readers of the rest.
const (
	rootKey        = "ca/root"         // the root certificate, DER
	rootPrivateKey = "private/ca/root" // its private key, PKCS#8
	sealingKey     = "private/sealing" // a KeyRing
	tokenPrefix    = "ca/tokens/"      // {token id}: token, as JSON
	sidecarPrefix  = "ca/sidecars/"    // {node id}: record, as JSON
	revokedPrefix  = "ca/revoked/"     // {admission}: revocation, as JSON
)

// loadOrCreateRoot reads the root, or stores a new one unless another replica was first.
func loadOrCreateRoot(ctx context.Context, s *store.Store, now time.Time) (*x509.Certificate, crypto.Signer, error) {
	root, key, err := loadRoot(ctx, s)
	if !errors.Is(err, errNoRoot) {
		return root, key, err
	}
	certificate, private, err := newRoot(now)
	if err != nil {
		return nil, nil, fmt.Errorf("create the root: %w", err)
	}
	_, err = s.Apply(ctx, []store.Write{
		{Key: rootKey, Value: certificate, IfRevision: -1},
		{Key: rootPrivateKey, Value: private, IfRevision: -1},
	})
	if err != nil && !errors.Is(err, store.ErrConflict) {
		return nil, nil, fmt.Errorf("store the root: %w", err)
	}
	return loadRoot(ctx, s)
}

var errNoRoot = errors.New("the store has no root")

// loadRoot reads certificate and key and checks that they belong together.
func loadRoot(ctx context.Context, s *store.Store) (*x509.Certificate, crypto.Signer, error) {
	certificate, ok, err := s.Get(ctx, rootKey)
	if err != nil {
		return nil, nil, err
	}
	if !ok {
		return nil, nil, errNoRoot
	}
	private, ok, err := s.Get(ctx, rootPrivateKey)
	if err != nil {
		return nil, nil, err
	}
	if !ok {
		return nil, nil, fmt.Errorf("the store has %s but not %s", rootKey, rootPrivateKey)
	}
	root, err := x509.ParseCertificate(certificate.Value)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", rootKey, err)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(private.Value)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %v", rootPrivateKey, err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(root.PublicKey) {
		return nil, nil, fmt.Errorf("%s is not the key of %s", rootPrivateKey, rootKey)
	}
	return root, key, nil
}

// newRoot makes a self-signed root that may sign leaves only.
func newRoot(now time.Time) (certificate, private []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	root := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "Outrigger control plane"},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(rootLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	certificate, err = x509.CreateCertificate(rand.Reader, root, root, key.Public(), key)
	if err != nil {
		return nil, nil, err
	}
	private, err = x509.MarshalPKCS8PrivateKey(key)
	return certificate, private, err
}
