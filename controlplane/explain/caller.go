package explain

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
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
	token := p.GetIssuer() != "" || p.GetSubject() != ""
	beside := token || len(p.GetGroups()) > 0 || len(p.GetScopes()) > 0 || len(p.GetClaims().GetFields()) > 0
	add := func(path, message string) {
		mistakes = append(mistakes, resource.Error{Path: "principal." + path, Message: message})
	}
	switch {
	case p.GetKey() != "" && (beside || p.GetSpiffeId() != ""):
		add("key", "expected nothing else with it: the Key has the rest")
	case p.GetSpiffeId() != "" && beside:
		add("spiffe_id", "expected nothing else with it: a certificate has no more")
	case p.GetKey() == "" && beside && p.GetSubject() == "":
		add("subject", "required: a token has one")
	}
	return mistakes
}

// unknown is every caller of a binding that asks nobody who he is.
func (f *fleet) unknown(p *outriggerv1.ExplainedPrincipal) *caller {
	c := &caller{}
	if p.GetKey() != "" || p.GetSubject() != "" || p.GetSpiffeId() != "" {
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
		who, refused = proveCertificate(id, p.GetSpiffeId())
		return who, refused, nil
	case p.GetSubject() != "":
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
	return proof{&identity.Principal{
		ID: "key:" + name, Provider: id.GetProviders()[by].GetName(), Groups: set(k.GetGroups()), Scopes: set(k.GetScopes()),
		Key: name, KeyLabels: k.GetLabels(),
	}, k.GetTenant()}, "", nil
}

func proveCertificate(id *outriggerv1.Identity, spiffe string) (who proof, refused string) {
	for _, p := range id.GetProviders() {
		c := p.GetCertificate()
		if c == nil {
			continue
		}
		if globs := c.GetSpiffeIds(); len(globs) > 0 && !slices.ContainsFunc(globs, func(g string) bool { return matches(g, spiffe) }) {
			return who, "it takes no certificate of this SPIFFE id"
		}
		return proof{principal: &identity.Principal{ID: spiffe, Provider: p.GetName(), SPIFFEID: spiffe}}, ""
	}
	return who, "it takes no certificates"
}

// matches reports whether a text matches a glob, of "*" and "?" only.
func matches(glob, text string) bool {
	pattern := strings.NewReplacer(`\*`, ".*", `\?`, ".").Replace(regexp.QuoteMeta(glob))
	return regexp.MustCompile("(?s)^" + pattern + "$").MatchString(text)
}

func proveToken(id *outriggerv1.Identity, p *outriggerv1.ExplainedPrincipal) (who proof, refused string, mistakes resource.Errors) {
	var issuers []string
	for _, provider := range id.GetProviders() {
		j := provider.GetJwt()
		if j == nil {
			continue
		}
		if p.GetIssuer() == j.GetIssuer() {
			return tokenOf(provider, p), "", nil
		}
		issuers = append(issuers, j.GetIssuer())
	}
	switch {
	case p.GetIssuer() != "":
		return who, "it takes no tokens of this issuer", nil
	case len(issuers) == 0:
		return who, "it takes no tokens", nil
	}
	return who, "", resource.Errors{{Path: "principal.issuer", Message: "required: one of " + strings.Join(issuers, ", ")}}
}

// tokenOf is what a token of a provider's issuer proves. Claims that every token has are filled in.
func tokenOf(by *outriggerv1.Provider, p *outriggerv1.ExplainedPrincipal) proof {
	claims := map[string]any{"iss": p.GetIssuer(), "sub": p.GetSubject()}
	for name, value := range p.GetClaims().AsMap() {
		claims[name] = value
	}
	raw, _ := json.Marshal(claims) // they came as JSON, or as what JSON has
	text := map[string]string{}
	addText(text, "", claims)
	return proof{&identity.Principal{
		ID: p.GetIssuer() + "|" + p.GetSubject(), Provider: by.GetName(), Issuer: p.GetIssuer(), Subject: p.GetSubject(),
		Groups: set(p.GetGroups()), Scopes: set(p.GetScopes()), Claims: raw, ClaimText: text,
	}, text[by.GetJwt().GetClaims().GetTenant()]}
}

// addText adds the strings among claims by their paths, as ClaimPaths writes them.
func addText(to map[string]string, under string, claims map[string]any) {
	for name, value := range claims {
		path := under + strings.ReplaceAll(name, ".", `\.`)
		switch value := value.(type) {
		case string:
			to[path] = value
		case map[string]any:
			addText(to, path+".", value)
		}
	}
}

// set is sorted, without doubles.
func set(list []string) []string {
	list = slices.Clone(list)
	slices.Sort(list)
	return slices.Compact(list)
}
