package authn

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/apikey"
)

// Every sort of credential, good and bad, alone and beside others, at a binding that takes all sorts, with and without
// anonymous callers: a bad one is never passed over.
func TestABadCredentialIsNeverPassedOver(t *testing.T) {
	h := newHouse(t, io.Discard)
	strict := h.compile(t)
	open := h.compile(t, func(s *Spec) {
		s.Identity = proto.CloneOf(s.Identity)
		s.Identity.Anonymous = true
	})
	good := h.mesh.state(h.mesh.issue("spiffe://example/agents/a"))
	other := h.mesh.state(h.mesh.issue("spiffe://example/others/a"))
	unverified := &tls.ConnectionState{PeerCertificates: good.PeerCertificates}
	key, token := h.text["ci"], h.idp.token(nil)
	stranger := newIssuer(t)
	bearer := func(text string) http.Header { return header("Authorization", "Bearer "+text) }
	for _, tt := range []struct {
		name   string
		header http.Header
		state  *tls.ConnectionState
		id     string // empty: refused
		reason string
	}{
		{"a token", bearer(token), nil, h.idp.url + "|ann", ""},
		{"a token of the other issuer", bearer(h.hr.token(nil)), nil, h.hr.url + "|ann", ""},
		{"a key", bearer(key), nil, "key:ci", ""},
		{"a certificate", header(), good, "spiffe://example/agents/a", ""},
		{"a token over a connection with a certificate", bearer(token), good, h.idp.url + "|ann", ""},
		{"a key over a connection with a certificate", header("X-Api-Key", key), good, "key:ci", ""},
		{"a token over a connection with a certificate that is not taken", bearer(token), other, h.idp.url + "|ann", ""},
		{"a bad token over a connection with a certificate", bearer(token + "x"), good, "", "signature malformed"},
		{"an unknown key over a connection with a certificate", header("X-Api-Key", apikey.New()), good, "", "key_unknown"},
		{"another scheme over a connection with a certificate", header("Authorization", "Basic eDp5"), good, "", "scheme"},
		{"an empty Authorization over a connection with a certificate", header("Authorization", ""), good, "", "scheme"},
		{"a certificate that is not taken", header(), other, "", "certificate_name"},
		{"a certificate that the port has not verified", header(), unverified, "", "certificate_authority"},
		{"a token of an issuer that is not taken", bearer(stranger.token(nil)), nil, "", "issuer"},
		{"one issuer's token signed by the other", bearer(h.hr.token(map[string]any{"iss": h.idp.url})), nil, "", "signature"},
		{"an expired token", bearer(h.idp.token(map[string]any{"exp": 1})), nil, "", "expired"},
		{"a token for somebody else", bearer(h.idp.token(map[string]any{"aud": "https://mcp.example/desk"})), nil, "", "audience"},
		{"what is neither token nor key", bearer("abc"), nil, "", "malformed"},
		{"a key with a letter of another case before it", bearer("O" + key[1:]), nil, "", "malformed"},
		{"a key as a header that nobody named", header("X-Other-Key", key), nil, "anonymous", "no_credential"},
	} {
		for name, a := range map[string]*Authenticator{"strict": strict, "anonymous": open} {
			who, refused := a.Authenticate(t.Context(), tt.header, "", tt.state)
			switch {
			case tt.id == "anonymous" && name == "strict", tt.id == "":
				if refused == nil || refused.Status != 401 || !strings.Contains(tt.reason, refused.Reason) || !strings.HasPrefix(refused.Challenge, "Bearer ") {
					t.Errorf("%s, %s: %v, %+v; want 401 %s", tt.name, name, who, refused, tt.reason)
				}
			case refused != nil || who.ID != tt.id:
				t.Errorf("%s, %s: %v, %+v; want %s", tt.name, name, who, refused, tt.id)
			}
		}
	}
}

func TestACallerIsInOneTenantOrRefused(t *testing.T) {
	h := newHouse(t, io.Discard)
	h.keys[0].Tenant = "acme"
	a := h.compile(t)
	for _, tt := range []struct {
		name   string
		claims map[string]any
		tenant string
		reason string
	}{
		{"none", nil, "", ""},
		{"by claim", map[string]any{"org": "acme"}, "acme", ""},
		{"by group", map[string]any{"groups": "tenanted"}, "staff", ""},
		{"by claim and group, the same", map[string]any{"org": "staff", "groups": "tenanted"}, "staff", ""},
		{"by claim and group, another", map[string]any{"org": "acme", "groups": "tenanted"}, "", "tenant_ambiguous"},
		{"unknown", map[string]any{"org": "nowhere"}, "", "tenant_unknown"},
		{"disabled", map[string]any{"org": "closed"}, "", "tenant_disabled"},
	} {
		who, refused := a.Authenticate(t.Context(), header("Authorization", "Bearer "+h.idp.token(tt.claims)), "", nil)
		switch {
		case tt.reason != "":
			if refused == nil || refused.Status != 403 || refused.Reason != tt.reason || refused.Challenge != "" {
				t.Errorf("%s: %v, %+v; want 403 %s without a challenge", tt.name, who, refused, tt.reason)
			}
		case refused != nil || who.Tenant != tt.tenant:
			t.Errorf("%s: %+v, %+v; want tenant %q", tt.name, who, refused, tt.tenant)
		}
	}
	if who := let(t, a, header("X-Api-Key", h.text["ci"]), nil); who.Tenant != "acme" {
		t.Errorf("a key's tenant is %q, want acme", who.Tenant)
	}
	want := `
		# HELP outrigger_authentications_total Requests whose caller was looked for, by the provider that judged them (empty: none, or not known which) and the result: ok, or why they were refused.
		# TYPE outrigger_authentications_total counter
		outrigger_authentications_total{binding="desk",provider="",result="ok"} 0
		outrigger_authentications_total{binding="desk",provider="",result="tenant_ambiguous"} 1
		outrigger_authentications_total{binding="desk",provider="",result="tenant_disabled"} 1
		outrigger_authentications_total{binding="desk",provider="",result="tenant_unknown"} 1
		outrigger_authentications_total{binding="desk",provider="hr",result="ok"} 1
		outrigger_authentications_total{binding="desk",provider="idp",result="ok"} 5
		outrigger_authentications_total{binding="desk",provider="machines",result="ok"} 1
		outrigger_authentications_total{binding="desk",provider="mesh",result="ok"} 0
	`
	if err := testutil.GatherAndCompare(h.registry, strings.NewReader(want), "outrigger_authentications_total"); err != nil {
		t.Error(err)
	}
	if a, err := (*Authenticators)(nil).Compile(Spec{}); err == nil {
		t.Errorf("made of nothing: %v", a)
	}
	(*Authenticators)(nil).Forget("desk")
	h.all.Forget("desk")
	if n, err := testutil.GatherAndCount(h.registry, "outrigger_authentications_total"); n != 0 || err != nil {
		t.Errorf("a binding that is gone leaves %d series, %v", n, err)
	}
}

func TestWhoIsRevokedIsRefusedAtOnce(t *testing.T) {
	h := newHouse(t, io.Discard)
	first := h.compile(t)
	state := h.mesh.state(h.mesh.issue("spiffe://example/agents/a"))
	token := header("Authorization", "Bearer "+h.idp.token(nil))
	ann, ci, agent := let(t, first, token, nil), let(t, first, header("X-Api-Key", h.text["ci"]), nil), let(t, first, header(), state)
	for _, tt := range []struct {
		name string
		r    *outriggerv1.Revocation
		gone *identity.Principal // nil: nobody
	}{
		{"by jti", &outriggerv1.Revocation{Jti: "t-1"}, ann},
		{"by another issuer's jti", &outriggerv1.Revocation{Jti: "t-1", Issuer: h.hr.url}, nil},
		{"by subject", &outriggerv1.Revocation{Subject: "ann"}, ann},
		{"by subject, before it was issued", &outriggerv1.Revocation{Subject: "ann", IssuedBefore: timestamppb.New(time.Now().Add(-time.Hour))}, nil},
		{"by subject, after it was issued", &outriggerv1.Revocation{Subject: "ann", IssuedBefore: timestamppb.New(time.Now().Add(time.Hour))}, ann},
		{"a key", &outriggerv1.Revocation{Subject: "key:ci"}, ci},
		{"a certificate", &outriggerv1.Revocation{Subject: "spiffe://example/agents/a"}, agent},
		{"a certificate, before it was issued", &outriggerv1.Revocation{Subject: "spiffe://example/agents/a", IssuedBefore: timestamppb.New(time.Now().Add(-time.Hour))}, nil},
		{"a certificate, after it was issued", &outriggerv1.Revocation{Subject: "spiffe://example/agents/a", IssuedBefore: timestamppb.New(time.Now())}, agent},
	} {
		a := h.compile(t, func(s *Spec) {
			s.Identity = proto.CloneOf(s.Identity)
			s.Identity.Revoked = append(s.Identity.Revoked, tt.r)
		})
		for who, again := range map[*identity.Principal]func() (*identity.Principal, *identity.Refusal){
			ann: func() (*identity.Principal, *identity.Refusal) { return a.Authenticate(t.Context(), token, "", nil) },
			ci: func() (*identity.Principal, *identity.Refusal) {
				return a.Authenticate(t.Context(), header("X-Api-Key", h.text["ci"]), "", nil)
			},
			agent: func() (*identity.Principal, *identity.Refusal) {
				return a.Authenticate(t.Context(), header(), "", state)
			},
		} {
			_, refused := again()
			if gone := refused != nil && refused.Reason == "revoked" && refused.Status == 401; gone != (who == tt.gone) {
				t.Errorf("%s: %s is revoked %v, want %v (%+v)", tt.name, who, gone, who == tt.gone, refused)
			}
			if err := a.Valid(who, time.Now()); (err != nil) != (who == tt.gone) {
				t.Errorf("%s: a stream of %s: %v, want an end %v", tt.name, who, err, who == tt.gone)
			}
		}
	}
}

// Streams that began before a change of configuration are held to it.
func TestOpenStreamsFollowTheConfiguration(t *testing.T) {
	h := newHouse(t, io.Discard)
	first := h.compile(t)
	state := h.mesh.state(h.mesh.issue("spiffe://example/agents/a"))
	ann, agent := let(t, first, header("Authorization", "Bearer "+h.idp.token(nil)), nil), let(t, first, header(), state)
	provider := func(i int, change func(*outriggerv1.Provider)) func(*Spec) {
		return func(s *Spec) {
			s.Identity = proto.CloneOf(s.Identity)
			change(s.Identity.Providers[i])
		}
	}
	for _, tt := range []struct {
		name       string
		change     func(*Spec)
		ann, agent bool
	}{
		{"nothing", func(*Spec) {}, true, true},
		{"another audience", func(s *Spec) { s.Binding = &outriggerv1.Binding{Name: "desk", ExternalUrl: "https://mcp.example/x"} }, false, true},
		{"groups elsewhere", provider(0, func(p *outriggerv1.Provider) { p.GetJwt().Claims.Groups = "roles" }), false, true},
		{"another algorithm", provider(0, func(p *outriggerv1.Provider) { p.GetJwt().Algorithms = []string{"RS256"} }), false, true},
		{"other agents", provider(3, func(p *outriggerv1.Provider) { p.GetCertificate().SpiffeIds = []string{"spiffe://example/x"} }), true, false},
		{"another name of the provider", provider(3, func(p *outriggerv1.Provider) { p.Name = "other" }), true, false},
		{"no providers", func(s *Spec) { s.Identity = &outriggerv1.Identity{Anonymous: true} }, false, false},
	} {
		a := h.compile(t, tt.change)
		for who, want := range map[*identity.Principal]bool{ann: tt.ann, agent: tt.agent} {
			if err := a.Valid(who, time.Now()); (err == nil) != want {
				t.Errorf("%s: %s: %v, want valid %v", tt.name, who, err, want)
			}
			if err := a.Valid(who, who.Expires); err == nil {
				t.Errorf("%s: %s is valid when its credential has ended", tt.name, who)
			}
		}
		if a.Valid(nil, time.Now()) == nil {
			t.Errorf("%s: nobody is valid", tt.name)
		}
	}
}

// An issuer that is down holds up a change of configuration once, not for each stream.
func TestStreamsOfAnIssuerThatIsDownAreJudgedSoon(t *testing.T) {
	h := newHouse(t, io.Discard)
	first := h.compile(t)
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer hangs.Close()
	defer hangs.CloseClientConnections()
	var all []*identity.Principal
	for i := range 20 {
		all = append(all, let(t, first, header("Authorization", "Bearer "+h.idp.token(map[string]any{"sub": fmt.Sprint(i)})), nil))
	}
	s := first.spec
	s.Identity = proto.CloneOf(s.Identity)
	s.Identity.Providers[0].GetJwt().JwksUrl = hangs.URL
	a, err := h.all.Compile(s)
	if err != nil {
		t.Fatal(err)
	}
	a.ready = time.Now() // the time to wait, which is one for all, is over
	begun := time.Now()
	for _, who := range all {
		if err := a.Valid(who, time.Now()); err == nil {
			t.Errorf("%s is valid by keys that nobody has", who)
		}
	}
	if took := time.Since(begun); took > 2*validTimeout { // a fetch that fails, after five seconds, ends all waits
		t.Errorf("%d streams took %v, want no wait", len(all), took)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, refused := a.Authenticate(ctx, header("Authorization", "Bearer "+h.idp.token(nil)), "", nil)
	if refused == nil || refused.Status != 503 || refused.RetryAfter == 0 || refused.Challenge != "" {
		t.Errorf("%+v, want 503 with a time to try again, and no challenge", refused)
	}
}

// What is known of one sort of credential is not taken for another: a certificate, which is no secret, is no key.
func TestTheBytesOfACertificateAreNoKey(t *testing.T) {
	h := newHouse(t, io.Discard)
	a := h.compile(t)
	state := h.mesh.state(h.mesh.issue("spiffe://example/agents/a"))
	let(t, a, header(), state)
	der := string(state.PeerCertificates[0].Raw)
	if who, refused := a.Authenticate(t.Context(), header("X-Api-Key", der), "", nil); refused == nil {
		t.Errorf("let in as %s", who)
	}
}

// A certificate is what the handshake has verified.
func TestACertificateComesByARealHandshake(t *testing.T) {
	h := newHouse(t, io.Discard)
	a := h.compile(t)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, refused := a.Authenticate(r.Context(), r.Header, r.URL.RawQuery, r.TLS)
		if refused != nil {
			http.Error(w, refused.Reason, refused.Status)
			return
		}
		fmt.Fprint(w, who)
	}))
	s.TLS = &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: h.mesh.pool()}
	s.StartTLS()
	defer s.Close()
	for want, certificates := range map[string][]tls.Certificate{
		"200 spiffe://example/agents/a": {*h.mesh.issue("spiffe://example/agents/a")},
		"401 certificate_name":          {*h.mesh.issue("spiffe://example/x")},
		"401 no_credential":             nil,
	} {
		transport := s.Client().Transport.(*http.Transport).Clone()
		transport.TLSClientConfig.Certificates = certificates
		for range 2 { // the second time it is known
			resp, err := (&http.Client{Transport: transport}).Get(s.URL)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if got := fmt.Sprint(resp.StatusCode, " ", strings.TrimSpace(string(body))); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		transport.CloseIdleConnections()
	}
}

// Whatever is refused, and whoever is let in, nothing of a credential is in an answer, the log or a metric.
func TestNothingOfACredentialIsSaid(t *testing.T) {
	const planted = "pl4nted"
	var log bytes.Buffer
	h := newHouse(t, &log)
	a := h.compile(t)
	said := new(strings.Builder)
	key := apikey.New()
	marked := map[string]any{"sub": planted, "jti": planted, "org": planted}
	for _, values := range [][]string{
		{"Authorization", "Bearer " + planted}, {"Authorization", "Bearer " + planted + "\x00"}, {"Authorization", planted}, {"Authorization", "Basic " + planted},
		{"Authorization", "Bearer " + h.idp.token(marked)}, {"Authorization", "Bearer " + h.idp.token(map[string]any{"aud": planted})},
		{"Authorization", "Bearer " + key}, {"X-Api-Key", planted}, {"X-Api-Key", key}, {"X-Api-Key", key, "X-Api-Key", planted},
		{"Authorization", "Bearer " + planted, "X-Api-Key", planted},
	} {
		_, refused := a.Authenticate(t.Context(), header(values...), "access_token="+planted, nil)
		fmt.Fprintf(said, "%+v %v\n", refused, refused)
		_, refused = a.Authenticate(t.Context(), header(values...), "", nil)
		fmt.Fprintf(said, "%+v %v\n", refused, refused)
	}
	families, err := h.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	// The principal of a caller that is refused for its tenant is in the log: that is no secret.
	lines := strings.ReplaceAll(log.String(), "principal="+h.idp.url+"|"+planted, "")
	if !strings.Contains(log.String(), "refused for its tenant") {
		t.Error("a caller of an unknown tenant is not in the log")
	}
	for what, text := range map[string]string{"an answer": said.String(), "the log": lines, "a metric": fmt.Sprint(families)} {
		for _, secret := range []string{planted, key, "eyJ"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s has %q in it: %s", what, secret, text)
			}
		}
	}
}

// However many requests bring a credential at once, they are one caller.
func TestOneCredentialIsOneValue(t *testing.T) {
	h := newHouse(t, io.Discard)
	a := h.compile(t)
	state := h.mesh.state(h.mesh.issue("spiffe://example/agents/a"))
	for name, request := range map[string]http.Header{
		"token": header("Authorization", "Bearer "+h.idp.token(nil)), "key": header("X-Api-Key", h.text["ci"]), "certificate": header(),
	} {
		got := make([]*identity.Principal, 16)
		var all sync.WaitGroup
		for i := range got {
			all.Go(func() { got[i], _ = a.Authenticate(t.Context(), request, "", state) })
		}
		all.Wait()
		for _, who := range got {
			if who == nil || who != got[0] {
				t.Fatalf("%s: %p and %p, want one value", name, who, got[0])
			}
		}
	}
}

func TestWhatIsRememberedIsBoundedAndWhatIsUsedStays(t *testing.T) {
	var m memory[int]
	used := m.put(-1, &identity.Principal{ID: "used"})
	for i := range 5 * maxGeneration {
		m.put(i, &identity.Principal{})
		if m.get(-1) != used {
			t.Fatalf("after %d others a caller that is there all the time is forgotten", i)
		}
	}
	for i := range maxGeneration { // until it is of the old
		m.put(-10_000-i, &identity.Principal{})
	}
	if _, young := m.young[-1]; young || m.put(-1, &identity.Principal{}) != used {
		t.Errorf("a request that came at the same time made another value of a caller that was remembered (young %v)", young)
	}
	if n := len(m.young) + len(m.old); n > 2*maxGeneration {
		t.Errorf("%d are remembered, want at most %d", n, 2*maxGeneration)
	}
	for i := range 1000 {
		m.put(-2-i, &identity.Principal{Token: strings.Repeat("x", 16<<10)})
	}
	if n := len(m.young); n > maxBytes/(32<<10) {
		t.Errorf("%d large ones are remembered as young, want at most %d", n, maxBytes/(32<<10))
	}
}

func TestEveryWayToHideATokenInTheQueryIsSeen(t *testing.T) {
	for query, want := range map[string]bool{
		"":                                     false,
		"a=access_token":                       false,
		"xaccess_token=1":                      false,
		"access_tokens=1":                      false,
		"access_token":                         true,
		"access_token=":                        true,
		"a=1&access_token=1":                   true,
		"a=1;access_token=1":                   true,
		"access_token=1;b":                     true,
		"&&access_token=1":                     true,
		"access%5Ftoken=1":                     true,
		"%61%63cess_%74%6f%6B%65%6e=1":         true,
		"a=%zz&access_token=1":                 true,
		"access_token%zz=1":                    false,
		"a%26access_token=1":                   false,
		strings.Repeat("&", 1<<16) + "a=b&c=%": false,
	} {
		if got := inQuery(query); got != want {
			t.Errorf("%.60q: %v, want %v", query, got, want)
		}
	}
}

// Refused requests are counted without being able to make series, whatever they carry.
func TestStrangersCannotMakeSeries(t *testing.T) {
	h := newHouse(t, io.Discard)
	a := h.compile(t)
	for i := range 200 {
		for _, name := range []string{"Authorization", "X-Api-Key"} {
			for _, scheme := range []string{"", "Bearer ", fmt.Sprint("S", i, " ")} {
				a.Authenticate(t.Context(), header(name, fmt.Sprint(scheme, "x", i)), fmt.Sprint("q=", i), nil)
			}
		}
	}
	if n, err := testutil.GatherAndCount(h.registry, "outrigger_authentications_total"); n > 12 || err != nil {
		t.Errorf("%d series, %v; want a dozen at most", n, err)
	}
}

func TestAllocKnownCallers(t *testing.T) {
	if raceEnabled {
		t.Skip("allocations are not counted with the race detector")
	}
	h := newHouse(t, io.Discard)
	a := h.compile(t)
	state := h.mesh.state(h.mesh.issue("spiffe://example/agents/a"))
	for name, request := range map[string]http.Header{
		"token": header("Authorization", "Bearer "+h.idp.token(nil)), "other issuer": header("Authorization", "Bearer "+h.hr.token(nil)),
		"key": header("X-Api-Key", h.text["ci"]), "certificate": header(),
	} {
		if n := testing.AllocsPerRun(100, func() {
			if _, refused := a.Authenticate(context.Background(), request, "cursor=1", state); refused != nil {
				t.Fatal(refused)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations, want none", name, n)
		}
	}
}

func BenchmarkKnownCallers(b *testing.B) {
	h := newHouse(b, io.Discard)
	a := h.compile(b)
	state := h.mesh.state(h.mesh.issue("spiffe://example/agents/a"))
	long := h.hr.token(map[string]any{"more": strings.Repeat("x", 800)})
	for _, row := range []struct {
		name    string
		request http.Header
	}{
		{fmt.Sprintf("token/bytes=%d", len(h.idp.token(nil))), header("Authorization", "Bearer "+h.idp.token(nil))},
		{fmt.Sprintf("token/bytes=%d", len(long)), header("Authorization", "Bearer "+long)},
		{"key", header("X-Api-Key", h.text["ci"])}, {"certificate", header()},
	} {
		b.Run(row.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, refused := a.Authenticate(context.Background(), row.request, "", state); refused != nil {
					b.Fatal(refused)
				}
			}
		})
	}
}

func BenchmarkRefused(b *testing.B) {
	h := newHouse(b, io.Discard)
	a := h.compile(b)
	request := header("X-Api-Key", apikey.New())
	b.ReportAllocs()
	for b.Loop() {
		if _, refused := a.Authenticate(context.Background(), request, "", nil); refused == nil {
			b.Fatal("let in")
		}
	}
}
