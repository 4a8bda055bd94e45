package explain

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

const fleetText = `
kind: Upstream
name: weather
spec: {http: {url: "http://127.0.0.1:1/mcp"}}
---
kind: Upstream
name: mail
spec: {http: {url: "http://127.0.0.1:2/mcp"}}
---
kind: Binding
name: desk
spec: {selector: {matchLabels: {app: desk}}, upstreams: [{name: weather}]}
---
kind: Binding
name: both
spec: {selector: {matchLabels: {app: both}}, upstreams: [{name: weather}, {name: mail}]}
---
kind: Binding
name: open
spec: {selector: {matchLabels: {app: open}}, upstreams: [{name: weather}]}
---
kind: Binding
name: ruled
spec: {selector: {matchLabels: {app: ruled}}, upstreams: [{name: weather}]}
---
kind: Tenant
name: acme
spec: {selectors: [{issuer: "https://idp.example", groups: [acme]}, {claims: {org.id: "7"}}]}
---
kind: Tenant
name: globex
spec: {selectors: [{groups: [globex]}]}
---
kind: Tenant
name: gone
spec: {disabled: true}
---
kind: Key
name: nightly
spec: {hash: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", tenant: acme, scopes: [read], labels: {team: sky}}
---
kind: Key
name: old
spec: {hash: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b856", expires: "2026-01-01T00:00:00Z"}
---
kind: Key
name: off
spec: {hash: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b857", disabled: true}
---
kind: Key
name: lost
spec: {hash: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b858", tenant: gone}
---
kind: Policy
name: who
spec:
  target: {bindings: [desk, both]}
  identity:
    anonymous: true
    providers:
      - {name: keys, keys: {}}
      - {name: idp, jwt: {issuer: "https://idp.example", audiences: [x], claims: {tenant: org.tenant}}}
      - {name: mesh, certificate: {spiffeIds: ["spiffe://acme/*"]}}
    revoked: [{subject: eve}]
---
kind: Policy
name: desk
spec:
  target: {bindings: [desk]}
  rules:
    - {name: read, action: allow, tools: ["get_*"], groups: [staff, acme]}
    - {name: keys, action: allow, tools: ["get_*"], principals: ["key:*"]}
    - {name: no-secrets, action: deny, tools: ["*secret*"]}
    - {name: write, action: allow, tools: [put], scopes: [write, put]}
    - {name: public, action: allow, tools: [read_file], when: 'args.path.startsWith("/srv/")'}
    - {name: mesh, action: allow, tools: [sync], principals: ["spiffe://acme/*"]}
    - {name: org, action: allow, tools: [org], when: 'principal.claims.org.id == "7" && principal.claims.sub == "jo"'}
    - {name: look, action: allow, tools: [hinted], hints: {readOnly: true}}
    - {name: docs, action: allow, resources: ["file:///docs/*"]}
    - {name: quiet, action: deny, methods: [logging/setLevel]}
---
kind: Policy
name: acme
spec: {target: {bindings: [desk], tenants: [acme]}, rules: [{name: all, action: allow, tools: ["acme_*"]}]}
---
kind: Policy
name: ceiling
spec: {target: {bindings: [both]}, final: true, rules: [{name: some, action: allow, tools: ["*_get"]}]}
---
kind: Policy
name: weather
spec: {target: {bindings: [both], upstreams: [weather]}, rules: [{name: sky, action: allow, tools: ["*"]}]}
---
kind: Policy
name: soon
spec: {target: {bindings: [desk]}, auditOnly: true, rules: [{name: no-staff, action: deny, groups: [staff], tools: ["get_*"]}]}
`

func objects(t *testing.T, text string) []resource.Object {
	t.Helper()
	objs, errs := resource.Load("test", []byte(text))
	if len(errs) > 0 {
		t.Fatalf("%v", errs)
	}
	return objs
}

var now = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

func request(t *testing.T, text string) *outriggerv1.ExplainRequest {
	t.Helper()
	req := &outriggerv1.ExplainRequest{}
	if err := protojson.Unmarshal([]byte(text), req); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return req
}

// summary is an answer on one line: + or -, l when listed, what decided, the tenant and the scopes that are missing.
func summary(r *outriggerv1.ExplainResponse) string {
	text := map[bool]string{true: "+", false: "-"}[r.Allowed]
	if r.Listed {
		text += "l"
	}
	text += " " + r.Policy + "/" + r.Rule
	if r.Tenant != "" {
		text += " of " + r.Tenant
	}
	if len(r.MissingScopes) > 0 {
		text += " lacks " + strings.Join(r.MissingScopes, " ")
	}
	return text
}

func TestCallsAreExplained(t *testing.T) {
	all := objects(t, fleetText)
	const (
		jo  = `"principal":{"issuer":"https://idp.example","subject":"jo"`
		key = `"principal":{"key":"nightly"}`
	)
	for name, row := range map[string]struct {
		request string // without its braces
		want    string // as summary has it
		reason  string // part of it
	}{
		"a group":               {`"binding":"desk","tool":"get_x","arguments":{},` + jo + `,"groups":["staff"]}`, "+l desk/read", `Policy/desk allows it by rule "read"; Policy/soon, which only audits, denies it by rule "no-staff"`},
		"a deny":                {`"binding":"desk","tool":"get_secret","arguments":{},` + jo + `,"groups":["staff"]}`, "- desk/no-secrets", `Policy/desk denies it by rule "no-secrets"`},
		"nothing allows":        {`"binding":"desk","tool":"other","arguments":{},` + jo + `}`, "- default/", "no rule allows it"},
		"anonymous":             {`"binding":"desk","tool":"get_x","arguments":{}`, "- default/", "no rule allows it"},
		"a Key":                 {`"binding":"desk","tool":"get_x","arguments":{},` + key, "+l desk/keys of acme", ""},
		"a Key's tenant":        {`"binding":"desk","tool":"acme_x","arguments":{},` + key, "+l acme/all of acme", ""},
		"a Key that is off":     {`"binding":"desk","tool":"get_x","principal":{"key":"off"}`, "- who/", "Policy/who does not let the caller in: the Key is disabled"},
		"an expired Key":        {`"binding":"desk","tool":"get_x","principal":{"key":"old"}`, "- who/", "the Key has expired"},
		"a disabled tenant":     {`"binding":"desk","tool":"get_x","principal":{"key":"lost"}`, "- who/", "the caller's tenant is disabled"},
		"two tenants":           {`"binding":"desk","tool":"get_x",` + jo + `,"groups":["acme","globex"]}`, "- who/", "more than one tenant"},
		"a tenant by claim":     {`"binding":"desk","tool":"acme_x","arguments":{},` + jo + `,"claims":{"org":{"id":"7"}}}`, "+l acme/all of acme", ""},
		"a claimed tenant":      {`"binding":"desk","tool":"acme_x","arguments":{},` + jo + `,"claims":{"org":{"tenant":"acme"}}}`, "+l acme/all of acme", ""},
		"an unknown tenant":     {`"binding":"desk","tool":"acme_x",` + jo + `,"claims":{"org":{"tenant":"none"}}}`, "- who/", "does not exist"},
		"claims in rules":       {`"binding":"desk","tool":"org","arguments":{},` + jo + `,"claims":{"org":{"id":"7"}}}`, "+l desk/org of acme", ""},
		"groups of claims":      {`"binding":"desk","tool":"get_x","arguments":{},"principal":{"claims":{"iss":"https://idp.example","sub":"jo","groups":["staff"]}}`, "+l desk/read", ""},
		"scopes of claims":      {`"binding":"desk","tool":"put","arguments":{},` + jo + `,"claims":{"scope":"put write"}}`, "+l desk/write", ""},
		"no subject":            {`"binding":"desk","tool":"get_x","principal":{"issuer":"https://idp.example","groups":["staff"]}`, "- who/", "the token lacks a claim"},
		"another issuer":        {`"binding":"desk","tool":"get_x","principal":{"issuer":"https://other.example","subject":"jo"}`, "- who/", "no tokens of this issuer"},
		"a revoked caller":      {`"binding":"desk","tool":"get_x","principal":{"issuer":"https://idp.example","subject":"eve"}`, "- who/", "the caller is revoked"},
		"a certificate":         {`"binding":"desk","tool":"sync","arguments":{},"principal":{"spiffeId":"spiffe://acme/one"}`, "+l desk/mesh", ""},
		"another certificate":   {`"binding":"desk","tool":"sync","principal":{"spiffeId":"spiffe://other/one"}`, "- who/", "the certificate has no name that is accepted"},
		"scopes that lack":      {`"binding":"desk","tool":"put","arguments":{},` + jo + `,"scopes":["put"]}`, "- default/ lacks write", "with the scopes that are missing: write"},
		"scopes":                {`"binding":"desk","tool":"put","arguments":{},` + jo + `,"scopes":["write","put"]}`, "+l desk/write", ""},
		"arguments":             {`"binding":"desk","tool":"read_file","arguments":{"path":"/srv/x"}`, "+l desk/public", ""},
		"other arguments":       {`"binding":"desk","tool":"read_file","arguments":{"path":"/etc/x"}`, "-l default/", "no rule allows it"},
		"no arguments":          {`"binding":"desk","tool":"read_file"`, "+l desk/public", "Without arguments this is whether some may be"},
		"hints":                 {`"binding":"desk","tool":"hinted","arguments":{},"hints":{"readOnly":true}`, "+l desk/look", ""},
		"no hints":              {`"binding":"desk","tool":"hinted","arguments":{}`, "- default/", ""},
		"a resource":            {`"binding":"desk","resource":"file:///docs/a"`, "+l desk/docs", ""},
		"a subscription":        {`"binding":"desk","resource":"file:///docs/a","method":"resources/subscribe"`, "+l desk/docs", ""},
		"a free method":         {`"binding":"desk","method":"tools/list"`, "+ default/", "no rule denies tools/list"},
		"a denied method":       {`"binding":"desk","method":"logging/setLevel"`, "- desk/quiet", ""},
		"a method of others":    {`"binding":"desk","method":"vendor/reset"`, "- default/", ""},
		"an upstream":           {`"binding":"both","tool":"a_get","upstream":"weather","arguments":{}`, "+l weather/sky", ""},
		"a ceiling":             {`"binding":"both","tool":"a_put","upstream":"weather","arguments":{}`, "- ceiling/", "Policy/ceiling is final, and none of its rules allows it"},
		"by its prefix":         {`"binding":"both","tool":"weather_get","arguments":{}`, "+l weather/sky", ""},
		"by another prefix":     {`"binding":"both","tool":"mail_get","arguments":{}`, "+l ceiling/some", ""},
		"a resource's upstream": {`"binding":"both","resource":"weather_x:y"`, "- ceiling/", ""},
		"an unknown upstream":   {`"binding":"both","tool":"a_get","arguments":{}`, "- weather/", "Policy/weather is for some Upstreams, and which one it goes to is not known"},
		"no rules":              {`"binding":"open","tool":"x","arguments":{}`, "+l default/", "no Policy has rules for Binding/open, so everything is allowed"},
		"no identity":           {`"binding":"open","tool":"x","arguments":{},` + key, "+l default/", "No Policy says how callers of Binding/open prove who they are, so each is anonymous"},
		"rules and no identity": {`"binding":"ruled","tool":"x","arguments":{}`, "+l default/", ""},
	} {
		got, err := Explain(all, request(t, "{"+row.request+"}"), now)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if s := summary(got); s != row.want || !strings.Contains(got.Reason, row.reason) {
			t.Errorf("%s: {%s}\n got %s: %s\nwant %s: %s", name, row.request, s, got.Reason, row.want, row.reason)
		}
	}
}

func TestEveryRuleIsExplainedInOrder(t *testing.T) {
	got, err := Explain(objects(t, fleetText), request(t, `{"binding":"desk","tool":"get_secret","arguments":{},"principal":{"key":"nightly"}}`), now)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, r := range got.Rules {
		line := r.Policy + "/" + r.Rule
		if r.Matched {
			line += " matched"
		} else {
			line += ": " + r.Unmatched
		}
		lines = append(lines, line)
	}
	want := []string{
		"desk/read: groups", "desk/keys matched", "desk/no-secrets matched", "desk/write: tools", "desk/public: tools", "desk/mesh: tools",
	}
	if len(lines) < len(want) || strings.Join(lines[:len(want)], "\n") != strings.Join(want, "\n") || lines[len(lines)-1] != "acme/all: tools" {
		t.Errorf("got\n%s\nwant it to begin with\n%s\nand the narrower Policy last", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}

func TestWrongQuestionsAreRefused(t *testing.T) {
	all := objects(t, fleetText)
	for name, row := range map[string]struct{ request, want string }{
		"nothing":               {`{"binding":"desk"}`, "method: required"},
		"two subjects":          {`{"binding":"desk","tool":"a","prompt":"b"}`, "prompt: expected only one"},
		"a method's subject":    {`{"binding":"desk","method":"tools/call"}`, "tool: required"},
		"not the method's":      {`{"binding":"desk","method":"tools/list","tool":"a"}`, "tool: tools/list is not about one"},
		"another's arguments":   {`{"binding":"desk","resource":"a:b","arguments":{}}`, "arguments: they are of tools and prompts"},
		"another's hints":       {`{"binding":"desk","prompt":"a","hints":{}}`, "hints: they are of tools"},
		"another's upstream":    {`{"binding":"desk","tool":"a","upstream":"mail"}`, `upstream: Binding/desk has no Upstream named "mail", expected one of weather`},
		"no such Key":           {`{"binding":"desk","tool":"a","principal":{"key":"x"}}`, `principal.key: no Key is named "x"`},
		"a Key and groups":      {`{"binding":"desk","tool":"a","principal":{"key":"nightly","groups":["staff"]}}`, "principal.key: expected nothing else"},
		"a certificate's group": {`{"binding":"desk","tool":"a","principal":{"spiffeId":"spiffe://acme/x","groups":["staff"]}}`, "principal.spiffe_id: expected nothing else"},
		"groups of nobody":      {`{"binding":"desk","tool":"a","principal":{"groups":["staff"]}}`, "principal.issuer: required"},
		"no issuer":             {`{"binding":"desk","tool":"a","principal":{"subject":"jo"}}`, "principal.issuer: required: one of https://idp.example"},
	} {
		_, err := Explain(all, request(t, row.request), now)
		var mistakes resource.Errors
		if !errors.As(err, &mistakes) || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %q", name, err, row.want)
		}
	}
	if _, err := Explain(all, request(t, `{"binding":"none","tool":"a"}`), now); !errors.Is(err, ErrNoBinding) {
		t.Errorf("a binding that does not exist: %v", err)
	}
}

// A sidecar has only what its view holds: a Policy of another binding says nothing here.
func TestOnlyWhatTheBindingsSidecarsHaveDecides(t *testing.T) {
	all := objects(t, fleetText)
	got, err := Explain(all, request(t, `{"binding":"open","tool":"get_secret","arguments":{}}`), now)
	if err != nil || !got.Allowed || len(got.Rules) != 0 {
		t.Errorf("%v, %v; want it allowed, and no rule of other bindings", got, err)
	}
}

func FuzzExplain(f *testing.F) {
	objs, errs := resource.Load("test", []byte(fleetText))
	if len(errs) > 0 {
		f.Fatal(errs)
	}
	f.Add(`{"binding":"desk","tool":"read_file","arguments":{"path":"/srv/x"},"principal":{"issuer":"https://idp.example","subject":"jo","claims":{"a":{"b":[1]}}}}`)
	f.Add(`{"binding":"both","method":"x","principal":{"spiffeId":"spiffe://acme/x"}}`)
	f.Fuzz(func(t *testing.T, text string) {
		req := &outriggerv1.ExplainRequest{}
		if protojson.Unmarshal([]byte(text), req) != nil {
			return
		}
		res, err := Explain(objs, req, now)
		if err == nil && (res.Reason == "" || res.Policy == "") {
			t.Errorf("%s: %v", text, res)
		}
		if err == nil && res.Allowed && req.Arguments != nil && res.Rule != "" && !res.Listed {
			t.Errorf("%s: allowed with arguments, and not listed: %v", text, res)
		}
	})
}
