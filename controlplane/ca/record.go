package ca

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/store"
)

// record is what the control plane knows of an admitted sidecar.
type record struct {
	Labels map[string]string `json:"labels,omitempty"`
	// Token is the id of the token that admitted it.
	Token string `json:"token"`
	// Expires is when its newest certificate does. From then on the node id is free.
	Expires time.Time `json:"expires"`
}

// maxAttempts bounds the tries to count a use while other replicas count theirs.
const maxAttempts = 20

var (
	errTaken    = errors.New("node id is taken")
	errNoRecord = errors.New("node id is not admitted")
)

// admit counts a use of the token and records the sidecar, both or neither.
//
// A node id that holds a valid certificate is admitted again only by the token that admitted it: the bearer of another
// token could otherwise take the place of a running sidecar. Its certificate's expiry, or deleting its record, frees it.
func (a *Authority) admit(ctx context.Context, nodeID, tokenText string, expires time.Time) error {
	id, secret, err := a.parseToken(tokenText)
	if err != nil {
		return err
	}
	a.joining.Lock()
	defer a.joining.Unlock()
	for range maxAttempts {
		err = a.tryAdmit(ctx, nodeID, id, secret, expires)
		if !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return err
}

// tryAdmit is one attempt of admit. It fails with store.ErrConflict when another replica changed the token or record.
func (a *Authority) tryAdmit(ctx context.Context, nodeID, id, secret string, expires time.Time) error {
	t, useWrite, err := a.useToken(ctx, id, secret)
	if err != nil {
		return err
	}
	old, revision, err := a.record(ctx, nodeID)
	switch {
	case errors.Is(err, errNoRecord):
		revision = -1
	case err != nil:
		return err
	case a.opts.Now().Before(old.Expires) && (old.Token != id || !maps.Equal(old.Labels, t.Labels)):
		return fmt.Errorf("%w: another join token admitted %q, whose certificate is valid until %s",
			errTaken, nodeID, old.Expires.Format(time.RFC3339))
	}
	recordWrite, err := encoded(sidecarPrefix+nodeID, record{Labels: t.Labels, Token: id, Expires: expires}, revision)
	if err != nil {
		return err
	}
	_, err = a.store.Apply(ctx, []store.Write{useWrite, recordWrite})
	return err
}

// extend moves a record's expiry to that of a renewed certificate. A record deleted meanwhile stays deleted.
func (a *Authority) extend(ctx context.Context, nodeID string, expires time.Time) error {
	var err error
	for range maxAttempts {
		var r record
		var revision int64
		if r, revision, err = a.record(ctx, nodeID); err != nil {
			return err
		}
		r.Expires = expires
		var write store.Write
		if write, err = encoded(sidecarPrefix+nodeID, r, revision); err != nil {
			return err
		}
		if _, err = a.store.Apply(ctx, []store.Write{write}); !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
	return err
}

// record reads a sidecar's record and its revision, or fails with errNoRecord.
func (a *Authority) record(ctx context.Context, nodeID string) (r record, revision int64, err error) {
	e, ok, err := a.store.Get(ctx, sidecarPrefix+nodeID)
	if err != nil {
		return r, 0, err
	}
	if !ok {
		return r, 0, fmt.Errorf("%w: %q", errNoRecord, nodeID)
	}
	if err := json.Unmarshal(e.Value, &r); err != nil {
		return r, 0, fmt.Errorf("%s: %w", e.Key, err)
	}
	return r, e.Revision, nil
}

// sweep deletes tokens and records that have expired. What changed since it was read stays.
func (a *Authority) sweep(ctx context.Context) error {
	for _, prefix := range []string{tokenPrefix, sidecarPrefix} {
		entries, _, err := a.store.List(ctx, prefix)
		if err != nil {
			return err
		}
		for _, e := range entries {
			var expiring struct {
				Expires time.Time `json:"expires"`
			}
			if err := json.Unmarshal(e.Value, &expiring); err != nil {
				a.opts.Log.Warn("unreadable entry left in the store", "key", e.Key, "error", err)
				continue
			}
			if a.opts.Now().Before(expiring.Expires) {
				continue
			}
			remove := store.Write{Key: e.Key, IfRevision: e.Revision, Delete: true}
			if _, err := a.store.Apply(ctx, []store.Write{remove}); err != nil && !errors.Is(err, store.ErrConflict) {
				return err
			}
		}
	}
	return nil
}
