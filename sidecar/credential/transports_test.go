package credential_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
	"github.com/outrigger-mesh/outrigger/sidecar/credential"
	"github.com/outrigger-mesh/outrigger/sidecar/federate"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/proxy"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// kinds are the credentials there are, and what a server gets of them for ann.
var kinds = []struct {
	name string
	of   func(*issuer) *outriggerv1.Credential
	want string // of Authorization, in part
}{
	{"none", func(*issuer) *outriggerv1.Credential { return nil }, ""},
	{"a Secret's value", func(*issuer) *outriggerv1.Credential {
		return &outriggerv1.Credential{Prefix: "Bearer ", Source: &outriggerv1.Credential_Secret{Secret: &outriggerv1.SecretReference{Name: "s", Key: "value"}}}
	}, "Bearer ours"},
	{"client credentials", func(i *issuer) *outriggerv1.Credential { return i.credential(false) }, "Bearer given-1-itself"},
	{"exchange", func(i *issuer) *outriggerv1.Credential { return i.credential(true) }, "-ann"},
}

// lanes are the ways to a server over HTTP, each with a call of ann's.
var lanes = []struct {
	name string
	at   func(*testing.T) (*witness, *outriggerv1.Upstream)
	call func(*testing.T, upstream.Server)
}{
	{"streamable, stateless", statelessLane, func(t *testing.T, s upstream.Server) {
		a, err := s.Call(testContext(t), statelessEcho(t, caller("ann")))
		wantHello(t, a, err)
	}},
	{"streamable, a session", sessionLane, callInSession},
	{"streamable, a session for a stateless client", sessionLane, func(t *testing.T, s upstream.Server) {
		a, err := s.Call(testContext(t), statelessEcho(t, caller("ann")))
		wantHello(t, a, err)
	}},
	{"streamable, a stateless server for a client with a session", statelessLane, callInSession},
	{"sse", sseLane, callInSession},
}

func statelessLane(t *testing.T) (*witness, *outriggerv1.Upstream) {
	w := witnessed(t, streamableServer(t, mcp.Version20260728))
	return w, overHTTP(w.url)
}

func sessionLane(t *testing.T) (*witness, *outriggerv1.Upstream) {
	w := witnessed(t, streamableServer(t, mcp.NewestLegacy, "2025-06-18"))
	return w, overHTTP(w.url)
}

func sseLane(t *testing.T) (*witness, *outriggerv1.Upstream) {
	w := witnessed(t, sseServer())
	return w, overSSE(w.url)
}

func callInSession(t *testing.T, s upstream.Server) {
	session := openAs(t, s, caller("ann"))
	defer session.Close(testContext(t))
	a, err := session.Call(testContext(t), legacyEcho(t, caller("ann")))
	wantHello(t, a, err)
}

func TestTheClientsOwnCredentialGoesToNoServer(t *testing.T) {
	for _, lane := range lanes {
		for _, kind := range kinds {
			t.Run(lane.name+", "+kind.name, func(t *testing.T) {
				var log bytes.Buffer
				i := newIssuer(t)
				w, u := lane.at(t)
				u.Credential = kind.of(i)
				s := dial(t, u, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
				lane.call(t, s)
				calls := 0
				for _, r := range w.taken() {
					if strings.Contains(r.all, "planted") {
						t.Errorf("the server was sent %s", r.all)
					}
					if r.rpc != "tools/call" {
						continue
					}
					if calls++; !strings.Contains(r.authorization, kind.want) || (kind.want == "") != (r.authorization == "") {
						t.Errorf("a call presents %q, want %q", r.authorization, kind.want)
					}
				}
				if calls != 1 {
					t.Errorf("%d calls came to the server, want 1", calls)
				}
				if strings.Contains(log.String(), "planted") || strings.Contains(log.String(), "given-") {
					t.Errorf("the log has a secret: %s", log.String())
				}
			})
		}
	}
}

func TestAProcessIsGivenNothingOfTheClients(t *testing.T) {
	t.Setenv("OUTRIGGER_CREDENTIAL_X", "planted-environment")
	u := &outriggerv1.Upstream{Name: "up", Transport: &outriggerv1.Upstream_Stdio{Stdio: &outriggerv1.StdioTransport{
		Command: []string{os.Args[0]}, Env: map[string]string{peerEnv: "1", "OWN_TOKEN": "ours"},
	}}}
	s := dial(t, u, nil)
	dump := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"dump","arguments":{}`
	for name, call := range map[string]func() string{
		"stateless": func() string {
			c := callOf(t, caller("ann"), dump+`,`+meta+`}}`)
			c.Header.Set(mcp.HeaderMethod, "tools/call")
			c.Header.Set(mcp.HeaderName, "dump")
			a, err := s.Call(testContext(t), c)
			return textOf(t, a, err)
		},
		"a session": func() string {
			session := openAs(t, s, caller("ann"))
			defer session.Close(testContext(t))
			a, err := session.Call(testContext(t), callOf(t, caller("ann"), dump+`}}`))
			return textOf(t, a, err)
		},
	} {
		if got := call(); strings.Contains(got, "planted") || !strings.Contains(got, "OWN_TOKEN=ours") || !strings.Contains(got, "tools/call") {
			t.Errorf("%s: the process has %s", name, got)
		}
	}
}

func TestATokenThatTheServerRefusesIsReplacedAndTheCallHappensOnce(t *testing.T) {
	for _, exchanges := range []bool{false, true} {
		for _, lane := range lanes {
			t.Run(fmt.Sprintf("%s, exchange %v", lane.name, exchanges), func(t *testing.T) {
				i := newIssuer(t)
				w, u := lane.at(t)
				u.Credential = i.credential(exchanges)
				s := dial(t, u, nil)
				lane.call(t, s)
				before, calls := i.count(), w.count("tools/call")
				old := make(map[string]bool)
				for _, r := range w.taken() {
					old[r.authorization] = true
				}
				w.set(func() { w.takes = func(a string) bool { return a != "" && !old[a] } }) // all are revoked
				lane.call(t, s)
				if n := w.count("tools/call") - calls; n != 1 {
					t.Errorf("the call came to the server %d times, want once", n)
				}
				if n := i.count() - before; n != 1 {
					t.Errorf("%d tokens were fetched, want one", n)
				}
			})
		}
	}
}

func TestAServerThatRefusesEveryTokenMakesNobodyFetchMore(t *testing.T) {
	for _, lane := range lanes {
		t.Run(lane.name, func(t *testing.T) {
			i := newIssuer(t)
			w, u := lane.at(t)
			w.takes = func(string) bool { return false }
			u.Credential, u.Era = i.credential(false), outriggerv1.Era_ERA_STATELESS
			if lane.name != "streamable, stateless" {
				u.Era = outriggerv1.Era_ERA_LEGACY
			}
			s := dial(t, u, nil)
			for range 20 {
				var err error
				if u.Era == outriggerv1.Era_ERA_STATELESS {
					_, err = s.Call(testContext(t), statelessEcho(t, caller("ann")))
				} else {
					_, _, err = s.Open(testContext(t), callOf(t, caller("ann"), initialize))
				}
				var e *upstream.Error
				if !errors.As(err, &e) || e.Kind != upstream.Unauthorized || e.Detail != "refused the sidecar's credential (401)" {
					t.Fatalf("got %v, want that the credential was refused", err)
				}
			}
			if n := i.count(); n != 2 {
				t.Errorf("%d tokens were fetched, want the first and one in its place", n)
			}
		})
	}
}

func TestACallThatWasRefusedWithoutAChallengeIsNotSentAgain(t *testing.T) {
	i := newIssuer(t)
	w, u := statelessLane(t)
	u.Credential, u.Era = i.credential(false), outriggerv1.Era_ERA_STATELESS
	w.takes, w.mute = func(a string) bool { return !strings.Contains(a, "given-1-") }, true
	s := dial(t, u, nil)
	_, err := s.Call(testContext(t), statelessEcho(t, caller("ann")))
	var e *upstream.Error
	if !errors.As(err, &e) || e.Kind != upstream.Unauthorized || i.count() != 1 {
		t.Errorf("got %v after %d tokens, want the refusal after one", err, i.count())
	}
	a, err := s.Call(testContext(t), statelessEcho(t, caller("ann"))) // which gets another token
	wantHello(t, a, err)
}

// authorizations are what a server was presented with, by the request's method.
func authorizations(all []seen) map[string]map[string]bool {
	by := make(map[string]map[string]bool)
	for _, r := range all {
		key := r.rpc
		if key == "" {
			key = r.method
		}
		if by[key] == nil {
			by[key] = make(map[string]bool)
		}
		by[key][r.authorization] = true
	}
	return by
}

func TestASessionsRequestsAreItsCallers(t *testing.T) {
	i := newIssuer(t)
	w, u := sessionLane(t)
	u.Credential, u.Era = i.credential(true), outriggerv1.Era_ERA_LEGACY
	s := dial(t, u, nil)
	sessions := make(map[string]upstream.Session)
	for _, who := range []string{"ann", "bob"} {
		sessions[who] = openAs(t, s, caller(who))
	}
	before := len(w.taken())
	refreshed := caller("ann")
	refreshed.Token = "planted-ann-refreshed"
	a, err := sessions["ann"].Call(testContext(t), legacyEcho(t, refreshed))
	wantHello(t, a, err)
	stream, err := sessions["ann"].Listen(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	stream.Close()
	w.set(func() { w.lost = true }) // it is opened again
	a, err = sessions["ann"].Call(testContext(t), legacyEcho(t, refreshed))
	wantHello(t, a, err)
	if err := sessions["ann"].Close(testContext(t)); err != nil {
		t.Fatal(err)
	}
	for key, values := range authorizations(w.taken()[before:]) {
		for v := range values {
			if !strings.HasSuffix(v, "-ann-refreshed") {
				t.Errorf("%s of ann's session presents %q, want what her newest token was exchanged for", key, v)
			}
		}
	}
	for _, want := range []string{"initialize", "notifications/initialized", "tools/call", "GET", "DELETE"} {
		if authorizations(w.taken()[before:])[want] == nil {
			t.Errorf("there was no %s", want)
		}
	}
	a, err = sessions["bob"].Call(testContext(t), legacyEcho(t, caller("bob")))
	wantHello(t, a, err)
	last := w.taken()
	if got := last[len(last)-1].authorization; !strings.HasSuffix(got, "-bob") {
		t.Errorf("bob's session presents %q", got)
	}
	sessions["bob"].Close(testContext(t))
}

func TestCallersOfABridgeHaveTokensOfTheirOwn(t *testing.T) {
	i := newIssuer(t)
	w, u := sessionLane(t)
	u.Credential = i.credential(true)
	s := dial(t, u, nil)
	for _, who := range []string{"ann", "bob", "ann"} {
		before := len(w.taken())
		a, err := s.Call(testContext(t), statelessEcho(t, caller(who)))
		wantHello(t, a, err)
		for _, r := range w.taken()[before:] {
			if r.rpc == "tools/call" && !strings.HasSuffix(r.authorization, "-"+who) {
				t.Errorf("%s's call presents %q", who, r.authorization)
			}
		}
	}
	refreshed := caller("ann")
	refreshed.Token = "planted-ann-refreshed"
	a, err := s.Call(testContext(t), statelessEcho(t, refreshed))
	wantHello(t, a, err)
	last := w.taken()
	if got := last[len(last)-1].authorization; !strings.HasSuffix(got, "-ann-refreshed") {
		t.Errorf("with a new token ann's call presents %q", got)
	}
	wantNoCredential(t, s, statelessEcho(t, nil))
}

// wantNoCredential holds that a call is refused since nobody is known who makes it.
func wantNoCredential(t *testing.T, s upstream.Server, c *upstream.Call) {
	t.Helper()
	_, err := s.Call(testContext(t), c)
	var e *upstream.Error
	if !errors.As(err, &e) || e.Kind != upstream.NoCredential {
		t.Errorf("a call of nobody known: %v, want that there is no credential for it", err)
	}
}

func TestASessionAtAStatelessServerPresentsWhatItsCallerHasNow(t *testing.T) {
	i := newIssuer(t)
	w, u := statelessLane(t)
	u.Credential = i.credential(true)
	s := dial(t, u, nil)
	session := openAs(t, s, caller("ann"))
	defer session.Close(testContext(t))
	before := len(w.taken())
	refreshed := caller("ann")
	refreshed.Token = "planted-ann-refreshed"
	a, err := session.Call(testContext(t), legacyEcho(t, refreshed))
	wantHello(t, a, err)
	stream, err := session.Listen(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	stream.Close()
	now := authorizations(w.taken()[before:])
	for _, method := range []string{"tools/call", "subscriptions/listen"} {
		for v := range now[method] {
			if !strings.HasSuffix(v, "-ann-refreshed") {
				t.Errorf("%s presents %q", method, v)
			}
		}
		if now[method] == nil {
			t.Errorf("there was no %s", method)
		}
	}
}

func TestMembersOfAFederationAreShownTheCallersCredential(t *testing.T) {
	i := newIssuer(t)
	all := credential.New(credential.Options{})
	d := proxy.Dialer{Log: slog.New(slog.DiscardHandler), Credentials: all, Version: "test"}
	var members []federate.Member
	var witnesses []*witness
	for _, name := range []string{"one", "two"} {
		w, u := statelessLane(t)
		u.Name, u.Credential = name, i.credential(true)
		s, err := d.Dial(u, secrets)
		if err != nil {
			t.Fatal(err)
		}
		members, witnesses = append(members, federate.Member{Name: name, Prefix: name, Server: s}), append(witnesses, w)
	}
	s := d.Federate(resource.WithDefaults(&outriggerv1.Binding{Name: "b", Upstreams: []*outriggerv1.UpstreamReference{{Name: "one"}, {Name: "two"}}}), members)
	t.Cleanup(func() {
		ctx := testContext(t)
		err := s.Close(ctx)
		for _, m := range members {
			err = errors.Join(err, m.Server.Close(ctx))
		}
		if err = errors.Join(err, all.Close(ctx)); err != nil {
			t.Error(err)
		}
	})
	list := func(who *identity.Principal) *upstream.Call {
		c := callOf(t, who, `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{`+meta+`}}`)
		c.Header.Set(mcp.HeaderMethod, "tools/list")
		return c
	}
	// Whoever has nothing to show comes first, and keeps nobody else from anything.
	for _, who := range []*identity.Principal{nil, {ID: identity.AnonymousID}} {
		a, err := s.Call(testContext(t), list(who))
		if got := textOf(t, a, err); strings.Contains(got, "one_echo") || !strings.Contains(got, "upstream_no_credential") {
			t.Errorf("%v is shown %s", who, got)
		}
	}
	for _, who := range []string{"ann", "bob"} {
		a, err := s.Call(testContext(t), list(caller(who)))
		if got := textOf(t, a, err); !strings.Contains(got, "one_echo") || !strings.Contains(got, "two_echo") {
			t.Errorf("%s is shown %s", who, got)
		}
		c := callOf(t, caller(who), `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"one_echo","arguments":{"text":"hello"},`+meta+`}}`)
		c.Header.Set(mcp.HeaderMethod, "tools/call")
		c.Header.Set(mcp.HeaderName, "one_echo")
		a, err = s.Call(testContext(t), c)
		wantHello(t, a, err)
	}
	called := authorizations(witnesses[0].taken())["tools/call"]
	if len(called) != 2 {
		t.Errorf("calls of two callers present %v", called)
	}
	for _, w := range witnesses {
		for _, r := range w.taken() {
			if strings.Contains(r.all, "planted") {
				t.Errorf("a member was sent %s", r.all)
			}
		}
		if listed := authorizations(w.taken())["tools/list"]; listed[""] {
			t.Errorf("a list was asked for with %v", listed)
		}
	}
}

func TestAServerIsReadyThatSpeaksToCallersAlone(t *testing.T) {
	for _, lane := range []func(*testing.T) (*witness, *outriggerv1.Upstream){statelessLane, sessionLane, sseLane} {
		i := newIssuer(t)
		i.itself = false
		w, u := lane(t)
		w.takes = func(a string) bool { return strings.HasSuffix(a, "-ann") }
		u.Credential, u.Era = i.credential(true), outriggerv1.Era_ERA_STATELESS
		if err := dial(t, u, nil).Check(testContext(t)); err != nil {
			t.Errorf("%T: not ready: %v", u.GetTransport(), err)
		}
	}
}
