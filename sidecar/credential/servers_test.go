package credential_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/credential"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/proxy"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

func testContext(t testing.TB) context.Context {
	ctx, stop := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(stop)
	return ctx
}

// issuer gives tokens: given-N-SUBJECT, where the sidecar's own have the subject "itself".
type issuer struct {
	url string

	mu     sync.Mutex // guards below
	given  []string
	itself bool   // it gives the sidecar tokens for itself
	no     string // what it answers in place of a token; empty: it gives one
}

func newIssuer(t testing.TB) *issuer {
	t.Helper()
	i := &issuer{itself: true}
	s := httptest.NewServer(i)
	t.Cleanup(s.Close)
	i.url = s.URL
	return i
}

// ServeHTTP implements http.Handler.
func (i *issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	subject := r.PostFormValue("subject_token")
	i.mu.Lock()
	defer i.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	no := i.no
	if subject == "" && !i.itself {
		no = `{"error":"unauthorized_client"}`
	}
	if no != "" {
		w.WriteHeader(400)
		io.WriteString(w, no)
		return
	}
	if subject == "" {
		subject = "itself"
	}
	// A token says for whom it is without being what the caller showed.
	name, ok := strings.CutPrefix(subject, "planted-")
	if !ok && subject != "itself" {
		name = fmt.Sprintf("%x", sha256.Sum256([]byte(subject)))
	} else if !ok {
		name = subject
	}
	token := fmt.Sprintf("given-%d-%s", len(i.given)+1, name)
	i.given = append(i.given, token)
	fmt.Fprintf(w, `{"access_token":%q,"token_type":"Bearer","expires_in":3600,"issued_token_type":"urn:ietf:params:oauth:token-type:access_token"}`, token)
}

// refuse makes it answer 400 with a body.
func (i *issuer) refuse(body string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.no = body
}

func (i *issuer) count() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.given)
}

// credential is one that the issuer gives.
func (i *issuer) credential(exchanges bool) *outriggerv1.Credential {
	e := &outriggerv1.TokenEndpoint{Url: i.url, ClientId: "sidecar", ClientSecret: &outriggerv1.ClientSecret{
		Source: &outriggerv1.ClientSecret_Secret{Secret: &outriggerv1.SecretReference{Name: "s", Key: "client"}},
	}}
	if exchanges {
		return &outriggerv1.Credential{Source: &outriggerv1.Credential_TokenExchange{TokenExchange: &outriggerv1.TokenExchange{Endpoint: e}}}
	}
	return &outriggerv1.Credential{Source: &outriggerv1.Credential_ClientCredentials{ClientCredentials: &outriggerv1.ClientCredentials{Endpoint: e}}}
}

var secrets = credential.Secrets{"s": {"client": "planted-client-secret", "value": "ours"}}

// witness stands before a server: it remembers every request, and refuses those whose Authorization it does not take.
type witness struct {
	inner http.Handler
	url   string

	mu       sync.Mutex // guards below
	requests []seen
	takes    func(authorization string) bool // nil: everything
	mute     bool                            // a refusal has no challenge
	lost     bool                            // every session is unknown, once
}

// seen is a request as the server had it.
type seen struct{ method, rpc, authorization, all string }

func witnessed(t testing.TB, inner http.Handler) *witness {
	t.Helper()
	w := &witness{inner: inner}
	s := httptest.NewServer(w)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	w.url = s.URL
	return w
}

// ServeHTTP implements http.Handler.
func (w *witness) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	one := seen{method: r.Method, authorization: r.Header.Get("Authorization")}
	one.all = fmt.Sprint(r.Method, r.RequestURI, r.Header, string(body))
	if m, err := mcp.Scan(body, mcp.Limits{MaxDepth: mcp.AnswerDepth}); err == nil {
		one.rpc = m.Method
	}
	w.mu.Lock()
	refused := w.takes != nil && !w.takes(one.authorization)
	mute, lost := w.mute, w.lost && !refused && r.Header.Get("Mcp-Session-Id") != ""
	if lost {
		w.lost = false
	}
	if !refused {
		w.requests = append(w.requests, one)
	}
	w.mu.Unlock()
	switch {
	case refused && mute:
		rw.WriteHeader(401)
	case refused:
		rw.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
		rw.WriteHeader(401)
	case lost:
		rw.WriteHeader(404)
	default:
		w.inner.ServeHTTP(rw, r)
	}
}

// taken are the requests that were not refused.
func (w *witness) taken() []seen {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]seen(nil), w.requests...)
}

func (w *witness) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// count is how many requests with a method of MCP were not refused.
func (w *witness) count(rpc string) (n int) {
	for _, r := range w.taken() {
		if r.rpc == rpc {
			n++
		}
	}
	return n
}

type input struct {
	Text string `json:"text"`
}

// realServer is one of the SDK's with the tool echo.
func realServer(o *sdk.ServerOptions) *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "real", Version: "1"}, o)
	sdk.AddTool(s, &sdk.Tool{Name: "echo"}, func(_ context.Context, _ *sdk.CallToolRequest, in input) (*sdk.CallToolResult, any, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: in.Text}}}, nil, nil
	})
	return s
}

// streamableServer speaks the wires of these versions.
func streamableServer(t testing.TB, versions ...string) http.Handler {
	s := realServer(&sdk.ServerOptions{SupportedProtocolVersions: versions})
	t.Cleanup(func() {
		for session := range s.Sessions() {
			session.Close()
		}
	})
	stateless := len(versions) == 1 && versions[0] == mcp.Version20260728
	return sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, &sdk.StreamableHTTPOptions{Stateless: stateless})
}

func sseServer() http.Handler {
	s := realServer(nil)
	return sdk.NewSSEHandler(func(*http.Request) *sdk.Server { return s }, nil)
}

func overHTTP(url string) *outriggerv1.Upstream {
	return &outriggerv1.Upstream{Name: "up", Transport: &outriggerv1.Upstream_Http{Http: &outriggerv1.HTTPTransport{Url: url}}}
}

func overSSE(url string) *outriggerv1.Upstream {
	return &outriggerv1.Upstream{Name: "up", Transport: &outriggerv1.Upstream_Sse{Sse: &outriggerv1.SSETransport{Url: url}}}
}

// dial is the server of a resource as a sidecar makes it.
func dial(t testing.TB, u *outriggerv1.Upstream, log *slog.Logger) upstream.Server {
	t.Helper()
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	all := credential.New(credential.Options{Log: log})
	s, err := proxy.Dialer{Log: log, Credentials: all, Version: "test"}.Dial(u, secrets)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := testContext(t)
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := all.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return s
}

// caller is one who came with a token.
func caller(name string) *identity.Principal {
	return &identity.Principal{ID: "https://issuer.example|" + name, Token: "planted-" + name}
}

// planted are headers of a client that no server may see.
func planted() http.Header {
	h := make(http.Header)
	for _, name := range []string{
		"Authorization", "Proxy-Authorization", "X-Api-Key", "X-Team-Key", "Cookie", "Mcp-Session-Id", "X-Forwarded-Access-Token",
		"Dpop", "X-Amz-Security-Token", "Forwarded", "Www-Authenticate", "Proxy-Authenticate",
	} {
		h.Set(name, "Bearer planted-"+url.PathEscape(name))
	}
	return h
}

// callOf is a message of a caller's, with what its client has in its headers.
func callOf(t testing.TB, who *identity.Principal, text string) *upstream.Call {
	t.Helper()
	m, err := mcp.Scan([]byte(text), mcp.Limits{MaxDepth: mcp.AnswerDepth})
	if err != nil {
		t.Fatal(err)
	}
	c := &upstream.Call{Message: &m, Header: planted(), Caller: who}
	c.Header.Set(mcp.HeaderVersion, mcp.Version20260728)
	if who != nil {
		c.Principal = who.ID
	}
	return c
}

const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"}}`

// statelessEcho is a call of the tool on the stateless wire, legacyEcho on the other.
func statelessEcho(t testing.TB, who *identity.Principal) *upstream.Call {
	c := callOf(t, who, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"hello"},`+meta+`}}`)
	c.Header.Set(mcp.HeaderMethod, "tools/call")
	c.Header.Set(mcp.HeaderName, "echo")
	return c
}

func legacyEcho(t testing.TB, who *identity.Principal) *upstream.Call {
	return callOf(t, who, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"hello"}}}`)
}

const initialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`

// openAs opens a session for a caller, up to its notifications/initialized.
func openAs(t testing.TB, s upstream.Server, who *identity.Principal) upstream.Session {
	t.Helper()
	session, a, err := s.Open(testContext(t), callOf(t, who, initialize))
	if err != nil || session == nil {
		t.Fatalf("no session: %v", err)
	}
	a.Close()
	if _, err := session.Call(testContext(t), callOf(t, who, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)); err != nil {
		t.Fatal(err)
	}
	return session
}

// textOf reads an answer to its response.
func textOf(t testing.TB, a *upstream.Answer, err error) string {
	t.Helper()
	if err != nil {
		t.Fatalf("the call failed: %v", err)
	}
	defer a.Close()
	if a.Body != nil {
		b, err := io.ReadAll(a.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	last := ""
	for {
		ev, err := a.Events.Next()
		if err == io.EOF {
			return last
		}
		if err != nil {
			t.Fatal(err)
		}
		last = string(ev.Data)
	}
}

// wantHello holds that a call had its answer.
func wantHello(t testing.TB, a *upstream.Answer, err error) {
	t.Helper()
	if got := textOf(t, a, err); !strings.Contains(got, "hello") {
		t.Errorf("got %s, want the tool's answer", got)
	}
}

// peerEnv makes the test binary be a stdio server, whose tool dump tells what the process was given.
const peerEnv = "CREDENTIAL_TEST_PEER"

func init() {
	if os.Getenv(peerEnv) == "" {
		return
	}
	var read bytes.Buffer
	s := realServer(nil)
	sdk.AddTool(s, &sdk.Tool{Name: "dump"}, func(context.Context, *sdk.CallToolRequest, struct{}) (*sdk.CallToolResult, any, error) {
		text := fmt.Sprint(os.Args, os.Environ(), read.String())
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}, nil, nil
	})
	in := io.NopCloser(io.TeeReader(os.Stdin, &read)) // read by one goroutine, before the tool is called
	_ = s.Run(context.Background(), &sdk.IOTransport{Reader: in, Writer: os.Stdout})
	os.Exit(0)
}
