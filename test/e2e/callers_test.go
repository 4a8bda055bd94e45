package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"google.golang.org/protobuf/types/known/structpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// audience is what tokens of these tests are for.
const audience = "desk"

// issuer is an authorization server that shows its key and nothing else. Its tokens are written here.
type issuer struct {
	url    string
	signer jose.Signer
}

func newIssuer(t testing.TB) *issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "one"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "one"}}})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(keys) // the sidecar's loss, and its log tells
	}))
	t.Cleanup(s.Close)
	return &issuer{url: s.URL, signer: signer}
}

// token is a good one of a subject's, whose id is its subject's name with "-token". more claims are added or win.
func (i *issuer) token(t testing.TB, subject string, more map[string]any) string {
	t.Helper()
	claims := map[string]any{"iss": i.url, "sub": subject, "aud": audience, "jti": subject + "-token",
		"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix()}
	for name, value := range more {
		claims[name] = value
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := i.signer.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// callers is a Policy by which Keys and the tokens of an issuer are taken. more is of its identity, in YAML's flow form.
func (i *issuer) callers(more string) string {
	return fmt.Sprintf(`kind: Policy
name: callers
spec: {identity: {providers: [{name: keys, keys: {}}, {name: staff, jwt: {issuer: %q, jwksUrl: %q,
  audiences: [%s], claims: {tenant: org}}}]%s}}
`, i.url, i.url+"/keys", audience, more)
}

// rules is a Policy of rules in YAML's flow form.
func rules(name, rules string) string {
	return fmt.Sprintf("kind: Policy\nname: %s\nspec: {rules: [%s]}\n", name, rules)
}

// everything is a rule.
const everything = "{name: everything, action: allow}"

// follower reads a stream that a caller has open.
type follower struct {
	what  string
	ended chan struct{}

	mu    sync.Mutex // guards below
	heard []string
}

// follow reads a stream of events to its end, or the test's.
func follow(t testing.TB, what string, res *http.Response) *follower {
	t.Helper()
	f := &follower{what: what, ended: make(chan struct{})}
	if res.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(res.Body) // it is for the failure's text
		t.Fatalf("%s: %d %s, want a stream", what, res.StatusCode, b)
	}
	go func() {
		defer close(f.ended)
		defer res.Body.Close()
		_ = events(res.Body, func(data string) { // however it ends, it has
			f.mu.Lock()
			defer f.mu.Unlock()
			f.heard = append(f.heard, data)
		})
	}()
	return f
}

// hears is whether a message with a word has come.
func (f *follower) hears(word string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if strings.Contains(strings.Join(f.heard, "\n"), word) {
		return nil
	}
	return fmt.Errorf("%s has not heard %s but %.500q", f.what, word, f.heard)
}

// forget has the stream hear anew.
func (f *follower) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.heard = nil
}

// over is whether the stream has ended.
func (f *follower) over() bool {
	select {
	case <-f.ended:
		return true
	default:
		return false
	}
}

// client is who calls at one sidecar on both wires, with a stream open on each.
type client struct {
	stateless *asker
	legacy    *wire
	streams   []*follower
}

// clients opens one of a credential at each of the sidecars. Their calls have to pass.
func clients(t *testing.T, sidecars []*sidecar, name, credential string) (all []*client) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	for i, s := range sidecars {
		c := &client{stateless: newAsker(t, s.url+statelessPath, credential),
			legacy: &wire{http: httpClient(t, credential), url: s.url + legacyPath, version: versionLegacy}}
		if err := c.legacy.initialize(within(t)); err != nil {
			t.Fatalf("%s at sidecar %d: %v", name, i, err)
		}
		c.passes(t)
		listen, err := c.stateless.post(ctx, `"listen"`, "subscriptions/listen", "", `"notifications":{"toolsListChanged":true}`)
		if err != nil {
			t.Fatal(err)
		}
		get, err := c.legacy.get(ctx)
		if err != nil {
			t.Fatal(err)
		}
		c.streams = []*follower{follow(t, fmt.Sprintf("%s's listen at sidecar %d", name, i), listen),
			follow(t, fmt.Sprintf("%s's GET stream at sidecar %d", name, i), get)}
		eventually(t, "the listen is acknowledged", func() error { return c.streams[0].hears("acknowledged") })
		all = append(all, c)
	}
	t.Cleanup(func() {
		cancel()
		for _, c := range all {
			for _, f := range c.streams {
				<-f.ended
			}
		}
	})
	return all
}

// get opens a session's stream of its own.
func (w *wire) get(ctx context.Context) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "text/event-stream")
	r.Header.Set("Mcp-Protocol-Version", w.version)
	r.Header.Set("Mcp-Session-Id", w.session)
	return w.http.Do(r)
}

// outcomes are what calls of a tool come to on the two wires: a status, with "error" when the answer is one.
func (c *client) outcomes(ctx context.Context, tool string) (string, error) {
	stateless, err := c.stateless.post(ctx, "1", "tools/call", tool, fmt.Sprintf(`"name":%q,"arguments":{}`, tool))
	if err != nil {
		return "", err
	}
	legacy, err := c.legacy.post(ctx, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q,"arguments":{},%s}}`, tool, meta), "tools/call", tool)
	if err != nil {
		return "", fmt.Errorf("%w (%v)", err, stateless.Body.Close())
	}
	one, two := outcome(stateless), outcome(legacy)
	return one + ", " + two, nil
}

func outcome(res *http.Response) string {
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	switch {
	case err != nil:
		return err.Error()
	case strings.Contains(string(body), `"error"`):
		return fmt.Sprint(res.StatusCode, " error")
	}
	return fmt.Sprint(res.StatusCode)
}

// passes checks that the client's calls do, and that its streams are open.
func (c *client) passes(t *testing.T) {
	t.Helper()
	if got, err := c.outcomes(within(t), "echo"); err != nil || got != "200, 200" {
		t.Errorf("calls at %s came to %s (%v), want 200, 200", c.legacy.url, got, err)
	}
	for _, f := range c.streams {
		if f.over() {
			t.Errorf("%s has ended: %q", f.what, f.heard)
		}
	}
}

// isRefused waits until the client's calls of echo come to what they should, and its streams end, or hear a word.
func (c *client) isRefused(t *testing.T, want, word string) {
	t.Helper()
	eventually(t, "the caller is refused at "+c.legacy.url, func() error {
		got, err := c.outcomes(within(t), "echo")
		if err == nil && got != want {
			err = fmt.Errorf("calls came to %s, want %s", got, want)
		}
		return err
	})
	for _, f := range c.streams {
		if word != "" {
			eventually(t, "the stream tells", func() error { return f.hears(word) })
			continue
		}
		select {
		case <-f.ended:
		case <-time.After(patience):
			t.Fatalf("%s did not end within %v", f.what, patience)
		}
	}
}

// promptly is how long a withdrawal may take to be in force everywhere.
func promptly() time.Duration {
	if raceDetector {
		return 5 * time.Second
	}
	return time.Second
}

// sets changes a field of a resource that is stored.
func (p *plane) sets(kind, name, field string, value any) {
	p.t.Helper()
	got, err := p.client().Get(within(p.t), &outriggerv1.GetRequest{Kind: kind, Name: name})
	if err != nil {
		p.t.Fatal(err)
	}
	v, err := structpb.NewValue(value)
	if err != nil {
		p.t.Fatal(err)
	}
	r := got.Resource
	r.Spec.Fields[field], r.Status = v, nil
	if _, err := p.client().Apply(within(p.t), &outriggerv1.ApplyRequest{Resources: []*outriggerv1.Resource{r}}); err != nil {
		p.t.Fatal(err)
	}
}

// Not parallel: it is about time, which others would take.
func TestAWithdrawalIsInForceAtFourSidecarsWithinASecond(t *testing.T) {
	p := startPlane(t, filepath.Join(t.TempDir(), "data"))
	i := newIssuer(t)
	token := p.join("--uses", "4")
	p.apply(append(both(newPeer("peer").serve(t), ""), i.callers(""), rules("rules", everything), "kind: Tenant\nname: acme\nspec: {}\n")...)
	var sidecars []*sidecar
	for n := range 4 {
		s := p.joinSidecar(fmt.Sprint("edge-", n), token, t.TempDir(), nil, "--access-log=false")
		s.serves()
		sidecars = append(sidecars, s)
	}
	idle, lost := p.createKey("idle"), p.createKey("lost")
	p.runs("Key", "lost", "edge-0 running", "edge-1 running", "edge-2 running", "edge-3 running")
	others := clients(t, sidecars, "the other", i.token(t, "other", nil))
	const gone = "401 error, 401 error"
	for _, tc := range []struct {
		name, credential string
		withdraw         func()
		want, hears      string
	}{
		{"a Key disabled", idle, func() { p.sets("Key", "idle", "disabled", true) }, gone, ""},
		{"a Key deleted", lost, func() { p.must("delete", "key", "lost") }, gone, ""},
		{"a token revoked", i.token(t, "ann", nil), func() { p.apply(i.callers(`, revoked: [{jti: ann-token}]`)) }, gone, ""},
		{"a subject revoked", i.token(t, "eve", nil), func() { p.apply(i.callers(`, revoked: [{jti: ann-token}, {subject: eve}]`)) }, gone, ""},
		{"a Tenant disabled", i.token(t, "joe", map[string]any{"org": "acme"}), func() { p.apply("kind: Tenant\nname: acme\nspec: {disabled: true}\n") }, "403 error, 403 error", ""},
		{"a tool denied", i.token(t, "bob", nil), func() {
			p.apply(rules("rules", everything+fmt.Sprintf(`, {name: no-echo, action: deny, tools: [echo], principals: ["%s|bob"]}`, i.url)))
		}, "403 error, 200 error", "tools/list_changed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			refused := clients(t, sidecars, "the refused", tc.credential)
			tc.withdraw()
			begun := time.Now()
			for _, c := range refused {
				c.isRefused(t, tc.want, tc.hears)
			}
			took := time.Since(begun)
			t.Logf("in force at all sidecars after %v", took)
			if took > promptly() {
				t.Errorf("in force at all sidecars after %v, want %v at most", took, promptly())
			}
			for _, c := range others {
				c.passes(t)
			}
		})
	}
	for _, c := range others {
		for _, f := range c.streams {
			f.forget()
		}
	}
	p.apply(rules("rules", "{name: nothing, action: deny, tools: [echo]}"))
	for _, c := range others { // whose streams are as alive as they look
		c.isRefused(t, "403 error, 200 error", "tools/list_changed")
	}
}

// createKey makes a Key and returns what its callers carry.
func (p *plane) createKey(name string, args ...string) string {
	p.t.Helper()
	return strings.TrimSpace(p.must(append([]string{"create", "key", name}, args...)...))
}
