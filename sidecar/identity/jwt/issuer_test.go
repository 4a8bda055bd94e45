package jwt

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"go.uber.org/goleak"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const audience = "https://mcp.example/weather"

// Keys that tests sign with. Making one takes a while, so there are few.
var (
	rsaKey   = must(rsa.GenerateKey(rand.Reader, 2048))
	otherRSA = must(rsa.GenerateKey(rand.Reader, 2048))
	ecKey    = must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// fake is an issuer with whatever faults a test wants.
type fake struct {
	issuer   string
	metadata atomic.Int64 // requests
	jwks     atomic.Int64 // requests

	mu    sync.Mutex // guards below
	keys  []jose.JSONWebKey
	fault http.HandlerFunc // answers in place of the JWKS, where it is not nil
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	keys, fault := f.keys, f.fault
	f.mu.Unlock()
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		f.metadata.Add(1)
		json.NewEncoder(w).Encode(map[string]any{"issuer": f.issuer, "jwks_uri": f.issuer + "/keys"})
	case "/keys":
		f.jwks.Add(1)
		if fault != nil {
			fault(w, r)
			return
		}
		json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: keys})
	default:
		http.NotFound(w, r)
	}
}

// has sets the issuer's keys.
func (f *fake) has(keys ...jose.JSONWebKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.keys = keys
}

// fails sets what answers in place of the JWKS; nil: all is well.
func (f *fake) fails(fault http.HandlerFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

// down answers as a server that is not there.
func down(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// hangs answers when the client has left.
func hangs(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func public(id string, of crypto.Signer) jose.JSONWebKey {
	return jose.JSONWebKey{Key: of.Public(), KeyID: id, Use: "sig"}
}

// newFake serves an issuer on a loopback port until the test's end.
func newFake(t testing.TB, keys ...jose.JSONWebKey) *fake {
	t.Helper()
	f := &fake{keys: keys}
	f.issuer = newServer(t, f)
	return f
}

// pipes is a network in memory, for tests in a bubble of synctest.
type pipes struct {
	waiting chan net.Conn
	closed  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.waiting:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	here, there := net.Pipe()
	select {
	case p.waiting <- there:
		return here, nil
	case <-p.closed:
		return nil, errors.New("nobody listens")
	}
}

// newBubble serves an issuer in memory and makes Issuers that can reach it alone. The caller is in a bubble of synctest.
func newBubble(t *testing.T, o Options, keys ...jose.JSONWebKey) (*fake, *Issuers) {
	t.Helper()
	f := &fake{issuer: "http://127.0.0.1", keys: keys}
	p := &pipes{waiting: make(chan net.Conn), closed: make(chan struct{})}
	s := &http.Server{Handler: f, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	served := make(chan struct{})
	go func() {
		defer close(served)
		s.Serve(p)
	}()
	o.dial = p.dial
	i := newIssuers(t, o)
	t.Cleanup(func() {
		close(p.closed)
		s.Close()
		<-served
	})
	return f, i
}

// newIssuers makes Issuers that are closed at the test's end.
func newIssuers(t testing.TB, o Options) *Issuers {
	t.Helper()
	i := New(o)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := i.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return i
}

// providerOf is a provider with defaults, changed by whoever wants to.
func providerOf(issuer string, change ...func(*outriggerv1.JWTProvider)) *outriggerv1.JWTProvider {
	p := &outriggerv1.JWTProvider{Issuer: issuer}
	for _, c := range change {
		c(p)
	}
	policy := &outriggerv1.Policy{Identity: &outriggerv1.Identity{Providers: []*outriggerv1.Provider{
		{Name: "idp", Kind: &outriggerv1.Provider_Jwt{Jwt: p}},
	}}}
	return resource.WithDefaults(policy).GetIdentity().GetProviders()[0].GetJwt()
}

func verifierOf(t testing.TB, i *Issuers, p *outriggerv1.JWTProvider) *Verifier {
	t.Helper()
	v, err := i.Verifier(Spec{Name: "idp", Provider: p, Audiences: []string{audience}})
	if err != nil {
		t.Fatal(err)
	}
	if i.dial == nil { // outside of a bubble a busy machine may take longer than a token waits
		v.source.firstForTest()
	}
	return v
}

// firstForTest waits for the first fetch, which somebody else may have begun or ended.
func (s *source) firstForTest() {
	s.mu.Lock()
	flight := s.flight
	if flight == nil && s.due.IsZero() {
		flight = s.fetchLocked()
	}
	s.mu.Unlock()
	if flight != nil {
		<-flight
	}
}

// payload is the claims of a good token for jo, with those of change in their place; nil takes one away.
func payload(issuer string, now time.Time, change map[string]any) string {
	c := map[string]any{
		"iss": issuer, "aud": audience, "sub": "jo", "jti": "t-1", "iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
		"scope": "write read", "groups": []string{"staff", "admins"},
	}
	for name, value := range change {
		if value == nil {
			delete(c, name)
		} else {
			c[name] = value
		}
	}
	return string(must(json.Marshal(c)))
}

func b64(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

// raw is a token of exactly this header and payload, with a good RS256 signature.
func raw(header, payload string, by *rsa.PrivateKey) string {
	input := b64(header) + "." + b64(payload)
	sum := sha256.Sum256([]byte(input))
	return input + "." + b64(string(must(rsa.SignPKCS1v15(rand.Reader, by, crypto.SHA256, sum[:]))))
}

// token is a good token of an issuer, with changed claims.
func token(issuer, kid string, by any, change map[string]any) []byte {
	algorithm := jose.RS256
	if _, ok := by.(*ecdsa.PrivateKey); ok {
		algorithm = jose.ES256
	}
	return signed(algorithm, kid, by, payload(issuer, time.Now(), change))
}

func signed(algorithm jose.SignatureAlgorithm, kid string, by any, payload string) []byte {
	key := jose.SigningKey{Algorithm: algorithm, Key: jose.JSONWebKey{Key: by, KeyID: kid}}
	signer := must(jose.NewSigner(key, (&jose.SignerOptions{}).WithType("at+jwt")))
	return []byte(must(must(signer.Sign([]byte(payload))).CompactSerialize()))
}

// reasonOf is the Reason of an error, "unavailable", or the error's own text.
func reasonOf(err error) string {
	var refused *Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &refused):
		return string(refused.Reason)
	case errors.Is(err, ErrUnavailable):
		return "unavailable"
	}
	return err.Error()
}

// expect verifies a token and reports what is unlike the reason that is wanted; "" is none.
func expect(t testing.TB, v *Verifier, token []byte, want string) *Token {
	t.Helper()
	got, err := v.Verify(t.Context(), token)
	if reasonOf(err) != want {
		t.Fatalf("got %q, want %q, for %s", reasonOf(err), want, readable(token))
	}
	return got
}

// readable is a token's header and payload.
func readable(token []byte) string {
	var out bytes.Buffer
	for i, part := range bytes.Split(token, []byte{'.'}) {
		if i < 2 {
			io.Copy(&out, base64.NewDecoder(base64.RawURLEncoding, bytes.NewReader(part)))
			out.WriteByte(' ')
		}
	}
	return out.String()
}

// signer is a private key.
type signer = crypto.Signer

func ecdsaKey(bits int) (*ecdsa.PrivateKey, error) {
	curve := elliptic.P384()
	if bits == 521 {
		curve = elliptic.P521()
	}
	return ecdsa.GenerateKey(curve, rand.Reader)
}

func edKey() (ed25519.PrivateKey, error) {
	_, k, err := ed25519.GenerateKey(rand.Reader)
	return k, err
}

// newServer serves a handler on a loopback port until the test's end, and returns its URL.
func newServer(t testing.TB, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}
