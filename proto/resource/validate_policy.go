package resource

import (
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"

	"golang.org/x/net/http/httpguts"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// SignatureAlgorithms are those that a JWTProvider may take (RFC 7518, RFC 8037): none that is keyed by a shared secret.
var SignatureAlgorithms = []string{
	"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
}

func (v *validator) policy(p *outriggerv1.Policy) {
	t := p.GetTarget()
	v.names("spec.target.bindings", t.GetBindings())
	v.names("spec.target.upstreams", t.GetUpstreams())
	v.names("spec.target.tenants", t.GetTenants())
	v.check(p.Identity != nil || len(p.Rules) > 0, "spec", "it says nothing, expected identity or rules")
	if p.Identity != nil {
		v.check(len(t.GetUpstreams()) == 0 && len(t.GetTenants()) == 0, "spec.identity", "of no use with target.upstreams or target.tenants: who calls is known before either")
		v.identity(p.Identity)
	}
	v.check(!p.Final || len(p.Rules) > 0, "spec.final", "of no use without rules")
	v.check(!p.Final || !p.AuditOnly, "spec.final", "of no use with auditOnly, whose rules refuse nothing")
	v.check(!p.AuditOnly || len(p.Rules) > 0, "spec.auditOnly", "of no use without rules")
	v.check(len(p.Rules) <= maxRules, "spec.rules", "%d given, expected at most %d", len(p.Rules), maxRules)
	seen := map[string]int{}
	for i, r := range p.Rules {
		at := fmt.Sprintf("spec.rules[%d]", i)
		if first, taken := seen[r.GetName()]; taken && r.GetName() != "" {
			v.errs.addf(at+".name", "%s is also spec.rules[%d]", quote(r.GetName()), first)
		}
		seen[r.GetName()] = i
		v.rule(at, r)
	}
}

func (v *validator) rule(at string, r *outriggerv1.Rule) {
	v.check(r.GetName() == "" || rulePattern.MatchString(r.GetName()), at+".name", "%s, expected 1 to 63 of letters, digits and . _ / - [ ]", quote(r.GetName()))
	v.check(r.GetAction() == outriggerv1.Action_ACTION_ALLOW || r.GetAction() == outriggerv1.Action_ACTION_DENY, at+".action", "required: allow or deny")
	v.texts(at+".methods", r.GetMethods())
	v.texts(at+".tools", r.GetTools())
	v.texts(at+".prompts", r.GetPrompts())
	v.texts(at+".resources", r.GetResources())
	v.texts(at+".principals", r.GetPrincipals())
	v.texts(at+".groups", r.GetGroups())
	v.scopes(at+".scopes", r.GetScopes())
	v.names(at+".tenants", r.GetTenants())
	subjects := len(r.GetTools()) + len(r.GetPrompts()) + len(r.GetResources())
	v.check(r.GetHints() == nil || len(r.GetTools()) > 0 || subjects == 0, at+".hints", "can never match: hints are of tools, and the rule is not for any")
	v.expression(at+".when", r.GetWhen())
}

func (v *validator) identity(id *outriggerv1.Identity) {
	const at = "spec.identity"
	v.check(len(id.Providers) > 0 || id.Anonymous, at, "it lets nobody in, expected providers or anonymous")
	v.check(len(id.Providers) <= maxProviders, at+".providers", "%d given, expected at most %d", len(id.Providers), maxProviders)
	taken := map[string]string{} // what a provider takes for itself, and where that is said
	alone := func(path, what string) {
		if other, ok := taken[what]; ok {
			v.errs.addf(path, "%s already has %s", other, what)
		}
		taken[what] = path
	}
	for i, p := range id.Providers {
		at := fmt.Sprintf("%s.providers[%d]", at, i)
		v.name(at+".name", p.GetName())
		alone(at, "the name "+quote(p.GetName()))
		switch k := p.GetKind().(type) {
		case *outriggerv1.Provider_Keys:
			alone(at, "the Keys")
			if h := k.Keys.GetHeader(); h != "" {
				v.check(httpguts.ValidHeaderFieldName(h) && !ownHeader(h) && !travels(h) && !strings.EqualFold(h, "Cookie"), at+".keys.header", "%s is not a header that may carry a key", quote(h))
			}
		case *outriggerv1.Provider_Jwt:
			alone(at, "the issuer "+quote(k.Jwt.GetIssuer()))
			v.jwt(at+".jwt", k.Jwt)
		case *outriggerv1.Provider_Certificate:
			alone(at, "the client certificates")
			v.caFile(at+".certificate.caFile", k.Certificate.GetCaFile(), "")
			v.texts(at+".certificate.spiffeIds", k.Certificate.GetSpiffeIds())
			v.texts(at+".certificate.dnsNames", k.Certificate.GetDnsNames())
		default:
			v.errs.addf(at, "no kind, expected exactly one of keys, jwt and certificate")
		}
	}
	v.revocations(at+".revoked", id.Revoked)
	for i, s := range id.AuthorizationServers {
		v.trustedURL(fmt.Sprintf("%s.authorizationServers[%d]", at, i), s)
	}
	v.scopes(at+".scopes", id.Scopes)
}

func (v *validator) jwt(at string, j *outriggerv1.JWTProvider) {
	scheme := v.trustedURL(at+".issuer", j.GetIssuer())
	if u, err := url.Parse(j.GetIssuer()); err == nil {
		v.check(u.RawQuery == "", at+".issuer", "must not have a query")
	}
	if j.GetJwksUrl() != "" {
		v.trustedURL(at+".jwksUrl", j.GetJwksUrl())
	}
	v.texts(at+".audiences", j.GetAudiences())
	for i, a := range j.GetAlgorithms() {
		v.check(slices.Contains(SignatureAlgorithms, a), fmt.Sprintf("%s.algorithms[%d]", at, i), "%s is not an algorithm that can be taken%s", quote(a), suggest(a, SignatureAlgorithms))
	}
	v.duration(at+".clockSkew", j.GetClockSkew(), 0, 5*time.Minute)
	v.duration(at+".refresh", j.GetRefresh(), 10*time.Second, maxTimeout)
	v.duration(at+".stale", j.GetStale(), 0, maxIdleTimeout)
	v.caFile(at+".caFile", j.GetCaFile(), scheme)
	c := j.GetClaims()
	for _, claim := range []struct{ field, path string }{
		{"subject", c.GetSubject()}, {"groups", c.GetGroups()}, {"scopes", c.GetScopes()}, {"tenant", c.GetTenant()},
	} {
		v.claimPath(at+".claims."+claim.field, claim.path)
	}
}

// claimPath checks a path that is given.
func (v *validator) claimPath(at, s string) {
	empty := s != "" && slices.Contains(strings.Split(strings.ReplaceAll(s, `\.`, "x"), "."), "")
	v.check(!empty && len(s) <= maxText && printable(s), at, `%s is not the path of a claim, such as groups or realm_access.roles`, quote(s))
}

func (v *validator) revocations(at string, all []*outriggerv1.Revocation) {
	v.check(len(all) <= maxListed, at, "%d given, expected at most %d", len(all), maxListed)
	for i, r := range all {
		at := fmt.Sprintf("%s[%d]", at, i)
		v.check(r.GetJti() != "" || r.GetSubject() != "", at, "expected jti or subject")
		v.check(r.GetIssuedBefore() == nil || r.GetIssuedBefore().IsValid(), at+".issuedBefore", "not a time")
	}
}

func (v *validator) tenant(t *outriggerv1.Tenant) {
	v.check(len(t.Selectors) <= maxRules, "spec.selectors", "%d given, expected at most %d", len(t.Selectors), maxRules)
	for i, s := range t.Selectors {
		at := fmt.Sprintf("spec.selectors[%d]", i)
		given := s.GetIssuer() != "" || len(s.GetGroups())+len(s.GetClaims())+len(s.GetKeyLabels()) > 0 || s.GetSpiffeId() != ""
		v.check(given, at, "it would match everybody, expected at least one of issuer, groups, claims, keyLabels and spiffeId")
		v.texts(at+".groups", s.GetGroups())
		for _, path := range sortedKeys(s.GetClaims()) {
			v.claimPath(at+".claims", path)
			v.check(path != "", at+".claims", "a claim without a name")
		}
		checkLabels(at+".keyLabels", s.GetKeyLabels(), &v.errs)
		id := s.GetSpiffeId()
		star := strings.Index(id, "*")
		v.check(id == "" || strings.HasPrefix(id, "spiffe://") && len(id) > len("spiffe://") && printable(id) && (star < 0 || strings.HasSuffix(id, "/*") && star == len(id)-1),
			at+".spiffeId", "%s, expected a SPIFFE id, or one with /* at its end", quote(id))
	}
}

func (v *validator) key(k *outriggerv1.Key) {
	sum, err := hex.DecodeString(k.Hash)
	v.check(err == nil && len(sum) == 32 && k.Hash == strings.ToLower(k.Hash), "spec.hash", "not the SHA-256 of a key: expected 64 of 0-9 and a-f")
	v.check(printable(k.Owner) && len(k.Owner) <= maxText, "spec.owner", "expected at most %d bytes without control characters", maxText)
	if k.Tenant != "" {
		v.name("spec.tenant", k.Tenant)
	}
	v.scopes("spec.scopes", k.Scopes)
	v.texts("spec.groups", k.Groups)
	checkLabels("spec.labels", k.Labels, &v.errs)
	v.check(k.Expires == nil || k.Expires.IsValid(), "spec.expires", "not a time")
}

// names checks a list of other resources' names.
func (v *validator) names(at string, names []string) {
	v.check(len(names) <= maxListed, at, "%d given, expected at most %d", len(names), maxListed)
	for i, s := range names {
		v.name(fmt.Sprintf("%s[%d]", at, i), s)
	}
}

// texts checks a list of patterns, groups and the like.
func (v *validator) texts(at string, texts []string) {
	v.check(len(texts) <= maxListed, at, "%d given, expected at most %d", len(texts), maxListed)
	for i, s := range texts {
		v.check(s != "" && len(s) <= maxText && printable(s), fmt.Sprintf("%s[%d]", at, i), "%s, expected 1 to %d bytes without control characters", quote(s), maxText)
	}
}

// scopes checks a list of scopes (RFC 6749, section 3.3).
func (v *validator) scopes(at string, scopes []string) {
	v.texts(at, scopes)
	for i, s := range scopes {
		v.check(!strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == '"' || r == '\\' || r > '~' }), fmt.Sprintf("%s[%d]", at, i), "%s is not a scope: it has a space, a quote, a backslash or something else than ASCII", quote(s))
	}
}

func printable(s string) bool { return !strings.ContainsFunc(s, unicode.IsControl) }
