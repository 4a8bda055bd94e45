package ca

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/store"
)

// Revoke deletes a sidecar's record, and reports whether it had one. From then on it can neither renew its certificate
// nor be identified by it; a stream that is open is for its caller to end, and for FollowRevocations elsewhere. What
// FollowRevoked tells has it until every certificate that it may have has ended. The key that sidecars seal with is
// replaced before its time, by one that this sidecar does not get.
func (a *Authority) Revoke(ctx context.Context, nodeID string) (found bool, err error) {
	if !ValidNodeID(nodeID) {
		return false, nil
	}
	for range maxAttempts { // a renewal that comes between extends the record, which must not save it
		err = a.tryRevoke(ctx, nodeID)
		if !errors.Is(err, store.ErrConflict) {
			break
		}
	}
	if errors.Is(err, errNoRecord) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("revoke %q: %w", nodeID, err)
	}
	a.opts.Log.Info("sidecar deleted", "node", nodeID)
	return true, nil
}

// tryRevoke is one attempt of Revoke. It fails with store.ErrConflict when the record changed meanwhile.
func (a *Authority) tryRevoke(ctx context.Context, nodeID string) error {
	r, revision, err := a.record(ctx, nodeID)
	if err != nil {
		return err
	}
	if err := a.replaceKey(ctx); err != nil { // first: who tries again finds the record still there
		return fmt.Errorf("replace the sealing key: %w", err)
	}
	revoked, err := a.revocation(nodeID, r)
	if err != nil {
		return err
	}
	_, err = a.store.Apply(ctx, []store.Write{{Key: sidecarPrefix + nodeID, IfRevision: revision, Delete: true}, revoked})
	return err
}

// FollowRevocations calls gone with the node id of every record that is deleted, by whichever replica or hand, until
// ctx ends. Records that expired and were swept are among them.
func (a *Authority) FollowRevocations(ctx context.Context, gone func(nodeID string)) {
	known := map[string]bool{} // keys of records
	a.follow(ctx, "the sidecars' records", func() error { return a.followRecords(ctx, known, gone) })
}

// retryAfter is the pause before what is followed is read again from a store that failed.
const retryAfter = time.Second

var errWatchEnded = errors.New("the watch ended")

// follow runs once, which reads and then watches something, again and again until ctx ends.
func (a *Authority) follow(ctx context.Context, what string, once func() error) {
	for {
		err := once()
		if ctx.Err() != nil {
			return
		}
		a.opts.Log.Warn("reading "+what+" again", "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(retryAfter):
		}
	}
}

// followRecords reads every record and then follows changes until the watch ends. Records that were known and are not
// there any more were deleted while nobody watched.
func (a *Authority) followRecords(ctx context.Context, known map[string]bool, gone func(nodeID string)) error {
	entries, revision, err := a.store.List(ctx, sidecarPrefix)
	if err != nil {
		return err
	}
	there := make(map[string]bool, len(entries))
	for _, e := range entries {
		there[e.Key], known[e.Key] = true, true
	}
	for key := range known {
		if !there[key] {
			delete(known, key)
			gone(strings.TrimPrefix(key, sidecarPrefix))
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for batch := range a.store.Watch(ctx, sidecarPrefix, revision) {
		if batch.Err != nil {
			return batch.Err
		}
		for _, e := range batch.Events {
			if !e.Deleted {
				known[e.Key] = true
				continue
			}
			delete(known, e.Key)
			gone(strings.TrimPrefix(e.Key, sidecarPrefix))
		}
	}
	return errWatchEnded
}
