// Package authn finds out who sends a request to a binding, from the request's head.
//
// What a request carries decides which provider of the binding's Identity judges it, and that provider alone: a credential
// that is bad is refused, and is never passed over for a weaker one, or for none. A principal is one value for all the
// requests with the same credential while that is remembered, so that others can remember things about it.
//
// An Authenticator is made for each binding when configuration arrives, and never changed; it is safe for concurrent use.
// Not here: what a credential is worth (packages jwt, apikey and certificate), and what a caller may do (package policy).
package authn

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/textproto"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/apikey"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/certificate"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/jwt"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/tenant"
)

// DefaultKeyHeader carries a key where a provider names no header.
const DefaultKeyHeader = "X-Api-Key"

// Options are what Authenticators need. Issuers is required where any Identity has a jwt provider.
type Options struct {
	Log        *slog.Logger          // default: nowhere
	Issuers    *jwt.Issuers          // outlives every Authenticator
	Registerer prometheus.Registerer // nil registers nothing
	Now        func() time.Time      // default time.Now
}

// Authenticators makes the Authenticators of a sidecar, and counts for them.
type Authenticators struct {
	o      Options
	counts *prometheus.CounterVec
}

// New makes an Authenticators.
func New(o Options) *Authenticators {
	if o.Now == nil {
		o.Now = time.Now
	}
	a := &Authenticators{o: o, counts: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "outrigger_authentications_total",
		Help: "Requests whose caller was looked for, by the provider that judged them (empty: none) and the result: ok, or why they were refused.",
	}, []string{"binding", "provider", "result"})}
	if o.Registerer != nil {
		o.Registerer.MustRegister(a.counts)
	}
	return a
}

// Spec is what an Authenticator is made of. Everything has been validated.
type Spec struct {
	Binding  *outriggerv1.Binding
	Identity *outriggerv1.Identity
	Keys     *apikey.Index
	Tenants  *tenant.Index
}

// Authenticator finds out who calls one binding.
type Authenticator struct {
	o         Options
	spec      Spec
	tokens    jwt.Verifiers
	keys      []keyProvider
	certs     []*certificate.Verifier
	revoked   *jwt.Revocations
	anonymous *identity.Principal // nil: nobody is let in without a credential

	metadata   []byte
	challenges challenges
	known      remembered
	counts     counts
}

type keyProvider struct {
	name   string
	header string // canonical
}

// Compile makes a binding's Authenticator. The error is of what its Identity names outside of itself, as a caFile.
func (a *Authenticators) Compile(s Spec) (*Authenticator, error) {
	out := &Authenticator{o: a.o, spec: s, revoked: jwt.NewRevocations(s.Identity.GetRevoked())}
	for _, p := range s.Identity.GetProviders() {
		if err := out.add(p); err != nil {
			return nil, fmt.Errorf("provider %q: %w", p.GetName(), err)
		}
	}
	if s.Identity.GetAnonymous() {
		out.anonymous = &identity.Principal{ID: identity.AnonymousID}
	}
	out.counts = countsFor(a.counts, s)
	out.challenges = newChallenges(s)
	out.metadata = newMetadata(s)
	return out, nil
}

func (a *Authenticator) add(p *outriggerv1.Provider) error {
	switch kind := p.GetKind().(type) {
	case *outriggerv1.Provider_Keys:
		header := kind.Keys.GetHeader()
		if header == "" {
			header = DefaultKeyHeader
		}
		a.keys = append(a.keys, keyProvider{p.GetName(), textproto.CanonicalMIMEHeaderKey(header)})
	case *outriggerv1.Provider_Jwt:
		if a.o.Issuers == nil {
			return errors.New("this sidecar takes no tokens")
		}
		spec := jwt.Spec{Name: p.GetName(), Provider: kind.Jwt}
		if url := a.spec.Binding.GetExternalUrl(); url != "" {
			spec.Audiences = []string{url}
		}
		v, err := a.o.Issuers.Verifier(spec)
		if err != nil {
			return err
		}
		a.tokens = append(a.tokens, v)
	case *outriggerv1.Provider_Certificate:
		v, err := certificate.New(p.GetName(), kind.Certificate)
		if err != nil {
			return err
		}
		a.certs = append(a.certs, v)
	}
	return nil
}

// Authenticate finds out who sends a request with this header and raw query, over a connection with this TLS state (nil
// for none). It may wait for an issuer's keys, within ctx and some seconds.
//
// Hot: a token or key that was seen before costs its digest and two look-ups, and nothing is allocated (TestAllocAuthenticate).
func (a *Authenticator) Authenticate(ctx context.Context, h http.Header, query string, state *tls.ConnectionState) (*identity.Principal, *identity.Refusal) {
	c, refused := a.carried(h, query)
	if refused == nil {
		var who *identity.Principal
		if who, refused = a.judge(ctx, c, state); refused == nil {
			a.counts.ok(who.Provider)
			return who, nil
		}
	}
	a.counts.refused(refused.Reason)
	return nil, refused
}

// judge has the credential judged by the provider that it is for.
func (a *Authenticator) judge(ctx context.Context, c carried, state *tls.ConnectionState) (*identity.Principal, *identity.Refusal) {
	switch {
	case c.key != "":
		return a.byKey(c)
	case c.token != "":
		return a.byToken(ctx, c.token)
	case len(a.certs) > 0 && state != nil && len(state.PeerCertificates) > 0:
		return a.byCertificate(state)
	case a.anonymous != nil:
		return a.anonymous, nil
	}
	return nil, a.challenges.missing
}

func (a *Authenticator) byKey(c carried) (*identity.Principal, *identity.Refusal) {
	i := a.keyProvider(c.header)
	if i < 0 {
		return nil, a.challenges.invalid("key_unknown", "this endpoint takes no keys")
	}
	digest := sha256.Sum256(bytesOf(c.key))
	if who := a.known.byDigest(digest); who != nil {
		if expired(who, a.o.Now()) {
			return nil, a.challenges.invalid("expired", "the key has expired")
		}
		return who, nil
	}
	if !apikey.Valid(c.key) {
		return nil, a.challenges.invalid("malformed", "the key is malformed")
	}
	k, ok := a.spec.Keys.Lookup([]byte(c.key))
	if !ok {
		return nil, a.challenges.invalid("key_unknown", "the key is not known")
	}
	if k.GetDisabled() {
		return nil, a.challenges.invalid("disabled", "the key is disabled")
	}
	who := apikey.Principal(k, a.keys[i].name)
	if expired(who, a.o.Now()) {
		return nil, a.challenges.invalid("expired", "the key has expired")
	}
	who, refused := a.admit(who, k.GetTenant())
	if refused != nil {
		return nil, refused
	}
	return a.known.putDigest(digest, who), nil
}

// keyProvider is the place of the provider that takes keys in a header of that name; in Authorization, of the first.
func (a *Authenticator) keyProvider(header string) int {
	for i, p := range a.keys {
		if header == "" || p.header == header {
			return i
		}
	}
	return -1
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
	if who := a.known.byToken(t); who != nil {
		return who, nil
	}
	who, refused := a.admit(t.Principal, t.TenantClaim)
	if refused != nil {
		return nil, refused
	}
	return a.known.putToken(t, who), nil
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
	chain := state.PeerCertificates
	now := a.o.Now()
	digest := sha256.Sum256(chain[0].Raw)
	if who := a.known.byDigest(digest); who != nil && !expired(who, now) {
		return who, nil
	}
	err := certificate.ErrAuthority
	for _, v := range a.certs {
		who, failed := v.Verify(chain, now)
		if failed != nil {
			err = failed
			continue
		}
		who, refused := a.admit(who, "")
		if refused != nil {
			return nil, refused
		}
		return a.known.putDigest(digest, who), nil
	}
	return nil, a.challenges.invalid("certificate", err.Error())
}

// admit gives a caller whose credential is good its tenant, in a copy, unless it is revoked or its tenant is not let in.
func (a *Authenticator) admit(p *identity.Principal, named string) (*identity.Principal, *identity.Refusal) {
	if a.revoked.Match(p) {
		return nil, a.challenges.invalid("revoked", "the credential was revoked")
	}
	of, err := a.spec.Tenants.Of(p, named)
	if err != nil {
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

// Insufficient is a caller that lacks scopes, which are all that it needs for what it asked (RFC 6750, section 3.1).
func (a *Authenticator) Insufficient(scopes []string) *identity.Refusal {
	return a.challenges.insufficient(scopes)
}

// Metadata is the protected-resource metadata (RFC 9728), a JSON document; nil for a binding without externalUrl. The
// caller does not change it.
func (a *Authenticator) Metadata() []byte { return a.metadata }
