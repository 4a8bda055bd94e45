package ca

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/controlplane/store"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// ids are the ring's keys, newest first.
func ids(r *outriggerv1.KeyRing) (out []uint32) {
	for _, k := range r.GetKeys() {
		out = append(out, k.Id)
	}
	return out
}

func TestEverySidecarGetsTheSameSealingKeys(t *testing.T) {
	w := newWorld(t)
	first, err := w.keyRing(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	again, err := w.keyRing(t.Context())
	if err != nil || !proto.Equal(first, again) {
		t.Errorf("another sidecar gets %v (%v), want %v", ids(again), err, ids(first))
	}
	if k := first.Keys[0]; len(first.Keys) != 1 || len(k.Secret) != 32 || k.SealsFromUnix > w.clock.now().Unix() {
		t.Errorf("a new ring has %d keys, the first of %d bytes; want one of 32 that seals at once", len(first.Keys), len(k.Secret))
	}
}

// TestASealingKeyIsEverywhereBeforeItSeals walks a month: a new key must be known for a certificate's whole life before
// it seals, and a key must stay a day after its successor took over.
func TestASealingKeyIsEverywhereBeforeItSeals(t *testing.T) {
	for _, life := range []time.Duration{0, 10 * 24 * time.Hour} {
		w := newWorld(t)
		if life != 0 {
			w.opts.SidecarLife = life
		}
		known, last := map[uint32]time.Time{}, uint32(0)
		for range 24 * 60 {
			ring, err := w.keyRing(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			now := w.clock.now()
			for i, k := range ring.Keys {
				if _, ok := known[k.Id]; !ok {
					known[k.Id] = now
				}
				sealsIn := time.Unix(k.SealsFromUnix, 0).Sub(known[k.Id])
				if k.Id > 1 && sealsIn < w.opts.SidecarLife {
					t.Fatalf("key %d seals %v after it was first given out, want at least %v", k.Id, sealsIn, w.opts.SidecarLife)
				}
				if i > 0 && now.Sub(time.Unix(ring.Keys[i-1].SealsFromUnix, 0)) > 2*w.opts.SidecarLife+sealedLife+time.Hour {
					t.Fatalf("key %d is still in the ring %v at %v", k.Id, ids(ring), now)
				}
			}
			if len(ring.Keys) > 3 || !slices.IsSortedFunc(ring.Keys, func(a, b *outriggerv1.SealingKey) int { return int(b.Id) - int(a.Id) }) {
				t.Fatalf("ring %v, want at most three, newest first", ids(ring))
			}
			last = ring.Keys[0].Id
			w.clock.advance(time.Hour)
		}
		if last < 2 {
			t.Errorf("after 60 days the newest key is %d, want it replaced", last)
		}
	}
}

func TestACertificateComesWithTheSealingKeys(t *testing.T) {
	w := newWorld(t)
	_, csr := newRequest(t)
	resp, err := w.IssueCertificate(t.Context(), &outriggerv1.IssueCertificateRequest{NodeId: "a", JoinToken: w.token(1), Csr: csr})
	if err != nil {
		t.Fatal(err)
	}
	if want, _ := w.keyRing(t.Context()); !proto.Equal(resp.KeyRing, want) {
		t.Errorf("got keys %v, want %v", ids(resp.KeyRing), ids(want))
	}
}

// A sidecar that was deleted knows what seals now. It must not know what seals in a few days, however many are deleted.
func TestTheSealingKeyIsReplacedWhenASidecarIsDeleted(t *testing.T) {
	w := newWorld(t)
	join := func(nodeID string) *outriggerv1.KeyRing {
		t.Helper()
		_, csr := newRequest(t)
		resp, err := w.IssueCertificate(t.Context(), &outriggerv1.IssueCertificateRequest{NodeId: nodeID, JoinToken: w.token(1), Csr: csr})
		if err != nil {
			t.Fatal(err)
		}
		return resp.KeyRing
	}
	known := join("leaves")
	for _, nodeID := range []string{"stays", "leaves-too"} {
		join(nodeID)
	}
	before := w.clock.now()
	for _, nodeID := range []string{"leaves", "leaves-too", "nobody"} {
		if found, err := w.Revoke(t.Context(), nodeID); err != nil || found != (nodeID != "nobody") {
			t.Fatalf("Revoke(%s): %v, %v", nodeID, found, err)
		}
	}
	ring, err := w.keyRing(t.Context())
	if err != nil || len(ring.Keys) != 2 || ring.Keys[0].Id == known.Keys[0].Id {
		t.Fatalf("keys %v (%v), want one more than %v", ids(ring), err, ids(known))
	}
	lead := 2 * w.opts.SidecarLife
	from, first, last := time.Unix(ring.Keys[0].SealsFromUnix, 0), before.Add(lead-time.Second), w.clock.now().Add(lead)
	if from.Before(first) || from.After(last) { // it is in whole seconds
		t.Errorf("it seals from %v, want within %v and %v: when every other sidecar has it", from, first, last)
	}
	w.clock.advance(2*lead + sealedLife + time.Second)
	if ring, err = w.keyRing(t.Context()); err != nil || slices.Contains(ids(ring), known.Keys[0].Id) {
		t.Errorf("keys %v (%v), want none of those that the deleted sidecar has", ids(ring), err)
	}
}

func TestThePepperIsTheSameForAllAndForGood(t *testing.T) {
	w := newWorld(t)
	other := w.replica(w.store)
	var got [2][]byte
	var errs [2]error
	var wg sync.WaitGroup
	for i, a := range []*Authority{w.Authority, other} {
		wg.Go(func() { got[i], errs[i] = a.Pepper(t.Context()) })
	}
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	if len(got[0]) != pepperLen || !bytes.Equal(got[0], got[1]) {
		t.Fatalf("replicas that start together have peppers of %d and %d bytes, want one of %d", len(got[0]), len(got[1]), pepperLen)
	}
	w.clock.advance(60 * 24 * time.Hour) // every key is replaced meanwhile
	ring, err := other.keyRing(t.Context())
	if err != nil || !bytes.Equal(ring.Pepper, got[0]) || ring.Keys[0].Id == 1 {
		t.Errorf("after 60 days the newest key is %d (%v), and the pepper the same: %v; want another key and the same pepper",
			ring.Keys[0].Id, err, bytes.Equal(ring.Pepper, got[0]))
	}
	_, csr := newRequest(t)
	resp, err := w.IssueCertificate(t.Context(), &outriggerv1.IssueCertificateRequest{NodeId: "a", JoinToken: w.token(1), Csr: csr})
	if err != nil || !bytes.Equal(resp.KeyRing.Pepper, got[0]) {
		t.Errorf("a sidecar gets another pepper with its certificate (%v)", err)
	}
}

func TestARingOfAnOlderControlPlaneGetsAPepper(t *testing.T) {
	w := newWorld(t)
	old := &outriggerv1.KeyRing{Keys: []*outriggerv1.SealingKey{newSealingKey(7, w.clock.now().Add(-time.Hour))}}
	value, err := proto.Marshal(old)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.Apply(t.Context(), []store.Write{{Key: sealingKey, Value: value}}); err != nil {
		t.Fatal(err)
	}
	ring, err := w.keyRing(t.Context())
	if err != nil || len(ring.Pepper) != pepperLen || len(ring.Keys) != 1 || !proto.Equal(ring.Keys[0], old.Keys[0]) {
		t.Errorf("pepper of %d bytes, keys %v (%v); want one of %d and the key as it was", len(ring.GetPepper()), ids(ring), err, pepperLen)
	}
}
