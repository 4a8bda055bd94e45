// Package seal makes the tokens that a sidecar hands to a client and expects back: request states and cursors.
//
// A token is authentic and secret: what Open returns was sealed by this fleet, for the same purpose and with the same
// additional data, and nobody without the keys can read it. It says nothing of time or of use: what must expire, belong
// to one caller or work only once says so inside, and its reader checks that.
//
// The keys are a ring that the control plane replaces (outrigger.v1.KeyRing); every sidecar that has the ring opens what
// any of them sealed. Until there is a ring, a Sealer uses a random key of its own, which goes on opening afterwards.
//
// A Sealer is safe for concurrent use.
package seal

import (
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/chacha20poly1305"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

const (
	// MaxToken is the longest token that Open looks at, in bytes.
	MaxToken = 16 << 10
	// MaxPlaintext is the longest plaintext whose token Open takes, in bytes.
	MaxPlaintext = 12<<10 - 128

	// version begins every token. Another form takes another version; what an older sidecar sealed is opened as long as
	// its version is known here.
	version = "v1"

	maxKeys = 64 // of a ring
)

// Reasons for which Open refuses. They say nothing of what is inside.
var (
	ErrMalformed  = errors.New("not a sealed token")
	ErrUnknownKey = errors.New("sealed with a key that is not known here, or not any more")
	ErrForged     = errors.New("not sealed here for this purpose, or altered since")
)

// Sealer seals and opens tokens.
type Sealer struct {
	own  key // of this process alone
	ring atomic.Pointer[ring]
}

// ring is what one KeyRing comes to. It is never changed.
type ring struct {
	newestFirst []key
	byID        map[uint32]key
}

// key is one key, ready for use. XChaCha20-Poly1305 has nonces long enough to be drawn at random for any number of
// tokens.
type key struct {
	id    uint32
	aead  cipher.AEAD
	since int64 // from when on it seals, in seconds since 1970
}

// New makes a Sealer with a random key of its own, and no other.
func New() *Sealer {
	secret := make([]byte, chacha20poly1305.KeySize+4)
	rand.Read(secret) // never fails
	own, err := newKey(&outriggerv1.SealingKey{
		Id: binary.BigEndian.Uint32(secret[chacha20poly1305.KeySize:]), Secret: secret[:chacha20poly1305.KeySize],
		SealsFromUnix: math.MinInt64,
	})
	if err != nil {
		panic(err) // the length is right
	}
	s := &Sealer{own: own}
	s.ring.Store(newRing([]key{own}))
	return s
}

// Swap replaces the keys, at once for every later call. A ring that cannot be used is refused whole, and what was there
// stays: errors name the key, never its secret.
func (s *Sealer) Swap(r *outriggerv1.KeyRing) error {
	if n := len(r.GetKeys()); n == 0 || n > maxKeys {
		return fmt.Errorf("keys: %d of them, want 1 to %d", n, maxKeys)
	}
	keys := make([]key, 0, len(r.GetKeys())+1)
	seen := make(map[uint32]bool)
	for i, k := range r.GetKeys() {
		made, err := newKey(k)
		if err != nil {
			return fmt.Errorf("keys[%d]: %w", i, err)
		}
		if seen[made.id] {
			return fmt.Errorf("keys[%d].id: %d comes twice", i, made.id)
		}
		seen[made.id] = true
		keys = append(keys, made)
	}
	next := newRing(keys)
	if !seen[s.own.id] {
		next.byID[s.own.id] = s.own
	}
	s.ring.Store(next)
	return nil
}

func newKey(k *outriggerv1.SealingKey) (key, error) {
	aead, err := chacha20poly1305.NewX(k.GetSecret())
	if err != nil {
		return key{}, fmt.Errorf("secret: %d bytes, want %d", len(k.GetSecret()), chacha20poly1305.KeySize)
	}
	return key{id: k.GetId(), aead: aead, since: k.GetSealsFromUnix()}, nil
}

func newRing(keys []key) *ring {
	r := &ring{newestFirst: keys, byID: make(map[uint32]key, len(keys)+1)}
	for _, k := range keys {
		r.byID[k.id] = k
	}
	return r
}

// sealing is the newest key that is in use. When none is yet, it is the oldest: the likeliest to be everywhere.
func (r *ring) sealing(now time.Time) key {
	for _, k := range r.newestFirst {
		if k.since <= now.Unix() {
			return k
		}
	}
	return r.newestFirst[len(r.newestFirst)-1]
}

// Seal makes the token of a plaintext of at most MaxPlaintext bytes; Open refuses what was longer. It is text that can
// stand in URLs, headers and JSON as it is. Only Open with the same purpose and the same aad, additional data that is not
// part of the token, returns the plaintext.
func (s *Sealer) Seal(purpose string, plaintext, aad []byte) string {
	k := s.ring.Load().sealing(time.Now())
	nonce := make([]byte, k.aead.NonceSize(), k.aead.NonceSize()+len(plaintext)+k.aead.Overhead())
	rand.Read(nonce) // never fails
	sealed := k.aead.Seal(nonce, nonce, plaintext, bind(purpose, k.id, aad))
	token := make([]byte, 0, len(version)+12+base64.RawURLEncoding.EncodedLen(len(sealed)))
	token = append(token, version+"."...)
	token = strconv.AppendUint(token, uint64(k.id), 10)
	token = append(token, '.')
	return string(base64.RawURLEncoding.AppendEncode(token, sealed))
}

// encoding refuses a last character with bits that mean nothing, so that one token has one form.
var encoding = base64.RawURLEncoding.Strict()

// Open returns what was sealed. Errors: ErrMalformed, ErrUnknownKey, ErrForged; none of them is worth trying again with.
func (s *Sealer) Open(purpose, token string, aad []byte) ([]byte, error) {
	id, text, err := parse(token)
	if err != nil {
		return nil, err
	}
	k, ok := s.ring.Load().byID[id]
	if !ok {
		return nil, ErrUnknownKey
	}
	sealed, err := encoding.DecodeString(text)
	if err != nil || len(sealed) < k.aead.NonceSize()+k.aead.Overhead() {
		return nil, ErrMalformed
	}
	nonce, sealed := sealed[:k.aead.NonceSize()], sealed[k.aead.NonceSize():]
	plaintext, err := k.aead.Open(sealed[:0], nonce, sealed, bind(purpose, id, aad))
	if err != nil {
		return nil, ErrForged
	}
	return plaintext, nil
}

// parse takes a token apart.
func parse(token string) (id uint32, sealed string, err error) {
	if len(token) > MaxToken {
		return 0, "", ErrMalformed
	}
	rest, ok := strings.CutPrefix(token, version+".")
	idText, sealed, ok2 := strings.Cut(rest, ".")
	n, err := strconv.ParseUint(idText, 10, 32)
	if !ok || !ok2 || err != nil || strconv.FormatUint(n, 10) != idText || strings.ContainsAny(sealed, "\r\n") {
		return 0, "", ErrMalformed
	}
	return uint32(n), sealed, nil
}

// bind is what is authenticated beside the plaintext. Its parts cannot be taken for each other.
func bind(purpose string, id uint32, aad []byte) []byte {
	b := make([]byte, 0, len(version)+8+len(purpose)+len(aad))
	b = append(b, version...)
	b = binary.BigEndian.AppendUint32(b, id)
	b = binary.BigEndian.AppendUint32(b, uint32(len(purpose)))
	b = append(b, purpose...)
	return append(b, aad...)
}
