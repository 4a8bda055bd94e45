package credential

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"mime"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Who the sidecar is at the authority: with characters that Basic authentication has to encode (RFC 6749, section 2.3.1).
const (
	clientID     = "side car:1"
	clientSecret = "s%cret+/=planted-client-secret"
)

// authority is a token endpoint that takes requests of RFC 6749 and RFC 8693 to the letter and nothing else.
type authority struct {
	t   *testing.T
	url string

	mu       sync.Mutex // guards below
	requests []url.Values
	answer   func(http.ResponseWriter, url.Values) // nil: a token
	life     time.Duration
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, life: time.Hour}
	s := httptest.NewServer(a)
	t.Cleanup(s.Close)
	a.url = s.URL + "/token"
	return a
}

// ServeHTTP implements http.Handler.
func (a *authority) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	form := a.read(r)
	a.mu.Lock()
	a.requests = append(a.requests, form)
	n, answer, life := len(a.requests), a.answer, a.life
	a.mu.Unlock()
	if answer != nil {
		answer(w, form)
		return
	}
	body := map[string]any{
		"access_token": fmt.Sprintf("planted-given-%d", n), "token_type": "bearer", "expires_in": int(life.Seconds()),
	}
	if form.Has("subject_token") {
		body["access_token"] = fmt.Sprintf("planted-given-%d-for-%s", n, form.Get("subject_token"))
		body["issued_token_type"] = typeAccessToken
	}
	reply(w, 200, body)
}

// reply answers in JSON (RFC 6749, section 5).
func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

// refuses is an answer with an error of OAuth, whose other words hold what no log may.
func refuses(status int, code string) func(http.ResponseWriter, url.Values) {
	return func(w http.ResponseWriter, form url.Values) {
		reply(w, status, map[string]string{
			"error": code, "error_description": "planted-words about " + form.Get("subject_token") + clientSecret, "error_uri": "planted-words",
		})
	}
}

func (a *authority) answers(f func(http.ResponseWriter, url.Values)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer = f
}

// seen are the requests so far.
func (a *authority) seen() []url.Values {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.requests)
}

// read holds a request to the specifications.
func (a *authority) read(r *http.Request) url.Values {
	bad := func(format string, args ...any) { a.t.Errorf("token request: "+format, args...) }
	if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); r.Method != "POST" || media != "application/x-www-form-urlencoded" {
		bad("%s of %q, want POST of a form (RFC 6749, 3.2)", r.Method, media)
	}
	if r.URL.RawQuery != "" {
		bad("parameters in the URL: %s", r.URL.RawQuery)
	}
	user, password, ok := r.BasicAuth()
	id, _ := url.QueryUnescape(user)
	secret, _ := url.QueryUnescape(password)
	if !ok || id != clientID || secret != clientSecret {
		bad("Basic %q %q, want %q %q (RFC 6749, 2.3.1)", id, secret, clientID, clientSecret)
	}
	if err := r.ParseForm(); err != nil {
		bad("%v", err)
	}
	form := r.PostForm
	for name, values := range form {
		if len(values) != 1 && name != "resource" && name != "audience" {
			bad("%s %d times (RFC 6749, 3.2)", name, len(values))
		}
		if slices.Contains(values, "") {
			bad("%s without a value", name)
		}
	}
	for _, name := range []string{"client_id", "client_secret", "actor_token", "actor_token_type"} {
		if form.Has(name) {
			bad("has %s", name)
		}
	}
	if scope := form.Get("scope"); scope != strings.Join(strings.Fields(scope), " ") {
		bad("scope %q (RFC 6749, 3.3)", scope)
	}
	if u, err := url.Parse(form.Get("resource")); err != nil || !u.IsAbs() || u.Fragment != "" {
		bad("resource %q is not an absolute URI without a fragment (RFC 8707, 2)", form.Get("resource"))
	}
	switch grant := form.Get("grant_type"); grant {
	case "client_credentials":
		if form.Has("subject_token") || form.Has("subject_token_type") || form.Has("requested_token_type") {
			bad("client credentials with %v", form)
		}
	case grantExchange:
		if form.Get("subject_token") == "" || form.Get("subject_token_type") != typeAccessToken || form.Get("requested_token_type") != typeAccessToken {
			bad("an exchange with %v (RFC 8693, 2.1)", form)
		}
	default:
		bad("grant_type %q", grant)
	}
	return form
}

// spec is an Upstream whose credential is obtained there.
func (a *authority) spec(exchanges bool, change ...func(*outriggerv1.TokenEndpoint)) *outriggerv1.Upstream {
	e := &outriggerv1.TokenEndpoint{
		Url: a.url, ClientId: clientID,
		ClientSecret: &outriggerv1.ClientSecret{Source: &outriggerv1.ClientSecret_Secret{
			Secret: &outriggerv1.SecretReference{Name: "own", Key: "secret"},
		}},
	}
	for _, f := range change {
		f(e)
	}
	c := &outriggerv1.Credential{Source: &outriggerv1.Credential_ClientCredentials{
		ClientCredentials: &outriggerv1.ClientCredentials{Endpoint: e},
	}}
	if exchanges {
		c.Source = &outriggerv1.Credential_TokenExchange{TokenExchange: &outriggerv1.TokenExchange{Endpoint: e}}
	}
	return &outriggerv1.Upstream{
		Name: "up", Credential: c,
		Transport: &outriggerv1.Upstream_Http{Http: &outriggerv1.HTTPTransport{Url: "https://server.example/mcp"}},
	}
}

// secrets are what spec names.
func secrets() Secrets {
	return SecretsOf([]*outriggerv1.Secret{{Name: "own", Values: map[string]string{"secret": clientSecret + "\n"}}})
}

// clock is a time that a test moves.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Now()} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// newSource makes the Source of a spec, with Sources of its own that end with the test.
func newSource(t *testing.T, u *outriggerv1.Upstream, o Options) *Source {
	t.Helper()
	all := New(o)
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
		defer stop()
		if err := all.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	s, err := all.For(u, secrets())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// with is a caller with a token.
func with(token string) *identity.Principal {
	return &identity.Principal{ID: cmp.Or(token, "anonymous"), Token: token}
}

// settle waits until no request is under way for a caller.
func settle(t *testing.T, s *Source, caller *identity.Principal) {
	t.Helper()
	at, err := s.tokens.slotOf(caller, s.tokens.sources.now())
	if err != nil {
		t.Fatal(err)
	}
	at.mu.Lock()
	f := at.flight
	at.mu.Unlock()
	if f == nil {
		return
	}
	select {
	case <-f.done:
	case <-time.After(30 * time.Second):
		t.Fatal("a request is still under way")
	}
}

// testCertificate is a certificate in PEM, of which each n has its own.
func testCertificate(t *testing.T, n int) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(int64(n + 1)), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
