// Package jwt judges access tokens: JSON web tokens (RFC 7519, RFC 9068) that an issuer signed for this audience.
//
// An Issuers is a sidecar's, for its whole life: it has the keys of the issuers that Verifiers name, which it fetches and
// keeps fresh, and the tokens that it has verified, so both outlive a configuration. A token that was verified costs its
// SHA-256 and a lookup from then on, until it expires or its key is withdrawn. An issuer that is down takes nobody's
// access away until the provider's `stale` has passed; one that was never reached lets nobody in.
//
// JOSE is go-jose's; before it sees a token, what two readers could read in two ways is refused: duplicate names in JSON,
// bytes that are not base64url, headers that name keys or extensions. No error and no log line has anything of a token.
//
// Everything here is safe for concurrent use. Not here: which requests carry tokens and what is answered (package authn).
package jwt

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
)

// Options are what an Issuers needs.
type Options struct {
	Log        *slog.Logger          // default: nowhere
	Registerer prometheus.Registerer // nil registers nothing
	Now        func() time.Time      // default time.Now
}

// Issuers is the issuers of a sidecar, their keys, and the tokens that were verified.
type Issuers struct {
	options Options
}

// New makes an Issuers that knows no issuer yet.
func New(o Options) *Issuers { return &Issuers{options: o} }

// Close ends what runs in the background and waits for it, within ctx.
func (i *Issuers) Close(ctx context.Context) error { return nil }

// Spec is how tokens of one issuer are judged.
type Spec struct {
	Name     string                   // of the Identity's provider: it becomes Principal.Provider
	Provider *outriggerv1.JWTProvider // validated; defaults are filled in
	// Audiences are taken where the provider names none; one of the two is required.
	Audiences []string
}

// Verifier makes a Verifier, or returns the one that there is for an equal Spec, with all it has verified. Its issuer's
// keys are fetched from now on, and until nothing refers to any Verifier of that issuer any more. An error is of what the
// Spec says, as a caFile that cannot be read: whether the issuer can be reached shows later.
func (i *Issuers) Verifier(s Spec) (*Verifier, error) {
	return nil, errors.New("not written yet")
}

// Verifier judges tokens of one issuer for one set of audiences.
type Verifier struct {
	issuer string
}

// Issuer is the `iss` that tokens must have.
func (v *Verifier) Issuer() string { return v.issuer }

// Verify judges a token. Its error is an *Error, or ErrUnavailable, or ctx's.
//
// Hot: a token that is known costs under 2 µs and no allocation. One that is not may wait for its issuer's keys, three
// seconds at most.
func (v *Verifier) Verify(ctx context.Context, token []byte) (*Token, error) {
	return Verifiers{v}.Verify(ctx, token)
}

// Verifiers are the Verifiers of one Identity, each of another issuer.
type Verifiers []*Verifier

// Verify is Verifier.Verify by the one whose issuer the token names; no other is tried. The token is hashed once.
func (all Verifiers) Verify(ctx context.Context, token []byte) (*Token, error) {
	return nil, ErrUnavailable
}

// Token is a token that was verified. It is never changed, and the same for the same bytes while it is remembered: a map
// may have it as its key.
type Token struct {
	// Principal is complete but for Tenant. Its Expires is when the token is not accepted any more: exp and the clock skew.
	Principal *identity.Principal
	// TenantClaim is what the claim at ClaimPaths.tenant names, or empty.
	TenantClaim string
}

// Valid is nil while the token is accepted: it returns the *Error for one that has expired or whose key was withdrawn, or
// ErrUnavailable when its issuer's keys have become too old.
func (t *Token) Valid(now time.Time) error { return ErrUnavailable }
