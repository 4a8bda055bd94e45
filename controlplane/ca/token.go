package ca

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/store"
)

// A join token is rig1_{id}_{secret}_{fingerprint}: 16, 64 and 64 hex digits. The fingerprint is the SHA-256 of the
// root certificate's DER, so that a sidecar knows whom it first talks to. The version moves when the form does.
const (
	tokenVersion = "rig1"
	idBytes      = 8
	secretBytes  = 32
)

// token is a join token as stored: everything but its secret.
type token struct {
	SecretHash string            `json:"secret_sha256"` // hex
	Labels     map[string]string `json:"labels,omitempty"`
	Expires    time.Time         `json:"expires"`
	MaxUses    int32             `json:"max_uses"`
	Uses       int32             `json:"uses"`
}

// Create makes a join token and stores its hash. The caller has bounded ttl and maxUses, which are positive.
func (a *Authority) Create(ctx context.Context, labels map[string]string, ttl time.Duration, maxUses int32) (
	text string, expires time.Time, err error,
) {
	id, secret := randomHex(idBytes), randomHex(secretBytes)
	t := token{
		SecretHash: hashSecret(secret), Labels: maps.Clone(labels), MaxUses: maxUses,
		Expires: a.opts.Now().Add(ttl).UTC().Truncate(time.Second),
	}
	write, err := encoded(tokenPrefix+id, t, -1)
	if err != nil {
		return "", time.Time{}, err
	}
	if _, err := a.store.Apply(ctx, []store.Write{write}); err != nil {
		return "", time.Time{}, fmt.Errorf("join token: %w", err)
	}
	a.opts.Log.Info("join token created", "token", id, "labels", labels, "expires", t.Expires, "max_uses", maxUses)
	return strings.Join([]string{tokenVersion, id, secret, a.fingerprint}, "_"), t.Expires, nil
}

// errBadToken is a token that opens nothing; the text may be shown to its bearer.
var errBadToken = errors.New("bad join token")

// parseToken splits a token's text and checks its form and whose it is.
func (a *Authority) parseToken(text string) (id, secret string, err error) {
	parts := strings.Split(text, "_")
	if len(parts) != 4 || parts[0] != tokenVersion || !isHex(parts[1], idBytes) || !isHex(parts[2], secretBytes) {
		return "", "", fmt.Errorf("%w: not of the form %s_…", errBadToken, tokenVersion)
	}
	if parts[3] != a.fingerprint {
		return "", "", fmt.Errorf("%w: another control plane made it", errBadToken)
	}
	return parts[1], parts[2], nil
}

// openToken reads the token that a secret opens, and its revision. Its uses may be spent.
func (a *Authority) openToken(ctx context.Context, id, secret string) (t token, revision int64, err error) {
	e, ok, err := a.store.Get(ctx, tokenPrefix+id)
	if err != nil {
		return t, 0, err
	}
	if !ok {
		return t, 0, fmt.Errorf("%w: unknown", errBadToken)
	}
	if err := json.Unmarshal(e.Value, &t); err != nil {
		return t, 0, fmt.Errorf("%s: %w", e.Key, err)
	}
	if subtle.ConstantTimeCompare([]byte(hashSecret(secret)), []byte(t.SecretHash)) != 1 {
		return t, 0, fmt.Errorf("%w: unknown", errBadToken)
	}
	if !a.opts.Now().Before(t.Expires) {
		return t, 0, fmt.Errorf("%w: expired at %s", errBadToken, t.Expires.Format(time.RFC3339))
	}
	return t, e.Revision, nil
}

func hashSecret(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

func randomHex(n int) string { return hex.EncodeToString(randomBytes(n)) }

func isHex(s string, n int) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == n
}

// encoded is the write of a value as JSON, on condition of a revision.
func encoded(key string, value any, revision int64) (store.Write, error) {
	b, err := json.Marshal(value)
	if err != nil {
		return store.Write{}, fmt.Errorf("%s: %w", key, err)
	}
	return store.Write{Key: key, Value: b, IfRevision: revision}, nil
}
