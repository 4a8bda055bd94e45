package streamable

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/credential"
	"github.com/outrigger-mesh/outrigger/sidecar/lazyctx"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

func TestACallGoesOutAsItCame(t *testing.T) {
	const answer = `{"jsonrpc":"2.0","id":9007199254740993,"result":{}}`
	p := newPeer(t, always(jsonAnswer(answer)))
	s := newServer(t, p.url+"?a=b")
	c := stateless(t, "9007199254740993", "echo", `{ "n" : 9007199254740993, "s": "é" }`)
	c.Header.Set("Mcp-Param-Unknown", "=?base64?IGE=?=")
	c.Header.Set("Traceparent", "00-x")
	for _, private := range []string{"Authorization", "Cookie", "Mcp-Session-Id", "Last-Event-Id", "X-Anything"} {
		c.Header.Set(private, "secret")
	}
	a, err := s.Call(testContext(t), c)
	if got, _ := responseOf(t, a, err); got != answer {
		t.Errorf("answer %q, want %q", got, answer)
	}
	r, body := p.requests[0], p.bodies[0]
	if body != string(c.Message.Raw) {
		t.Errorf("the body went out as %q, want %q", body, c.Message.Raw)
	}
	want := map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "echo",
		"Mcp-Param-Unknown": "=?base64?IGE=?=", "Traceparent": "00-x",
	}
	for name, value := range want {
		if got := r.Header.Get(name); got != value {
			t.Errorf("header %s went out as %q, want %q", name, got, value)
		}
	}
	for name, values := range r.Header {
		if strings.Contains(strings.Join(values, ""), "secret") {
			t.Errorf("header %s: %q went out", name, values)
		}
	}
	if r.URL.RequestURI() != "/mcp?a=b" || "http://"+r.Host+"/mcp" != p.url {
		t.Errorf("target %q at %q, want those of %q", r.URL.RequestURI(), r.Host, p.url+"?a=b")
	}
}

func TestTheCredentialIsTheConfiguredOne(t *testing.T) {
	p := newPeer(t, always(jsonAnswer(result)))
	s, err := New("weather", &outriggerv1.Upstream{
		Transport: &outriggerv1.Upstream_Http{Http: &outriggerv1.HTTPTransport{Url: p.url}},
	}, Options{Credential: presenting(t, "Authorization", "Bearer ours")})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(testContext(t))
	c := stateless(t, "1", "echo", "{}")
	c.Header.Set("Authorization", "Bearer the client's")
	a, err := s.Call(testContext(t), c)
	responseOf(t, a, err)
	if got := p.requests[0].Header["Authorization"]; len(got) != 1 || got[0] != "Bearer ours" {
		t.Errorf("Authorization went out as %q, want only the configured one", got)
	}
}

func TestNoHeaderCanSplitARequest(t *testing.T) {
	p := newPeer(t, always(jsonAnswer(result)))
	s := newServer(t, p.url)
	for name, value := range map[string]string{
		"Mcp-Param-A": "a\nb", "Mcp-Param-B\r\nX": "y", "Mcp-Param-C": "\x00", "Traceparent": "\r",
	} {
		c := stateless(t, "1", "echo", "{}")
		c.Header[name] = []string{value}
		_, err := s.Call(testContext(t), c)
		wantKind(t, err, upstream.Unreachable)
	}
	method := call(t, `{"jsonrpc":"2.0","id":1,"method":"a\r\nX: y"}`)
	_, err := s.Call(testContext(t), method)
	wantKind(t, err, upstream.Unreachable)
	if n := p.count(func(*http.Request, string) bool { return true }); n != 0 {
		t.Errorf("%d requests went out, want none", n)
	}
	a, err := s.Call(testContext(t), stateless(t, "1", "a\r\nX: y", "{}"))
	responseOf(t, a, err)
	if got := p.requests[0].Header; got.Get(mcp.HeaderName) != "=?base64?YQ0KWDogeQ==?=" || got["X"] != nil {
		t.Errorf("a name of two lines went out in %v, want it encoded", got)
	}
}

// presenting is a credential that is always the same.
func presenting(t *testing.T, header, value string) *credential.Source {
	t.Helper()
	s, err := credential.Static(header, value)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestAnswersOfTheStatelessWire(t *testing.T) {
	const rpcError = `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no"}}`
	withStatus := func(status int, contentType, body string) string {
		return fmt.Sprintf("HTTP/1.1 %d X\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", status, contentType, len(body), body)
	}
	const bad, ok = upstream.BadAnswer, upstream.Kind(255)
	tests := []struct {
		name, answer string
		want         upstream.Kind
		status       int
		body         string
	}{
		{"JSON", jsonAnswer(result), ok, 200, result},
		{"JSON in chunks", "HTTP/1.1 200 OK\r\nContent-Type: Application/JSON; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n" +
			chunk(result[:9]) + "1a;x=y\r\n" + result[9:35] + "\r\n" + chunk(result[35:]) + "0\r\nTrailer: x\r\n\r\n", ok, 200, result},
		{"JSON until close", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + result, ok, 200, result},
		{"HTTP/1.0", "HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n" + result, ok, 200, result},
		{"interim answers", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nA: b\r\n\r\n" + jsonAnswer(result), ok, 200, result},
		{"an event stream", sseHead + "\r\n: hello\n\ndata: " + progressed + "\n\nevent: ping\ndata: x\n\ndata: " + result + "\n\n", ok, 200, result},
		{"an error with 400", withStatus(400, "application/json", rpcError), ok, 400, rpcError},
		{"an error with 404", withStatus(404, "application/json", rpcError), ok, 404, rpcError},
		{"an error with 500", withStatus(500, "application/json", rpcError), ok, 500, rpcError},
		{"an error of another type", withStatus(400, "text/plain", rpcError+"\n"), ok, 400, rpcError},
		{"400 of something else", withStatus(400, "application/json", `{"detail":"x"}`), bad, 0, ""},
		{"502 of something else", withStatus(502, "text/html", "<html>"), bad, 0, ""},
		{"HTML", withStatus(200, "text/html", "<html>"), bad, 0, ""},
		{"nothing", withStatus(200, "application/json", ""), bad, 0, ""},
		{"202 to a request", "HTTP/1.1 202 Accepted\r\n\r\n", bad, 0, ""},
		{"a redirect", "HTTP/1.1 307 X\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", bad, 0, ""},
		{"401", withStatus(401, "application/json", rpcError), upstream.Unauthorized, 0, ""},
		{"403", withStatus(403, "text/plain", "no"), upstream.Unauthorized, 0, ""},
		{"both framings", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n", bad, 0, ""},
		{"a head without end", "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("x", maxHead) + "\r\n\r\n", bad, 0, ""},
		{"interim answers without end", strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", maxInterim+2), bad, 0, ""},
		{"another protocol", "HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n", bad, 0, ""},
		{"noise", "SSH-2.0-OpenSSH\r\n\r\n", bad, 0, ""},
		{"nothing at all", "", upstream.Lost, 0, ""},
		{"half a head", "HTTP/1.1 200 OK\r\nContent-", upstream.Lost, 0, ""},
		{"half a body", jsonAnswer(result)[:100], upstream.Lost, 0, ""},
		{"half a chunk", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(result), upstream.Lost, 0, ""},
		{"a chunk too long", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n", bad, 0, ""},
		{"no chunk size", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", bad, 0, ""},
		{"a stream without response", sseHead + "\r\ndata: " + progressed + "\n\n", upstream.Lost, 0, ""},
		{"a stream of something else", sseHead + "\r\ndata: hello\n\n", bad, 0, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newPeer(t, onceEach(tt.answer))
			s := newServer(t, p.url)
			a, err := s.Call(testContext(t), stateless(t, "1", "echo", "{}"))
			if tt.want == ok {
				if got, _ := responseOf(t, a, err); got != tt.body || a.Status != tt.status {
					t.Errorf("got %d %q, want %d %q", a.Status, got, tt.status, tt.body)
				}
			} else {
				wantKind(t, failureOf(a, err), tt.want)
			}
			if n := p.conns.Load(); n != 1 {
				t.Errorf("%d connections, want 1: nothing is sent twice", n)
			}
		})
	}
}

func TestAnAnswerPassesHoweverDeepInEveryForm(t *testing.T) {
	deep := strings.Repeat("[", 1000) + strings.Repeat("]", 1000)
	response := `{"jsonrpc":"2.0","id":1,"result":{"structuredContent":` + deep + `}}`
	refused := `{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no","data":` + deep + `}}`
	for _, tt := range []struct{ name, answer, want string }{
		{"JSON", jsonAnswer(response), response},
		{"events", sseHead + "\r\ndata: " + response + "\n\n", response},
		{"an error", strings.Replace(jsonAnswer(refused), "200 OK", "400 Bad Request", 1), refused},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newServer(t, newPeer(t, onceEach(tt.answer)).url)
			a, err := s.Call(testContext(t), stateless(t, "1", "echo", "{}"))
			if got, _ := responseOf(t, a, err); got != tt.want {
				t.Errorf("got %.80s of %d bytes, want the answer as it came", got, len(got))
			}
		})
	}
}

// failureOf is the error of a call, or of reading its answer.
func failureOf(a *upstream.Answer, err error) error {
	if err != nil {
		return err
	}
	defer a.Close()
	if a.Body != nil {
		_, err = io.Copy(io.Discard, a.Body)
		return err
	}
	if a.Events == nil {
		return nil
	}
	for {
		if _, err := a.Events.Next(); err != nil {
			return err
		}
	}
}

func TestANotificationIsAcceptedHoweverTheServerPutsIt(t *testing.T) {
	for _, answer := range []string{
		"HTTP/1.1 202 Accepted\r\n\r\n", "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 204 No Content\r\n\r\n",
		jsonAnswer("null"), "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	} {
		p := newPeer(t, always(answer))
		s := newServer(t, p.url)
		a, err := s.Call(testContext(t), call(t, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1}}`))
		if err != nil || a.Body != nil || a.Events != nil {
			t.Errorf("%q: answer %+v, error %v; want an answer with nothing in it", answer, a, err)
		}
	}
}

// A server that took it at its word would cancel whoever's request has that id.
func TestACancellationByIDGoesToNoStatelessServer(t *testing.T) {
	p := newPeer(t, always("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"))
	s := newServer(t, p.url)
	a, err := s.Call(testContext(t), call(t, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`))
	if err != nil || a.Status != 202 || a.Body != nil || a.Events != nil {
		t.Errorf("answer %+v, error %v; want 202 with nothing in it", a, err)
	}
	if n := p.conns.Load(); n != 0 {
		t.Errorf("the server was told, on %d connections", n)
	}
}

func TestConnectionsAreKept(t *testing.T) {
	for name, answer := range map[string]string{
		"JSON":          jsonAnswer(result),
		"JSON, chunked": "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(result) + "0\r\n\r\n",
		"events":        sseHead + "Transfer-Encoding: chunked\r\n\r\n" + chunk("data: "+result+"\n\n") + "0\r\n\r\n",
		"a refusal":     "HTTP/1.1 404 X\r\nContent-Length: 3\r\n\r\nno\n",
		"202":           "HTTP/1.1 202 X\r\nContent-Length: 0\r\n\r\n",
		"202, chunked":  "HTTP/1.1 202 X\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t, always(answer))
			s := newServer(t, p.url)
			for range 5 {
				_ = failureOf(s.Call(testContext(t), stateless(t, "1", "echo", "{}")))
			}
			if n := p.conns.Load(); n != 1 {
				t.Errorf("5 calls took %d connections, want 1", n)
			}
		})
	}
}

func TestAConnectionThatTheServerClosedIsNotChosen(t *testing.T) {
	closed := make(chan struct{}, 100)
	p := newPeer(t, func(p *peer, c net.Conn, r *bufio.Reader) {
		onceEach(jsonAnswer(result))(p, c, r)
		c.Close()
		closed <- struct{}{}
	})
	s := newServer(t, p.url)
	for range 20 {
		if err := failureOf(s.Call(testContext(t), stateless(t, "1", "echo", "{}"))); err != nil {
			t.Fatal(err)
		}
		<-closed
	}
}

func TestAConnectionWithUnaskedBytesIsNotChosen(t *testing.T) {
	p := newPeer(t, func(p *peer, c net.Conn, r *bufio.Reader) {
		n := p.conns.Load()
		always(jsonAnswer(result)+map[bool]string{true: jsonAnswer(`{"stolen":true}`)}[n == 1])(p, c, r)
	})
	s := newServer(t, p.url)
	for range 2 {
		a, err := s.Call(testContext(t), stateless(t, "1", "echo", "{}"))
		if got, _ := responseOf(t, a, err); got != result {
			t.Errorf("answer %q, want %q: a second answer was taken for the next call's", got, result)
		}
	}
}

// A server that says nothing may be one of Node's, which close after 5 s.
func TestTheServersKeepAliveTimeIsHeeded(t *testing.T) {
	for name, header := range map[string]string{"says 5 s": "Keep-Alive: timeout=5\r\n", "says nothing": "Connection: keep-alive\r\n"} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t, always("HTTP/1.1 200 OK\r\n"+header+"Content-Type: application/json\r\nContent-Length: 36\r\n\r\n"+result))
			s := newServer(t, p.url)
			for after, want := range map[time.Duration]bool{3 * time.Second: true, 4500 * time.Millisecond: false} {
				if err := failureOf(s.Call(testContext(t), stateless(t, "1", "echo", "{}"))); err != nil {
					t.Fatal(err)
				}
				s.client.pool.mu.Lock()
				idleAt := s.client.pool.idle[0].idleAt
				s.client.pool.mu.Unlock()
				c, used, err := s.client.pool.get(testContext(t), idleAt.Add(after))
				if err != nil || used != want {
					t.Fatalf("after %v: used %v, error %v; want used %v", after, used, err, want)
				}
				c.close()
			}
		})
	}
}

func TestNoMoreConnectionsAreKeptThanConfigured(t *testing.T) {
	p := newPeer(t, always(jsonAnswer(result)))
	s := newServer(t, p.url, func(u *outriggerv1.Upstream) { u.GetHttp().MaxIdleConnections = 2 })
	var answers []*upstream.Answer
	for range 4 {
		a, err := s.Call(testContext(t), stateless(t, "1", "echo", "{}"))
		if err != nil {
			t.Fatal(err)
		}
		answers = append(answers, a)
	}
	for _, a := range answers {
		responseOf(t, a, nil)
	}
	if idle, open := len(s.client.pool.idle), len(s.client.pool.open); idle != 2 || open != 2 {
		t.Errorf("%d idle and %d open connections, want 2 and 2", idle, open)
	}
}

func TestIdleConnectionsAreReaped(t *testing.T) {
	p := newPeer(t, always("HTTP/1.1 200 OK\r\nKeep-Alive: timeout=1\r\nContent-Type: application/json\r\nContent-Length: 36\r\n\r\n"+result))
	s := newServer(t, p.url)
	if err := failureOf(s.Call(testContext(t), stateless(t, "1", "echo", "{}"))); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		s.client.pool.mu.Lock()
		open, timer := len(s.client.pool.open), s.client.pool.reaper
		s.client.pool.mu.Unlock()
		if open == 0 && timer == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d connections open long after their time", open)
		}
	}
}

func TestCancellingAStatelessCallClosesItsConnection(t *testing.T) {
	for name, head := range map[string]string{"before the answer": "", "in a silent stream": sseHead + "\r\n: here\n\n"} {
		t.Run(name, func(t *testing.T) {
			started, closed := make(chan struct{}), make(chan struct{})
			p := newPeer(t, func(p *peer, c net.Conn, r *bufio.Reader) {
				p.read(r)
				_, _ = io.WriteString(c, head)
				close(started)
				_, _ = r.ReadByte()
				close(closed)
			})
			s := newServer(t, p.url)
			ctx, cancel := context.WithCancel(testContext(t))
			go func() { <-started; cancel() }()
			err := failureOf(s.Call(ctx, stateless(t, "1", "echo", "{}")))
			wantKind(t, err, upstream.Lost)
			select {
			case <-closed:
			case <-time.After(patience):
				t.Fatal("the connection stayed open")
			}
		})
	}
}

func TestAServerThatDoesNotAnswerIsGivenUpInTime(t *testing.T) {
	drip := func(p *peer, c net.Conn, r *bufio.Reader) {
		p.read(r)
		_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000000\r\n\r\n")
		for err == nil { // until the call is given up: the body has no end in the time of a test
			_, err = io.WriteString(c, " ")
			time.Sleep(time.Millisecond)
		}
	}
	silent := func(p *peer, c net.Conn, r *bufio.Reader) { p.read(r); _, _ = r.ReadByte() }
	for name, script := range map[string]func(*peer, net.Conn, *bufio.Reader){"silent": silent, "drip": drip} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t, script)
			s := newServer(t, p.url, callTimeout(100*time.Millisecond))
			ctx := testContext(t)
			wantKind(t, failureOf(s.Call(ctx, stateless(t, "1", "echo", "{}"))), upstream.TimedOut)
			if ctx.Err() != nil {
				t.Errorf("the call ended with its context after %v, want it given up after about 100ms", patience)
			}
		})
	}
}

func TestASubscriptionOutlivesTheCallTimeout(t *testing.T) {
	t.Parallel()
	const timeout = time.Second // in which the first event must come, however busy the machine is
	late := make(chan struct{}) // closed when the timeout has passed
	p := newPeer(t, func(p *peer, c net.Conn, r *bufio.Reader) {
		p.read(r)
		_, _ = io.WriteString(c, sseHead+"\r\ndata: "+progressed+"\n\n")
		<-late
		_, _ = io.WriteString(c, "data: "+result+"\n\n")
	})
	s := newServer(t, p.url, callTimeout(timeout))
	c := stateless(t, "1", "echo", "{}")
	c.Message.Method = mcp.MethodListen
	a, err := s.Call(testContext(t), c)
	time.AfterFunc(timeout+timeout/2, func() { close(late) }) // the timeout runs since before the answer
	if got, before := responseOf(t, a, err); got != result || len(before) != 1 {
		t.Errorf("answer %q after %q, want %q after one event", got, before, result)
	}
}

func TestAServerThatIsNotThereIsUnreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	s := newServer(t, "http://"+l.Addr().String()+"/")
	_, err = s.Call(testContext(t), stateless(t, "1", "echo", "{}"))
	wantKind(t, err, upstream.Unreachable)
}

func TestClosingEndsCallsInFlight(t *testing.T) {
	p := newPeer(t, func(p *peer, c net.Conn, r *bufio.Reader) { p.read(r); _, _ = r.ReadByte() })
	s := newServer(t, p.url)
	done := make(chan error)
	go func() { done <- failureOf(s.Call(testContext(t), stateless(t, "1", "echo", "{}"))) }()
	p.wait(t, "the call", func(*http.Request, string) bool { return true })
	if err := s.Close(testContext(t)); err != nil {
		t.Error(err)
	}
	wantKind(t, <-done, upstream.Lost)
	_, err := s.Call(testContext(t), stateless(t, "1", "echo", "{}"))
	wantKind(t, err, upstream.Unreachable)
}

func TestLargeMessagesPassBothWays(t *testing.T) {
	big := strings.Repeat("x", 5<<20)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"in\":%d,\"out\":%q}}\n\n", len(body), big)
	}))
	defer srv.Close()
	s := newServer(t, srv.URL)
	c := stateless(t, "1", "echo", `{"text":"`+big+`"}`)
	a, err := s.Call(testContext(t), c)
	got, _ := responseOf(t, a, err)
	if want := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"result":{"in":%d,"out":"%s"}}`, len(c.Message.Raw), big); got != want {
		t.Errorf("got %d bytes, want %d", len(got), len(want))
	}
}

func TestCallsAtOnceGetTheirOwnAnswers(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		m, err := mcp.Scan(body, mcp.Limits{})
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"echo":%s}}`, m.ID.Of(m.Raw), m.Arguments.Of(m.Raw))
	}))
	defer srv.Close()
	s := newServer(t, srv.URL)
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			for j := range 50 {
				id := fmt.Sprint(j % 2 * 7)
				if i%2 == 0 {
					id = `"` + id + `"`
				}
				arguments := fmt.Sprintf(`{"n":%d}`, i*1000+j)
				a, err := s.Call(testContext(t), stateless(t, id, "echo", arguments))
				if err != nil {
					t.Error(err)
					return
				}
				got, _ := io.ReadAll(a.Body)
				a.Close()
				if want := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"echo":%s}}`, id, arguments); string(got) != want {
					t.Errorf("got %s, want %s", got, want)
				}
			}
		})
	}
	wg.Wait()
}

func TestACallAllocatesLittle(t *testing.T) {
	p := newPeer(t, func(_ *peer, c net.Conn, r *bufio.Reader) {
		buf, out := make([]byte, 4096), []byte(jsonAnswer(result))
		for {
			if _, err := r.Read(buf); err != nil { // a whole request: it is written at once
				return
			}
			if _, err := c.Write(out); err != nil {
				return
			}
		}
	})
	s := newServer(t, p.url)
	c, buf := stateless(t, "1", "echo", "{}"), make([]byte, 4096)
	n := testing.AllocsPerRun(200, func() {
		a, err := s.Call(new(lazyctx.Context), c)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := a.Body.Read(buf); n != len(result) || err != io.EOF {
			t.Fatalf("read %d bytes, %v; want all %d at once", n, err, len(result))
		}
		a.Close()
	})
	most := 2.0 // one of them the context
	if raceEnabled {
		most = 5
	}
	if n > most {
		t.Errorf("%v allocations, want at most %v", n, most)
	}
}
