package ca

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/store"
)

// retryAfter is the pause before the records are read again from a store that failed.
const retryAfter = time.Second

// Revoke deletes a sidecar's record, and reports whether it had one. From then on it can neither renew its certificate
// nor be identified by it; a stream that is open is for its caller to end, and for FollowRevocations elsewhere. The key
// that sidecars seal with is replaced before its time, by one that this sidecar does not get.
func (a *Authority) Revoke(ctx context.Context, nodeID string) (found bool, err error) {
	if !ValidNodeID(nodeID) {
		return false, nil
	}
	if _, _, err := a.record(ctx, nodeID); errors.Is(err, errNoRecord) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("revoke %q: %w", nodeID, err)
	}
	if err := a.replaceKey(ctx); err != nil { // first: who tries again finds the record still there
		return false, fmt.Errorf("revoke %q: replace the sealing key: %w", nodeID, err)
	}
	// At any revision: a renewal that comes between extends the record, which must not save it.
	if _, err := a.store.Apply(ctx, []store.Write{{Key: sidecarPrefix + nodeID, Delete: true}}); err != nil {
		return false, fmt.Errorf("revoke %q: %w", nodeID, err)
	}
	a.opts.Log.Info("sidecar deleted", "node", nodeID)
	return true, nil
}

// FollowRevocations calls gone with the node id of every record that is deleted, by whichever replica or hand, until
// ctx ends. Records that expired and were swept are among them.
func (a *Authority) FollowRevocations(ctx context.Context, gone func(nodeID string)) {
	known := map[string]bool{} // keys of records
	for {
		err := a.followRecords(ctx, known, gone)
		if ctx.Err() != nil {
			return
		}
		a.opts.Log.Warn("reading the sidecars' records again", "error", err)
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
	return errors.New("the watch ended")
}
