package credential

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/types/known/durationpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// must is a value that there has to be.
func must(t *testing.T, s *Source, caller *identity.Principal) string {
	t.Helper()
	v, err := s.Value(t.Context(), caller)
	if err != nil {
		t.Fatalf("no value: %v", err)
	}
	return v
}

// wantNone holds that there is no value, and why.
func wantNone(t *testing.T, s *Source, caller *identity.Principal, detail string) {
	t.Helper()
	v, err := s.Value(t.Context(), caller)
	var e *upstream.Error
	if !errors.As(err, &e) || e.Kind != upstream.NoCredential || e.Upstream != "up" || e.Detail != detail {
		t.Errorf("got %q, %v, want the failure %q", v, err, detail)
	}
}

func TestRequestsAreThoseOfTheSpecifications(t *testing.T) {
	full := func(e *outriggerv1.TokenEndpoint) {
		e.Scopes, e.Resource, e.Audience = []string{"read", "write"}, "https://other.example/", "api"
	}
	for _, test := range []struct {
		name      string
		exchanges bool
		change    func(*outriggerv1.TokenEndpoint)
		want      url.Values
	}{
		{"client credentials", false, nil, url.Values{
			"grant_type": {"client_credentials"}, "resource": {"https://server.example/mcp"},
		}},
		{"client credentials with everything", false, full, url.Values{
			"grant_type": {"client_credentials"}, "resource": {"https://other.example/"}, "audience": {"api"}, "scope": {"read write"},
		}},
		{"exchange", true, nil, url.Values{
			"grant_type": {grantExchange}, "resource": {"https://server.example/mcp"}, "subject_token": {"hers"},
			"subject_token_type": {typeAccessToken}, "requested_token_type": {typeAccessToken},
		}},
		{"exchange with everything", true, full, url.Values{
			"grant_type": {grantExchange}, "resource": {"https://other.example/"}, "audience": {"api"}, "scope": {"read write"},
			"subject_token": {"hers"}, "subject_token_type": {typeAccessToken}, "requested_token_type": {typeAccessToken},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := newAuthority(t)
			var change []func(*outriggerv1.TokenEndpoint)
			if test.change != nil {
				change = append(change, test.change)
			}
			s := newSource(t, a.spec(test.exchanges, change...), Options{})
			if got := must(t, s, with("hers")); !strings.HasPrefix(got, "Bearer planted-given-1") || s.Header() != "Authorization" {
				t.Errorf("presents %s: %q, want what was given", s.Header(), got)
			}
			if got := a.seen(); len(got) != 1 || !reflect.DeepEqual(got[0], test.want) {
				t.Errorf("asked with %v, want %v", got, test.want)
			}
		})
	}
}

func TestHeaderAndPrefixAreTheResources(t *testing.T) {
	a := newAuthority(t)
	u := a.spec(false)
	u.Credential.Header, u.Credential.Prefix = "x-token", "Token "
	s := newSource(t, u, Options{})
	if got := must(t, s, nil); got != "Token planted-given-1" || s.Header() != "X-Token" {
		t.Errorf("presents %s: %q", s.Header(), got)
	}
}

func TestATokenIsAskedForOnceHoweverManyCallsWait(t *testing.T) {
	a := newAuthority(t)
	arrived, release := make(chan struct{}), make(chan struct{})
	a.answers(func(w http.ResponseWriter, _ url.Values) {
		arrived <- struct{}{}
		<-release
		reply(w, 200, map[string]any{"access_token": "t", "token_type": "Bearer", "expires_in": 3600})
	})
	s := newSource(t, a.spec(false), Options{})
	impatient, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := s.Value(impatient, nil)
		left <- err
	}()
	<-arrived
	var wait sync.WaitGroup
	values := make([]string, 100)
	for i := range values {
		wait.Go(func() { values[i], _ = s.Value(t.Context(), nil) })
	}
	leave() // who began it goes, and it goes on for the others
	var e *upstream.Error
	if err := <-left; !errors.As(err, &e) || e.Kind != upstream.Lost || !errors.Is(err, context.Canceled) {
		t.Errorf("who left got %v, want that the call was cancelled", err)
	}
	late, stop := context.WithTimeout(t.Context(), time.Millisecond)
	defer stop()
	if _, err := s.Value(late, nil); !errors.As(err, &e) || e.Kind != upstream.NoCredential || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("who had no time got %v, want its deadline's", err)
	}
	close(release)
	wait.Wait()
	for i, v := range values {
		if v != "Bearer t" {
			t.Errorf("call %d got %q", i, v)
		}
	}
	if n := len(a.seen()); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
}

func TestATokenIsReplacedAheadOfItsEndWhileItServes(t *testing.T) {
	a, at := newAuthority(t), newClock()
	s := newSource(t, a.spec(false), Options{Now: at.Now})
	want := func(value string, requests int) {
		t.Helper()
		got := must(t, s, nil)
		settle(t, s, nil)
		if n := len(a.seen()); got != value || n != requests {
			t.Fatalf("got %q after %d requests, want %q after %d", got, n, value, requests)
		}
	}
	want("Bearer planted-given-1", 1)
	at.pass(58 * time.Minute)
	want("Bearer planted-given-1", 1)
	at.pass(75 * time.Second) // 45 s are left
	want("Bearer planted-given-1", 2)
	want("Bearer planted-given-2", 2)
	at.pass(2 * time.Hour) // nobody called meanwhile: the call waits
	want("Bearer planted-given-3", 3)
}

func TestARenewalThatFailsLeavesTheTokenThatServes(t *testing.T) {
	a, at := newAuthority(t), newClock()
	s := newSource(t, a.spec(false), Options{Now: at.Now})
	must(t, s, nil)
	a.answers(refuses(400, "invalid_scope"))
	at.pass(time.Hour - 30*time.Second)
	for range 5 {
		if got := must(t, s, nil); got != "Bearer planted-given-1" {
			t.Fatalf("got %q", got)
		}
		settle(t, s, nil)
	}
	if n := len(a.seen()); n != 2 {
		t.Errorf("%d requests, want one renewal in five seconds", n)
	}
	at.pass(25 * time.Second) // in its last ten seconds it is not used
	wantNone(t, s, nil, "got no token: the token endpoint refused (invalid_scope)")
}

func TestWhyThereIsNoTokenIsRememberedForSeconds(t *testing.T) {
	a, at := newAuthority(t), newClock()
	s := newSource(t, a.spec(false), Options{Now: at.Now})
	for _, test := range []struct {
		name   string
		answer func(http.ResponseWriter, url.Values)
		detail string
		pause  time.Duration
	}{
		{"refused", refuses(400, "unauthorized_client"), "the token endpoint refused (unauthorized_client)", 5 * time.Second},
		{"not known", refuses(401, "invalid_client"), "the token endpoint refused the sidecar (invalid_client)", 5 * time.Second},
		{"down", func(w http.ResponseWriter, _ url.Values) { w.WriteHeader(503) }, "the token endpoint answered 503", time.Second},
		{"busy", func(w http.ResponseWriter, _ url.Values) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(429)
		}, "the token endpoint answered 429", 7 * time.Second},
		{"busy for ever", func(w http.ResponseWriter, _ url.Values) {
			w.Header().Set("Retry-After", "100000")
			w.WriteHeader(429)
		}, "the token endpoint answered 429", 30 * time.Second},
	} {
		a.answers(test.answer)
		before := len(a.seen())
		for range 3 {
			wantNone(t, s, nil, "got no token: "+test.detail)
		}
		at.pass(test.pause - time.Millisecond)
		wantNone(t, s, nil, "got no token: "+test.detail)
		if n := len(a.seen()) - before; n != 1 {
			t.Errorf("%s: %d requests within %v, want 1", test.name, n, test.pause)
		}
		at.pass(time.Millisecond)
	}
	a.answers(nil)
	must(t, s, nil)
}

func TestAnEndpointThatIsNotThereIsLeftAloneForASecond(t *testing.T) {
	a, at := newAuthority(t), newClock()
	s := newSource(t, a.spec(true, func(e *outriggerv1.TokenEndpoint) { e.Url = "http://127.0.0.1:1/token" }), Options{Now: at.Now})
	for _, who := range []string{"a", "b", "a"} {
		wantNone(t, s, with(who), "got no token: the token endpoint cannot be reached")
	}
	s.tokens.endpoint.config.TokenURL = a.url // it comes up
	wantNone(t, s, with("c"), "got no token: the token endpoint cannot be reached")
	at.pass(time.Second)
	must(t, s, with("c"))
	must(t, s, with("a"))
}

func TestAnEndpointThatHangsFailsInItsTime(t *testing.T) {
	a := newAuthority(t)
	release := make(chan struct{})
	a.answers(func(http.ResponseWriter, url.Values) { <-release })
	defer close(release)
	s := newSource(t, a.spec(false, func(e *outriggerv1.TokenEndpoint) { e.Timeout = durationpb.New(20 * time.Millisecond) }), Options{})
	wantNone(t, s, nil, "got no token: the token endpoint did not answer within 20ms")
}

func TestAnswersThatAreNoTokenToPresent(t *testing.T) {
	body := func(status int, contentType, text string) func(http.ResponseWriter, url.Values) {
		return func(w http.ResponseWriter, _ url.Values) {
			w.Header().Set("Content-Type", contentType)
			w.WriteHeader(status)
			io.WriteString(w, text)
		}
	}
	json := func(text string) func(http.ResponseWriter, url.Values) { return body(200, "application/json", text) }
	const noToken = "the token endpoint answered with something else than a token"
	for _, test := range []struct {
		name   string
		answer func(http.ResponseWriter, url.Values)
		want   string
	}{
		{"empty", json(``), noToken},
		{"HTML", body(200, "text/html", "<planted-words>"), noToken},
		{"no token", json(`{"token_type":"Bearer"}`), noToken},
		{"a number for a token", json(`{"access_token":5,"token_type":"Bearer"}`), noToken},
		{"too much", json(`{"access_token":"` + strings.Repeat("x", maxAnswer) + `","token_type":"Bearer"}`), noToken},
		{"a long token", json(`{"access_token":"` + strings.Repeat("x", maxToken+1) + `","token_type":"Bearer"}`), "the token endpoint gave a token that cannot stand in a header"},
		{"a token of two lines", json(`{"access_token":"planted\r\nX: y","token_type":"Bearer"}`), "the token endpoint gave a token that cannot stand in a header"},
		{"a token with a space", json(`{"access_token":"planted x","token_type":"Bearer"}`), "the token endpoint gave a token that cannot stand in a header"},
		{"another type", json(`{"access_token":"planted","token_type":"DPoP"}`), "the token endpoint gave a token of a type that is not spoken here"},
		{"an expired one", json(`{"access_token":"planted","token_type":"Bearer","expires_in":0}`), "the token endpoint gave a token that has expired"},
		{"one that expired long ago", json(`{"access_token":"planted","token_type":"Bearer","expires_in":-5}`), "the token endpoint gave a token that has expired"},
		{"an ID token", json(`{"access_token":"planted","token_type":"Bearer","issued_token_type":"urn:ietf:params:oauth:token-type:id_token"}`), "the token endpoint gave a token that is no access token"},
		{"an error with 200", json(`{"error":"invalid_grant","access_token":"planted"}`), "the token endpoint refused (invalid_grant)"},
		{"an error of nobody's", refuses(400, "planted-words"), "the token endpoint refused with 400 and an error of its own"},
		{"404", body(404, "text/plain", "planted-words"), "the token endpoint answered 404 without an error of OAuth"},
		{"a redirect", func(w http.ResponseWriter, _ url.Values) { w.Header().Set("Location", "/token"); w.WriteHeader(307) }, "the token endpoint answered 307 without an error of OAuth"},
		{"401 with nothing", body(401, "text/plain", ""), "the token endpoint refused the sidecar (invalid_client)"},
		{"no HTTP", func(w http.ResponseWriter, _ url.Values) { panic(http.ErrAbortHandler) }, noToken},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := newAuthority(t)
			a.answers(test.answer)
			var log bytes.Buffer
			reg := prometheus.NewRegistry()
			s := newSource(t, a.spec(true), Options{Log: slog.New(slog.NewTextHandler(&log, nil)), Registerer: reg})
			wantNone(t, s, with("planted-caller"), "got no token: "+test.want)
			_, err := s.Value(t.Context(), with("planted-caller"))
			var e *upstream.Error
			errors.As(err, &e)
			for what, text := range map[string]string{"error": err.Error(), "cause": fmt.Sprintf("%v %+v", e.Cause, e.Cause), "log": log.String()} {
				if strings.Contains(text, "planted") || strings.Contains(text, clientSecret) {
					t.Errorf("the %s tells a secret: %s", what, text)
				}
			}
			if n, err := testutil.GatherAndCount(reg, "outrigger_token_requests_total"); n != 1 || err != nil {
				t.Errorf("%d outcomes counted (%v), want 1", n, err)
			}
		})
	}
}

func TestATokenWithoutAnEndIsUsedForMinutes(t *testing.T) {
	a, at := newAuthority(t), newClock()
	a.answers(func(w http.ResponseWriter, _ url.Values) {
		reply(w, 200, map[string]any{"access_token": "t", "token_type": "Bearer"})
	})
	s := newSource(t, a.spec(false), Options{Now: at.Now})
	must(t, s, nil)
	at.pass(3 * time.Minute)
	must(t, s, nil)
	if n := len(a.seen()); n != 1 {
		t.Errorf("%d requests within three minutes, want 1", n)
	}
	at.pass(3 * time.Minute)
	must(t, s, nil)
	if n := len(a.seen()); n != 2 {
		t.Errorf("%d requests within six minutes, want 2", n)
	}
}

func TestEachCallerHasATokenOfItsOwn(t *testing.T) {
	a := newAuthority(t)
	s := newSource(t, a.spec(true), Options{})
	if !s.PerCaller() {
		t.Error("an exchange is not per caller")
	}
	ann, bob := must(t, s, with("ann")), must(t, s, with("bob"))
	if !strings.HasSuffix(ann, "-for-ann") || !strings.HasSuffix(bob, "-for-bob") {
		t.Errorf("ann presents %q and bob %q", ann, bob)
	}
	// Another token of one principal may be for less.
	other := &identity.Principal{ID: "ann", Token: "narrow"}
	if got := must(t, s, other); !strings.HasSuffix(got, "-for-narrow") {
		t.Errorf("another token of ann's is exchanged for %q", got)
	}
	if again := must(t, s, &identity.Principal{ID: "ann", Token: "ann"}); again != ann || len(a.seen()) != 3 {
		t.Errorf("ann presents %q then, after %d requests", again, len(a.seen()))
	}
}

func TestACallerWithoutATokenIsRefused(t *testing.T) {
	a := newAuthority(t)
	s := newSource(t, a.spec(true), Options{})
	must(t, s, upstream.Self) // there is one for the sidecar, which is nobody else's
	before := len(a.seen())
	for name, caller := range map[string]*identity.Principal{
		"nobody known": nil, "anonymous": {ID: identity.AnonymousID}, "a key": {ID: "key:k", Key: "k"}, "one that calls itself the sidecar": {ID: upstream.Self.ID},
	} {
		t.Run(name, func(t *testing.T) {
			wantNone(t, s, caller, "has nothing to present for a caller that came without a token")
		})
	}
	if n := len(a.seen()); n != before {
		t.Errorf("%d requests were made for them", n-before)
	}
}

func TestTheSidecarsOwnRequestsGoWithoutATokenWhereOnlyCallersAreGivenAny(t *testing.T) {
	for _, answer := range []func(http.ResponseWriter, url.Values){
		refuses(400, "unauthorized_client"), refuses(401, "invalid_client"), func(w http.ResponseWriter, _ url.Values) { w.WriteHeader(500) },
	} {
		a := newAuthority(t)
		a.answers(func(w http.ResponseWriter, form url.Values) {
			if !form.Has("subject_token") {
				answer(w, form)
				return
			}
			reply(w, 200, map[string]any{"access_token": "t", "token_type": "Bearer", "issued_token_type": typeAccessToken})
		})
		s := newSource(t, a.spec(true), Options{})
		for range 3 {
			if got := must(t, s, upstream.Self); got != "" {
				t.Errorf("presents %q", got)
			}
		}
		if got := must(t, s, with("ann")); got != "Bearer t" {
			t.Errorf("for a caller it presents %q", got)
		}
		if n := len(a.seen()); n != 2 {
			t.Errorf("%d requests, want one for each", n)
		}
	}
}

func TestOneCallersRefusalIsNoOthersAndTheEndpointsIsEverybodys(t *testing.T) {
	a, at := newAuthority(t), newClock()
	s := newSource(t, a.spec(true), Options{Now: at.Now})
	a.answers(refuses(400, "invalid_grant"))
	wantNone(t, s, with("ann"), "got no token: the token endpoint refused (invalid_grant)")
	a.answers(nil)
	wantNone(t, s, with("ann"), "got no token: the token endpoint refused (invalid_grant)")
	must(t, s, with("bob"))
	if n := len(a.seen()); n != 2 {
		t.Errorf("%d requests, want one for each caller", n)
	}
	a.answers(refuses(401, "invalid_client"))
	at.pass(10 * time.Second)
	wantNone(t, s, with("ann"), "got no token: the token endpoint refused the sidecar (invalid_client)")
	wantNone(t, s, with("cleo"), "got no token: the token endpoint refused the sidecar (invalid_client)")
	if n := len(a.seen()); n != 3 {
		t.Errorf("%d requests, want none for another caller", n)
	}
	if got := must(t, s, with("bob")); got == "" {
		t.Error("a token at hand is not used while the endpoint is away")
	}
}

func TestARefusedTokenIsReplacedOnceInTenSeconds(t *testing.T) {
	a, at := newAuthority(t), newClock()
	s := newSource(t, a.spec(false), Options{Now: at.Now})
	first := must(t, s, nil)
	second, ok := s.Renew(t.Context(), nil, first)
	if !ok || second == first {
		t.Fatalf("in place of %q there is %q, %v", first, second, ok)
	}
	if third, ok := s.Renew(t.Context(), nil, first); !ok || third != second {
		t.Errorf("to another call that had %q there is %q, %v, want %q", first, third, ok, second)
	}
	if other, ok := s.Renew(t.Context(), nil, second); ok {
		t.Errorf("refused again at once, there is %q in its place", other)
	}
	if got := must(t, s, nil); got != second {
		t.Errorf("presents %q, want %q", got, second)
	}
	at.pass(10 * time.Second)
	s.Forget(nil, second)
	if got := must(t, s, nil); got == second || len(a.seen()) != 3 {
		t.Errorf("presents %q after %d requests, want a third token", got, len(a.seen()))
	}
}

func TestARenewalThatBringsTheSameTokenIsNone(t *testing.T) {
	a := newAuthority(t)
	a.answers(func(w http.ResponseWriter, _ url.Values) {
		reply(w, 200, map[string]any{"access_token": "t", "token_type": "Bearer"})
	})
	s := newSource(t, a.spec(false), Options{})
	if got, ok := s.Renew(t.Context(), nil, must(t, s, nil)); ok {
		t.Errorf("there is %q in place of itself", got)
	}
}

func TestRequestsUnderWayAreBounded(t *testing.T) {
	a := newAuthority(t)
	var mu sync.Mutex
	now, most := 0, 0
	a.answers(func(w http.ResponseWriter, form url.Values) {
		mu.Lock()
		now++
		most = max(most, now)
		mu.Unlock()
		reply(w, 200, map[string]any{"access_token": "t", "token_type": "Bearer", "issued_token_type": typeJWT})
		mu.Lock()
		now--
		mu.Unlock()
	})
	s := newSource(t, a.spec(true), Options{})
	var wait sync.WaitGroup
	for i := range 200 {
		wait.Go(func() {
			if _, err := s.Value(t.Context(), with(fmt.Sprint("caller-", i))); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if most > maxRequests {
		t.Errorf("%d requests at once, want %d at most", most, maxRequests)
	}
}

func TestCloseEndsWhatIsUnderWay(t *testing.T) {
	a := newAuthority(t)
	arrived, release := make(chan struct{}), make(chan struct{})
	a.answers(func(http.ResponseWriter, url.Values) { close(arrived); <-release })
	defer close(release)
	all := New(Options{})
	s, err := all.For(a.spec(false), secrets())
	if err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() {
		_, err := s.Value(t.Context(), nil)
		failed <- err
	}()
	<-arrived
	if err := all.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-failed; err == nil {
		t.Error("a call got a token of an endpoint that never answered")
	}
	if _, err := s.Value(t.Context(), nil); err == nil {
		t.Error("there is a token after Close")
	}
}
