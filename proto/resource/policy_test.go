package resource

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// fullPolicy sets every field of the kinds that say who may call what, and what these need beside them.
const fullPolicy = `
kind: Secret
name: idp
spec: {values: {client-secret: "s3cret", token: "t0ken"}}
---
kind: Upstream
name: weather
spec:
  http: {url: "https://weather.example/mcp"}
  credential:
    header: X-Token
    prefix: "Token "
    clientCredentials:
      endpoint:
        url: https://idp.example/token
        clientId: sidecar
        clientSecret: {secret: {name: idp, key: client-secret}}
        scopes: [weather.read]
        resource: https://weather.example/mcp
        audience: weather
        caFile: /etc/ca.pem
        timeout: 3s
---
kind: Upstream
name: mail
spec:
  http: {url: "https://mail.example/mcp"}
  credential:
    tokenExchange: {endpoint: {url: "http://127.0.0.1:5556/token", clientId: sidecar, clientSecret: {env: OUTRIGGER_CREDENTIAL_IDP}}}
---
kind: Upstream
name: notes
spec: {http: {url: "https://notes.example/mcp"}, credential: {secret: {name: idp, key: token}}}
---
kind: Binding
name: demo
spec: {selector: {}, upstreams: [{name: weather}], externalUrl: "https://tools.example/a/mcp"}
---
kind: Tenant
name: acme
spec:
  disabled: true
  selectors:
    - {issuer: "https://idp.example", groups: [staff], claims: {org.id: "7"}}
    - {keyLabels: {team: sky}}
    - {spiffeId: "spiffe://acme/*"}
---
kind: Key
name: nightly
spec:
  hash: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
  owner: jo@acme.example
  tenant: acme
  scopes: [weather.read]
  groups: [robots]
  labels: {team: sky}
  expires: "2027-01-31T12:00:00Z"
  disabled: true
---
kind: Policy
name: everybody
spec:
  identity:
    providers:
      - {name: keys, keys: {header: X-Key}}
      - name: staff
        jwt:
          issuer: https://idp.example
          jwksUrl: https://idp.example/keys
          audiences: [weather]
          algorithms: [ES256]
          clockSkew: 10s
          claims: {subject: email, groups: realm.roles, scopes: permissions, tenant: 'https://acme\.example/org'}
          refresh: 1m
          stale: 1h
          caFile: /etc/ca.pem
          privateAddresses: true
      - {name: mesh, certificate: {caFile: /etc/mesh.pem, spiffeIds: ["spiffe://acme/*"], dnsNames: ["*.acme.example"]}}
    anonymous: true
    revoked: [{issuer: "https://idp.example", jti: "9", subject: jo, issuedBefore: "2026-12-01T00:00:00Z"}]
    authorizationServers: ["https://idp.example"]
    scopes: [weather.read]
---
kind: Policy
name: readers
spec:
  target: {bindings: [demo], upstreams: [weather], tenants: [acme]}
  final: true
  rules:
    - {name: read, action: allow, methods: [tools/call], tools: ["get_*"], prompts: ["*"], resources: ["file:///*"], principals: ["*|jo"], groups: [staff], scopes: [weather.read], tenants: [acme], hints: {readOnly: true, destructive: false, idempotent: true, openWorld: false}, when: "true"}
---
kind: Policy
name: trial
spec: {auditOnly: true, rules: [{action: deny, tools: [rm]}]}
`

func TestAFullPolicyIsReadCompletely(t *testing.T) {
	for _, o := range mustLoad(t, fullPolicy) {
		roundTrip(t, o)
		roundTrip(t, WithDefaults(o))
		if o.GetName() == "everybody" || o.GetName() == "readers" {
			if got := WithDefaults(o); !proto.Equal(got, o) {
				t.Errorf("a full object was changed\n got %v\nwant %v", got, o)
			}
		}
	}
}

const policyNeeds = `
kind: Upstream
name: a
spec: {http: {url: 'http://h/mcp'}}
---
kind: Binding
name: demo
spec: {selector: {}, upstreams: [{name: a}]}
---
`

func policyDoc(fields string) string {
	return policyNeeds + "kind: Policy\nname: p\nspec: {" + fields + "}"
}

func jwtDoc(fields string) string {
	return policyDoc("identity: {providers: [{name: i, jwt: {" + fields + "}}]}")
}

func ruleDoc(fields string) string { return policyDoc("rules: [{" + fields + "}]") }

func TestMistakesInPolicies(t *testing.T) {
	rows := []struct{ text, want string }{
		{policyDoc(""), "Policy/p: spec: it says nothing, expected identity or rules"},
		{policyDoc("final: true, identity: {anonymous: true}"), "Policy/p: spec.final: of no use without rules"},
		{policyDoc("final: true, auditOnly: true, rules: [{action: deny}]"), "Policy/p: spec.final: of no use with auditOnly, whose rules refuse nothing"},
		{policyDoc("target: {upstreams: [a]}, identity: {anonymous: true}"), "Policy/p: spec.identity: of no use with target.upstreams or target.tenants: who calls is known before either"},
		{policyDoc("target: {bindings: [gone], upstreams: [b], tenants: [x]}, rules: [{action: deny}]"), `Policy/p: spec.target.bindings[0]: no Binding is named "gone", expected demo`},
		{policyDoc("target: {tenants: [x]}, rules: [{action: deny}]"), `Policy/p: spec.target.tenants[0]: no Tenant is named "x"`},
		{ruleDoc("tools: [a]"), "Policy/p: spec.rules[0].action: required: allow or deny"},
		{ruleDoc("action: permit"), `Policy/p: spec.rules[0].action: expected allow or deny, got "permit"`},
		{ruleDoc("action: deny, tools: ['']"), `Policy/p: spec.rules[0].tools[0]: "", expected 1 to 1024 bytes without control characters`},
		{ruleDoc("action: deny, prompts: [a], hints: {readOnly: true}"), "Policy/p: spec.rules[0].hints: can never match: hints are of tools, and the rule is not for any"},
		{ruleDoc("action: deny, scopes: ['a b']"), `Policy/p: spec.rules[0].scopes[0]: "a b" is not a scope: it has a space, a quote, a backslash or something else than ASCII`},
		{ruleDoc("action: deny, tenants: [x]"), `Policy/p: spec.rules[0].tenants[0]: no Tenant is named "x"`},
		{ruleDoc("action: deny, name: a}, {action: deny, name: a"), `Policy/p: spec.rules[1].name: "a" is also spec.rules[0]`},
		{ruleDoc("action: deny, when: 'tool.sbuject == 1'"), `Policy/p: spec.rules[0].when: line 1, column 5: undefined field 'sbuject'`},
		{policyDoc("identity: {}"), "Policy/p: spec.identity: it lets nobody in, expected providers or anonymous"},
		{policyDoc("identity: {providers: [{name: k}]}"), "Policy/p: spec.identity.providers[0]: no kind, expected exactly one of keys, jwt and certificate"},
		{policyDoc("identity: {providers: [{name: k, keys: {}}, {name: l, keys: {}}]}"), "Policy/p: spec.identity.providers[1]: spec.identity.providers[0] already has the Keys"},
		{policyDoc("identity: {providers: [{name: k, keys: {header: Cookie}}]}"), `Policy/p: spec.identity.providers[0].keys.header: "Cookie" is not a header that may carry a key`},
		{policyDoc("identity: {providers: [{name: k, keys: {header: baggage}}]}"), `Policy/p: spec.identity.providers[0].keys.header: "baggage" is not a header that may carry a key`},
		{policyDoc("identity: {anonymous: true, revoked: [{issuer: x}]}"), "Policy/p: spec.identity.revoked[0]: expected jti or subject"},
		{jwtDoc("issuer: 'http://idp.example', audiences: [a]"), `Policy/p: spec.identity.providers[0].jwt.issuer: "http://idp.example" is not https, as it must be but for a loopback address`},
		{jwtDoc("issuer: 'https://i', audiences: [a], algorithms: [none]"), `Policy/p: spec.identity.providers[0].jwt.algorithms[0]: "none" is not an algorithm that can be taken, expected RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512 or EdDSA`},
		{jwtDoc("issuer: 'https://i', audiences: [a], algorithms: [HS256]"), `Policy/p: spec.identity.providers[0].jwt.algorithms[0]: "HS256" is not an algorithm that can be taken, did you mean "RS256"?`},
		{jwtDoc("issuer: 'https://i', audiences: [a], clockSkew: 1h"), "Policy/p: spec.identity.providers[0].jwt.clockSkew: 1h0m0s, expected at most 5m"},
		{jwtDoc("issuer: 'https://i', audiences: [a], claims: {groups: a..b}"), `Policy/p: spec.identity.providers[0].jwt.claims.groups: "a..b" is not the path of a claim, such as groups or realm_access.roles`},
		{jwtDoc("issuer: 'https://i'"), "Policy/p: spec.identity.providers[0].jwt.audiences: required, since Binding/demo has no externalUrl that could be the audience"},
		{policyDoc("identity: {anonymous: true}") + "\n---\nkind: Policy\nname: q\nspec: {identity: {anonymous: true}}", "Policy/q: spec.identity: Policy/p says already how callers of all bindings are known"},
		{"kind: Tenant\nname: t\nspec: {selectors: [{}]}", "Tenant/t: spec.selectors[0]: it would match everybody, expected at least one of issuer, groups, claims, keyLabels and spiffeId"},
		{"kind: Tenant\nname: t\nspec: {selectors: [{spiffeId: 'spiffe://a/*/b'}]}", `Tenant/t: spec.selectors[0].spiffeId: "spiffe://a/*/b", expected a SPIFFE id, or one with /* at its end`},
		{"kind: Key\nname: k\nspec: {hash: abc}", "Key/k: spec.hash: not the SHA-256 of a key: expected 64 of 0-9 and a-f"},
		{"kind: Key\nname: k\nspec: {tenant: t}", `Key/k: spec.tenant: no Tenant is named "t"`},
		{"kind: Key\nname: k\nspec: {expires: tomorrow}", `Key/k: spec.expires: expected a time such as "2027-01-31T12:00:00Z", got "tomorrow"`},
		{"kind: Secret\nname: s\nspec: {}", "Secret/s: spec.values: required: at least one value"},
		{upstreamDoc("{http: {url: 'http://h'}, credential: {secret: {name: s, key: k}}}"), `Upstream/a: spec.credential: no Secret is named "s"`},
		{upstreamDoc("{credential: {clientCredentials: {}}}"), `Upstream/a: spec.credential.clientCredentials.endpoint.clientSecret: no source, expected exactly one of env, file and secret`},
		{bindingDoc("externalUrl: 'https://H.example/mcp'"), `Binding/demo: spec.externalUrl: "https://H.example/mcp", expected scheme and host in lower case`},
		{bindingDoc("externalUrl: 'https://h.example/mcp/'"), `Binding/demo: spec.externalUrl: "https://h.example/mcp/" ends with '/', expected the URL without it`},
		{bindingDoc("externalUrl: 'https://h.example/mcp?x'"), `Binding/demo: spec.externalUrl: must not have a query`},
	}
	for _, r := range rows {
		if _, errs := Load("t", []byte(r.text)); !strings.Contains("\n"+errs.Error()+"\n", "\nt: "+r.want+"\n") {
			t.Errorf("%s\n got %s\nwant t: %s", r.text, errs.Error(), r.want)
		}
	}
}

func TestAPartNeedNotHoldWhatAPolicyTargets(t *testing.T) {
	p := &outriggerv1.Policy{
		Name:   "p",
		Target: &outriggerv1.PolicyTarget{Bindings: []string{"elsewhere"}, Upstreams: []string{"elsewhere"}},
		Rules:  []*outriggerv1.Rule{{Action: outriggerv1.Action_ACTION_DENY}},
	}
	if errs := ValidatePart([]Object{p}); len(errs) > 0 {
		t.Errorf("as a part: %v", errs)
	}
	if errs := ValidateSet([]Object{p}); len(errs) != 2 {
		t.Errorf("as a whole: %v, want two mistakes", errs)
	}
}

func TestTheNarrowerPolicySaysHowCallersAreKnown(t *testing.T) {
	all := &outriggerv1.Policy{Name: "all", Identity: &outriggerv1.Identity{Anonymous: true}}
	one := &outriggerv1.Policy{Name: "one", Target: &outriggerv1.PolicyTarget{Bindings: []string{"b"}}, Identity: &outriggerv1.Identity{Anonymous: true}}
	rules := &outriggerv1.Policy{Name: "rules"}
	for _, policies := range [][]*outriggerv1.Policy{{all, one, rules}, {rules, one, all}} {
		if got := IdentityOf(policies, "b"); got != one {
			t.Errorf("of b: %v, want the policy that names it", got)
		}
		if got := IdentityOf(policies, "c"); got != all {
			t.Errorf("of c: %v, want the policy for all", got)
		}
	}
	if got := IdentityOf([]*outriggerv1.Policy{one, rules}, "c"); got != nil {
		t.Errorf("of c: %v, want none", got)
	}
}
