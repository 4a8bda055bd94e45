package authn

import (
	"context"
	"crypto/x509"
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

// validTimeout is how long after a change of configuration keys of issuers are waited for, over all callers that were let in
// before it. After that a caller whose token cannot be judged is not let in.
const validTimeout = 2 * time.Second

// Valid reports whether a caller is let in still, as the same one: for streams that outlive their request's configuration.
// A principal of an earlier Authenticator of the binding will do.
func (a *Authenticator) Valid(p *identity.Principal, now time.Time) error {
	switch {
	case p == nil || expired(p, now):
		return ErrEnded
	case p.ID == identity.AnonymousID && p.Provider == "":
		if a.anonymous == nil {
			return ErrEnded
		}
		return nil
	case p.Key != "":
		return a.validKey(p)
	case p.Token != "":
		return a.validToken(p)
	case len(p.Certificates) > 0:
		return a.validCertificate(p, now)
	}
	return ErrEnded
}

func (a *Authenticator) validKey(p *identity.Principal) error {
	k, ok := a.spec.Keys.Named(p.Key)
	if !ok || a.keys == nil || a.keys.name != p.Provider || k.GetDisabled() || k.GetHash() != p.KeyHash {
		return ErrEnded
	}
	return a.same(p, apikey.Principal(k, p.Provider), k.GetTenant())
}

func (a *Authenticator) validToken(p *identity.Principal) error {
	ctx, cancel := context.WithDeadline(context.Background(), a.ready)
	defer cancel()
	t, err := a.tokens.Verify(ctx, bytesOf(p.Token))
	if err != nil {
		return ErrEnded
	}
	return a.same(p, t.Principal, t.TenantClaim)
}

func (a *Authenticator) validCertificate(p *identity.Principal, at time.Time) error {
	if a.certs == nil || a.certs.Name() != p.Provider {
		return ErrEnded
	}
	now, err := a.certs.Verify(p.Certificates, [][]*x509.Certificate{p.Certificates}, at)
	if err != nil {
		return ErrEnded
	}
	return a.same(p, now, "")
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
