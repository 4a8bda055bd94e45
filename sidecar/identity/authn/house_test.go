package authn

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/prometheus/client_golang/prometheus"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/apikey"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/jwt"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/tenant"
)

const resourceURL = "https://mcp.example/desk/mcp"

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func newKey() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) }

// issuer is an authorization server's keys, on a loopback port.
type issuer struct {
	url string
	key *ecdsa.PrivateKey
}

func newIssuer(t testing.TB) *issuer {
	t.Helper()
	i := &issuer{key: newKey()}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: i.key.Public(), KeyID: "k", Use: "sig"}}})
	}))
	t.Cleanup(s.Close)
	i.url = s.URL
	return i
}

func (i *issuer) provider(name string) *outriggerv1.Provider {
	return &outriggerv1.Provider{Name: name, Kind: &outriggerv1.Provider_Jwt{Jwt: &outriggerv1.JWTProvider{
		Issuer: i.url, JwksUrl: i.url + "/keys", Claims: &outriggerv1.ClaimPaths{Tenant: "org"},
	}}}
}

// token is a good one for ann, with claims changed; nil takes one away.
func (i *issuer) token(change map[string]any) string {
	claims := map[string]any{
		"iss": i.url, "aud": resourceURL, "sub": "ann", "jti": "t-1", "iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(),
		"scope": "read", "groups": []string{"staff"},
	}
	for name, value := range change {
		claims[name] = value
	}
	signer := must(jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: i.key, KeyID: "k"}}, nil))
	return must(must(signer.Sign(must(json.Marshal(claims)))).CompactSerialize())
}

// newIssuers are the issuers that a sidecar knows, until the test's end.
func newIssuers(t testing.TB, log *slog.Logger) *jwt.Issuers {
	t.Helper()
	i := jwt.New(jwt.Options{Log: log})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := i.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return i
}

// authority signs client certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority() *authority {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "mesh"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	key := newKey()
	return &authority{must(x509.ParseCertificate(must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)))), key}
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

func (a *authority) issue(spiffe string) *tls.Certificate {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour), URIs: []*url.URL{must(url.Parse(spiffe))},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	key := newKey()
	der := must(x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key))
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: must(x509.ParseCertificate(der))}
}

// state is a connection whose client has presented a certificate and been verified.
func (a *authority) state(c *tls.Certificate) *tls.ConnectionState {
	return &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c.Leaf}, VerifiedChains: [][]*x509.Certificate{{c.Leaf, a.cert}}}
}

var meshProvider = &outriggerv1.Provider{Name: "mesh", Kind: &outriggerv1.Provider_Certificate{
	Certificate: &outriggerv1.CertificateProvider{SpiffeIds: []string{"spiffe://example/agents/*"}},
}}

// house is a sidecar with one binding that takes everything, and what callers need for it.
type house struct {
	*world
	issuers  *jwt.Issuers
	registry *prometheus.Registry
	all      *Authenticators
	idp, hr  *issuer
	mesh     *authority
	identity *outriggerv1.Identity
	tenants  []*outriggerv1.Tenant
}

func newHouse(t testing.TB, log io.Writer) *house {
	t.Helper()
	logger := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	h := &house{world: newWorld("ci"), issuers: newIssuers(t, logger), registry: prometheus.NewRegistry(), idp: newIssuer(t), hr: newIssuer(t), mesh: newAuthority()}
	h.all = New(Options{Log: logger, Issuers: h.issuers, Registerer: h.registry})
	h.identity = &outriggerv1.Identity{Providers: []*outriggerv1.Provider{h.idp.provider("idp"), h.hr.provider("hr"), keysProvider, meshProvider}}
	h.tenants = []*outriggerv1.Tenant{
		{Name: "acme"}, {Name: "staff", Selectors: []*outriggerv1.TenantSelector{{Groups: []string{"tenanted"}}}},
		{Name: "closed", Disabled: true},
	}
	return h
}

// compile makes the Authenticator of h's identity, changed by whoever wants to, and waits until tokens are judged.
func (h *house) compile(t testing.TB, change ...func(*Spec)) *Authenticator {
	t.Helper()
	s := Spec{Binding: &outriggerv1.Binding{Name: "desk", ExternalUrl: resourceURL}, Identity: h.identity,
		Keys: apikey.NewIndex(h.keys, []byte("pepper")), Tenants: tenant.NewIndex(h.tenants)}
	for _, c := range change {
		c(&s)
	}
	s.Identity = resource.WithDefaults(&outriggerv1.Policy{Identity: s.Identity}).GetIdentity()
	a, err := h.all.Compile(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []*issuer{h.idp, h.hr} { // on a busy machine keys may take longer than a request waits
		for begun := time.Now(); ; {
			_, refused := a.Authenticate(t.Context(), header("Authorization", "Bearer "+i.token(map[string]any{"sub": "nobody"})), "", nil)
			if refused == nil || refused.Reason != "issuer_unavailable" || time.Since(begun) > 30*time.Second {
				break
			}
		}
	}
	return a
}

// let is the principal of a request that has to be let in.
func let(t testing.TB, a *Authenticator, h http.Header, state *tls.ConnectionState) *identity.Principal {
	t.Helper()
	who, refused := a.Authenticate(t.Context(), h, "", state)
	if refused != nil {
		t.Fatalf("refused: %d %s: %s", refused.Status, refused.Reason, refused.Message)
	}
	return who
}
