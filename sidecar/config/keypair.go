package config

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"time"

	"google.golang.org/protobuf/proto"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// uriPrefix goes before the node id in a sidecar certificate's only URI SAN, as the control plane's authority writes it.
const uriPrefix = "spiffe://outrigger/sidecar/"

// Blocks of an identity's PEM file. Sidecars read what older ones wrote: do not rename.
const (
	pemKey       = "PRIVATE KEY"
	pemChain     = "CERTIFICATE"
	pemAuthority = "TRUSTED CERTIFICATE"
	pemKeyRing   = "OUTRIGGER KEY RING"
	headerToken  = "Join-Token-Id" // of the key's block
)

// keyPair is a private key with its certificate and whom it trusts. It is not changed once made.
type keyPair struct {
	key         *ecdsa.PrivateKey
	chain       [][]byte // DER, leaf first
	leaf        *x509.Certificate
	authorities []*x509.Certificate
	since       time.Time // when it was issued: the certificate's own beginning is earlier, for clocks that are behind
	tokenID     string    // of the join token that it began with
	// ring is what sidecars seal with, as it came with the certificate; nil from a control plane that has none.
	ring *outriggerv1.KeyRing
}

// newKeyPair checks what the control plane issued for a key.
func newKeyPair(key *ecdsa.PrivateKey, resp *outriggerv1.IssueCertificateResponse, nodeID string) (*keyPair, error) {
	p := &keyPair{key: key, chain: resp.Chain, since: time.Now(), ring: resp.KeyRing}
	for _, der := range resp.Authorities {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("an issued authority cannot be read: %w", err)
		}
		p.authorities = append(p.authorities, c)
	}
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("the issued certificate is not usable: %w", err)
	}
	if p.nodeID() != nodeID {
		return nil, fmt.Errorf("the issued certificate is for %q, not for %q", p.nodeID(), nodeID)
	}
	return p, nil
}

// check parses the leaf and holds that the parts belong together.
func (p *keyPair) check() error {
	if p.key == nil || len(p.chain) == 0 || len(p.authorities) == 0 {
		return errors.New("key, certificate or authority is missing")
	}
	leaf, err := x509.ParseCertificate(p.chain[0])
	if err != nil {
		return err
	}
	if !p.key.PublicKey.Equal(leaf.PublicKey) {
		return errors.New("the certificate is not of the key")
	}
	p.leaf = leaf
	return nil
}

// nodeID is the name in the certificate, "" when there is none.
func (p *keyPair) nodeID() string {
	id, _ := PeerOf(p.leaf)
	return id
}

func (p *keyPair) expired() bool { return time.Now().After(p.leaf.NotAfter) }

// renewAt is at two thirds of the certificate's life.
func (p *keyPair) renewAt() time.Time {
	return p.leaf.NotAfter.Add(-p.leaf.NotAfter.Sub(p.since) / 3)
}

func (p *keyPair) roots() *x509.CertPool {
	pool := x509.NewCertPool()
	for _, c := range p.authorities {
		pool.AddCert(c)
	}
	return pool
}

func (p *keyPair) certificate() *tls.Certificate {
	return &tls.Certificate{Certificate: p.chain, PrivateKey: p.key, Leaf: p.leaf}
}

// encode is the key pair as kept on disk: one file, so that its parts change together.
func (p *keyPair) encode() []byte {
	var b bytes.Buffer
	der, err := x509.MarshalPKCS8PrivateKey(p.key)
	if err != nil {
		panic("config: marshal a P-256 key: " + err.Error()) // cannot fail
	}
	key := &pem.Block{Type: pemKey, Bytes: der}
	if p.tokenID != "" {
		key.Headers = map[string]string{headerToken: p.tokenID}
	}
	blocks := []*pem.Block{key}
	for _, der := range p.chain {
		blocks = append(blocks, &pem.Block{Type: pemChain, Bytes: der})
	}
	for _, c := range p.authorities {
		blocks = append(blocks, &pem.Block{Type: pemAuthority, Bytes: c.Raw})
	}
	if p.ring != nil {
		der, err := proto.Marshal(p.ring)
		if err != nil {
			panic("config: marshal a KeyRing: " + err.Error()) // it was unmarshalled
		}
		blocks = append(blocks, &pem.Block{Type: pemKeyRing, Bytes: der})
	}
	for _, block := range blocks {
		_ = pem.Encode(&b, block) // a Buffer takes everything
	}
	return b.Bytes()
}

// loadKeyPair reads what encode wrote.
func loadKeyPair(path string) (*keyPair, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	p := &keyPair{since: info.ModTime()} // it was written then, whole
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		switch block.Type {
		case pemKey:
			parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			if err != nil {
				return nil, err
			}
			p.key, _ = parsed.(*ecdsa.PrivateKey)
			p.tokenID = block.Headers[headerToken]
		case pemChain:
			p.chain = append(p.chain, block.Bytes)
		case pemAuthority:
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, err
			}
			p.authorities = append(p.authorities, c)
		case pemKeyRing:
			p.ring = new(outriggerv1.KeyRing)
			if err := proto.Unmarshal(block.Bytes, p.ring); err != nil {
				return nil, err
			}
		}
	}
	return p, p.check()
}
