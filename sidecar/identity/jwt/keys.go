package jwt

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/json"
)

const (
	maxKeys    = 100  // of an issuer
	minRSABits = 2048 // RFC 7518, section 3.3
	maxKeyID   = 256  // bytes
)

// key is a public key of an issuer. A fetch that finds it again keeps the one that there is.
type key struct {
	id        string // may be empty
	algorithm string // the only one it is for, or empty: any that suits its type
	print     string // RFC 7638
	public    any    // *rsa.PublicKey, *ecdsa.PublicKey or ed25519.PublicKey
	withdrawn atomic.Bool
}

// keySet is what an issuer's JWKS held at one time. It is never changed.
type keySet struct {
	keys []*key
	at   time.Time // when the fetch began that it came with
}

// readKeys reads a JWKS (RFC 7517, section 5). Keys that cannot be used are passed over and counted: those of other types
// or uses, too small ones, shared secrets, and private keys, which are nobody's any more once they are published.
func readKeys(document []byte) (keys []*key, unusable int, err error) {
	var set struct {
		Keys *[]json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(document, &set); err != nil || set.Keys == nil {
		return nil, 0, fmt.Errorf("%w: no JSON object with keys", errDocument)
	}
	if n := len(*set.Keys); n > maxKeys {
		return nil, 0, fmt.Errorf("%w: %d, expected at most %d", errTooMany, n, maxKeys)
	}
	for _, raw := range *set.Keys {
		if k := readKey(raw); k != nil {
			keys = append(keys, k)
		} else {
			unusable++
		}
	}
	return keys, unusable, nil
}

// readKey reads a JWK; nil is one that cannot be used.
func readKey(raw []byte) *key {
	var k jose.JSONWebKey
	var operations struct {
		Names []string `json:"key_ops"`
	}
	if json.Unmarshal(raw, &k) != nil || json.Unmarshal(raw, &operations) != nil {
		return nil
	}
	verifies := operations.Names == nil || slices.Contains(operations.Names, "verify")
	if !k.Valid() || !k.IsPublic() || k.Use != "" && k.Use != "sig" || !verifies || len(k.KeyID) > maxKeyID {
		return nil
	}
	if r, ok := k.Key.(*rsa.PublicKey); ok && r.N.BitLen() < minRSABits {
		return nil
	}
	print, err := k.Thumbprint(crypto.SHA256)
	if err != nil {
		return nil
	}
	return &key{id: k.KeyID, algorithm: k.Algorithm, print: string(print), public: k.Key}
}

// suits reports whether the key may verify signatures of an algorithm: its type decides, never the token (RFC 8725,
// section 3.1).
func (k *key) suits(algorithm string) bool {
	if k.algorithm != "" && k.algorithm != algorithm {
		return false
	}
	switch public := k.public.(type) {
	case *rsa.PublicKey:
		return strings.HasPrefix(algorithm, "RS") || strings.HasPrefix(algorithm, "PS")
	case *ecdsa.PublicKey:
		switch public.Curve.Params().BitSize {
		case 256:
			return algorithm == "ES256"
		case 384:
			return algorithm == "ES384"
		case 521:
			return algorithm == "ES512"
		}
	case ed25519.PublicKey:
		return algorithm == "EdDSA"
	}
	return false
}

// choose finds the keys that a token may be signed with: of its kid, or, where it names none, the only one that suits.
func (s *keySet) choose(kid, algorithm string) ([]*key, error) {
	var found []*key
	known := kid == ""
	for _, k := range s.keys {
		if kid != "" && k.id != kid {
			continue
		}
		known = true
		if k.suits(algorithm) {
			found = append(found, k)
		}
	}
	switch {
	case !known || kid == "" && len(found) != 1:
		return nil, refuse(KeyUnknown)
	case len(found) == 0:
		return nil, refuse(Algorithm)
	}
	return found, nil
}

// succeed puts keys in the place of s, which may be nil: those that were there stay the same, and those that are gone are
// withdrawn, with every token that they signed.
func (s *keySet) succeed(keys []*key, at time.Time) *keySet {
	next := &keySet{at: at}
	var old []*key
	if s != nil {
		old = s.keys
	}
	for _, k := range keys {
		same := func(o *key) bool { return o.id == k.id && o.algorithm == k.algorithm && o.print == k.print }
		if at := slices.IndexFunc(old, same); at >= 0 {
			k = old[at]
		}
		next.keys = append(next.keys, k)
	}
	for _, k := range old {
		if !slices.Contains(next.keys, k) {
			k.withdrawn.Store(true)
		}
	}
	return next
}
