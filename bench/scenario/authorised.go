package scenario

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/outrigger-mesh/outrigger/bench/layout"
	"github.com/outrigger-mesh/outrigger/bench/record"
)

// authorisedRules is how many rules the guarded binding has.
const authorisedRules = 100

var _ = register(Scenario{
	Scenario: record.Scenario{
		Name:     "authorised",
		Title:    "What it costs to know who calls, and whether they may",
		Question: "How much more does a call cost with an access token, a tenant and a hundred rules?",
		Method: fmt.Sprintf("One sidecar with two bindings for one server that does nothing: `open` has no Policy, `guarded` takes tokens of one "+
			"issuer (ES256), whose keys it fetches over HTTP, finds the caller's tenant by group and has %d rules: by glob and group, by "+
			"scope, by expression, and for other tools by argument. Every call of `guarded` carries the same token. `ratio_open` is the "+
			"row's CPU per call in multiples of that of `open`, with the same client in the same round.", authorisedRules),
		Fields: []string{"era", "binding", "conns"},
		Figures: []record.Figure{figureCPU,
			{Name: "ratio_open", Title: "CPU per call, multiples of that without Policies", Better: "lower", Digits: 2},
			figureCalls, figureP50, figureP99, figureRSS},
		Charts: []record.Chart{
			{Name: "cpu", Title: "CPU per call, 64 connections", Kind: "bar", X: "era", Y: "cpu_us", Series: "binding",
				Where: map[string]string{"conns": usualConns}},
		},
		Targets: []record.Target{
			{Name: "stateless call with token, tenant and 100 rules, against one without", Figure: "ratio_open", Subject: "sidecar",
				Where: Case{"era": "stateless", "binding": "guarded", "conns": usualConns}, Most: 1.15},
			{Name: "legacy call with token, tenant and 100 rules, against one without", Figure: "ratio_open", Subject: "sidecar",
				Where: Case{"era": "legacy", "binding": "guarded", "conns": usualConns}, Most: 1.15},
		},
	},
	Needs: OwnProcesses,
	Run:   runAuthorised,
})

const authorisedYAML = `kind: Upstream
name: server
spec: {http: {url: "{UPSTREAM}"}}
---
kind: Binding
name: open
spec: {selector: {matchLabels: {}}, path: /open, upstreams: [{name: server}]}
---
kind: Binding
name: guarded
spec: {selector: {matchLabels: {}}, path: /guarded, upstreams: [{name: server}]}
---
kind: Tenant
name: acme
spec: {selectors: [{issuer: "{ISSUER}", groups: [staff]}]}
---
kind: Policy
name: guarded
spec:
  target: {bindings: [guarded]}
  identity:
    providers: [{name: idp, jwt: {issuer: "{ISSUER}", jwksUrl: "{ISSUER}/keys", audiences: [bench]}}]
  rules:
`

// authorisedConfig is the sidecar's configuration. The rule that allows the call is the last of its sort.
func authorisedConfig(upstreamURL, issuer string) string {
	var b strings.Builder
	b.WriteString(strings.NewReplacer("{UPSTREAM}", upstreamURL, "{ISSUER}", issuer).Replace(authorisedYAML))
	rule := func(format string, args ...any) { fmt.Fprintf(&b, "    - "+format+"\n", args...) }
	for i := range authorisedRules - 1 {
		switch i % 5 {
		case 0:
			rule(`{name: glob%d, action: allow, tools: ["get_%d_*", "list_%d_*"], groups: [staff]}`, i, i, i)
		case 1:
			rule(`{name: drop%d, action: deny, tools: ["drop_%d_*"]}`, i, i)
		case 2:
			rule(`{name: scope%d, action: allow, prompts: ["p%d_*"], scopes: [read]}`, i, i)
		case 3:
			rule(`{name: when%d, action: deny, when: 'tenant == "other%d" && "guests" in principal.groups'}`, i, i)
		case 4:
			rule(`{name: args%d, action: allow, tools: [put_%d], when: 'args.path.startsWith("/srv/%d/")'}`, i, i, i)
		}
	}
	rule(`{name: this, action: allow, tools: ["nul*"], groups: [staff], tenants: [acme]}`)
	return b.String()
}

func runAuthorised(ctx context.Context, b *Bench) error {
	idp, err := startIssuer()
	if err != nil {
		return err
	}
	defer idp.stop()
	token, err := idp.token()
	if err != nil {
		return err
	}
	sidecar, err := b.authorisedSidecar(ctx, idp.url)
	if err != nil {
		return err
	}
	open := sameEra{}
	c := Contest{
		Scenario: "authorised",
		Subjects: []*Subject{{"sidecar", sidecar, sidecar.URL}},
		Cases:    b.ofEra(cross("conns", "1,"+usualConns, "era", "stateless,legacy", "binding", "open,guarded")),
		Path:     func(k Case) string { return "/" + k["binding"] },
		Load: func(k Case) []string {
			args := []string{"-era", k["era"], "-conns", k["conns"]}
			if k["binding"] == "guarded" {
				args = append(args, "-header", "Authorization: Bearer "+token)
			}
			return args
		},
		Figures: func(row record.Row, s *Subject, _ map[string]record.Row) map[string]float64 {
			return open.againstOpen(row, s, b.KeepNoisy)
		},
	}
	b.Plan(b.Rows(c))
	return b.Contest(ctx, c)
}

func (b *Bench) authorisedSidecar(ctx context.Context, issuer string) (*layout.Process, error) {
	up, err := b.Layout.Null(ctx)
	if err != nil {
		return nil, err
	}
	return b.Layout.Sidecar(ctx, authorisedConfig(up.URL, issuer))
}

// againstOpen are a row's figures. It notes those of the open binding, unless noisy is false and the row was noisy.
func (e sameEra) againstOpen(row record.Row, s *Subject, noisy bool) map[string]float64 {
	v := callFigures(row, s)
	delete(v, "p99_over_p50")
	key := sameEraKey{row.Case["era"], row.Case["conns"], row.Round}
	if row.Case["binding"] == "open" {
		delete(e, key)
		if noisy || row.Discarded == "" {
			e[key] = v
		}
		return v
	}
	if open := e[key]["cpu_us"]; open > 0 && v["cpu_us"] > 0 {
		v["ratio_open"] = v["cpu_us"] / open
	}
	return v
}

// issuer signs tokens and serves its key.
type issuer struct {
	url    string
	key    *ecdsa.PrivateKey
	server *http.Server
}

func startIssuer() (*issuer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	i := &issuer{url: "http://" + l.Addr().String(), key: key}
	i.server = &http.Server{Handler: http.HandlerFunc(i.keys), ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = i.server.Serve(l) }() // it returns when stop is called
	return i, nil
}

func (i *issuer) stop() { _ = i.server.Close() } // nothing of it is of use any more

func (i *issuer) keys(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{ // who asked is gone: it asks again
		{Key: i.key.Public(), KeyID: "bench", Algorithm: string(jose.ES256), Use: "sig"},
	}})
}

// token is good for longer than any run takes.
func (i *issuer) token() (string, error) {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: i.key, KeyID: "bench"}},
		(&jose.SignerOptions{}).WithType("at+jwt"))
	if err != nil {
		return "", err
	}
	now := time.Now()
	return jwt.Signed(signer).Claims(map[string]any{
		"iss": i.url, "sub": "alice", "aud": "bench", "iat": now.Unix(), "exp": now.Add(24 * time.Hour).Unix(), "jti": "bench-1",
		"groups": []string{"staff", "dev"}, "scope": "read write",
	}).Serialize()
}
