package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
)

// cells are the pairs of a real client and a real server of one era, over both transports.
var cells = []struct {
	name, version string
	upstream      func(testing.TB) *outriggerv1.Upstream
}{
	{"legacy over HTTP", mcp.Version20251125, func(t testing.TB) *outriggerv1.Upstream { return newPeer().serveHTTP(t, nil) }},
	{"legacy over HTTP with priming events", mcp.Version20251125, func(t testing.TB) *outriggerv1.Upstream { // L33
		return newPeer().serveHTTP(t, &sdk.StreamableHTTPOptions{EventStore: sdk.NewMemoryEventStore(nil)})
	}},
	{"legacy of 2025-06-18 over HTTP", mcp.Version20250618, func(t testing.TB) *outriggerv1.Upstream { return newPeer().serveHTTP(t, nil) }},
	{"legacy of 2025-03-26 over HTTP", mcp.Version20250326, func(t testing.TB) *outriggerv1.Upstream { return newPeer().serveHTTP(t, nil) }},
	{"legacy over stdio", mcp.Version20251125, func(t testing.TB) *outriggerv1.Upstream { return overStdio(t, "legacy") }},
	{"stateless over HTTP in events", mcp.Version20260728, func(t testing.TB) *outriggerv1.Upstream { return newPeer().serveHTTP(t, inEvents) }},
	{"stateless over HTTP in JSON", mcp.Version20260728, func(t testing.TB) *outriggerv1.Upstream { return newPeer().serveHTTP(t, inJSON) }},
	{"stateless over stdio", mcp.Version20260728, func(t testing.TB) *outriggerv1.Upstream { return overStdio(t, "stateless") }},
}

func TestRealClientsReachRealServersOfTheirEra(t *testing.T) {
	for _, c := range cells {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, c.upstream(t))
			s := r.connect(c.version, nil)
			if got := s.InitializeResult().ProtocolVersion; got != c.version {
				t.Errorf("version %s, want %s", got, c.version)
			}
			var wait sync.WaitGroup
			for i := range 8 {
				wait.Go(func() {
					text := fmt.Sprint("hello ", i)
					got := textOf(s.CallTool(testContext(t), &sdk.CallToolParams{Name: "echo", Arguments: arguments(text)}))
					if got != text {
						t.Errorf("got %q, want %q", got, text)
					}
				})
			}
			wait.Wait()
			tools, err := s.ListTools(testContext(t), nil)
			if err != nil || len(tools.Tools) != 7 {
				t.Errorf("tools/list: %v, %v; want 7 tools", tools, err)
			}
		})
	}
}

func TestProgressComesBeforeTheResult(t *testing.T) {
	for _, c := range cells {
		if strings.Contains(c.name, "in JSON") {
			continue // where it has no place
		}
		t.Run(c.name, func(t *testing.T) {
			progressed := make(chan struct{}, 1)
			r := newRig(t, c.upstream(t))
			s := r.connect(c.version, &sdk.ClientOptions{ProgressNotificationHandler: func(
				_ context.Context, n *sdk.ProgressNotificationClientRequest,
			) {
				if n.Params.ProgressToken == "mine" {
					progressed <- struct{}{}
				}
			}})
			params := &sdk.CallToolParams{Name: "progress", Arguments: arguments("done")}
			params.SetProgressToken("mine")
			if got := textOf(s.CallTool(testContext(t), params)); got != "done" {
				t.Errorf("got %q", got)
			}
			select {
			case <-progressed:
			case <-time.After(patience):
				t.Error("no progress came")
			}
		})
	}
}

// L31
func TestAnElicitationDuringACallIsAnsweredAtOnce(t *testing.T) {
	r := newRig(t, newPeer().serveHTTP(t, nil))
	s := r.connect(mcp.Version20251125, &sdk.ClientOptions{ElicitationHandler: func(
		context.Context, *sdk.ElicitRequest,
	) (*sdk.ElicitResult, error) {
		return &sdk.ElicitResult{Action: "decline"}, nil
	}})
	begun := time.Now()
	if got := textOf(s.CallTool(testContext(t), &sdk.CallToolParams{Name: "ask", Arguments: arguments("sure?")})); got != "decline" {
		t.Errorf("got %q, want decline", got)
	}
	if took := time.Since(begun); took > patience/2 {
		t.Errorf("it took %v: something held an event back", took)
	}
}

// L9, L26
func TestEqualIdsOfManyClientsMeetTheirOwnAnswers(t *testing.T) {
	for _, c := range cells {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, c.upstream(t))
			var wait sync.WaitGroup
			for client := range 4 {
				var h head
				if c.version != mcp.Version20260728 {
					h = r.initializeAs(c.version)
				}
				for _, id := range []string{`7`, `"7"`} {
					wait.Go(func() {
						text := fmt.Sprintf("%dms", 1+client*7%20)
						args := string(arguments(text))
						if h == nil {
							wantText(t, r.callModern(id, "delay", args), id, text)
						} else {
							wantText(t, r.do(http.MethodPost, h, toolCall(id, "delay", args)), id, text)
						}
					})
				}
			}
			wait.Wait()
		})
	}
}

// L27
func TestACancellationReachesTheCallItNamesAtOnce(t *testing.T) {
	p := newPeer()
	r := newRig(t, p.serveHTTP(t, nil))
	one, two := r.initialize(), r.initialize()
	var wait sync.WaitGroup
	for _, h := range []head{one, two} {
		wait.Go(func() {
			_, _ = r.client.Do(r.request(testContext(t), http.MethodPost, h, toolCall("5", "wait", string(arguments(h[mcp.HeaderSessionID])))))
		})
		<-p.begun
	}
	begun := time.Now()
	if a := r.do(http.MethodPost, one, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}`); a.status != 202 {
		t.Errorf("cancelled: %d %s", a.status, a.body)
	}
	if got := <-p.ended; got != one[mcp.HeaderSessionID] {
		t.Errorf("session %s was cancelled, want %s", got, one[mcp.HeaderSessionID])
	}
	if took := time.Since(begun); took > patience/2 {
		t.Errorf("it took %v", took)
	}
	select {
	case <-p.ended:
		t.Error("the other session's call of the same id was cancelled too")
	default:
	}
	r.do(http.MethodDelete, one, "")
	r.do(http.MethodDelete, two, "")
	wait.Wait()
}

func TestEveryCarrierOfHTTPWorks(t *testing.T) {
	cert := httptest.NewUnstartedServer(nil)
	cert.StartTLS()
	defer cert.Close()
	for _, tt := range []struct {
		name  string
		proto string
		tls   bool
		set   func(*http.Protocols)
	}{
		{"HTTP/1.1", "HTTP/1.1", false, func(p *http.Protocols) { p.SetHTTP1(true) }},
		{"h2c", "HTTP/2.0", false, func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) }},
		{"TLS with ALPN h2", "HTTP/2.0", true, func(p *http.Protocols) { p.SetHTTP1(true); p.SetHTTP2(true) }},
		{"TLS with HTTP/1.1", "HTTP/1.1", true, func(p *http.Protocols) { p.SetHTTP1(true) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, newPeer().serveHTTP(t, nil))
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			protocols := new(http.Protocols)
			tt.set(protocols)
			transport := &http.Transport{Protocols: protocols}
			r.client.CloseIdleConnections()
			r.client = &http.Client{Transport: transport}
			var server *http.Server
			if tt.tls {
				server = NewServer(r.Proxy, &tls.Config{Certificates: cert.TLS.Certificates, MinVersion: tls.VersionTLS12}, r.Log)
				go TLSServer{Server: server, MaxConns: 10}.Serve(l)
				pool := x509.NewCertPool()
				pool.AddCert(cert.Certificate())
				transport.TLSClientConfig = &tls.Config{RootCAs: pool, ServerName: "example.com"}
				r.url = "https://" + l.Addr().String() + "/mcp"
			} else {
				server = NewServer(r.Proxy, nil, r.Log)
				go server.Serve(l)
				r.url = "http://" + l.Addr().String() + "/mcp"
			}
			t.Cleanup(func() { server.Close() })
			res, err := r.client.Get(r.url)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.Proto != tt.proto {
				t.Errorf("carried by %s, want %s", res.Proto, tt.proto)
			}
			s := r.connect(mcp.Version20251125, nil)
			if got := textOf(s.CallTool(testContext(t), &sdk.CallToolParams{Name: "progress", Arguments: arguments("x")})); got != "x" {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestATLSServerTakesABoundedNumberOfConnections(t *testing.T) {
	cert := httptest.NewUnstartedServer(nil)
	cert.StartTLS()
	defer cert.Close()
	r := newRig(t, &fake{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := TLSServer{Server: NewServer(r.Proxy, &tls.Config{Certificates: cert.TLS.Certificates}, r.Log), MaxConns: 1}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	dial := func() *tls.Conn {
		nc, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { nc.Close() })
		return tls.Client(nc, &tls.Config{InsecureSkipVerify: true})
	}
	first, second := dial(), dial()
	if err := first.HandshakeContext(testContext(t)); err != nil {
		t.Fatal(err)
	}
	shaken := make(chan error, 1)
	go func() { shaken <- second.HandshakeContext(testContext(t)) }()
	select {
	case err := <-shaken:
		t.Errorf("a second connection was served beyond one: %v", err)
	case <-time.After(100 * time.Millisecond):
		first.Close()
		if err := <-shaken; err != nil {
			t.Errorf("after the first closed: %v", err)
		}
	}
	server.Close()
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("Serve returned %v, want ErrServerClosed", err)
	}
}

// L15
func TestReadinessNeverInitializesAStdioServerTwice(t *testing.T) {
	for _, mode := range []string{"legacy", "stateless", "both"} {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t, overStdio(t, mode))
			for range 3 {
				if problems := r.Ready(testContext(t)); len(problems) > 0 {
					t.Errorf("not ready: %v", problems)
				}
			}
			if mode == "legacy" {
				wantText(t, r.do(http.MethodPost, r.initialize(), toolCall("1", "echo", `{"text":"a"}`)), "1", "a")
			}
			if problems := r.Ready(testContext(t)); len(problems) > 0 {
				t.Errorf("not ready: %v", problems)
			}
		})
	}
}

func TestAGETStreamCarriesWhatBelongsToNoCall(t *testing.T) {
	changed := make(chan struct{}, 1)
	r := newRig(t, newPeer().serveHTTP(t, nil))
	s := r.connect(mcp.Version20251125, &sdk.ClientOptions{ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}})
	eventually(t, "the client's GET stream is open", func() bool { return r.metric("outrigger_open_streams", "era", "legacy") == 1 })
	s.CallTool(testContext(t), &sdk.CallToolParams{Name: "grow", Arguments: arguments("1")})
	select {
	case <-changed:
	case <-time.After(patience):
		t.Error("the client was not told that the tools changed")
	}
}

// L33
func TestALineOf5MiBPasses(t *testing.T) {
	want := strings.Repeat("0123456789", repeats)
	for _, c := range cells {
		if c.version == mcp.Version20250618 || c.version == mcp.Version20250326 {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, c.upstream(t))
			s := r.connect(c.version, nil)
			got := textOf(s.CallTool(testContext(t), &sdk.CallToolParams{Name: "repeat", Arguments: arguments("0123456789")}))
			if got != want {
				t.Errorf("%d bytes came, want %d: %.200s", len(got), len(want), got)
			}
		})
	}
}

// What a session's client has in flight survives the connection it was asked on: a real client resumes by itself.
func TestARealClientResumesACallWhoseConnectionBroke(t *testing.T) {
	p := newPeer()
	r := newRig(t, p.serveHTTP(t, &sdk.StreamableHTTPOptions{EventStore: sdk.NewMemoryEventStore(nil)}))
	proceed := make(chan struct{})
	p.tool("hold", func(_ context.Context, _ *sdk.CallToolRequest, text string) string {
		p.begun <- text
		<-proceed
		return text
	})
	var breaks onceBroken
	r.client = &http.Client{Transport: &breaks}
	breaks.Transport = &http.Transport{}
	t.Cleanup(breaks.CloseIdleConnections)
	s := r.connect(mcp.Version20251125, nil)
	got := make(chan string, 1)
	go func() {
		got <- textOf(s.CallTool(testContext(t), &sdk.CallToolParams{Name: "hold", Arguments: arguments("kept")}))
	}()
	<-p.begun
	eventually(t, "the answer's stream is open", func() bool { return breaks.cut("tools/call") })
	close(proceed)
	if text := <-got; text != "kept" {
		t.Errorf("got %q, want the answer on a new connection", text)
	}
	if n := breaks.resumed.Load(); n == 0 {
		t.Error("the client never resumed")
	}
}

// onceBroken is a network that a test breaks.
type onceBroken struct {
	*http.Transport
	resumed atomic.Int32

	mu   sync.Mutex
	open map[string]io.Closer // answers' bodies by Mcp-Method, as the client names it, or by the body's method
}

func (o *onceBroken) RoundTrip(r *http.Request) (*http.Response, error) {
	method := ""
	if r.Header.Get("Last-Event-ID") != "" {
		o.resumed.Add(1)
	} else if r.GetBody != nil {
		body, err := r.GetBody()
		if err != nil {
			return nil, err
		}
		text, _ := io.ReadAll(body)
		if strings.Contains(string(text), `"tools/call"`) {
			method = "tools/call"
		}
	}
	ctx, cancel := context.WithCancel(r.Context())
	res, err := o.Transport.RoundTrip(r.WithContext(ctx))
	if err != nil || method == "" {
		context.AfterFunc(r.Context(), cancel)
		return res, err
	}
	broken := &breakable{body: res.Body, cancel: cancel}
	broken.primed = func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.open == nil {
			o.open = map[string]io.Closer{}
		}
		o.open[method] = closer(broken.cut)
	}
	res.Body = broken
	return res, err
}

// cut breaks the connection of an answer that is open.
func (o *onceBroken) cut(method string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := o.open[method]
	if c == nil {
		return false
	}
	c.Close()
	delete(o.open, method)
	return true
}

type closer func()

func (c closer) Close() error { c(); return nil }

type breakable struct {
	body   io.ReadCloser
	cancel func()
	event  bool   // the reader has got a whole event
	primed func() // called once it asks for more: before that it has nothing to resume from
	broken atomic.Bool
}

// cut lets nothing through any more, also of what has arrived: the connection itself is closed some time later.
func (b *breakable) cut() { b.broken.Store(true); b.cancel() }

func (b *breakable) Read(p []byte) (int, error) {
	if b.event && b.primed != nil {
		b.primed()
		b.primed = nil
	}
	n, err := b.body.Read(p)
	if b.broken.Load() {
		return 0, io.ErrUnexpectedEOF
	}
	b.event = b.event || bytes.Contains(p[:n], []byte("\n\n"))
	return n, err
}

func (b *breakable) Close() error { b.cancel(); return b.body.Close() }
