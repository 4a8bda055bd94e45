package authn

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"net/http"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/apikey"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/certificate"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/jwt"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/tenant"
)

// judge has the credential judged by the provider that it is for.
func (a *Authenticator) judge(ctx context.Context, c carried, state *tls.ConnectionState) (*identity.Principal, *identity.Refusal) {
	switch {
	case c.key != "":
		return a.byKey(c.key)
	case c.token != "":
		return a.byToken(ctx, c.token)
	case a.certs != nil && hasCertificate(state):
		return a.byCertificate(state)
	case a.anonymous != nil:
		return a.anonymous, nil
	}
	return nil, a.challenges.missing
}

func (a *Authenticator) byKey(key string) (*identity.Principal, *identity.Refusal) {
	if a.keys == nil {
		return nil, a.challenges.invalid("key_unknown", "this endpoint takes no keys")
	}
	digest := sha256.Sum256(bytesOf(key))
	who := a.known.keys.get(digest)
	if who == nil {
		k, refused := a.keyOf(key)
		if refused != nil {
			return nil, refused
		}
		if who, refused = a.admit(apikey.Principal(k, a.keys.name), k.GetTenant()); refused != nil {
			return nil, refused
		}
		who = a.known.keys.put(digest, who)
	}
	if expired(who, a.o.Now()) {
		return nil, a.challenges.invalid("expired", "the key has expired")
	}
	return who, nil
}

// keyOf finds the Key of a key that was not seen before.
func (a *Authenticator) keyOf(key string) (*outriggerv1.Key, *identity.Refusal) {
	if !apikey.Valid(key) {
		return nil, a.challenges.invalid("malformed", "the key is malformed")
	}
	k, ok := a.spec.Keys.Lookup(bytesOf(key))
	switch {
	case !ok:
		return nil, a.challenges.invalid("key_unknown", "the key is not known")
	case k.GetDisabled():
		return nil, a.challenges.invalid("disabled", "the key is disabled")
	}
	return k, nil
}

func expired(p *identity.Principal, now time.Time) bool {
	return !p.Expires.IsZero() && !now.Before(p.Expires)
}

func (a *Authenticator) byToken(ctx context.Context, token string) (*identity.Principal, *identity.Refusal) {
	if len(a.tokens) == 0 {
		return nil, a.challenges.invalid("issuer", "this endpoint takes no tokens")
	}
	t, err := a.tokens.Verify(ctx, bytesOf(token))
	if err != nil {
		return nil, a.badToken(err)
	}
	if who := a.known.tokens.get(t); who != nil {
		return who, nil
	}
	who, refused := a.admit(t.Principal, t.TenantClaim)
	if refused != nil {
		return nil, refused
	}
	return a.known.tokens.put(t, who), nil
}

func (a *Authenticator) badToken(err error) *identity.Refusal {
	var bad *jwt.Error
	if errors.As(err, &bad) {
		return a.challenges.invalid(string(bad.Reason), bad.Error())
	}
	return &identity.Refusal{Status: http.StatusServiceUnavailable, RetryAfter: 5, Reason: "issuer_unavailable",
		Message: "the token cannot be judged now: its issuer's keys cannot be had"}
}

func (a *Authenticator) byCertificate(state *tls.ConnectionState) (*identity.Principal, *identity.Refusal) {
	if len(state.VerifiedChains) == 0 { // the port asks for certificates, and does not verify them
		return nil, a.badCertificate(certificate.ErrAuthority)
	}
	now := a.o.Now()
	digest := sha256.Sum256(state.PeerCertificates[0].Raw)
	if who := a.known.certs.get(digest); who != nil {
		if expired(who, now) {
			return nil, a.badCertificate(certificate.ErrExpired)
		}
		return who, nil
	}
	who, err := a.certs.Verify(state.PeerCertificates, state.VerifiedChains, now)
	if err != nil {
		return nil, a.badCertificate(err)
	}
	who, refused := a.admit(who, "")
	if refused != nil {
		return nil, refused
	}
	return a.known.certs.put(digest, who), nil
}

func (a *Authenticator) badCertificate(err error) *identity.Refusal {
	switch err {
	case certificate.ErrExpired:
		return a.challenges.invalid("expired", err.Error())
	case certificate.ErrName:
		return a.challenges.invalid("certificate_name", err.Error())
	}
	return a.challenges.invalid("certificate_authority", err.Error())
}

// admit gives a caller whose credential is good its tenant, in a copy, unless it is revoked or its tenant is not let in.
func (a *Authenticator) admit(p *identity.Principal, named string) (*identity.Principal, *identity.Refusal) {
	if a.revoked.Match(p) {
		return nil, a.challenges.invalid("revoked", "the credential was revoked")
	}
	of, err := a.spec.Tenants.Of(p, named)
	if err != nil {
		if a.seldom.Allow() {
			a.o.Log.Warn("a caller is refused for its tenant", "binding", a.spec.Binding.GetName(), "principal", p.ID, "error", err)
		}
		return nil, &identity.Refusal{Status: http.StatusForbidden, Reason: tenantReason(err), Message: err.Error()}
	}
	who := *p
	who.Tenant = of
	return &who, nil
}

func tenantReason(err error) string {
	switch {
	case errors.Is(err, tenant.ErrAmbiguous), errors.Is(err, tenant.ErrTooMany):
		return "tenant_ambiguous"
	case errors.Is(err, tenant.ErrDisabled):
		return "tenant_disabled"
	}
	return "tenant_unknown"
}
