// Package assertion carries who calls from the sidecar that let the caller in to the one that goes on with its call.
//
// The sidecar that asks signs a statement with the key of its own certificate: who calls which binding, for which sidecar
// and with which message. The one that is asked takes it from nobody but the sidecar at the other end of the connection, so
// what is overheard or kept is of no use to anybody else, for anything else, or later. The certificate comes with it,
// since a connection outlives the renewal of the one that it was made with.
//
// Functions here are pure. Not here: who may call (package authn), and how sidecars reach each other (package peer).
package assertion

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

const (
	// Life is how old an assertion may be, and how far ahead its signer's clock.
	Life = 30 * time.Second

	// signedAs sets what is signed here apart from all else that the key signs, as TLS handshakes.
	signedAs = "outrigger caller assertion v1\x00"
	// maxChain is how many certificates may come with an assertion.
	maxChain = 4
)

// Errors of Verify. Their texts have nothing of the assertion.
var (
	ErrMalformed = errors.New("the assertion of who calls is missing or malformed")
	ErrSigner    = errors.New("the assertion of who calls is not by the sidecar that sends it")
	ErrSignature = errors.New("the assertion of who calls has a wrong signature")
	ErrPurpose   = errors.New("the assertion of who calls is for another sidecar, binding or message")
	ErrTime      = errors.New("the assertion of who calls is too old, or from the future: the clocks of the two sidecars may differ")
)

// Claim is what an assertion is for.
type Claim struct {
	Audience string // node id of the sidecar that is asked
	Binding  string // whose endpoint was called
	Message  []byte // the JSON-RPC request
}

// Sign asserts that a principal, who may be empty, makes a call. The error is of a certificate whose key is not ECDSA.
func Sign(by *tls.Certificate, principal string, c Claim, now time.Time) (*outriggerv1.CallerAssertion, error) {
	key, ok := by.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, errors.New("the certificate has no key that signs")
	}
	if _, ok := key.Public().(*ecdsa.PublicKey); !ok {
		return nil, fmt.Errorf("the certificate's key is %T, expected ECDSA", key.Public())
	}
	message := sha256.Sum256(c.Message)
	statement, err := proto.Marshal(&outriggerv1.CallerStatement{
		Audience: c.Audience, Binding: c.Binding, Principal: principal, IssuedUnix: now.Unix(), MessageSha256: message[:],
	})
	if err != nil {
		return nil, err
	}
	digest := digestOf(statement)
	signature, err := key.Sign(rand.Reader, digest[:], crypto.SHA256)
	if err != nil {
		return nil, err
	}
	return &outriggerv1.CallerAssertion{Statement: statement, Signature: signature, Chain: by.Certificate}, nil
}

func digestOf(statement []byte) [sha256.Size]byte {
	return sha256.Sum256(append([]byte(signedAs), statement...))
}

// Verify returns the principal that an assertion names, if it is for this claim and by the sidecar whose certificate has
// the URI signer, which an authority among roots has to have issued.
func Verify(a *outriggerv1.CallerAssertion, signer string, roots *x509.CertPool, c Claim, now time.Time) (principal string, err error) {
	key, err := keyOf(a.GetChain(), signer, roots, now)
	if err != nil {
		return "", err
	}
	digest := digestOf(a.GetStatement())
	if !ecdsa.VerifyASN1(key, digest[:], a.GetSignature()) {
		return "", ErrSignature
	}
	var s outriggerv1.CallerStatement
	if proto.Unmarshal(a.GetStatement(), &s) != nil {
		return "", ErrMalformed
	}
	message := sha256.Sum256(c.Message)
	if s.GetAudience() != c.Audience || s.GetBinding() != c.Binding || !bytes.Equal(s.GetMessageSha256(), message[:]) {
		return "", ErrPurpose
	}
	if age := now.Sub(time.Unix(s.GetIssuedUnix(), 0)); age > Life || age < -Life {
		return "", ErrTime
	}
	return s.GetPrincipal(), nil
}

// keyOf is the public key of the signer's certificate, which has to be good now.
func keyOf(chain [][]byte, signer string, roots *x509.CertPool, now time.Time) (*ecdsa.PublicKey, error) {
	if len(chain) == 0 || len(chain) > maxChain {
		return nil, ErrMalformed
	}
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return nil, ErrMalformed
	}
	between := x509.NewCertPool()
	for _, der := range chain[1:] {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, ErrMalformed
		}
		between.AddCert(c)
	}
	_, err = leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	key, ok := leaf.PublicKey.(*ecdsa.PublicKey)
	if err != nil || !ok || len(leaf.URIs) != 1 || leaf.URIs[0].String() != signer {
		return nil, ErrSigner
	}
	return key, nil
}
