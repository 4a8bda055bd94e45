package sse

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
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

// resource is an Upstream at a URL.
func resource(url string) *outriggerv1.Upstream {
	return &outriggerv1.Upstream{
		Transport: &outriggerv1.Upstream_Sse{Sse: &outriggerv1.SSETransport{Url: url}},
		Timeouts: &outriggerv1.Timeouts{
			Connect: durationpb.New(patience), Handshake: durationpb.New(patience), Call: durationpb.New(patience),
		},
	}
}

// newServer makes a Server that is closed with the test. tune may change the resource and the options.
func newServer(t testing.TB, url string, tune ...func(*outriggerv1.Upstream, *Options)) *Server {
	t.Helper()
	spec, o := resource(url), Options{Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))}
	for _, f := range tune {
		f(spec, &o)
	}
	s, err := New("weather", spec, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(context.Background()) })
	return s
}

// message makes a Call of a message's text.
func message(t testing.TB, raw string) *upstream.Call {
	t.Helper()
	m, err := mcp.Scan([]byte(raw), mcp.Limits{})
	if err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return &upstream.Call{Message: &m, Header: http.Header{}}
}

const (
	initialize  = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{},"sampling":{}},"clientInfo":{"name":"old","version":"1"}}}`
	initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
)

func toolCall(id, tool, text string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":{"text":%q},"_meta":{"progressToken":%s}}}`,
		id, tool, text, id)
}

// open opens a session the way a client does.
func open(t testing.TB, s *Server) upstream.Session {
	t.Helper()
	session, a, err := s.Open(testContext(t), message(t, initialize))
	got, _ := responseOf(t, a, err)
	if session == nil {
		t.Fatalf("initialize answered %s, want a session", got)
	}
	tell(t, session, initialized)
	return session
}

// tell sends what has no answer.
func tell(t testing.TB, session upstream.Session, raw string) {
	t.Helper()
	if a, err := session.Call(testContext(t), message(t, raw)); a != nil || err != nil {
		t.Fatalf("%s: %v, %v; want nil, nil", raw, a, err)
	}
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

// next takes the next message of a stream.
func next(t testing.TB, events upstream.EventStream) (string, mcp.Message) {
	t.Helper()
	late := time.AfterFunc(patience, func() { events.Close() })
	defer late.Stop()
	e, err := events.Next()
	if err != nil {
		t.Fatalf("the stream ended: %v", err)
	}
	m, err := mcp.ScanAnswer([]byte(string(e.Data)))
	if err != nil {
		t.Fatalf("%s: %v", e.Data, err)
	}
	return string(e.Data), m
}

// wantKind holds that err is an *upstream.Error of a kind, whose text says nothing but the upstream's name and what
// happened.
func wantKind(t testing.TB, err error, want upstream.Kind) *upstream.Error {
	t.Helper()
	e, ok := err.(*upstream.Error)
	if !ok || e.Kind != want {
		t.Fatalf("error %v (%T), want one of kind %s", err, err, want.Reason())
	}
	if e.Upstream != "weather" || strings.Contains(e.Error(), "127.0.0.1") {
		t.Errorf("error text %q, want the upstream's name and no address", e)
	}
	return e
}

// peer is a server whose faults are the test's. By default it accepts every message, and answers initialize with version.
type peer struct {
	t       testing.TB
	url     string
	version string
	refuse  func(message string) (status int, body string) // of a POST; nil, or status 0, accepts

	mu       sync.Mutex
	streams  []*peerStream // every one that was opened
	messages []posted
	arrived  chan struct{} // closed, and made anew, when one more came
}

type posted struct {
	stream int // -1 for an endpoint of no stream
	header http.Header
	body   string
	m      mcp.Message
}

// peerStream is one GET.
type peerStream struct {
	write  chan string // raw bytes of the stream
	cut    chan struct{}
	once   sync.Once
	header http.Header
}

// newPeer serves a peer until the test ends.
func newPeer(t testing.TB) *peer {
	p := &peer{t: t, version: version20241105, arrived: make(chan struct{})}
	srv := httptest.NewServer(p)
	p.url = srv.URL + "/sse"
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	return p
}

func (p *peer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		p.stream(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	m, err := mcp.ScanAnswer(body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	stream := -1
	_, _ = fmt.Sscanf(r.URL.Query().Get("session"), "%d", &stream)
	p.mu.Lock()
	p.messages = append(p.messages, posted{stream, r.Header, string(body), m})
	close(p.arrived)
	p.arrived = make(chan struct{})
	refuse := p.refuse
	p.mu.Unlock()
	if refuse != nil {
		if status, text := refuse(string(body)); status != 0 {
			w.WriteHeader(status)
			io.WriteString(w, text)
			return
		}
	}
	w.WriteHeader(http.StatusAccepted)
	io.WriteString(w, "Accepted")
	if m.Method == mcp.MethodInitialize {
		p.say(stream, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":%q,"capabilities":{}}}`,
			m.ID.Of(m.Raw), p.version))
	}
}

func (p *peer) stream(w http.ResponseWriter, r *http.Request) {
	s := &peerStream{write: make(chan string, 10_000), cut: make(chan struct{}), header: r.Header}
	p.mu.Lock()
	n := len(p.streams)
	p.streams = append(p.streams, s)
	p.mu.Unlock()
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	fmt.Fprintf(w, ": hello\n\nevent: endpoint\ndata: /messages?session=%d\n\n", n)
	control := http.NewResponseController(w)
	for {
		_ = control.Flush()
		select {
		case text := <-s.write:
			if _, err := io.WriteString(w, text); err != nil {
				return
			}
		case <-s.cut:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// say sends a message on a stream.
func (p *peer) say(stream int, message string) {
	p.raw(stream, "event: message\ndata: "+message+"\n\n")
}

func (p *peer) raw(stream int, text string) {
	p.mu.Lock()
	s := p.streams[stream]
	p.mu.Unlock()
	s.write <- text
}

// cut ends a stream.
func (p *peer) cut(stream int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.streams[stream]
	s.once.Do(func() { close(s.cut) })
}

// wait returns the nth message, from 0, for which match holds.
func (p *peer) wait(what string, n int, match func(posted) bool) posted {
	p.t.Helper()
	late := time.After(patience)
	for {
		p.mu.Lock()
		seen := 0
		for _, m := range p.messages {
			if !match(m) {
				continue
			}
			if seen == n {
				p.mu.Unlock()
				return m
			}
			seen++
		}
		arrived := p.arrived
		p.mu.Unlock()
		select {
		case <-arrived:
		case <-late:
			p.t.Fatalf("the server never saw %s", what)
		}
	}
}

func (p *peer) count(match func(posted) bool) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.messages {
		if match(m) {
			n++
		}
	}
	return n
}

func (p *peer) opened() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.streams)
}

func method(name string) func(posted) bool { return func(m posted) bool { return m.m.Method == name } }

// outcome is what Session.Call returned.
type outcome struct {
	answer *upstream.Answer
	err    error
}

// start sends a call without waiting for its answer.
func start(t testing.TB, ctx context.Context, session upstream.Session, raw string) <-chan outcome {
	done := make(chan outcome, 1)
	c := message(t, raw)
	go func() {
		a, err := session.Call(ctx, c)
		done <- outcome{a, err}
	}()
	return done
}

// wait is what a started call came to.
func wait(t testing.TB, done <-chan outcome) (*upstream.Answer, error) {
	t.Helper()
	select {
	case o := <-done:
		return o.answer, o.err
	case <-time.After(patience):
		t.Fatal("the call never returned")
		return nil, nil
	}
}

// eventually waits for a condition that another goroutine brings about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for late := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("never: %s", what)
		}
	}
}
