package authn

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/timestamppb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/apikey"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/tenant"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var keysProvider = &outriggerv1.Provider{Name: "machines", Kind: &outriggerv1.Provider_Keys{Keys: &outriggerv1.KeyProvider{}}}

// world is keys, by name, and what they are filed as.
type world struct {
	text map[string]string
	keys []*outriggerv1.Key
}

func newWorld(names ...string) *world {
	w := &world{text: map[string]string{}}
	for _, name := range names {
		text := apikey.New()
		w.text[name] = text
		w.keys = append(w.keys, &outriggerv1.Key{Name: name, Hash: apikey.Hash(text, []byte("pepper"))})
	}
	return w
}

func (w *world) compile(t testing.TB, i *outriggerv1.Identity, tenants ...*outriggerv1.Tenant) *Authenticator {
	t.Helper()
	a, err := New(Options{}).Compile(Spec{
		Binding: &outriggerv1.Binding{Name: "main", ExternalUrl: "https://mcp.example/desk/mcp"}, Identity: i,
		Keys: apikey.NewIndex(w.keys, []byte("pepper")), Tenants: tenant.NewIndex(tenants),
	})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func header(values ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(values); i += 2 {
		h.Add(values[i], values[i+1])
	}
	return h
}

const metadataParameter = `resource_metadata="https://mcp.example/.well-known/oauth-protected-resource/desk/mcp"`

func TestWhatARequestCarriesDecides(t *testing.T) {
	w := newWorld("ci", "off", "old", "lost")
	w.keys[1].Disabled = true
	w.keys[2].Expires = timestamppb.New(time.Now().Add(-time.Second))
	w.keys[3].Tenant = "nowhere"
	i := &outriggerv1.Identity{Providers: []*outriggerv1.Provider{keysProvider}, Scopes: []string{"tools"},
		AuthorizationServers: []string{"https://idp.example"}}
	strict := w.compile(t, i)
	open := w.compile(t, &outriggerv1.Identity{Providers: []*outriggerv1.Provider{keysProvider}, Anonymous: true})
	ci := w.text["ci"]
	for _, tt := range []struct {
		name   string
		header http.Header
		query  string
		id     string // empty: refused
		status int
		reason string
	}{
		{"a key as a bearer token", header("Authorization", "Bearer "+ci), "", "key:ci", 0, ""},
		{"any case of the scheme", header("Authorization", "bEARER  "+ci), "", "key:ci", 0, ""},
		{"a key in its header", header("X-Api-Key", ci), "", "key:ci", 0, ""},
		{"a query without a token", header("X-Api-Key", ci), "token_count=5", "key:ci", 0, ""},
		{"nothing", header(), "", "", 401, "no_credential"},
		{"an unknown key", header("X-Api-Key", apikey.New()), "", "", 401, "key_unknown"},
		{"a key that was cut", header("X-Api-Key", ci[:len(ci)-1]), "", "", 401, "malformed"},
		{"a key of another case", header("X-Api-Key", strings.ToUpper(ci)), "", "", 401, "malformed"},
		{"a disabled key", header("X-Api-Key", w.text["off"]), "", "", 401, "disabled"},
		{"an expired key", header("X-Api-Key", w.text["old"]), "", "", 401, "expired"},
		{"a key of a tenant that is not there", header("X-Api-Key", w.text["lost"]), "", "", 403, "tenant_unknown"},
		{"a token where none are taken", header("Authorization", "Bearer a.b.c"), "", "", 401, "issuer"},
		{"another scheme", header("Authorization", "Basic dTpw"), "", "", 401, "scheme"},
		{"no token", header("Authorization", "Bearer"), "", "", 400, "malformed"},
		{"an empty token", header("Authorization", "Bearer  "), "", "", 400, "malformed"},
		{"two tokens in one", header("Authorization", "Bearer "+ci+" "+ci), "", "", 400, "malformed"},
		{"a list of tokens", header("Authorization", "Bearer "+ci+", Bearer x"), "", "", 400, "malformed"},
		{"two headers", header("Authorization", "Bearer "+ci, "Authorization", "Bearer "+ci), "", "", 400, "credentials_twice"},
		{"a key twice", header("X-Api-Key", ci, "X-Api-Key", ci), "", "", 400, "credentials_twice"},
		{"a key beside a token", header("X-Api-Key", ci, "Authorization", "Bearer a.b.c"), "", "", 400, "credentials_twice"},
		{"an empty key", header("X-Api-Key", ""), "", "", 400, "malformed"},
		{"a token in the query", header(), "access_token=" + ci, "", 400, "token_in_query"},
		{"a token in the query behind escapes", header("X-Api-Key", ci), "a=1&access%5Ftoken=" + ci, "", 400, "token_in_query"},
	} {
		for name, a := range map[string]*Authenticator{"strict": strict, "anonymous": open} {
			who, refused := a.Authenticate(t.Context(), tt.header, tt.query, nil)
			want := tt.id
			if name == "anonymous" && tt.reason == "no_credential" {
				want = identity.AnonymousID
			}
			if want != "" {
				if refused != nil || who.ID != want {
					t.Errorf("%s, %s: %v, %v, want %s", tt.name, name, who, refused, want)
				}
				continue
			}
			if refused == nil {
				t.Errorf("%s, %s: let in as %s", tt.name, name, who)
				continue
			}
			if refused.Status != tt.status || refused.Reason != tt.reason {
				t.Errorf("%s, %s: %d %s, want %d %s", tt.name, name, refused.Status, refused.Reason, tt.status, tt.reason)
			}
			if strings.Contains(refused.Message+refused.Challenge, ci) {
				t.Errorf("%s, %s: the refusal has the key in it", tt.name, name)
			}
		}
	}
}

func TestChallengesAreAsMCPHasThem(t *testing.T) {
	w := newWorld("ci")
	a := w.compile(t, &outriggerv1.Identity{Providers: []*outriggerv1.Provider{keysProvider}, Scopes: []string{"read", "write"},
		AuthorizationServers: []string{"https://idp.example"}})
	_, none := a.Authenticate(t.Context(), header(), "", nil)
	_, scheme := a.Authenticate(t.Context(), header("Authorization", "Basic dTpw"), "", nil)
	_, bad := a.Authenticate(t.Context(), header("X-Api-Key", apikey.New()), "", nil)
	_, malformed := a.Authenticate(t.Context(), header("Authorization", "Bearer"), "", nil)
	if scheme.Challenge != none.Challenge {
		t.Errorf("another scheme: %s, want no error, as for no credential: %s", scheme.Challenge, none.Challenge)
	}
	for got, want := range map[string]string{
		none.Challenge:      `Bearer ` + metadataParameter + `, scope="read write"`,
		bad.Challenge:       `Bearer error="invalid_token", error_description="the key is not known", ` + metadataParameter + `, scope="read write"`,
		malformed.Challenge: `Bearer error="invalid_request", error_description="Authorization has no bearer token", ` + metadataParameter,
		a.Insufficient([]string{"close", "write"}).Challenge: `Bearer error="insufficient_scope", scope="close write", ` + metadataParameter +
			`, error_description="the token lacks scopes that this needs"`,
	} {
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	bare, err := New(Options{}).Compile(Spec{Binding: &outriggerv1.Binding{Name: "main"}, Identity: &outriggerv1.Identity{},
		Keys: apikey.NewIndex(nil, nil), Tenants: tenant.NewIndex(nil)})
	if err != nil {
		t.Fatal(err)
	}
	if _, none := bare.Authenticate(t.Context(), header(), "", nil); none.Challenge != `Bearer realm="mcp"` || bare.Metadata() != nil {
		t.Errorf("without an external URL: %q, metadata %s", none.Challenge, bare.Metadata())
	}
}

func TestMetadataNameTheResourceAsItIsConfigured(t *testing.T) {
	jwtProvider := &outriggerv1.Provider{Name: "idp", Kind: &outriggerv1.Provider_Jwt{Jwt: &outriggerv1.JWTProvider{Issuer: "https://idp.example"}}}
	s := Spec{Binding: &outriggerv1.Binding{Name: "main", ExternalUrl: "https://mcp.example/desk/mcp"},
		Identity: &outriggerv1.Identity{Providers: []*outriggerv1.Provider{jwtProvider}, Scopes: []string{"read"}}}
	var got map[string]any
	if err := json.Unmarshal(newMetadata(s), &got); err != nil {
		t.Fatal(err)
	}
	if got["resource"] != "https://mcp.example/desk/mcp" || len(got["authorization_servers"].([]any)) != 1 || got["authorization_servers"].([]any)[0] != "https://idp.example" {
		t.Errorf("got %v", got)
	}
	for url, want := range map[string]string{
		"https://mcp.example/desk/mcp": "/.well-known/oauth-protected-resource/desk/mcp /.well-known/oauth-protected-resource",
		"https://mcp.example":          "/.well-known/oauth-protected-resource",
		"https://mcp.example/":         "/.well-known/oauth-protected-resource",
		"https://mcp.example/a%2Fb%20": "/.well-known/oauth-protected-resource/a/b  /.well-known/oauth-protected-resource",
		"":                             "",
	} {
		if got := strings.Join(MetadataPaths(url), " "); got != want {
			t.Errorf("%q: %q, want %q", url, got, want)
		}
	}
	const want = "https://mcp.example/.well-known/oauth-protected-resource/a%2Fb%20"
	if got := metadataURL("https://mcp.example/a%2Fb%20"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// A principal is the same value for the same credential, and valid for as long as it would be let in as the same.
func TestValidFollowsTheConfiguration(t *testing.T) {
	w := newWorld("ci", "other")
	byLabel := &outriggerv1.Tenant{Name: "acme", Selectors: []*outriggerv1.TenantSelector{{KeyLabels: map[string]string{"team": "blue"}}}}
	w.keys[0].Labels = map[string]string{"team": "blue"}
	i := &outriggerv1.Identity{Providers: []*outriggerv1.Provider{keysProvider}}
	let := func(a *Authenticator) *identity.Principal {
		t.Helper()
		who, refused := a.Authenticate(t.Context(), header("X-Api-Key", w.text["ci"]), "", nil)
		if refused != nil {
			t.Fatal(refused)
		}
		return who
	}
	first := w.compile(t, i, byLabel)
	who := let(first)
	if again := let(first); again != who || who.Tenant != "acme" {
		t.Errorf("%p %p of tenant %q, want one value, of acme", who, again, who.Tenant)
	}
	valid := func(name string, a *Authenticator, want bool) {
		t.Helper()
		if err := a.Valid(who, time.Now()); (err == nil) != want {
			t.Errorf("%s: %v, want valid %v", name, err, want)
		}
	}
	valid("the same", first, true)
	valid("compiled anew", w.compile(t, i, byLabel), true)
	valid("without its tenant", w.compile(t, i), false)
	valid("with its tenant disabled", w.compile(t, i, &outriggerv1.Tenant{Name: "acme", Selectors: byLabel.Selectors, Disabled: true}), false)
	valid("revoked", w.compile(t, &outriggerv1.Identity{Providers: i.Providers, Revoked: []*outriggerv1.Revocation{{Subject: "key:ci"}}}, byLabel), false)
	valid("another revoked", w.compile(t, &outriggerv1.Identity{Providers: i.Providers, Revoked: []*outriggerv1.Revocation{{Subject: "key:other"}}}, byLabel), true)
	valid("no keys any more", w.compile(t, &outriggerv1.Identity{}, byLabel), false)
	for name, change := range map[string]func(*outriggerv1.Key){
		"disabled":         func(k *outriggerv1.Key) { k.Disabled = true },
		"with a scope":     func(k *outriggerv1.Key) { k.Scopes = []string{"read"} },
		"another key":      func(k *outriggerv1.Key) { k.Hash = apikey.Hash(apikey.New(), []byte("pepper")) },
		"with an end":      func(k *outriggerv1.Key) { k.Expires = timestamppb.New(time.Now().Add(time.Hour)) },
		"of another group": func(k *outriggerv1.Key) { k.Groups = []string{"g"} },
	} {
		changed := &world{text: w.text, keys: []*outriggerv1.Key{{Name: "ci", Hash: w.keys[0].Hash, Labels: w.keys[0].Labels}}}
		valid("before it was "+name, changed.compile(t, i, byLabel), true)
		change(changed.keys[0])
		valid(name, changed.compile(t, i, byLabel), false)
	}
}

func TestAllocAuthenticate(t *testing.T) {
	if raceEnabled {
		t.Skip("allocations are not counted with the race detector")
	}
	w := newWorld("ci")
	a := w.compile(t, &outriggerv1.Identity{Providers: []*outriggerv1.Provider{keysProvider}})
	h := header("Authorization", "Bearer "+w.text["ci"])
	if n := testing.AllocsPerRun(100, func() {
		if _, refused := a.Authenticate(context.Background(), h, "", nil); refused != nil {
			t.Fatal(refused)
		}
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func BenchmarkAuthenticate(b *testing.B) {
	w := newWorld("ci")
	a := w.compile(b, &outriggerv1.Identity{Providers: []*outriggerv1.Provider{keysProvider}})
	h := header("Authorization", "Bearer "+w.text["ci"])
	b.ReportAllocs()
	for b.Loop() {
		if _, refused := a.Authenticate(context.Background(), h, "", nil); refused != nil {
			b.Fatal(refused)
		}
	}
}

func FuzzAuthenticate(f *testing.F) {
	w := newWorld("ci")
	a := w.compile(f, &outriggerv1.Identity{Providers: []*outriggerv1.Provider{keysProvider}})
	f.Add("Bearer "+w.text["ci"], "", "")
	f.Add("Bearer a.b.c", "x", "access_token=1")
	f.Fuzz(func(t *testing.T, authorization, key, query string) {
		h := http.Header{}
		if authorization != "" {
			h["Authorization"] = []string{authorization}
		}
		if key != "" {
			h["X-Api-Key"] = []string{key}
		}
		who, refused := a.Authenticate(context.Background(), h, query, new(tls.ConnectionState))
		if (who == nil) == (refused == nil) {
			t.Fatalf("%v, %v", who, refused)
		}
		if who != nil && who.ID != "key:ci" {
			t.Fatalf("let in as %s", who)
		}
		if refused != nil && refused.Status != 400 && refused.Status != 401 {
			t.Fatalf("status %d", refused.Status)
		}
	})
}
