package credential_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/prometheus/client_golang/prometheus"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
	"github.com/outrigger-mesh/outrigger/sidecar/admin"
	"github.com/outrigger-mesh/outrigger/sidecar/config"
	"github.com/outrigger-mesh/outrigger/sidecar/credential"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/authn"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/jwt"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/proxy"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
)

// buffer is what is written to it by several goroutines.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// signer is an issuer of the callers' tokens.
type signer struct {
	url string
	jose.Signer
}

func newSigner(t *testing.T) *signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "one", Algorithm: "ES256", Use: "sig"}}})
	}))
	t.Cleanup(s.Close)
	made, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "one"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &signer{s.URL, made}
}

// token is one of a subject's.
func (s *signer) token(t *testing.T, subject string) string {
	t.Helper()
	signed, err := s.Sign(fmt.Appendf(nil, `{"iss":%q,"sub":%q,"aud":"us","exp":%d,"iat":%d}`, s.url, subject, time.Now().Add(time.Hour).Unix(), time.Now().Unix()))
	if err != nil {
		t.Fatal(err)
	}
	text, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// sidecar is a whole one, but for its command.
type sidecar struct {
	*proxy.Proxy
	url, admin  string
	log, access *buffer
	flush       func() // the access log, for good
}

func newSidecar(t *testing.T) *sidecar {
	t.Helper()
	s := &sidecar{log: new(buffer), access: new(buffer)}
	log := slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	reg := prometheus.NewRegistry()
	all := credential.New(credential.Options{Log: log, Registerer: reg})
	issuers := jwt.New(jwt.Options{Log: log, Registerer: reg})
	d := proxy.Dialer{Log: log, Credentials: all, Version: "test"}
	lines := telemetry.NewAccessLog(s.access)
	s.flush = sync.OnceFunc(lines.Close)
	s.Proxy = proxy.New(proxy.Options{
		Log: log, Metrics: telemetry.NewMetrics(reg, "test"), Access: lines, Dial: d.Dial, Outside: d.Outside, Federate: d.Federate,
		Callers: authn.New(authn.Options{Log: log, Issuers: issuers, Registerer: reg}),
	})
	front := httptest.NewServer(s.Proxy)
	back := httptest.NewServer(admin.Handler(admin.Options{
		Gatherer: reg, Ready: s.Ready, Running: s.Running, Source: func() any { return nil },
	}))
	s.url, s.admin = front.URL+"/mcp", back.URL
	t.Cleanup(func() {
		front.Close()
		back.Close()
		ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
		defer stop()
		s.Close(ctx)
		if err := all.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := issuers.Close(ctx); err != nil {
			t.Error(err)
		}
		s.flush()
	})
	return s
}

// run applies a configuration of one server and one binding, whose callers have tokens of an issuer.
func (s *sidecar) run(t *testing.T, u *outriggerv1.Upstream, issuer string, values map[string]string) {
	t.Helper()
	refused := s.Apply(&config.Config{
		Generation: "1",
		Upstreams:  []*outriggerv1.Upstream{u},
		Bindings: []*outriggerv1.Binding{{
			Name: "main", Path: "/mcp", Selector: &outriggerv1.Selector{}, Upstreams: []*outriggerv1.UpstreamReference{{Name: "up"}},
		}},
		Policies: []*outriggerv1.Policy{resource.WithDefaults(&outriggerv1.Policy{Name: "who", Identity: &outriggerv1.Identity{Anonymous: true, Providers: []*outriggerv1.Provider{
			{Name: "idp", Kind: &outriggerv1.Provider_Jwt{Jwt: &outriggerv1.JWTProvider{Issuer: issuer, JwksUrl: issuer, Audiences: []string{"us"}}}},
			{Name: "keys", Kind: &outriggerv1.Provider_Keys{Keys: &outriggerv1.KeyProvider{Header: "X-Team-Key"}}},
		}}})},
		Secrets: []*outriggerv1.Secret{{Name: "s", Values: values}},
	})
	if len(refused) > 0 {
		t.Fatalf("refused %v", refused)
	}
}

// echo makes a call with a bearer token, if that is not empty.
func (s *sidecar) echo(t *testing.T, token string) (status int, body string) {
	t.Helper()
	r, err := http.NewRequestWithContext(testContext(t), "POST", s.url, strings.NewReader(
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"hello"},`+meta+`}}`))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream", mcp.HeaderVersion: mcp.Version20260728,
		mcp.HeaderMethod: "tools/call", mcp.HeaderName: "echo", "Cookie": "session=planted-cookie", "Proxy-Authorization": "Basic planted-proxy",
	} {
		r.Header.Set(name, value)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return s.do(t, r)
}

func (s *sidecar) do(t *testing.T, r *http.Request) (status int, body string) {
	t.Helper()
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b) + fmt.Sprint(res.Header)
}

// shown is everything that operators see.
func (s *sidecar) shown(t *testing.T) map[string]string {
	t.Helper()
	s.flush()
	all := map[string]string{"the log": s.log.String(), "the access log": s.access.String()}
	for _, path := range []string{"/config", "/metrics", "/readyz"} {
		r, err := http.NewRequestWithContext(testContext(t), "GET", s.admin+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, all[path] = s.do(t, r)
	}
	return all
}

func TestNoSecretIsShownAndNoCallersTokenGoesOn(t *testing.T) {
	issuer, i := newSigner(t), newIssuer(t)
	w, u := statelessLane(t)
	u.Credential = i.credential(true)
	u.Credential.GetTokenExchange().GetEndpoint().Url += "/?key=planted-query"
	values := map[string]string{"client": "planted-client-secret", "value": "planted-value"}
	s := newSidecar(t)
	s.run(t, u, issuer.url, values)
	ann := issuer.token(t, "ann")
	hidden := []string{"planted", "given-", ann}
	answer := func(token, want string) {
		t.Helper()
		status, body := s.echo(t, token)
		if !strings.Contains(body, want) {
			t.Errorf("answered %d %s, want %s", status, body, want)
		}
		for _, secret := range hidden {
			if strings.Contains(body, secret) {
				t.Errorf("the answer has %q: %s", secret, body)
			}
		}
	}
	answer(ann, "hello")
	answer("", "upstream_no_credential") // the anonymous have nothing to exchange
	answer(ann+"x", "invalid_token")
	i.refuse(`{"error":"invalid_grant","error_description":"planted-words"}`)
	answer(issuer.token(t, "bob"), "the token endpoint refused (invalid_grant)")
	i.refuse("planted-words")
	answer(issuer.token(t, "cleo"), "the token endpoint answered 400 without an error of OAuth")
	w.set(func() { w.takes = func(string) bool { return false } })
	answer(ann, "upstream_")

	for what, text := range s.shown(t) {
		for _, secret := range hidden {
			if strings.Contains(text, secret) {
				t.Errorf("%s has %q: %s", what, secret, text)
			}
		}
		if what == "/config" && !strings.Contains(text, i.url) {
			t.Errorf("there is no configuration to look into: %s", text)
		}
	}
	calls := 0
	for _, r := range w.taken() {
		for _, secret := range []string{"planted", ann} {
			if strings.Contains(r.all, secret) {
				t.Errorf("the server was sent %s", r.all)
			}
		}
		if r.rpc == "tools/call" {
			calls++
		}
	}
	if calls != 1 {
		t.Errorf("%d calls came to the server, want ann's first alone", calls)
	}
}

func TestASecretThatChangesIsTakenUp(t *testing.T) {
	issuer := newSigner(t)
	w, u := statelessLane(t)
	u.Credential = &outriggerv1.Credential{Source: &outriggerv1.Credential_Secret{Secret: &outriggerv1.SecretReference{Name: "s", Key: "value"}}}
	s := newSidecar(t)
	for _, value := range []string{"first", "second"} {
		if err := s.Check(u); err != nil {
			t.Fatalf("a resource looked at alone: %v", err)
		}
		s.run(t, u, issuer.url, map[string]string{"value": value})
		s.echo(t, "")
		last := w.taken()
		if got := last[len(last)-1]; got.rpc != "tools/call" || got.authorization != value {
			t.Errorf("%s presents %q, want %q", got.rpc, got.authorization, value)
		}
	}
}
