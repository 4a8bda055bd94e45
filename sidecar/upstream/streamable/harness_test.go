package streamable

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen soon.
const patience = 10 * time.Second

// testContext ends with the test, and after patience.
func testContext(t testing.TB) context.Context {
	ctx, stop := context.WithTimeout(context.Background(), patience)
	t.Cleanup(stop)
	return ctx
}

// newServer makes a Server for a URL that is closed with the test. tune may change the resource.
func newServer(t testing.TB, url string, tune ...func(*outriggerv1.Upstream)) *Server {
	t.Helper()
	spec := &outriggerv1.Upstream{
		Transport: &outriggerv1.Upstream_Http{Http: &outriggerv1.HTTPTransport{Url: url}},
		Timeouts: &outriggerv1.Timeouts{
			Connect: durationpb.New(patience), Handshake: durationpb.New(patience), Call: durationpb.New(patience),
		},
	}
	for _, f := range tune {
		f(spec)
	}
	s, err := New("weather", spec, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), time.Second)
		defer stop()
		_ = s.Close(ctx) // peers of tests may be gone already
	})
	return s
}

func callTimeout(d time.Duration) func(*outriggerv1.Upstream) {
	return func(u *outriggerv1.Upstream) { u.Timeouts.Call = durationpb.New(d) }
}

// call makes a Call of a message's text.
func call(t testing.TB, raw string) *upstream.Call {
	t.Helper()
	m, err := mcp.Scan([]byte(raw), mcp.Limits{})
	if err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return &upstream.Call{Message: &m, Header: http.Header{}}
}

// stateless makes a tools/call of the stateless wire with its headers.
func stateless(t testing.TB, id, tool, arguments string) *upstream.Call {
	t.Helper()
	c := call(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":{`+
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`,
		id, tool, arguments))
	c.Header.Set(mcp.HeaderVersion, mcp.Version20260728)
	c.Header.Set(mcp.HeaderMethod, "tools/call")
	c.Header.Set(mcp.HeaderName, tool)
	return c
}

// responseOf reads an answer to its response, and the messages before it.
func responseOf(t testing.TB, a *upstream.Answer, err error) (response string, before []string) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if a.Body != nil {
		b, err := io.ReadAll(a.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(b), nil
	}
	for {
		e, err := a.Events.Next()
		if err == io.EOF && len(before) > 0 {
			return before[len(before)-1], before[:len(before)-1]
		}
		if err != nil {
			t.Fatal(err)
		}
		before = append(before, string(e.Data))
	}
}

// wantKind holds that err is an *upstream.Error of a kind, whose text says nothing but the upstream's name and what happened.
func wantKind(t testing.TB, err error, want upstream.Kind) {
	t.Helper()
	var e *upstream.Error
	if !errors.As(err, &e) || e.Kind != want {
		t.Fatalf("error %v (%T), want one of kind %s", err, err, want.Reason())
	}
	if e.Upstream != "weather" || strings.Contains(e.Error(), "127.0.0.1") {
		t.Errorf("error text %q, want the upstream's name and no address", e)
	}
}

// peer is a server written by hand: script serves each connection, one after the other its requests.
type peer struct {
	url   string
	conns atomic.Int32

	mu       sync.Mutex
	open     []net.Conn
	requests []*http.Request // heads, in order
	bodies   []string
	seen     chan struct{} // capacity 1: there is one more
}

// newPeer listens on the network and serves every connection with script, which ends it by returning.
func newPeer(t testing.TB, script func(p *peer, c net.Conn, r *bufio.Reader)) *peer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{url: "http://" + l.Addr().String() + "/mcp", seen: make(chan struct{}, 1)}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.conns.Add(1)
			p.mu.Lock()
			p.open = append(p.open, c)
			p.mu.Unlock()
			wg.Go(func() {
				defer c.Close()
				script(p, c, bufio.NewReader(c))
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.mu.Lock()
		for _, c := range p.open {
			c.Close()
		}
		p.mu.Unlock()
		wg.Wait()
	})
	return p
}

// read takes the next request, or reports that there is none.
func (p *peer) read(r *bufio.Reader) (*http.Request, string, bool) {
	req, err := http.ReadRequest(r)
	if err != nil {
		return nil, "", false
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, "", false
	}
	p.mu.Lock()
	p.requests, p.bodies = append(p.requests, req), append(p.bodies, string(body))
	p.mu.Unlock()
	select {
	case p.seen <- struct{}{}:
	default:
	}
	return req, string(body), true
}

// wait returns the first request for which match holds, and its body.
func (p *peer) wait(t testing.TB, what string, match func(*http.Request, string) bool) (*http.Request, string) {
	t.Helper()
	late := time.After(patience)
	for {
		p.mu.Lock()
		for i, r := range p.requests {
			if match(r, p.bodies[i]) {
				defer p.mu.Unlock()
				return r, p.bodies[i]
			}
		}
		p.mu.Unlock()
		select {
		case <-p.seen:
		case <-late:
			t.Fatalf("the server never saw %s", what)
		}
	}
}

func (p *peer) count(match func(*http.Request, string) bool) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, r := range p.requests {
		if match(r, p.bodies[i]) {
			n++
		}
	}
	return n
}

// always answers every request with the same bytes, and keeps the connection.
func always(answer string) func(*peer, net.Conn, *bufio.Reader) {
	return func(p *peer, c net.Conn, r *bufio.Reader) {
		for {
			if _, _, ok := p.read(r); !ok {
				return
			}
			if _, err := io.WriteString(c, answer); err != nil {
				return
			}
		}
	}
}

// onceEach answers the first request of a connection with the bytes, and closes it.
func onceEach(answer string) func(*peer, net.Conn, *bufio.Reader) {
	return func(p *peer, c net.Conn, r *bufio.Reader) {
		if _, _, ok := p.read(r); ok {
			_, _ = io.WriteString(c, answer)
		}
	}
}

func jsonAnswer(body string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

const (
	result      = `{"jsonrpc":"2.0","id":1,"result":{}}`
	sseHead     = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
	progressed  = `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`
	initialize  = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"old","version":"1"}}}`
	initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
	legacyCall  = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{}}}`
)

// unixSocket is a path for a socket, short enough for the system.
func unixSocket(t testing.TB) string { return filepath.Join(t.TempDir(), "s") }

// chunk is one chunk of an answer.
func chunk(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }
