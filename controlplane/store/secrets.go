package store

import (
	"bytes"
	"context"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/crypto/chacha20poly1305"
	"google.golang.org/protobuf/types/known/structpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

const (
	// SecretKeySize is the length of a key that seals Secrets, in bytes.
	SecretKeySize = 32
	// maxSecretKeys is how many keys may be in use at once: the newest and those that it replaces.
	maxSecretKeys = 8
	// secretsKey holds the id of the key that seals now. It is a promise to stored state.
	secretsKey = "private/secrets"
	// kindSecret is the kind whose values are sealed.
	kindSecret = "Secret"
	// resealedAtOnce bounds a transaction of Claim below the least that clusters take, 128 operations.
	resealedAtOnce = 50
	// maxClaims bounds how often Claim begins anew while others write.
	maxClaims = 100
)

// ErrOtherKey is that Secrets were sealed with a key that is not held.
var ErrOtherKey = errors.New("sealed with another key")

// Secrets seals the values of Secrets in the store with keys that are not in it, so that neither the store nor a backup of
// it tells them. Each value is sealed alone, for one key of one Secret: it is good nowhere else. Names, keys and labels
// stay readable.
//
// A Secrets is never changed, and safe for concurrent use.
type Secrets struct {
	keys []secretKey // the first seals, all open
}

// secretKey is a key, and the id by which what it sealed says so.
type secretKey struct {
	id   []byte
	aead cipher.AEAD
}

// A sealed value is, in base64: the id of its key, a nonce, and the ciphertext.
const (
	secretIDSize = 8
	sealedHead   = secretIDSize + chacha20poly1305.NonceSizeX
)

// NewSecrets takes the keys, of SecretKeySize each: the first one seals, all of them open.
func NewSecrets(keys [][]byte) (*Secrets, error) {
	if len(keys) == 0 || len(keys) > maxSecretKeys {
		return nil, fmt.Errorf("%d keys for Secrets, expected 1 to %d", len(keys), maxSecretKeys)
	}
	x := &Secrets{}
	for i, key := range keys {
		if len(key) != SecretKeySize {
			return nil, fmt.Errorf("key %d for Secrets has %d bytes, expected %d", i+1, len(key), SecretKeySize)
		}
		k, err := newSecretKey(key)
		if err != nil {
			return nil, err
		}
		x.keys = append(x.keys, k)
	}
	return x, nil
}

// newSecretKey derives a key's id and what it seals with, so that the id tells nothing of the other.
func newSecretKey(key []byte) (k secretKey, err error) {
	if k.id, err = hkdf.Key(sha256.New, key, nil, "outrigger secrets 1: id", secretIDSize); err != nil {
		return k, err
	}
	sealing, err := hkdf.Key(sha256.New, key, nil, "outrigger secrets 1: seal", chacha20poly1305.KeySize)
	if err != nil {
		return k, err
	}
	k.aead, err = chacha20poly1305.NewX(sealing)
	return k, err
}

// Seal is a value of a Secret, by its name and key, as it is stored.
func (x *Secrets) Seal(name, key, value string) string {
	k := x.keys[0]
	sealed := make([]byte, sealedHead, sealedHead+len(value)+k.aead.Overhead())
	copy(sealed, k.id)
	nonce := sealed[secretIDSize:]
	rand.Read(nonce) // never fails
	return base64.RawStdEncoding.EncodeToString(k.aead.Seal(sealed, nonce, []byte(value), place(name, key)))
}

// Open is the value that was sealed for this key of this Secret. Errors: ErrOtherKey; none tells anything of the value.
func (x *Secrets) Open(name, key, sealed string) (value string, err error) {
	text, err := base64.RawStdEncoding.DecodeString(sealed)
	if err != nil || len(text) < sealedHead {
		return "", fmt.Errorf("the value %q of Secret/%s is damaged", key, name)
	}
	i := slices.IndexFunc(x.keys, func(k secretKey) bool { return bytes.Equal(k.id, text[:secretIDSize]) })
	if i < 0 {
		return "", fmt.Errorf("the value %q of Secret/%s is %w", key, name, ErrOtherKey)
	}
	opened, err := x.keys[i].aead.Open(nil, text[secretIDSize:sealedHead], text[sealedHead:], place(name, key))
	if err != nil {
		return "", fmt.Errorf("the value %q of Secret/%s is damaged", key, name)
	}
	return string(opened), nil
}

// place is where a sealed value belongs. Neither part can hold the byte between them.
func place(name, key string) []byte { return []byte(name + "\x00" + key) }

// current reports whether the newest key sealed a value.
func (x *Secrets) current(sealed string) bool {
	text, err := base64.RawStdEncoding.DecodeString(sealed)
	return err == nil && bytes.HasPrefix(text, x.keys[0].id)
}

// SecretValues are a Secret's values as they are in its resource: as given, sealed or empty. They are not to be changed.
func SecretValues(r *outriggerv1.Resource) map[string]*structpb.Value {
	if r.GetKind() != kindSecret {
		return nil
	}
	return r.GetSpec().GetFields()["values"].GetStructValue().GetFields()
}

// OpenResource is the resource in an entry, with its revision. The values of a Secret, and only they, are opened; one
// that cannot be opened, or a nil Secrets, is an error.
func (x *Secrets) OpenResource(e Entry) (*outriggerv1.Resource, error) {
	r, err := DecodeResource(e)
	if err != nil {
		return nil, err
	}
	values := SecretValues(r)
	if x == nil && len(values) > 0 {
		return nil, fmt.Errorf("there is no key to open Secret/%s with", r.Name)
	}
	for key, v := range values {
		opened, err := x.Open(r.Name, key, v.GetStringValue())
		if err != nil {
			return nil, err
		}
		values[key] = structpb.NewStringValue(opened)
	}
	return r, nil
}

// SecretsSealed reports whether any keys were claimed for the store.
func (s *Store) SecretsSealed(ctx context.Context) (bool, error) {
	_, ok, err := s.Get(ctx, secretsKey)
	return ok, err
}

// Claim makes the keys those of a store. It fails with ErrOtherKey when its Secrets are sealed with one that is not among
// them, unless that one is given up as lost: what it sealed then cannot be opened any more. What older keys sealed is
// sealed again with the newest.
func (x *Secrets) Claim(ctx context.Context, s *Store, lost bool) error {
	for range maxClaims {
		done, err := x.claim(ctx, s, lost)
		if done || err != nil && !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("claim the store's Secrets: %w", ErrConflict)
}

// claim is one step of Claim: it is done when there is nothing left to write.
func (x *Secrets) claim(ctx context.Context, s *Store, lost bool) (done bool, err error) {
	marker, ok, err := s.Get(ctx, secretsKey)
	if err != nil {
		return false, err
	}
	id := hex.EncodeToString(x.keys[0].id)
	held := slices.ContainsFunc(x.keys, func(k secretKey) bool { return hex.EncodeToString(k.id) == string(marker.Value) })
	if ok && !held && !lost {
		return false, fmt.Errorf("the Secrets of the store are %w", ErrOtherKey)
	}
	writes, err := x.due(ctx, s)
	if err != nil {
		return false, err
	}
	if len(writes) == 0 && string(marker.Value) == id {
		return true, nil
	}
	if len(writes) == 0 {
		revision := marker.Revision
		if !ok {
			revision = -1
		}
		writes = []Write{{Key: secretsKey, Value: []byte(id), IfRevision: revision}}
	}
	_, err = s.Apply(ctx, writes)
	return false, err
}

// due are the writes that seal anew some of what older keys sealed. What cannot be opened stays as it is.
func (x *Secrets) due(ctx context.Context, s *Store) (writes []Write, err error) {
	generation, ok, err := s.Get(ctx, GenerationKey)
	if err != nil {
		return nil, err
	}
	if !ok {
		generation.Revision = -1
	}
	stored, _, err := s.Resources(ctx, kindSecret)
	if err != nil {
		return nil, err
	}
	for _, r := range stored {
		if !x.reseal(r) {
			continue
		}
		value, err := EncodeResource(r)
		if err != nil {
			return nil, err
		}
		writes = append(writes, Write{Key: ResourceKey(r.Kind, r.Name), Value: value, IfRevision: r.Revision})
		if len(writes) == resealedAtOnce {
			break
		}
	}
	if len(writes) > 0 {
		writes = append(writes, Write{Key: GenerationKey, IfRevision: generation.Revision})
	}
	return writes, nil
}

// reseal seals a Secret's values with the newest key, and reports whether any changed.
func (x *Secrets) reseal(r *outriggerv1.Resource) (changed bool) {
	values := SecretValues(r)
	for _, key := range slices.Sorted(maps.Keys(values)) {
		sealed := values[key].GetStringValue()
		if x.current(sealed) {
			continue
		}
		if opened, err := x.Open(r.Name, key, sealed); err == nil {
			values[key] = structpb.NewStringValue(x.Seal(r.Name, key, opened))
			changed = true
		}
	}
	return changed
}
