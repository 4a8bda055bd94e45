package jwt

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"google.golang.org/protobuf/types/known/durationpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// long is the life of tokens in tests in which days pass.
var long = map[string]any{"exp": time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC).Unix()}

func TestKeysAreFetchedBeforeAnyoneAsksAndKeptFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, i := newBubble(t, Options{}, public("k", rsaKey))
		v := verifierOf(t, i, providerOf(f.issuer))
		synctest.Wait()
		if n := f.jwks.Load(); n != 1 {
			t.Fatalf("%d fetches before anyone asks, want 1", n)
		}
		for range 6 * 60 {
			time.Sleep(time.Minute)
			synctest.Wait()
			if age := time.Since(v.source.usable().at); age > 10*time.Minute {
				t.Fatalf("keys of %v, want none older than refresh", age)
			}
		}
		if n := f.jwks.Load(); n < 36 || n > 42 {
			t.Errorf("%d fetches in six hours, want about one in ten minutes", n)
		}
		if n := f.metadata.Load(); n > 7 {
			t.Errorf("the metadata was fetched %d times in six hours, want about once an hour", n)
		}
	})
}

func TestAnIssuerThatIsDownTakesNothingAwayUntilItsKeysAreStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, i := newBubble(t, Options{}, public("k", rsaKey))
		v := verifierOf(t, i, providerOf(f.issuer, func(p *outriggerv1.JWTProvider) { p.Stale = durationpb.New(2 * time.Hour) }))
		known := token(f.issuer, "k", rsaKey, long)
		expect(t, v, known, "")
		f.fails(down)
		time.Sleep(time.Hour + 49*time.Minute)
		expect(t, v, known, "")
		expect(t, v, token(f.issuer, "k", rsaKey, map[string]any{"exp": long["exp"], "jti": "new"}), "")
		expect(t, v, token(f.issuer, "rotated", rsaKey, nil), "unavailable") // nobody can know whether it has such a key
		time.Sleep(22 * time.Minute)                                         // refresh and stale are over
		expect(t, v, known, "unavailable")
		f.fails(nil)
		time.Sleep(maxPause)
		expect(t, v, known, "")
		expect(t, v, token(f.issuer, "k2", rsaKey, nil), "key_unknown")
	})
}

func TestAnIssuerThatWasNeverReachedLetsNobodyInUntilItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, i := newBubble(t, Options{}, public("k", rsaKey))
		f.fails(down)
		v := verifierOf(t, i, providerOf(f.issuer))
		good := token(f.issuer, "k", rsaKey, nil)
		expect(t, v, good, "unavailable")
		for range 1000 {
			expect(t, v, good, "unavailable")
		}
		if n := f.jwks.Load(); n > 2 {
			t.Errorf("%d fetches for 1000 tokens at one time, want at most 2", n)
		}
		f.fails(nil)
		time.Sleep(maxPause)
		expect(t, v, good, "")
	})
}

func TestAJWKSThatHangsHoldsATokenForThreeSecondsAndNoneThatIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, i := newBubble(t, Options{}, public("k", rsaKey))
		v := verifierOf(t, i, providerOf(f.issuer))
		known := token(f.issuer, "k", rsaKey, nil)
		expect(t, v, known, "")
		f.fails(hangs)
		before := f.jwks.Load()
		var waiting sync.WaitGroup
		for n := range 100 {
			waiting.Go(func() {
				began := time.Now()
				_, err := v.Verify(t.Context(), token(f.issuer, fmt.Sprint("other", n), rsaKey, nil))
				if took := time.Since(began); reasonOf(err) != "unavailable" || took != patience {
					t.Errorf("a token of a new key: %q after %v, want unavailable after %v", reasonOf(err), took, patience)
				}
			})
		}
		synctest.Wait()
		began := time.Now()
		expect(t, v, known, "")
		expect(t, v, token(f.issuer, "k", rsaKey, map[string]any{"jti": "new"}), "")
		if took := time.Since(began); took != 0 {
			t.Errorf("tokens of a known key waited %v", took)
		}
		waiting.Wait()
		if n := f.jwks.Load() - before; n != 1 {
			t.Errorf("%d fetches for 100 waiting tokens, want 1", n)
		}
	})
}

func TestUnknownKidsCauseOneFetchInACoolDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, i := newBubble(t, Options{}, public("k", rsaKey))
		v := verifierOf(t, i, providerOf(f.issuer))
		synctest.Wait()
		before := f.jwks.Load()
		for n := range 60 { // a minute of junk
			for k := range 20 {
				expect(t, v, token(f.issuer, fmt.Sprint("junk", n, k), ecKey, nil), "key_unknown")
			}
			time.Sleep(time.Second)
		}
		if n := f.jwks.Load() - before; n != int64(time.Minute/coolDown) {
			t.Errorf("%d fetches in a minute, want one for each %v", n, coolDown)
		}
	})
}

func TestANewKeyIsTakenAtOnceAndAWithdrawnOneNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, i := newBubble(t, Options{}, public("old", rsaKey))
		v := verifierOf(t, i, providerOf(f.issuer))
		old := token(f.issuer, "old", rsaKey, nil)
		held := expect(t, v, old, "")
		f.has(public("new", otherRSA), public("old", rsaKey))
		expect(t, v, token(f.issuer, "new", otherRSA, nil), "")
		if again := expect(t, v, old, ""); again != held {
			t.Error("a fetch that found the old key again made its token another one")
		}
		f.has(public("new", otherRSA))
		time.Sleep(10 * time.Minute)
		if got := reasonOf(held.Valid(time.Now())); got != "key_withdrawn" {
			t.Errorf("Valid of a token of a withdrawn key: %q, want key_withdrawn", got)
		}
		expect(t, v, old, "key_unknown")
		f.has(public("old", otherRSA)) // the name has become another key's
		time.Sleep(10 * time.Minute)
		expect(t, v, old, "signature")
		f.has(public("old", rsaKey))
		time.Sleep(10 * time.Minute)
		if again := expect(t, v, old, ""); again == held || again.Valid(time.Now()) != nil {
			t.Error("a key that came back is not used anew")
		}
	})
}

func TestAnIssuerMayWithdrawAllItsKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, i := newBubble(t, Options{}, public("k", rsaKey))
		v := verifierOf(t, i, providerOf(f.issuer))
		known := token(f.issuer, "k", rsaKey, nil)
		expect(t, v, known, "")
		f.fails(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"keys":[]}`) })
		time.Sleep(10 * time.Minute)
		expect(t, v, known, "key_unknown")
	})
}

func TestABadJWKSKeepsTheKeysThatThereAre(t *testing.T) {
	for name, test := range map[string]struct {
		answer func(w http.ResponseWriter)
		result string
	}{
		"huge":       {func(w http.ResponseWriter) { io.WriteString(w, `{"keys":[`+strings.Repeat(" ", 2*maxDocument)+"]}") }, "too_large"},
		"many keys":  {func(w http.ResponseWriter) { io.WriteString(w, `{"keys":[{}`+strings.Repeat(",{}", maxKeys)+"]}") }, "too_many"},
		"not JSON":   {func(w http.ResponseWriter) { io.WriteString(w, "<html>") }, "bad_document"},
		"no keys":    {func(w http.ResponseWriter) { io.WriteString(w, `{"Keys":[]}`) }, "bad_document"},
		"cut short":  {func(w http.ResponseWriter) { io.WriteString(w, `{"keys":[`) }, "bad_document"},
		"keys twice": {func(w http.ResponseWriter) { io.WriteString(w, `{"keys":[],"keys":[]}`) }, "bad_document"},
		"an error":   {func(w http.ResponseWriter) { w.WriteHeader(503) }, "bad_status"},
		"elsewhere":  {func(w http.ResponseWriter) { w.Header().Set("Location", "/other"); w.WriteHeader(307) }, "bad_status"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, i := newBubble(t, Options{}, public("k", rsaKey))
				v := verifierOf(t, i, providerOf(f.issuer))
				known := token(f.issuer, "k", rsaKey, nil)
				expect(t, v, known, "")
				f.fails(func(w http.ResponseWriter, _ *http.Request) { test.answer(w) })
				time.Sleep(10 * time.Minute)
				expect(t, v, known, "")
				for at, r := range results {
					if n := v.source.fetched[at].Load(); (n > 0) != (r.label == test.result || r.label == "ok") {
						t.Errorf("%d fetches ended with %q, want some with %q", n, r.label, test.result)
					}
				}
			})
		})
	}
}

func TestOneOutageIsOneLineAndItsEndAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		f, i := newBubble(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, public("k", rsaKey))
		v := verifierOf(t, i, providerOf(f.issuer))
		defer runtime.KeepAlive(v)
		synctest.Wait()
		log.Reset()
		f.fails(down)
		time.Sleep(2 * time.Hour)
		f.fails(nil)
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := log.String(); strings.Count(got, "level=WARN") != 1 || strings.Count(got, "level=INFO") != 1 || strings.Count(got, "\n") != 2 {
			t.Errorf("log of an outage of two hours:\n%swant one warning and one line at its end", got)
		}
	})
}

func TestCloseEndsAFetchThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, i := newBubble(t, Options{}, public("k", rsaKey))
		f.fails(hangs)
		v := verifierOf(t, i, providerOf(f.issuer))
		synctest.Wait()
		began := time.Now()
		if err := i.Close(t.Context()); err != nil || time.Since(began) != 0 {
			t.Errorf("Close took %v: %v", time.Since(began), err)
		}
		expect(t, v, token(f.issuer, "k", rsaKey, nil), "unavailable")
	})
}

func TestKeysAreNotFetchedForAnIssuerThatNobodyRefersTo(t *testing.T) {
	f := newFake(t, public("k", rsaKey))
	i := newIssuers(t, Options{})
	often := func(p *outriggerv1.JWTProvider) { p.Refresh = durationpb.New(10 * time.Millisecond) }
	func() {
		one := verifierOf(t, i, providerOf(f.issuer, often))
		two := verifierOf(t, i, providerOf(f.issuer, often, func(p *outriggerv1.JWTProvider) { p.Audiences = []string{"x"} }))
		expect(t, one, token(f.issuer, "k", rsaKey, nil), "")
		if i.sourcesForTest() != 1 || one.source != two.source {
			t.Errorf("%d sources for one issuer, want 1", i.sourcesForTest())
		}
		runtime.KeepAlive(two)
	}()
	deadline := time.Now().Add(20 * time.Second)
	for i.sourcesForTest() > 0 && time.Now().Before(deadline) {
		runtime.GC() // cleanups run some time after it
		runtime.Gosched()
	}
	if n := i.sourcesForTest(); n != 0 {
		t.Fatalf("%d sources are kept for no Verifier", n)
	}
	v := verifierOf(t, i, providerOf(f.issuer, often))
	expect(t, v, token(f.issuer, "k", rsaKey, nil), "")
}

func (i *Issuers) sourcesForTest() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.sources)
}

func TestWhereMetadataIsLookedFor(t *testing.T) {
	for issuer, want := range map[string]string{
		"https://idp.example":         "https://idp.example/.well-known/oauth-authorization-server https://idp.example/.well-known/openid-configuration",
		"https://idp.example/":        "https://idp.example/.well-known/oauth-authorization-server https://idp.example/.well-known/openid-configuration",
		"https://idp.example/realm/a": "https://idp.example/.well-known/oauth-authorization-server/realm/a https://idp.example/.well-known/openid-configuration/realm/a https://idp.example/realm/a/.well-known/openid-configuration",
		"https://idp.example/a%2Fb/":  "https://idp.example/.well-known/oauth-authorization-server/a%2Fb https://idp.example/.well-known/openid-configuration/a%2Fb https://idp.example/a%2Fb/.well-known/openid-configuration",
	} {
		if got := strings.Join(metadataURLs(issuer), " "); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", issuer, got, want)
		}
	}
}

// site is an issuer with a path whose documents a test writes.
func site(t *testing.T, documents map[string]string) (v *Verifier, issuer string) {
	t.Helper()
	f, keys := newFake(t), ""
	mux := http.NewServeMux()
	for path, document := range documents {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			with := strings.NewReplacer("ISSUER", f.issuer+"/realm", "KEYS", keys, "USER", strings.Replace(keys, "://", "://a:b@", 1))
			with.WriteString(w, document)
		})
	}
	mux.Handle("/keys", f)
	outer := newServer(t, mux)
	f.issuer, keys = outer, outer+"/keys"
	f.has(public("k", rsaKey))
	return verifierOf(t, newIssuers(t, Options{}), providerOf(outer+"/realm")), outer + "/realm"
}

func TestMetadataIsFoundInEachOfItsPlacesAndHeldToItsIssuer(t *testing.T) {
	const good = `{"issuer":"ISSUER","jwks_uri":"KEYS"}`
	oauth, openid, appended := "/.well-known/oauth-authorization-server/realm", "/.well-known/openid-configuration/realm", "/realm/.well-known/openid-configuration"
	for name, test := range map[string]struct {
		documents map[string]string
		want      string
	}{
		"RFC 8414":                  {map[string]string{oauth: good}, ""},
		"OpenID, inserted":          {map[string]string{openid: good}, ""},
		"OpenID, appended":          {map[string]string{appended: good}, ""},
		"a page in the first place": {map[string]string{oauth: "<html>", appended: good}, ""},
		"nowhere":                   {nil, "unavailable"},
		"of another issuer":         {map[string]string{oauth: `{"issuer":"ISSUER/x","jwks_uri":"KEYS"}`}, "unavailable"},
		"of no issuer":              {map[string]string{oauth: `{"jwks_uri":"KEYS"}`}, "unavailable"},
		"without keys":              {map[string]string{oauth: `{"issuer":"ISSUER"}`}, "unavailable"},
		"keys in a file":            {map[string]string{oauth: `{"issuer":"ISSUER","jwks_uri":"file:///etc/passwd"}`}, "unavailable"},
		"keys with a password":      {map[string]string{oauth: `{"issuer":"ISSUER","jwks_uri":"USER"}`}, "unavailable"},
		"keys in a cloud":           {map[string]string{oauth: `{"issuer":"ISSUER","jwks_uri":"http://169.254.169.254/keys"}`}, "unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			v, issuer := site(t, test.documents)
			expect(t, v, token(issuer, "k", rsaKey, nil), test.want)
		})
	}
}

func TestAnHTTPSIssuerIsNotAskedAtAPrivateAddressNorLeadsToPlainHTTP(t *testing.T) {
	f := newFake(t, public("k", rsaKey))
	for name, test := range map[string]struct {
		provider *outriggerv1.JWTProvider
		result   string
	}{
		"https at loopback":       {providerOf("https" + strings.TrimPrefix(f.issuer, "http")), "refused_address"},
		"https by a name":         {providerOf("https://localhost" + f.issuer[strings.LastIndex(f.issuer, ":"):]), "refused_address"},
		"https at a cloud's host": {providerOf("https://169.254.169.254"), "refused_address"},
		"keys elsewhere":          {providerOf("https://idp.example", func(p *outriggerv1.JWTProvider) { p.JwksUrl = "https://10.0.0.1/keys" }), "refused_address"},
		"http beyond loopback":    {providerOf("http://192.0.2.1"), "refused_address"},
	} {
		t.Run(name, func(t *testing.T) {
			v := verifierOf(t, newIssuers(t, Options{}), test.provider)
			_, err := v.Verify(t.Context(), token(v.issuer, "k", rsaKey, nil))
			if reasonOf(err) != "unavailable" {
				t.Errorf("got %q, want unavailable", reasonOf(err))
			}
			for at, r := range results {
				if n := v.source.fetched[at].Load(); (n > 0) != (r.label == test.result) {
					t.Errorf("%d fetches ended with %q, want only %q", n, r.label, test.result)
				}
			}
			if f.jwks.Load()+f.metadata.Load() != 0 {
				t.Error("it was asked all the same")
			}
		})
	}
	secure := newFetcher("https://idp.example", "", http.DefaultClient)
	if _, err := secure.get(context.Background(), f.issuer+"/keys"); !errors.Is(err, errURL) {
		t.Errorf("keys of an https issuer over http: %v, want %v", err, errURL)
	}
}

func TestAnIssuerOfItsOwnAuthorityIsAskedWhereThatIsAllowed(t *testing.T) {
	f := &fake{keys: []jose.JSONWebKey{public("k", rsaKey)}}
	s := httptest.NewUnstartedServer(f)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	f.issuer = s.URL
	file := t.TempDir() + "/ca.pem"
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	i, good := newIssuers(t, Options{}), token(f.issuer, "k", rsaKey, nil)
	for _, test := range []struct {
		ca      string
		private bool
		want    string
	}{{file, true, ""}, {file, false, "unavailable"}, {"", true, "unavailable"}} {
		v := verifierOf(t, i, providerOf(f.issuer, func(p *outriggerv1.JWTProvider) { p.CaFile, p.PrivateAddresses = test.ca, test.private }))
		if _, err := v.Verify(t.Context(), good); reasonOf(err) != test.want {
			t.Errorf("caFile %q, privateAddresses %v: got %q, want %q", test.ca, test.private, reasonOf(err), test.want)
		}
	}
}

func TestManyCallersWhileKeysComeAndGo(t *testing.T) {
	f := newFake(t, public("a", rsaKey), public("b", ecKey))
	v := verifierOf(t, newIssuers(t, Options{}), providerOf(f.issuer))
	a, b := token(f.issuer, "a", rsaKey, nil), token(f.issuer, "b", ecKey, nil)
	var callers sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		callers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := v.Verify(t.Context(), a); err != nil {
					t.Errorf("a token of a key that stays: %v", err)
				}
				if _, err := v.Verify(t.Context(), b); err != nil && reasonOf(err) != "key_unknown" && reasonOf(err) != "unavailable" {
					t.Errorf("a token of a key that comes and goes: %v", err)
				}
			}
		})
	}
	for range 5 {
		f.has(public("a", rsaKey))
		v.source.fetchForTest(t)
		f.has(public("a", rsaKey), public("b", ecKey))
		v.source.fetchForTest(t)
	}
	f.has(public("a", rsaKey))
	v.source.fetchForTest(t)
	close(stop)
	callers.Wait()
	expect(t, v, a, "")
	expect(t, v, b, "key_unknown")
}

func TestACAFileThatCannotBeReadIsAnErrorAtOnce(t *testing.T) {
	i := newIssuers(t, Options{})
	p := providerOf("https://idp.example", func(p *outriggerv1.JWTProvider) { p.CaFile = t.TempDir() + "/none.pem" })
	if _, err := i.Verifier(Spec{Name: "idp", Provider: p, Audiences: []string{audience}}); err == nil || !strings.Contains(err.Error(), "caFile") {
		t.Errorf("got %v, want an error about caFile", err)
	}
	if n := i.sourcesForTest(); n != 0 {
		t.Errorf("%d sources are left", n)
	}
}

func TestAProviderWithoutDefaultsIsRefused(t *testing.T) {
	i := newIssuers(t, Options{})
	p := &outriggerv1.JWTProvider{Issuer: "https://idp.example", Refresh: durationpb.New(time.Minute)}
	if _, err := i.Verifier(Spec{Name: "idp", Provider: p, Audiences: []string{audience}}); err == nil {
		t.Error("a Verifier was made that takes no algorithm and keeps no key")
	}
}
