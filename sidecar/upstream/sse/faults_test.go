package sse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/credential"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

func handshakeTime(d time.Duration) func(*outriggerv1.Upstream, *Options) {
	return func(u *outriggerv1.Upstream, _ *Options) { u.Timeouts.Handshake = durationpb.New(d) }
}

func callTime(d time.Duration) func(*outriggerv1.Upstream, *Options) {
	return func(u *outriggerv1.Upstream, _ *Options) { u.Timeouts.Call = durationpb.New(d) }
}

// answers is a handler that gives every request the same answer.
func answers(status int, contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

func TestWhatIsNoEventStreamWithAnEndpointIsRefused(t *testing.T) {
	const events = "text/event-stream"
	for _, tt := range []struct {
		name    string
		handler http.HandlerFunc
		want    upstream.Kind
		detail  string
		status  int
	}{
		{"no credential", answers(401, "text/plain", ""), upstream.Unauthorized, "no credential", 0},
		{"forbidden", answers(403, "text/plain", ""), upstream.Unauthorized, "no credential", 0},
		{"a redirect", answers(307, "text/plain", ""), upstream.BadAnswer, "redirect, which is not followed", 0},
		{"not there", answers(404, "text/plain", ""), upstream.BadAnswer, "404", 404},
		{"JSON", answers(200, "application/json", "{}"), upstream.BadAnswer, "something else than an event stream", 0},
		{"no endpoint", answers(200, events, "data: {}\n\n"), upstream.BadAnswer, "another event before its endpoint", 0},
		{"nothing", answers(200, events, ": hello\n\n"), upstream.BadAnswer, "ended its event stream before", 0},
		{"another origin", answers(200, events, "event: endpoint\ndata: http://169.254.169.254/latest\n\n"), upstream.BadAnswer, "another origin", 0},
		{"an endpoint of another scheme", answers(200, events, "event: endpoint\ndata: file:///etc/passwd\n\n"), upstream.BadAnswer, "another origin", 0},
		{"a head without end", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", strings.Repeat("x", 2*maxHeader))
		}, upstream.Unreachable, "no answer of HTTP", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			srv := httptest.NewServer(tt.handler)
			defer srv.Close()
			s := newServer(t, srv.URL+"/sse")
			session, a, err := s.Open(testContext(t), message(t, initialize))
			if session != nil || a != nil {
				t.Errorf("a session %v and answer %v, want neither", session, a)
			}
			if e := wantKind(t, err, tt.want); !strings.Contains(e.Detail, tt.detail) || e.Status != tt.status {
				t.Errorf("%q with status %d, want %q with %d", e.Detail, e.Status, tt.detail, tt.status)
			}
			s.Close(testContext(t))
		})
	}
}

func TestAServerThatIsSilentDoesNotHoldAHandshake(t *testing.T) {
	quiet := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && r.URL.Path == "/streams" {
			w.Header().Set("Content-Type", "text/event-stream")
			http.NewResponseController(w).Flush()
		}
		<-r.Context().Done()
	}))
	defer quiet.Close()
	p := newPeer(t)
	p.refuse = func(string) (int, string) { return 202, "" } // and never a word on the stream
	for name, url := range map[string]string{
		"no head": quiet.URL + "/none", "no endpoint": quiet.URL + "/streams", "no answer to initialize": p.url,
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, url, handshakeTime(50*time.Millisecond))
			_, _, err := s.Open(testContext(t), message(t, initialize))
			wantKind(t, err, upstream.TimedOut)
			wantKind(t, s.Check(testContext(t)), upstream.TimedOut)
			s = newServer(t, url)
			ctx, cancel := context.WithCancel(testContext(t))
			time.AfterFunc(10*time.Millisecond, cancel)
			_, _, err = s.Open(ctx, message(t, initialize))
			wantKind(t, err, upstream.Lost)
		})
	}
	if n := p.count(method(mcp.NotificationCancelled)); n != 0 {
		t.Errorf("initialize was cancelled %d times, want never", n)
	}
}

// 2024-11-05 is a version that clients of the sidecar are not served with; see presentedVersion.
func TestAServerOf20241105IsPresentedAsOneOf20250326(t *testing.T) {
	for _, tt := range []struct{ names, presents, header string }{
		{"2024-11-05", "2025-03-26", ""},
		{"2025-03-26", "2025-03-26", "2025-03-26"},
		{"2025-11-25", "2025-11-25", "2025-11-25"},
	} {
		p := newPeer(t)
		p.version = tt.names
		s := newServer(t, p.url)
		session, a, err := s.Open(testContext(t), message(t, initialize))
		got, _ := responseOf(t, a, err)
		if want := `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"` + tt.presents + `","capabilities":{}}}`; got != want {
			t.Errorf("%s: %s, want %s", tt.names, got, want)
		}
		if sent := p.wait("initialize", 0, method(mcp.MethodInitialize)).body; sent != initialize {
			t.Errorf("sent %s, want the client's own %s", sent, initialize)
		}
		tell(t, session, initialized)
		if h := p.wait("initialized", 0, method(mcp.NotificationInitialized)).header.Get(mcp.HeaderVersion); h != tt.header {
			t.Errorf("%s: header %q, want %q", tt.names, h, tt.header)
		}
	}
}

func TestAnErrorToInitializeIsTheAnswer(t *testing.T) {
	const refused = `{"jsonrpc":"2.0","id":0,"error":{"code":-32602,"message":"no"}}`
	p := newPeer(t)
	p.refuse = func(m string) (int, string) {
		p.say(0, refused)
		return 202, ""
	}
	session, a, err := newServer(t, p.url).Open(testContext(t), message(t, initialize))
	if got, _ := responseOf(t, a, err); session != nil || got != refused {
		t.Errorf("%v, %s; want no session and %s", session, got, refused)
	}
}

func TestASessionThatIsNotKnownRightAwayIsABadAnswer(t *testing.T) {
	p := newPeer(t)
	p.refuse = func(string) (int, string) { return 404, "which session?" }
	_, _, err := newServer(t, p.url).Open(testContext(t), message(t, initialize))
	wantKind(t, err, upstream.BadAnswer)
}

func TestBytesPassAsTheyAre(t *testing.T) {
	p := newPeer(t)
	session := open(t, newServer(t, p.url))
	const sent = `{ "jsonrpc":"2.0", "id":9007199254740993, "method":"tools/call","params":{"name":"x","arguments":{"n":1e400,"n":null}}}`
	done := start(t, testContext(t), session, sent)
	if got := p.wait("the call", 0, method("tools/call")).body; got != sent {
		t.Errorf("sent %s, want %s", got, sent)
	}
	const said = `{"id":9007199254740993,"result":{"big":12345678901234567890,"a":1,"a":2},"jsonrpc":"2.0"}`
	p.say(0, said)
	a, err := wait(t, done)
	if got, _ := responseOf(t, a, err); got != said || a.Status != 200 || a.Length != int64(len(said)) {
		t.Errorf("%d, %d bytes: %s, want 200 and %s", a.Status, a.Length, got, said)
	}
}

func TestAStringIDIsTheSameHoweverItIsWritten(t *testing.T) {
	p := newPeer(t)
	session := open(t, newServer(t, p.url))
	done := start(t, testContext(t), session, toolCall(`"\u0061b"`, "x", ""))
	p.wait("the call", 0, method("tools/call"))
	p.say(0, `{"jsonrpc":"2.0","id":"ab","result":{}}`)
	a, err := wait(t, done)
	if got, _ := responseOf(t, a, err); !strings.Contains(got, "result") {
		t.Errorf("answer %s", got)
	}
}

func TestAnIDThatIsInFlightIsRefused(t *testing.T) {
	p := newPeer(t)
	session := open(t, newServer(t, p.url))
	first := start(t, testContext(t), session, toolCall("1", "first", ""))
	p.wait("the call", 0, method("tools/call"))
	a, err := session.Call(testContext(t), message(t, toolCall("1", "second", "")))
	if got, _ := responseOf(t, a, err); !strings.Contains(got, fmt.Sprint(mcp.CodeInvalidRequest)) {
		t.Errorf("answer %s, want an error", got)
	}
	p.say(0, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	a, err = wait(t, first)
	if got, _ := responseOf(t, a, err); !strings.Contains(got, "result") {
		t.Errorf("answer %s", got)
	}
	a, err = session.Call(testContext(t), message(t, initialize))
	if got, _ := responseOf(t, a, err); !strings.Contains(got, "initialized already") {
		t.Errorf("a second initialize: %s, want an error", got)
	}
	if n := p.count(method(mcp.MethodInitialize)); n != 1 {
		t.Errorf("%d initializes were sent, want 1", n)
	}
}

func TestRefusedMessages(t *testing.T) {
	const own = `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no such tool"}}`
	for _, tt := range []struct {
		status int
		body   string
		want   upstream.Kind
	}{
		{400, "what?", upstream.BadAnswer},
		{401, own, upstream.Unauthorized},
		{307, "", upstream.BadAnswer},
		{500, `{"jsonrpc":"2.0","id":2,"error":{"code":-32603,"message":"of another"}}`, upstream.BadAnswer},
		{503, "", upstream.BadAnswer},
	} {
		p := newPeer(t)
		session := open(t, newServer(t, p.url))
		p.mu.Lock()
		p.refuse = func(string) (int, string) { return tt.status, tt.body }
		p.mu.Unlock()
		_, err := session.Call(testContext(t), message(t, toolCall("1", "x", "")))
		if e := wantKind(t, err, tt.want); tt.status >= 400 && tt.want == upstream.BadAnswer && e.Status != tt.status {
			t.Errorf("%d: status %d", tt.status, e.Status)
		}
		if p.opened() != 1 {
			t.Errorf("%d: the session was opened %d times, want once", tt.status, p.opened())
		}
	}
	for _, status := range []int{400, 404} {
		p := newPeer(t)
		session := open(t, newServer(t, p.url))
		p.mu.Lock()
		p.refuse = func(string) (int, string) { return status, own }
		p.mu.Unlock()
		a, err := session.Call(testContext(t), message(t, toolCall("1", "x", "")))
		if got, _ := responseOf(t, a, err); got != own || a.Status != status {
			t.Errorf("%d %s, want the server's own error with %d", a.Status, got, status)
		}
	}
}

// A server may answer a POST only after it has answered the request.
func TestAnAnswerMayComeBeforeThePOSTIsAccepted(t *testing.T) {
	p := newPeer(t)
	session := open(t, newServer(t, p.url))
	release := make(chan struct{})
	p.mu.Lock()
	p.refuse = func(m string) (int, string) {
		if strings.Contains(m, "tools/call") {
			p.say(0, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`)
			p.say(0, `{"jsonrpc":"2.0","id":1,"result":{}}`)
			<-release
		}
		return 0, ""
	}
	p.mu.Unlock()
	defer close(release)
	a, err := session.Call(testContext(t), message(t, toolCall("1", "x", "")))
	if got, before := responseOf(t, a, err); !strings.Contains(got, "result") || len(before) != 1 {
		t.Errorf("%q, %s; want progress and the result", before, got)
	}
}

func TestACallEndsWithItsTimeAndTheServerIsTold(t *testing.T) {
	p := newPeer(t)
	session := open(t, newServer(t, p.url, callTime(50*time.Millisecond)))
	_, err := session.Call(testContext(t), message(t, toolCall(`"late"`, "x", "")))
	wantKind(t, err, upstream.TimedOut)
	m := p.wait("cancelled", 0, method(mcp.NotificationCancelled))
	if id := string(m.m.RequestID.Of(m.m.Raw)); id != `"late"` {
		t.Errorf("%s was cancelled, want \"late\"", id)
	}
	p.say(0, `{"jsonrpc":"2.0","id":"late","result":{}}`) // goes nowhere
	p.refuse = nil
	done := start(t, testContext(t), session, toolCall("2", "x", ""))
	p.wait("the next call", 1, method("tools/call"))
	p.say(0, `{"jsonrpc":"2.0","id":2,"result":{}}`)
	a, err := wait(t, done)
	responseOf(t, a, err)
}

func TestAStreamGivenUpCancelsItsCall(t *testing.T) {
	p := newPeer(t)
	session := open(t, newServer(t, p.url))
	done := start(t, testContext(t), session, toolCall("5", "x", ""))
	p.wait("the call", 0, method("tools/call"))
	p.say(0, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":5,"progress":1}}`)
	a, err := wait(t, done)
	if err != nil || a.Events == nil {
		t.Fatalf("%v, %v; want a stream", a, err)
	}
	a.Close()
	p.wait("cancelled", 0, method(mcp.NotificationCancelled))
	a.Close()
}

func TestAClientsOwnCancellationGoesOnceAndAsItIs(t *testing.T) {
	const cancelled = `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5,"reason":"mine"}}`
	p := newPeer(t)
	session := open(t, newServer(t, p.url))
	ctx, stop := context.WithCancel(testContext(t))
	done := start(t, ctx, session, toolCall("5", "x", ""))
	p.wait("the call", 0, method("tools/call"))
	tell(t, session, cancelled)
	stop()
	_, err := wait(t, done)
	wantKind(t, err, upstream.Lost)
	tell(t, session, `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)
	p.wait("what came after", 0, method(mcp.NotificationRootsChanged))
	if n := p.count(method(mcp.NotificationCancelled)); n != 1 {
		t.Errorf("%d cancellations were sent, want the client's alone", n)
	}
	if got := p.wait("it", 0, method(mcp.NotificationCancelled)).body; got != cancelled {
		t.Errorf("sent %s, want %s", got, cancelled)
	}
}

func TestAnEventThatIsTooLargeEndsTheLinkAndNotTheSession(t *testing.T) {
	p := newPeer(t)
	session := open(t, newServer(t, p.url))
	done := start(t, testContext(t), session, toolCall("1", "x", ""))
	p.wait("the call", 0, method("tools/call"))
	piece := strings.Repeat("x", 1<<20)
	p.raw(0, "data: {")
	for range maxEvent>>20 + 1 {
		p.raw(0, piece)
	}
	_, err := wait(t, done)
	wantKind(t, err, upstream.Overloaded)
	done = start(t, testContext(t), session, toolCall("2", "x", ""))
	p.wait("the next call", 1, method("tools/call"))
	p.say(1, `{"jsonrpc":"2.0","id":2,"result":{}}`)
	a, err := wait(t, done)
	responseOf(t, a, err)
}

func TestWhatIsNoMessageIsDropped(t *testing.T) {
	p := newPeer(t)
	session := open(t, newServer(t, p.url))
	done := start(t, testContext(t), session, toolCall("1", "x", ""))
	p.wait("the call", 0, method("tools/call"))
	p.raw(0, "event: endpoint\ndata: /elsewhere\n\nevent: other\ndata: {}\n\nid: 7\ndata\n\nretry: 5\n\ndata: nonsense\n\ndata: [1]\n\n")
	p.say(0, `{"jsonrpc":"2.0","id":"unknown","result":{}}`)
	p.say(0, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	a, err := wait(t, done)
	if got, before := responseOf(t, a, err); !strings.Contains(got, "result") || len(before) != 0 {
		t.Errorf("%q, %s; want the response alone", before, got)
	}
}

func TestAnErrorWithoutAnIDIsTheOnlyCalls(t *testing.T) {
	p := newPeer(t)
	session := open(t, newServer(t, p.url))
	one := start(t, testContext(t), session, toolCall("1", "x", ""))
	p.wait("the call", 0, method("tools/call"))
	const said = `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"unreadable"}}`
	p.say(0, said)
	a, err := wait(t, one)
	if got, _ := responseOf(t, a, err); got != said {
		t.Errorf("answer %s, want %s", got, said)
	}
}

func TestTheCredentialGoesWithEveryRequestAndTheClientsOwnDoesNot(t *testing.T) {
	p := newPeer(t)
	session := open(t, newServer(t, p.url, func(_ *outriggerv1.Upstream, o *Options) {
		o.Credential = presenting(t, "Authorization", "Bearer ours")
	}))
	c := message(t, `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)
	c.Header = http.Header{"Authorization": {"Bearer theirs"}, "Cookie": {"a=b"}, "Traceparent": {"00-1-2-00"}, "Mcp-Session-Id": {"x"}}
	if _, err := session.Call(testContext(t), c); err != nil {
		t.Fatal(err)
	}
	h := p.wait("it", 0, method(mcp.NotificationRootsChanged)).header
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, got := range []string{h.Get("Authorization"), p.streams[0].header.Get("Authorization")} {
		if got != "Bearer ours" {
			t.Errorf("Authorization %q, want the sidecar's", got)
		}
	}
	if h.Get("Cookie") != "" || h.Get("Mcp-Session-Id") != "" || h.Get("Traceparent") != "00-1-2-00" {
		t.Errorf("headers %v, want of the client's the trace context alone", h)
	}
}

func TestNewRefusesWhatCouldNotWork(t *testing.T) {
	for _, tt := range []struct {
		name string
		url  string
		tune func(*outriggerv1.Upstream, *Options)
	}{
		{"no URL", "", nil},
		{"a relative URL", "/sse", nil},
		{"no file of authorities", "https://h/sse", func(u *outriggerv1.Upstream, _ *Options) { u.GetSse().CaFile = "/does/not/exist" }},
		{"a file without one", "https://h/sse", func(u *outriggerv1.Upstream, _ *Options) { u.GetSse().CaFile = "/dev/null" }},
	} {
		spec, o := resource(tt.url), Options{}
		if tt.tune != nil {
			tt.tune(spec, &o)
		}
		if s, err := New("weather", spec, o); err == nil || s != nil {
			t.Errorf("%s: %v, %v; want an error", tt.name, s, err)
		}
	}
}

func TestNoProxyOfTheEnvironmentIsAsked(t *testing.T) {
	asked := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the proxy was asked") }))
	defer asked.Close()
	t.Setenv("HTTP_PROXY", asked.URL)
	s := newServer(t, "http://server.invalid/sse")
	_, _, err := s.Open(testContext(t), message(t, initialize))
	wantKind(t, err, upstream.Unreachable)
}

func TestCloseEndsWhatIsInFlight(t *testing.T) {
	p := newPeer(t)
	s := newServer(t, p.url)
	session := open(t, s)
	done := start(t, testContext(t), session, toolCall("1", "x", ""))
	p.wait("the call", 0, method("tools/call"))
	events, err := session.Listen(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	listened := make(chan error, 1)
	go func() {
		_, err := events.Next()
		listened <- err
	}()
	if err := s.Close(testContext(t)); err != nil {
		t.Error(err)
	}
	_, err = wait(t, done)
	wantKind(t, err, upstream.Lost)
	if err := <-listened; !errors.Is(err, io.EOF) {
		t.Errorf("the session's stream ended with %v, want io.EOF", err)
	}
	_, err = session.Listen(testContext(t))
	wantKind(t, err, upstream.SessionGone)
	_, _, err = s.Open(testContext(t), message(t, initialize))
	if err == nil {
		t.Error("a closed server opened a session")
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
