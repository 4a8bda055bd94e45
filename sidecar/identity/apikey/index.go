package apikey

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
)

// Index finds Keys by what callers present. It is never changed.
type Index struct {
	pepper []byte
	byHash map[[sha256.Size]byte]*outriggerv1.Key // nil: of several Keys
	byName map[string]*outriggerv1.Key
}

// NewIndex files all Keys, which have been validated, by hashes that were made with the pepper. A key that several Keys
// describe is nobody's: it cannot be known which of them is meant.
func NewIndex(keys []*outriggerv1.Key, pepper []byte) *Index {
	x := &Index{pepper: pepper, byHash: make(map[[sha256.Size]byte]*outriggerv1.Key, len(keys)), byName: make(map[string]*outriggerv1.Key, len(keys))}
	for _, k := range keys {
		var sum [sha256.Size]byte
		if len(k.GetHash()) != hex.EncodedLen(len(sum)) {
			continue // no key has it
		}
		if _, err := hex.Decode(sum[:], []byte(k.GetHash())); err != nil {
			continue
		}
		if other, taken := x.byHash[sum]; taken {
			delete(x.byName, other.GetName())
			x.byHash[sum] = nil
			continue
		}
		x.byHash[sum] = k
		x.byName[k.GetName()] = k
	}
	return x
}

// Lookup finds the Key of a key. It is looked for by its digest, so the time that takes says nothing of other keys.
func (x *Index) Lookup(key []byte) (*outriggerv1.Key, bool) {
	k := x.byHash[digest(key, x.pepper)]
	return k, k != nil
}

// Named is the Key of a name.
func (x *Index) Named(name string) (*outriggerv1.Key, bool) {
	k, ok := x.byName[name]
	return k, ok
}

// Principal is who presents a Key, judged by the provider of that name. Its Tenant is not looked up.
func Principal(k *outriggerv1.Key, provider string) *identity.Principal {
	p := &identity.Principal{
		ID: "key:" + k.GetName(), Provider: provider, Groups: set(k.GetGroups()), Scopes: set(k.GetScopes()),
		Key: k.GetName(), KeyHash: k.GetHash(), KeyLabels: k.GetLabels(),
	}
	if k.GetExpires() != nil {
		p.Expires = k.GetExpires().AsTime()
	}
	return p
}

// set is values in order, without doubles.
func set(values []string) []string {
	sorted := slices.Clone(values)
	slices.Sort(sorted)
	return slices.Compact(sorted)
}
