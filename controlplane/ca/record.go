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
	// Token is the id of the token that admitted it, and Key the SHA-256 in hex of the key that it then had.
	Token string `json:"token"`
	Key   string `json:"key_sha256"`
	// Expires is when its newest certificate does. From then on the node id is free.
	Expires time.Time `json:"expires"`
	// Admission is in every certificate that was issued by this record, so that they can be told from those of another
	// sidecar that gets the node id later. Records of older control planes have none until a renewal.
	Admission string `json:"admission,omitempty"`
}

// admissionBytes is how long the random part of an admission is.
const admissionBytes = 8

// maxAttempts bounds the tries to count a use while other replicas count theirs.
const maxAttempts = 20

var (
	errTaken    = errors.New("node id is taken")
	errNoRecord = errors.New("node id is not admitted")
)

// admit counts a use of the token and records the sidecar with what r says of it, both or neither. A sidecar that asks
// again with the same key has lost the answer: that is no further use.
//
// A node id that holds a valid certificate is admitted again only by the token that admitted it: the bearer of another
// token could otherwise take the place of a running sidecar. Its certificate's expiry, or deleting its record, frees it.
func (a *Authority) admit(ctx context.Context, nodeID, tokenText string, r record) (admission string, err error) {
	id, secret, err := a.parseToken(tokenText)
	if err != nil {
		return "", err
	}
	r.Token = id
	if _, _, err := a.openToken(ctx, id, secret); err != nil {
		return "", err // before the lock: bad tokens hold up nobody
	}
	a.joining.Lock()
	defer a.joining.Unlock()
	for range maxAttempts {
		admission, err = a.tryAdmit(ctx, nodeID, secret, r)
		if !errors.Is(err, store.ErrConflict) {
			break
		}
	}
	return admission, err
}

// tryAdmit is one attempt of admit. It fails with store.ErrConflict when another replica changed the token or record.
func (a *Authority) tryAdmit(ctx context.Context, nodeID, secret string, r record) (admission string, err error) {
	t, tokenRevision, err := a.openToken(ctx, r.Token, secret)
	if err != nil {
		return "", err
	}
	r.Labels, r.Admission = t.Labels, randomHex(admissionBytes)
	old, revision, err := a.record(ctx, nodeID)
	if errors.Is(err, errNoRecord) {
		revision = -1
	} else if err != nil {
		return "", err
	}
	live := a.opts.Now().Before(old.Expires) // false without a record
	if live && (old.Token != r.Token || !maps.Equal(old.Labels, r.Labels)) {
		return "", fmt.Errorf("%w: another join token admitted %q, whose certificate is valid until %s",
			errTaken, nodeID, old.Expires.Format(time.RFC3339))
	}
	if live && old.Admission != "" {
		r.Admission = old.Admission // whoever revokes it means the certificate of before, too
	}
	write, err := encoded(sidecarPrefix+nodeID, r, revision)
	if err != nil {
		return "", err
	}
	writes := []store.Write{write}
	if again := live && old.Key == r.Key; !again {
		if t.Uses >= t.MaxUses {
			return "", fmt.Errorf("%w: all of its %d uses are spent", errBadToken, t.MaxUses)
		}
		t.Uses++
		use, err := encoded(tokenPrefix+r.Token, t, tokenRevision)
		if err != nil {
			return "", err
		}
		writes = append(writes, use)
	}
	_, err = a.store.Apply(ctx, writes)
	return r.Admission, err
}

// extend moves a record's expiry to that of a renewed certificate. A record deleted meanwhile stays deleted.
func (a *Authority) extend(ctx context.Context, nodeID string, expires time.Time) (admission string, err error) {
	for range maxAttempts {
		var r record
		var revision int64
		if r, revision, err = a.record(ctx, nodeID); err != nil {
			return "", err
		}
		if r.Expires = expires; r.Admission == "" {
			r.Admission = randomHex(admissionBytes)
		}
		var write store.Write
		if write, err = encoded(sidecarPrefix+nodeID, r, revision); err != nil {
			return "", err
		}
		if _, err = a.store.Apply(ctx, []store.Write{write}); !errors.Is(err, store.ErrConflict) {
			return r.Admission, err
		}
	}
	return "", err
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

// sweep deletes tokens, records and revocations that have expired. What changed since it was read stays.
func (a *Authority) sweep(ctx context.Context) error {
	for _, prefix := range []string{tokenPrefix, sidecarPrefix, revokedPrefix} {
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
