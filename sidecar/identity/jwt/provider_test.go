package jwt

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
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

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// idp is the example server of zitadel/oidc, run over HTTP, with signing keys that can be rotated and access tokens that are
// JSON web tokens. Its client sid1 gets them by its credentials (RFC 6749, section 4.4).
type idp struct {
	*storage.Storage
	url  string
	gone atomic.Bool // it then answers nothing

	mu       sync.Mutex // guards below
	keys     []signingKey
	audience string
	life     time.Duration
}

// newIDP runs one until the test's end.
func newIDP(t *testing.T) *idp {
	t.Helper()
	s := httptest.NewUnstartedServer(nil)
	url := "http://" + s.Listener.Addr().String()
	p := &idp{
		Storage: storage.NewStorage(storage.NewUserStore(url)), url: url,
		keys: []signingKey{{"one", rsaKey}}, audience: audience, life: 5 * time.Minute,
	}
	before := slog.Default() // which the example replaces, and logs to
	t.Cleanup(func() { slog.SetDefault(before) })
	inner := exampleop.SetupServer(url, p, slog.New(slog.DiscardHandler), false)
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.gone.Load() {
			panic(http.ErrAbortHandler)
		}
		inner.ServeHTTP(w, r)
	})
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	s.Start()
	t.Cleanup(s.Close)
	return p
}

// signingKey is a key of the server's. It is an op.SigningKey, and an op.Key by publicKey.
type signingKey struct {
	id  string
	key signer
}

func (k signingKey) ID() string { return k.id }
func (k signingKey) Key() any   { return k.key }
func (k signingKey) SignatureAlgorithm() jose.SignatureAlgorithm {
	if k.key == signer(ecKey) {
		return jose.ES256
	}
	return jose.RS256
}

type publicKey struct{ signingKey }

func (k publicKey) Key() any                           { return k.key.Public() }
func (k publicKey) Use() string                        { return "sig" }
func (k publicKey) Algorithm() jose.SignatureAlgorithm { return k.SignatureAlgorithm() }

// signsWith sets the key that the server signs with, and those that it shows beside it.
func (p *idp) signsWith(k signingKey, shown ...signingKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys = append([]signingKey{k}, shown...)
}

// issues sets what the server's next tokens are like.
func (p *idp) issues(audience string, life time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.audience, p.life = audience, life
}

// SigningKey, SignatureAlgorithms and KeySet are op.Storage's.
func (p *idp) SigningKey(context.Context) (op.SigningKey, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.keys[0], nil
}

func (p *idp) SignatureAlgorithms(context.Context) ([]jose.SignatureAlgorithm, error) {
	return []jose.SignatureAlgorithm{jose.RS256, jose.ES256}, nil
}

func (p *idp) KeySet(context.Context) (all []op.Key, _ error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.keys {
		all = append(all, publicKey{k})
	}
	return all, nil
}

// ClientCredentials is op.ClientCredentialsStorage's. The client's access tokens are JSON web tokens.
func (p *idp) ClientCredentials(ctx context.Context, id, secret string) (op.Client, error) {
	c, err := p.Storage.ClientCredentials(ctx, id, secret)
	if err != nil {
		return nil, err
	}
	return webTokens{c}, nil
}

type webTokens struct{ op.Client }

func (webTokens) AccessTokenType() op.AccessTokenType { return op.AccessTokenTypeJWT }

func (p *idp) ClientCredentialsTokenRequest(_ context.Context, id string, scopes []string) (op.TokenRequest, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &oidc.JWTTokenRequest{Subject: id, Audience: []string{"https://elsewhere.example", p.audience}, Scopes: scopes}, nil
}

// CreateAccessToken and GetPrivateClaimsFromScopes are op.Storage's.
func (p *idp) CreateAccessToken(ctx context.Context, r op.TokenRequest) (id string, expires time.Time, err error) {
	id, _, err = p.Storage.CreateAccessToken(ctx, r)
	p.mu.Lock()
	defer p.mu.Unlock()
	return id, time.Now().Add(p.life), err
}

func (p *idp) GetPrivateClaimsFromScopes(_ context.Context, _, _ string, scopes []string) (map[string]any, error) {
	return map[string]any{"scope": strings.Join(scopes, " "), "groups": []string{"staff"}, "org": map[string]any{"id": "acme"}}, nil
}

// token asks the server for one as its client does.
func (p *idp) token(t *testing.T) []byte {
	t.Helper()
	form := url.Values{"grant_type": {"client_credentials"}, "scope": {"tools:read tools:call"}, "client_id": {"sid1"}, "client_secret": {"verysecret"}}
	answer, err := http.PostForm(p.url+"/oauth/token", form)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	var got struct {
		Token string `json:"access_token"`
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil || json.Unmarshal(body, &got) != nil || strings.Count(got.Token, ".") != 2 {
		t.Fatalf("the server's answer is %d %s %v, want a JSON web token", answer.StatusCode, body, err)
	}
	return []byte(got.Token)
}

func (p *idp) provider() *outriggerv1.JWTProvider {
	return providerOf(p.url, func(j *outriggerv1.JWTProvider) { j.Claims = &outriggerv1.ClaimPaths{Tenant: "org.id"} })
}

func TestARealProvidersTokenIsItsCaller(t *testing.T) {
	p := newIDP(t)
	got := expect(t, verifierOf(t, newIssuers(t, Options{}), p.provider()), p.token(t), "")
	who := got.Principal
	if who.ID != p.url+"|sid1" || !slices.Equal(who.Scopes, []string{"tools:call", "tools:read"}) ||
		!slices.Equal(who.Groups, []string{"staff"}) || got.TenantClaim != "acme" || who.JTI == "" || who.IssuedAt.IsZero() {
		t.Errorf("got %+v and tenant %q, want client sid1 with its scopes, group and tenant", who, got.TenantClaim)
	}
}

func TestARealProviderRotatesItsKeys(t *testing.T) {
	p := newIDP(t)
	v := verifierOf(t, newIssuers(t, Options{}), p.provider())
	first := p.token(t)
	held := expect(t, v, first, "")
	one, two := signingKey{"one", rsaKey}, signingKey{"two", ecKey}
	p.signsWith(two, one)
	next := p.token(t) // of a kid that is unknown
	for range 10 {
		if _, err := v.Verify(t.Context(), next); reasonOf(err) != "unavailable" {
			break // else the machine is busy, and the fetch is still on its way
		}
	}
	expect(t, v, next, "")
	if expect(t, v, first, "") != held {
		t.Error("a token of a key that is still shown is another one")
	}
	p.signsWith(two)
	v.source.fetchForTest(t)
	expect(t, v, first, "key_unknown")
	expect(t, v, p.token(t), "")
}

// fetchForTest fetches keys as if they were due.
func (s *source) fetchForTest(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	for s.flight != nil {
		flight := s.flight
		s.mu.Unlock()
		<-flight
		s.mu.Lock()
	}
	flight := s.fetchLocked()
	s.mu.Unlock()
	<-flight
}

func TestARealProvidersTokensExpireAndAreForTheirAudience(t *testing.T) {
	p := newIDP(t)
	var later atomic.Int64 // nanoseconds that the sidecar's clock is ahead
	v := verifierOf(t, newIssuers(t, Options{Now: func() time.Time { return time.Now().Add(time.Duration(later.Load())) }}), p.provider())
	short := p.token(t)
	expect(t, v, short, "")
	later.Store(int64(5*time.Minute + 31*time.Second))
	expect(t, v, short, "expired")
	later.Store(0)
	p.issues(audience+"/other", time.Hour)
	expect(t, v, p.token(t), "audience")
	p.issues(audience, -time.Hour)
	expect(t, v, p.token(t), "expired")
}

// What a stranger can make of a real token and of the keys that everybody can see.
func TestARealProvidersKeysCannotBeTurnedAgainstIt(t *testing.T) {
	p := newIDP(t)
	p.signsWith(signingKey{"one", rsaKey}, signingKey{"two", ecKey})
	v := verifierOf(t, newIssuers(t, Options{}), p.provider())
	good := p.token(t)
	expect(t, v, good, "")
	parts := strings.Split(string(good), ".")
	claims := string(decode([]byte(parts[1])))
	der := must(x509.MarshalPKIXPublicKey(rsaKey.Public()))
	asPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	own := jose.JSONWebKey{Key: otherRSA.Public(), KeyID: "one"}
	root := strings.Replace(claims, `"sub":"sid1"`, `"sub":"root"`, 1)
	for name, test := range map[string]struct {
		token string
		want  Reason
	}{
		"its public key as a shared secret, PEM": {string(signed(jose.HS256, "one", asPEM, claims)), Algorithm},
		"its public key as a shared secret, DER": {string(signed(jose.HS512, "one", der, claims)), Algorithm},
		"no algorithm":                           {b64(`{"alg":"none","kid":"one"}`) + "." + parts[1] + ".", Malformed},
		"no algorithm, some signature":           {b64(`{"alg":"none","kid":"one"}`) + "." + parts[1] + "." + parts[2], Algorithm},
		"None":                                   {b64(`{"alg":"None","kid":"one"}`) + "." + parts[1] + "." + parts[2], Algorithm},
		"another subject":                        {parts[0] + "." + b64(root) + "." + parts[2], Signature},
		"the kid of its other key":               {b64(`{"alg":"RS256","kid":"two"}`) + "." + parts[1] + "." + parts[2], Algorithm},
		"the algorithm of its other key":         {b64(`{"alg":"ES256","kid":"one"}`) + "." + parts[1] + "." + parts[2], Algorithm},
		"a key of one's own":                     {string(signed(jose.RS256, "one", otherRSA, root)), Signature},
		"a key of one's own, embedded":           {raw(`{"alg":"RS256","jwk":`+string(must(own.MarshalJSON()))+`}`, root, otherRSA), Malformed},
		"a key of one's own, linked":             {raw(`{"alg":"RS256","kid":"one","jku":"`+p.url+`/keys"}`, root, otherRSA), Malformed},
		"a signature of nothing":                 {parts[0] + "." + parts[1] + "." + b64(strings.Repeat("\x00", 256)), Signature},
		"an ECDSA signature of zeros":            {b64(`{"alg":"ES256","kid":"two"}`) + "." + parts[1] + "." + b64(strings.Repeat("\x00", 64)), Signature},
		"a short signature":                      {parts[0] + "." + parts[1] + ".AA", Signature},
	} {
		t.Run(name, func(t *testing.T) { expect(t, v, []byte(test.token), string(test.want)) })
	}
}

func TestARealProviderThatGoesDownAndComesBack(t *testing.T) {
	p := newIDP(t)
	v := verifierOf(t, newIssuers(t, Options{}), p.provider())
	before := p.token(t)
	expect(t, v, before, "")
	another := p.token(t)
	p.gone.Store(true)
	v.source.fetchForTest(t)
	expect(t, v, before, "")
	expect(t, v, another, "")
	expect(t, v, token(p.url, "rotated", otherRSA, nil), "unavailable")
	p.gone.Store(false)
	p.signsWith(signingKey{"rotated", otherRSA})
	v.source.fetchForTest(t)
	expect(t, v, p.token(t), "")
	expect(t, v, before, "key_unknown")
}
