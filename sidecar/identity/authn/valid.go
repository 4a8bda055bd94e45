package authn

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/apikey"
)

// ErrEnded is that a caller that was let in before is not any more, or is not who it was: its credential has ended, was
// withdrawn, revoked or changed, or its tenant was.
var ErrEnded = errors.New("the caller is not let in any more")

// validTimeout bounds the wait for keys of a token that is not remembered any more.
const validTimeout = 2 * time.Second

// Valid reports whether a caller is let in still, as the same one: for streams that outlive their request's configuration.
// A principal of an earlier Authenticator of the binding will do.
func (a *Authenticator) Valid(p *identity.Principal, now time.Time) error {
	if expired(p, now) {
		return ErrEnded
	}
	switch {
	case p.ID == identity.AnonymousID && p.Provider == "":
		if a.anonymous == nil {
			return ErrEnded
		}
		return nil
	case p.Key != "":
		return a.validKey(p)
	case p.Token != "":
		return a.validToken(p)
	}
	for _, v := range a.certs {
		if v.Accepts(p, now) {
			return a.same(p, p, "")
		}
	}
	return ErrEnded
}

func (a *Authenticator) validKey(p *identity.Principal) error {
	k, ok := a.spec.Keys.Named(p.Key)
	provider := slices.ContainsFunc(a.keys, func(of keyProvider) bool { return of.name == p.Provider })
	if !ok || !provider || k.GetDisabled() || k.GetHash() != p.KeyHash {
		return ErrEnded
	}
	return a.same(p, apikey.Principal(k, p.Provider), k.GetTenant())
}

func (a *Authenticator) validToken(p *identity.Principal) error {
	ctx, cancel := context.WithTimeout(context.Background(), validTimeout)
	defer cancel()
	t, err := a.tokens.Verify(ctx, bytesOf(p.Token))
	if err != nil {
		return ErrEnded
	}
	return a.same(p, t.Principal, t.TenantClaim)
}

// same reports whether the caller that its credential shows now is the one that it showed before.
func (a *Authenticator) same(before, now *identity.Principal, named string) error {
	if a.revoked.Match(now) {
		return ErrEnded
	}
	of, err := a.spec.Tenants.Of(now, named)
	if err != nil || of != before.Tenant || now.ID != before.ID || !now.Expires.Equal(before.Expires) ||
		!slices.Equal(now.Groups, before.Groups) || !slices.Equal(now.Scopes, before.Scopes) || !maps.Equal(now.KeyLabels, before.KeyLabels) {
		return ErrEnded
	}
	return nil
}
