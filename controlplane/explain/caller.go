package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/apikey"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/certificate"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/jwt"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/tenant"
)

// caller is who calls, or why such a caller is not let in.
type caller struct {
	principal *identity.Principal // nil for one of whom nothing is known
	tenant    string
	note      string // goes after the reason

	refused string
	policy  string // that refused it
}

// proof is what a credential would prove.
type proof struct {
	principal *identity.Principal
	tenant    string // that it names
}

// caller finds out who the principal of a request is at the binding.
func (f *fleet) caller(p *outriggerv1.ExplainedPrincipal, now time.Time) (*caller, resource.Errors) {
	if mistakes := checkPrincipal(p); len(mistakes) > 0 {
		return nil, mistakes
	}
	by := resource.IdentityOf(f.policies, f.binding.GetName())
	if by == nil {
		return f.unknown(p), nil
	}
	who, refused, mistakes := f.prove(by.GetIdentity(), p, now)
	if len(mistakes) > 0 {
		return nil, mistakes
	}
	c := &caller{policy: by.GetName()}
	if refused == "" && jwt.NewRevocations(by.GetIdentity().GetRevoked()).Match(who.principal) {
		refused = "the caller is revoked"
	}
	if refused == "" {
		var err error
		if c.tenant, err = tenant.NewIndex(f.tenants).Of(who.principal, who.tenant); err != nil {
			refused = err.Error()
		}
	}
	if refused != "" {
		c.refused = fmt.Sprintf("Policy/%s does not let the caller in: %s", c.policy, refused)
		return c, nil
	}
	c.principal = who.principal
	c.principal.Tenant = c.tenant
	return c, nil
}

// checkPrincipal finds what is wrong with a principal wherever it calls.
func checkPrincipal(p *outriggerv1.ExplainedPrincipal) (mistakes resource.Errors) {
	switch {
	case p.GetKey() != "" && (isToken(p) || p.GetSpiffeId() != ""):
		mistakes = append(mistakes, resource.Error{Path: "principal.key", Message: "expected nothing else with it: the Key has the rest"})
	case p.GetSpiffeId() != "" && isToken(p):
		mistakes = append(mistakes, resource.Error{Path: "principal.spiffe_id", Message: "expected nothing else with it: a certificate has no more"})
	}
	return mistakes
}

// isToken reports whether anything is given that only tokens have.
func isToken(p *outriggerv1.ExplainedPrincipal) bool {
	return p.GetIssuer() != "" || p.GetSubject() != "" || len(p.GetGroups())+len(p.GetScopes())+len(p.GetClaims().GetFields()) > 0
}

// unknown is every caller of a binding that asks nobody who he is.
func (f *fleet) unknown(p *outriggerv1.ExplainedPrincipal) *caller {
	c := &caller{}
	if p.GetKey() != "" || p.GetSpiffeId() != "" || isToken(p) {
		c.note = fmt.Sprintf(". No Policy says how callers of Binding/%s prove who they are, so each is %s", f.binding.GetName(), identity.AnonymousID)
	}
	return c
}

// prove is what the principal's credential would prove to an Identity, or why it would be refused.
func (f *fleet) prove(id *outriggerv1.Identity, p *outriggerv1.ExplainedPrincipal, now time.Time) (who proof, refused string, mistakes resource.Errors) {
	switch {
	case p.GetKey() != "":
		return f.proveKey(id, p.GetKey(), now)
	case p.GetSpiffeId() != "":
		who, refused = proveCertificate(id, p.GetSpiffeId(), now)
		return who, refused, nil
	case isToken(p):
		return proveToken(id, p)
	case !id.GetAnonymous():
		return who, "it carries no credential", nil
	}
	return proof{principal: &identity.Principal{ID: identity.AnonymousID}}, "", nil
}

func (f *fleet) proveKey(id *outriggerv1.Identity, name string, now time.Time) (who proof, refused string, mistakes resource.Errors) {
	by := slices.IndexFunc(id.GetProviders(), func(p *outriggerv1.Provider) bool { return p.GetKeys() != nil })
	if by < 0 {
		return who, "it takes no Keys", nil
	}
	i := slices.IndexFunc(f.keys, func(k *outriggerv1.Key) bool { return k.GetName() == name })
	if i < 0 {
		return who, "", resource.Errors{{Path: "principal.key", Message: fmt.Sprintf("no Key is named %q", name)}}
	}
	k := f.keys[i]
	switch {
	case k.GetDisabled():
		return who, "the Key is disabled", nil
	case k.GetExpires() != nil && !now.Before(k.GetExpires().AsTime()):
		return who, "the Key has expired", nil
	}
	return proof{apikey.Principal(k, id.GetProviders()[by].GetName()), k.GetTenant()}, "", nil
}

// proveCertificate believes the authority of a certificate, which is not the control plane's to know.
func proveCertificate(id *outriggerv1.Identity, spiffe string, now time.Time) (who proof, refused string) {
	for _, p := range id.GetProviders() {
		c := p.GetCertificate()
		if c == nil {
			continue
		}
		v, err := certificate.New(p.GetName(), &outriggerv1.CertificateProvider{SpiffeIds: c.GetSpiffeIds(), DnsNames: c.GetDnsNames()})
		who := &identity.Principal{ID: spiffe, Provider: p.GetName(), SPIFFEID: spiffe, Expires: now.Add(time.Hour)}
		if err != nil || !v.Takes(who) {
			return proof{}, certificate.ErrName.Error()
		}
		return proof{principal: who}, ""
	}
	return who, "it takes no certificates"
}

func proveToken(id *outriggerv1.Identity, p *outriggerv1.ExplainedPrincipal) (who proof, refused string, mistakes resource.Errors) {
	claims := p.GetClaims().AsMap()
	issuer := p.GetIssuer()
	if issuer == "" {
		issuer, _ = claims["iss"].(string)
	}
	var issuers []string
	for _, provider := range id.GetProviders() {
		j := provider.GetJwt()
		if j == nil {
			continue
		}
		if issuer != j.GetIssuer() {
			issuers = append(issuers, j.GetIssuer())
			continue
		}
		t, err := jwt.Suppose(jwt.Spec{Name: provider.GetName(), Provider: j}, jwt.Supposed{
			Subject: p.GetSubject(), Groups: p.GetGroups(), Scopes: p.GetScopes(), Claims: claims,
		})
		if err != nil {
			return who, err.Error(), nil
		}
		return proof{t.Principal, t.TenantClaim}, "", nil
	}
	switch {
	case issuer != "":
		return who, "it takes no tokens of this issuer", nil
	case len(issuers) == 0:
		return who, "it takes no tokens", nil
	}
	return who, "", resource.Errors{{Path: "principal.issuer", Message: "required: one of " + strings.Join(issuers, ", ")}}
}
