package ca

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/controlplane/store"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

const (
	// sealingLife is how long a key seals before the next one does; longer where certificates live long.
	sealingLife = 7 * 24 * time.Hour
	// sealedLife is more than the longest time for which a sidecar hands out anything sealed.
	sealedLife = 24 * time.Hour
	sealingLen = 32 // bytes of a secret
	pepperLen  = 32 // bytes
)

// keyRing is what sidecars seal with, made or brought up to date in the store when that is due. A key is in the ring for
// two certificates' lives before it seals, so that every sidecar that is still admitted has it by then, and as long
// after its successor took over as anything that it sealed may be of use.
func (a *Authority) keyRing(ctx context.Context) (*outriggerv1.KeyRing, error) {
	return a.turnedRing(ctx, false)
}

// replaceKey makes a key that follows the one which seals now, unless one does already: a sidecar that is not admitted any
// more has what seals now, and gets no other.
func (a *Authority) replaceKey(ctx context.Context) error {
	_, err := a.turnedRing(ctx, true)
	return err
}

// Pepper is with what the API keys of this control plane are hashed. Every sidecar has it with its certificate. It is made
// once and never replaced: with another one, no key that was given out is known any more.
func (a *Authority) Pepper(ctx context.Context) ([]byte, error) {
	ring, err := a.keyRing(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the pepper: %w", err)
	}
	return ring.Pepper, nil
}

// turnedRing is the ring after turn.
func (a *Authority) turnedRing(ctx context.Context, soon bool) (*outriggerv1.KeyRing, error) {
	for range maxAttempts {
		ring, revision, err := a.loadKeyRing(ctx)
		if err != nil {
			return nil, err
		}
		next := a.turn(ring, soon)
		if next == nil {
			return ring, nil
		}
		value, err := proto.Marshal(next)
		if err != nil {
			return nil, err
		}
		_, err = a.store.Apply(ctx, []store.Write{{Key: sealingKey, Value: value, IfRevision: revision}})
		if err == nil {
			a.opts.Log.Info("sealing keys changed", "newest", next.Keys[0].Id, "seals_from", sealsFrom(next.Keys[0]))
			return next, nil
		}
		if !errors.Is(err, store.ErrConflict) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s: %w", sealingKey, store.ErrConflict)
}

// loadKeyRing reads the ring, an empty one at revision -1 when there is none.
func (a *Authority) loadKeyRing(ctx context.Context) (*outriggerv1.KeyRing, int64, error) {
	e, ok, err := a.store.Get(ctx, sealingKey)
	if err != nil {
		return nil, 0, err
	}
	ring := new(outriggerv1.KeyRing)
	if !ok {
		return ring, -1, nil
	}
	if err := proto.Unmarshal(e.Value, ring); err != nil {
		return nil, 0, fmt.Errorf("%s: %w", sealingKey, err)
	}
	return ring, e.Revision, nil
}

// turn is the ring with a new key in front where one is due, and without those of no more use; nil when nothing changes.
// A ring without a pepper, which an older control plane made, gets one.
// A first key seals at once: nobody has another. With soon a new key is due as soon as the newest one seals.
func (a *Authority) turn(ring *outriggerv1.KeyRing, soon bool) *outriggerv1.KeyRing {
	now, lead := a.opts.Now(), 2*a.opts.SidecarLife
	turned := &outriggerv1.KeyRing{Pepper: ring.Pepper}
	if len(ring.Pepper) == 0 {
		turned.Pepper = randomBytes(pepperLen)
	}
	if len(ring.Keys) == 0 {
		turned.Keys = append(turned.Keys, newSealingKey(1, now))
	} else if k := ring.Keys[0]; !now.Before(sealsFrom(k).Add(max(sealingLife, 2*lead)-lead)) || soon && !now.Before(sealsFrom(k)) {
		turned.Keys = append(turned.Keys, newSealingKey(k.Id+1, now.Add(lead)))
	}
	made := len(turned.Keys)
	for i, k := range ring.Keys {
		if i == 0 || now.Before(sealsFrom(ring.Keys[i-1]).Add(lead+sealedLife)) {
			turned.Keys = append(turned.Keys, k)
		}
	}
	if made == 0 && len(turned.Keys) == len(ring.Keys) && len(ring.Pepper) > 0 {
		return nil
	}
	return turned
}

func sealsFrom(k *outriggerv1.SealingKey) time.Time { return time.Unix(k.SealsFromUnix, 0) }

func newSealingKey(id uint32, sealsFrom time.Time) *outriggerv1.SealingKey {
	return &outriggerv1.SealingKey{Id: id, Secret: randomBytes(sealingLen), SealsFromUnix: sealsFrom.Unix()}
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return b
}
