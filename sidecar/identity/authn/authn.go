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
	"golang.org/x/time/rate"

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
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	a := &Authenticators{o: o, counts: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "outrigger_authentications_total",
		Help: "Requests whose caller was looked for, by the provider that judged them (empty: none, or not known which) and the result: ok, or why they were refused.",
	}, []string{"binding", "provider", "result"})}
	if o.Registerer != nil {
		o.Registerer.MustRegister(a.counts)
	}
	return a
}

// Forget removes a binding's counts, when the binding is gone.
func (a *Authenticators) Forget(binding string) {
	if a != nil {
		a.counts.DeletePartialMatch(prometheus.Labels{"binding": binding})
	}
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
	issuers   []string              // names of the providers of tokens
	keys      *keyProvider          // nil: none are taken
	certs     *certificate.Verifier // likewise
	revoked   *jwt.Revocations
	anonymous *identity.Principal // nil: nobody is let in without a credential

	metadata   []byte
	challenges challenges
	known      struct {
		keys, certs memory[[sha256.Size]byte] // apart: a certificate is no secret, so what has its bytes proves nothing
		tokens      memory[*jwt.Token]
	}
	counts counts
	seldom *rate.Limiter // of lines about callers that have no tenant to be in
	ready  time.Time     // until when keys of issuers are waited for, for callers that were let in before
}

type keyProvider struct {
	name   string
	header string // canonical
}

// Compile makes a binding's Authenticator. The error is of what its Identity names outside of itself, as a caFile; nil
// Authenticators make none.
func (a *Authenticators) Compile(s Spec) (*Authenticator, error) {
	if a == nil {
		return nil, errors.New("this sidecar asks nobody who they are")
	}
	out := &Authenticator{
		o: a.o, spec: s, revoked: jwt.NewRevocations(s.Identity.GetRevoked()),
		seldom: rate.NewLimiter(rate.Every(time.Second), 5), ready: time.Now().Add(validTimeout),
	}
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
		a.keys = &keyProvider{p.GetName(), textproto.CanonicalMIMEHeaderKey(header)}
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
		a.tokens, a.issuers = append(a.tokens, v), append(a.issuers, p.GetName())
	case *outriggerv1.Provider_Certificate:
		v, err := certificate.New(p.GetName(), kind.Certificate)
		if err != nil {
			return err
		}
		a.certs = v
	}
	return nil
}

// Authenticate finds out who sends a request with this header and raw query, over a connection with this TLS state (nil
// for none). It may wait for an issuer's keys, within ctx and some seconds.
//
// Hot: a token or key that was seen before costs its digest and two look-ups, and nothing is allocated (TestAllocAuthenticate).
func (a *Authenticator) Authenticate(ctx context.Context, h http.Header, query string, state *tls.ConnectionState) (*identity.Principal, *identity.Refusal) {
	c, refused := a.carried(h, query)
	if refused != nil {
		a.counts.refused("", refused.Reason)
		return nil, refused
	}
	who, refused := a.judge(ctx, c, state)
	if refused != nil {
		if c.bearer != "" && !isToken68(c.bearer) { // looked at only here: a credential that is known has its form
			refused = a.noBearer()
		}
		a.counts.refused(a.judgeOf(c, state), refused.Reason)
		return nil, refused
	}
	a.counts.ok(who.Provider)
	return who, nil
}

// judgeOf is the name of the provider that is for the credential; empty for none, and where the token would say which.
func (a *Authenticator) judgeOf(c carried, state *tls.ConnectionState) string {
	switch {
	case c.key != "" && a.keys != nil:
		return a.keys.name
	case c.token != "" && len(a.issuers) == 1:
		return a.issuers[0]
	case c == carried{} && a.certs != nil && hasCertificate(state):
		return a.certs.Name()
	}
	return ""
}

func hasCertificate(state *tls.ConnectionState) bool {
	return state != nil && len(state.PeerCertificates) > 0
}

// Insufficient is a caller that lacks scopes, which are all that it needs for what it asked (RFC 6750, section 3.1).
func (a *Authenticator) Insufficient(scopes []string) *identity.Refusal {
	return a.challenges.insufficient(scopes)
}

// Metadata is the protected-resource metadata (RFC 9728), a JSON document; nil for a binding without externalUrl. The
// caller does not change it.
func (a *Authenticator) Metadata() []byte { return a.metadata }
