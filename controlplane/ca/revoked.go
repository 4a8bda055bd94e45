package ca

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/store"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

const (
	// maxRevoked bounds the revocations that sidecars are sent. Of more, those that end last are.
	maxRevoked = 10_000
	// Changes are told together that come within quiet of each other, but none later than mostQuiet.
	quiet     = 20 * time.Millisecond
	mostQuiet = 200 * time.Millisecond
)

// revocation is an admission that was taken back, for as long as a certificate of it may be valid.
type revocation struct {
	Node    string    `json:"node"`
	Expires time.Time `json:"expires"`
}

var errRevoked = errors.New("this sidecar was deleted; another has its node id now")

// revocation is what records that r is taken back. A renewal that is under way now may still get its certificate.
func (a *Authority) revocation(nodeID string, r record) (store.Write, error) {
	expires := a.opts.Now().Add(a.opts.SidecarLife)
	if r.Expires.After(expires) {
		expires = r.Expires
	}
	admission := cmp.Or(r.Admission, randomHex(admissionBytes)) // it is named by nothing else
	return encoded(revokedPrefix+admission, revocation{nodeID, expires.Add(backdate)}, 0)
}

// notRevoked fails with errRevoked for an admission that was taken back. None, of an older control plane, never was.
func (a *Authority) notRevoked(ctx context.Context, admission string) error {
	if admission == "" {
		return nil
	}
	_, found, err := a.store.Get(ctx, revokedPrefix+admission)
	if err == nil && found {
		return errRevoked
	}
	return err
}

// FollowRevoked calls tell with all revocations, at once and whenever they have changed, until ctx ends. They are grouped
// by the hour in which the last certificate ends, in order, so that a change touches one group.
func (a *Authority) FollowRevoked(ctx context.Context, tell func([]*outriggerv1.Revocations)) {
	a.follow(ctx, "the revocations", func() error { return a.followRevoked(ctx, tell) })
}

// followRevoked reads all revocations and then follows changes until the watch ends.
func (a *Authority) followRevoked(ctx context.Context, tell func([]*outriggerv1.Revocations)) error {
	entries, revision, err := a.store.List(ctx, revokedPrefix)
	if err != nil {
		return err
	}
	known := make(map[string]revocation, len(entries)) // by admission
	for _, e := range entries {
		a.learn(known, store.Event{Entry: e})
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changes := a.store.Watch(ctx, revokedPrefix, revision)
	for {
		tell(a.grouped(known))
		first, ok := <-changes
		if !ok {
			return errWatchEnded
		}
		if err := a.merge(known, first, changes); err != nil {
			return err
		}
	}
}

// merge takes a batch and those that follow it closely.
func (a *Authority) merge(known map[string]revocation, b store.Batch, changes <-chan store.Batch) error {
	most := time.After(mostQuiet)
	for ok := true; ok; {
		if b.Err != nil {
			return b.Err
		}
		for _, e := range b.Events {
			a.learn(known, e)
		}
		select {
		case b, ok = <-changes:
		case <-time.After(quiet):
			return nil
		case <-most:
			return nil
		}
	}
	return errWatchEnded
}

// learn takes in a change. One that cannot be read is left out, and said so.
func (a *Authority) learn(known map[string]revocation, e store.Event) {
	admission := strings.TrimPrefix(e.Key, revokedPrefix)
	if e.Deleted {
		delete(known, admission)
		return
	}
	var r revocation
	if err := json.Unmarshal(e.Value, &r); err != nil || !ValidNodeID(r.Node) {
		a.opts.Log.Error("a revocation cannot be read: the sidecar is refused here, and not by others", "key", e.Key, "error", err)
		return
	}
	known[admission] = r
}

// grouped are revocations as sidecars are sent them: the same from every replica.
func (a *Authority) grouped(known map[string]revocation) (all []*outriggerv1.Revocations) {
	admissions := make([]string, 0, len(known))
	for admission := range known {
		admissions = append(admissions, admission)
	}
	slices.SortFunc(admissions, func(a, b string) int {
		return cmp.Or(known[b].Expires.Compare(known[a].Expires), cmp.Compare(a, b))
	})
	if n := len(admissions); n > maxRevoked {
		a.opts.Log.Warn("more sidecars were deleted than others are told of; the rest can reach them until their certificates end",
			"deleted", n, "told", maxRevoked)
		admissions = admissions[:maxRevoked]
	}
	groups := make(map[int64]*outriggerv1.Revocations)
	for _, admission := range admissions {
		hour := known[admission].Expires.Unix() / 3600
		if groups[hour] == nil {
			groups[hour] = &outriggerv1.Revocations{Name: strconv.FormatInt(hour, 10)}
			all = append(all, groups[hour])
		}
		groups[hour].Revoked = append(groups[hour].Revoked, &outriggerv1.RevokedSidecar{NodeId: known[admission].Node, Admission: admission})
	}
	for _, g := range all {
		slices.SortFunc(g.Revoked, func(a, b *outriggerv1.RevokedSidecar) int { return cmp.Compare(a.Admission, b.Admission) })
	}
	return all
}
