package jwt

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
)

// Verifier judges tokens of one issuer for one set of audiences.
type Verifier struct {
	id         uint64 // never another's
	name       string
	issuer     string
	audiences  []string
	algorithms []jose.SignatureAlgorithm
	skew       time.Duration
	paths      paths
	now        func() time.Time
	tokens     *cache
	source     *source
}

// Issuer is the `iss` that tokens must have.
func (v *Verifier) Issuer() string { return v.issuer }

// Verify judges a token. Its error is an *Error, or ErrUnavailable, or ctx's.
//
// Hot: a token that is known costs under 2 µs and no allocation (TestAKnownTokenDoesNotAllocate). One that is not may wait
// for its issuer's keys, three seconds at most.
func (v *Verifier) Verify(ctx context.Context, token []byte) (*Token, error) {
	return Verifiers{v}.Verify(ctx, token)
}

// Verifiers are the Verifiers of one Identity, each of another issuer.
type Verifiers []*Verifier

// Verify is Verifier.Verify by the one whose issuer the token names; no other is tried. The token is hashed once.
func (all Verifiers) Verify(ctx context.Context, token []byte) (*Token, error) {
	if len(token) > maxToken {
		return nil, refuse(Malformed)
	}
	k := tokenKey{hash: hashOf(token)}
	for _, v := range all {
		k.verifier = v.id
		t := v.tokens.get(&k, token)
		if t == nil {
			continue
		}
		switch err := t.Valid(v.now()); err {
		case nil:
			return t, nil
		case refuse(Expired):
			return nil, err
		}
		break // its key may have come back, or other keys may
	}
	return all.verifyNew(ctx, token, k)
}

// verifyNew judges a token that is not remembered.
func (all Verifiers) verifyNew(ctx context.Context, token []byte, k tokenKey) (*Token, error) {
	u, err := parse(token)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(all, func(v *Verifier) bool { return u.claims["iss"] == v.issuer })
	if at < 0 {
		return nil, refuse(Issuer)
	}
	v := all[at]
	t, err := v.judge(ctx, token, u)
	if err != nil {
		return nil, err
	}
	k.verifier = v.id
	return v.tokens.put(k, t, v.now()), nil
}

// judge holds a token to all there is: first its key and signature, so that nothing is said of what others made up.
func (v *Verifier) judge(ctx context.Context, token []byte, u unproved) (*Token, error) {
	if !slices.Contains(v.algorithms, jose.SignatureAlgorithm(u.algorithm)) {
		return nil, refuse(Algorithm)
	}
	keys, err := v.source.keysFor(ctx, u.kid, u.algorithm)
	if err != nil {
		return nil, err
	}
	signed, err := jose.ParseSignedCompact(string(token), []jose.SignatureAlgorithm{jose.SignatureAlgorithm(u.algorithm)})
	if err != nil {
		return nil, refuse(Malformed)
	}
	by := slices.IndexFunc(keys, func(k *key) bool {
		payload, err := signed.Verify(k.public)
		return err == nil && bytes.Equal(payload, u.payload)
	})
	if by < 0 {
		return nil, refuse(Signature)
	}
	if err := v.check(u.claims); err != nil {
		return nil, err
	}
	t, err := v.read(u.claims)
	if err != nil {
		return nil, err
	}
	t.key, t.source = keys[by], v.source
	t.Principal.Claims, t.Principal.Token = bytes.TrimSpace(u.payload), string(token)
	t.size = 2*(len(token)+len(u.payload)) + 1<<10 // the bytes, and about as much again as strings in maps
	return t, nil
}

// check holds claims to the issuer, the time and the audience (RFC 9068, section 4).
func (v *Verifier) check(c claims) error {
	expires, hasExpiry := c.time("exp")
	begins, okBegins := c.time("nbf")
	issued, okIssued := c.time("iat")
	now := v.now()
	switch {
	case c["iss"] != v.issuer:
		return refuse(Issuer)
	case !hasExpiry || expires.IsZero() || !okBegins || !okIssued:
		return refuse(Claims)
	case !now.Before(expires.Add(v.skew)):
		return refuse(Expired)
	case begins.After(now.Add(v.skew)) || issued.After(now.Add(v.skew)):
		return refuse(NotYet)
	case !c.hasAudience(v.audiences):
		return refuse(Audience)
	}
	return nil
}

// read makes a Token of claims that were checked.
func (v *Verifier) read(c claims) (*Token, error) {
	subject, okSubject := c.subject(v.paths.subject)
	groups, okGroups := c.list(v.paths.groups)
	tenant, okTenant := c.text(v.paths.tenant)
	jti, okJTI := c.text(path{"jti"})
	texts, okTexts := c.texts()
	var scopes []string
	okScopes := true
	for _, p := range v.paths.scopes {
		if c.at(p) != nil {
			scopes, okScopes = c.list(p)
			break
		}
	}
	if !okSubject || !okGroups || !okTenant || !okJTI || !okTexts || !okScopes {
		return nil, refuse(Claims)
	}
	expires, _ := c.time("exp")
	issued, _ := c.time("iat")
	return &Token{TenantClaim: tenant, Principal: &identity.Principal{
		ID: v.issuer + "|" + subject, Provider: v.name, Issuer: v.issuer, Subject: subject, Groups: groups, Scopes: scopes,
		ClaimText: texts, Expires: expires.Add(v.skew), IssuedAt: issued, JTI: jti,
	}}, nil
}

// algorithmsOf are those that a provider takes. Validation lets no others pass; here they would widen access.
func algorithmsOf(p *outriggerv1.JWTProvider) (algorithms []jose.SignatureAlgorithm, err error) {
	for _, a := range p.GetAlgorithms() {
		if !slices.Contains(resource.SignatureAlgorithms, a) {
			return nil, fmt.Errorf("algorithm %q cannot be taken", a)
		}
		algorithms = append(algorithms, jose.SignatureAlgorithm(a))
	}
	return algorithms, nil
}

// Token is a token that was verified. It is never changed, and the same for the same bytes while it is remembered: a map
// may have it as its key.
type Token struct {
	// Principal is complete but for Tenant. Its Expires is when the token is not accepted any more: exp and the clock skew.
	Principal *identity.Principal
	// TenantClaim is what the claim at ClaimPaths.tenant names, or empty.
	TenantClaim string

	key    *key
	source *source
	size   int // bytes that it holds, about
}

// Valid is nil while the token is accepted: it returns the *Error for one that has expired or whose key was withdrawn, or
// ErrUnavailable when its issuer's keys have become too old.
//
// Hot: it compares times and does not allocate.
func (t *Token) Valid(now time.Time) error {
	switch {
	case !now.Before(t.Principal.Expires):
		return refuse(Expired)
	case t.key.withdrawn.Load():
		return refuse(Withdrawn)
	case t.source.usable() == nil:
		return ErrUnavailable
	}
	return nil
}
