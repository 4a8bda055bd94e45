package e2e

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"
)

// identityProvider is the example server of zitadel/oidc, with signing keys that can be rotated. Its client sid1 gets access
// tokens that are JSON web tokens by its credentials (RFC 6749, section 4.4).
type identityProvider struct {
	*storage.Storage
	url  string
	down atomic.Bool // it then answers nothing

	mu   sync.Mutex // guards below
	keys []providerKey
}

func newIdentityProvider(t *testing.T) *identityProvider {
	t.Helper()
	s := httptest.NewUnstartedServer(nil)
	at := "http://" + s.Listener.Addr().String()
	p := &identityProvider{Storage: storage.NewStorage(storage.NewUserStore(at)), url: at}
	p.rotate(t, "one")
	before := slog.Default() // which the example replaces
	t.Cleanup(func() { slog.SetDefault(before) })
	inner := exampleop.SetupServer(at, p, slog.New(slog.DiscardHandler), false)
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.down.Load() {
			panic(http.ErrAbortHandler)
		}
		inner.ServeHTTP(w, r)
	})
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	s.Start()
	t.Cleanup(s.Close)
	return p
}

// rotate has the provider sign with another key; those of before are shown beside it.
func (p *identityProvider) rotate(t *testing.T, id string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys = append([]providerKey{{id, key}}, p.keys...)
}

// providerKey is an op.SigningKey, and an op.Key as shownKey.
type providerKey struct {
	id  string
	key crypto.Signer
}

func (k providerKey) ID() string                                  { return k.id }
func (k providerKey) Key() any                                    { return k.key }
func (k providerKey) SignatureAlgorithm() jose.SignatureAlgorithm { return jose.ES256 }

type shownKey struct{ providerKey }

func (k shownKey) Key() any                           { return k.key.Public() }
func (k shownKey) Use() string                        { return "sig" }
func (k shownKey) Algorithm() jose.SignatureAlgorithm { return jose.ES256 }

// SigningKey and those below are op.Storage's.
func (p *identityProvider) SigningKey(context.Context) (op.SigningKey, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.keys[0], nil
}

func (p *identityProvider) SignatureAlgorithms(context.Context) ([]jose.SignatureAlgorithm, error) {
	return []jose.SignatureAlgorithm{jose.ES256}, nil
}

func (p *identityProvider) KeySet(context.Context) (all []op.Key, _ error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.keys {
		all = append(all, shownKey{k})
	}
	return all, nil
}

func (p *identityProvider) ClientCredentials(ctx context.Context, id, secret string) (op.Client, error) {
	c, err := p.Storage.ClientCredentials(ctx, id, secret)
	return webTokens{c}, err
}

type webTokens struct{ op.Client }

func (webTokens) AccessTokenType() op.AccessTokenType { return op.AccessTokenTypeJWT }

func (p *identityProvider) ClientCredentialsTokenRequest(_ context.Context, id string, scopes []string) (op.TokenRequest, error) {
	return &oidc.JWTTokenRequest{Subject: id, Audience: []string{audience}, Scopes: scopes}, nil
}

func (p *identityProvider) CreateAccessToken(ctx context.Context, r op.TokenRequest) (id string, expires time.Time, err error) {
	id, _, err = p.Storage.CreateAccessToken(ctx, r)
	return id, time.Now().Add(time.Hour), err
}

func (p *identityProvider) GetPrivateClaimsFromScopes(_ context.Context, _, _ string, scopes []string) (map[string]any, error) {
	return map[string]any{"scope": strings.Join(scopes, " "), "groups": []string{"staff"}}, nil
}

// token asks the provider for one as its client does.
func (p *identityProvider) token(t *testing.T, scope string) string {
	t.Helper()
	res, err := httpClient(t, "").PostForm(p.url+"/oauth/token", url.Values{"grant_type": {"client_credentials"},
		"scope": {scope}, "client_id": {"sid1"}, "client_secret": {"verysecret"}})
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var got struct {
		Token string `json:"access_token"`
	}
	body, err := io.ReadAll(res.Body)
	if err != nil || json.Unmarshal(body, &got) != nil || strings.Count(got.Token, ".") != 2 {
		t.Fatalf("the provider answered %d %s (%v), want a JSON web token", res.StatusCode, body, err)
	}
	return got.Token
}

// From a real provider's token to what its caller may do, and what explain says of that.
func TestCallersOfARealIdentityProvider(t *testing.T) {
	t.Parallel()
	idp := newIdentityProvider(t)
	p := startPlane(t, filepath.Join(t.TempDir(), "data"))
	p.apply(append(both(newPeer("peer").serve(t), ""),
		fmt.Sprintf("kind: Policy\nname: callers\nspec: {identity: {providers: [{name: staff, jwt: {issuer: %q, audiences: [%s]}}]}}\n", idp.url, audience),
		rules("rules", `{name: staff, action: allow, tools: [echo, name], groups: [staff]},
  {name: hold, action: allow, tools: [hold], groups: [staff], scopes: [hold]}, {name: no-stream, action: deny, tools: [stream]}`))...)
	s := p.joinSidecar("edge-1", p.join(), t.TempDir(), nil)
	p.runs("Policy", "rules", "edge-1 running")
	s.serves()
	token, later := idp.token(t, "tools:read"), idp.token(t, "tools:read")
	a := newAsker(t, s.url+statelessPath, token)
	eventually(t, "the provider's keys are known", func() error {
		if r, err := a.call(within(t), "1", "echo", "hello", "", ""); err != nil || r.text() != "hello" {
			return fmt.Errorf("%v (%w)", r, err)
		}
		return nil
	})
	if names, _ := a.lists(t); !slices.Equal(slices.Sorted(slices.Values(names)), []string{"echo", "name"}) {
		t.Errorf("listed are %q, want echo and name", names)
	}
	claims, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	if err != nil {
		t.Fatal(err)
	}
	for tool, want := range map[string]struct {
		status  int
		explain string
	}{
		"echo": {200, "allowed: Policy/rules allows it by rule \"staff\""}, "name": {200, "allowed"}, "credential": {403, "denied"},
		"stream": {403, "denied: Policy/rules denies it by rule \"no-stream\""}, "hold": {403, "denied"},
	} {
		s.comesTo(t, statelessPath, token, tool, want.status)
		said := p.must("explain", "--binding", "stateless", "--as", idp.url+"|sid1", "--claims", string(claims), "--call", tool, "--args", "{}")
		if !strings.HasPrefix(said, want.explain) {
			t.Errorf("explain of %s says %q, want %q", tool, said, want.explain)
		}
	}
	s.comesTo(t, statelessPath, "", "echo", http.StatusUnauthorized)

	idp.rotate(t, "two")
	next := idp.token(t, "tools:read")
	eventually(t, "a token of the provider's new key passes", func() error {
		if r, err := newAsker(t, s.url+statelessPath, next).call(within(t), "1", "echo", "hello", "", ""); err != nil || r.text() != "hello" {
			return fmt.Errorf("%v (%w)", r, err)
		}
		return nil
	})
	idp.down.Store(true)
	for _, known := range []string{token, next, later} { // the last one is new to the sidecar
		s.comesTo(t, statelessPath, known, "echo", http.StatusOK)
	}
	s.comesTo(t, statelessPath, token[:len(token)-8]+"AAAAAAAA", "echo", http.StatusUnauthorized)
}
