package credential

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// provider is the example server of zitadel/oidc, run over HTTP. Its client sid1 has tokens by its credentials; its client
// web exchanges those of others.
type provider struct {
	*storage.Storage
	url       string
	resources []string // of the last exchange
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	s := httptest.NewUnstartedServer(nil)
	url := "http://" + s.Listener.Addr().String()
	storage.RegisterClients(storage.WebClient("web", "secret"))
	p := &provider{Storage: storage.NewStorage(storage.NewUserStore(url)), url: url}
	before := slog.Default() // which the example replaces, and logs to
	t.Cleanup(func() { slog.SetDefault(before) })
	s.Config.Handler = exampleop.SetupServer(url, p, slog.New(slog.DiscardHandler), false)
	s.Start()
	t.Cleanup(s.Close)
	return p
}

// ValidateTokenExchangeRequest is op.TokenExchangeStorage's. The example lets administrators alone have their tokens
// exchanged.
func (p *provider) ValidateTokenExchangeRequest(_ context.Context, r op.TokenExchangeRequest) error {
	p.resources = r.GetResourses()
	if r.GetExchangeSubject() != "sid1" || r.GetRequestedTokenType() != oidc.AccessTokenType {
		return oidc.ErrInvalidRequest()
	}
	return nil
}

func (p *provider) spec(id, secret string, exchanges bool) *outriggerv1.Upstream {
	e := &outriggerv1.TokenEndpoint{Url: p.url + "/oauth/token", ClientId: id, Scopes: []string{"openid"}, ClientSecret: &outriggerv1.ClientSecret{
		Source: &outriggerv1.ClientSecret_Secret{Secret: &outriggerv1.SecretReference{Name: "own", Key: secret}},
	}}
	c := &outriggerv1.Credential{Source: &outriggerv1.Credential_ClientCredentials{ClientCredentials: &outriggerv1.ClientCredentials{Endpoint: e}}}
	if exchanges {
		c.Source = &outriggerv1.Credential_TokenExchange{TokenExchange: &outriggerv1.TokenExchange{Endpoint: e}}
	}
	return &outriggerv1.Upstream{
		Name: "up", Credential: c,
		Transport: &outriggerv1.Upstream_Sse{Sse: &outriggerv1.SSETransport{Url: "https://server.example/sse"}},
	}
}

func TestTokensOfARealProvider(t *testing.T) {
	p := newProvider(t)
	all := New(Options{})
	defer all.Close(t.Context())
	source := func(u *outriggerv1.Upstream) *Source {
		t.Helper()
		s, err := all.For(u, Secrets{"own": {"sid1": "verysecret", "web": "secret", "wrong": "wrong"}})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	own := must(t, source(p.spec("sid1", "sid1", false)), nil)
	if token, ok := strings.CutPrefix(own, "Bearer "); !ok || token == "" {
		t.Errorf("by its credentials sid1 has %q", own)
	}
	if _, err := source(p.spec("sid1", "wrong", false)).Value(t.Context(), nil); err == nil {
		t.Error("there is a token for a wrong secret")
	}

	hers, err := (&clientcredentials.Config{
		ClientID: "sid1", ClientSecret: "verysecret", TokenURL: p.url + "/oauth/token", Scopes: []string{"openid"}, AuthStyle: oauth2.AuthStyleInHeader,
	}).Token(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	exchange := source(p.spec("web", "web", true))
	if got := must(t, exchange, upstream.Self); got != "" {
		t.Errorf("a client that may exchange alone has %q for itself", got)
	}
	got := must(t, exchange, with(hers.AccessToken))
	if got == "Bearer "+hers.AccessToken || !strings.HasPrefix(got, "Bearer ") || len(p.resources) != 1 || p.resources[0] != "https://server.example/sse" {
		t.Errorf("a caller's token was exchanged for %q, for %v", got, p.resources)
	}
	wantNone(t, exchange, with("forged"), "got no token: the token endpoint refused (invalid_request)")
}
