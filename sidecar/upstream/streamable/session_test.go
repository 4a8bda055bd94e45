package streamable

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const initializeResult = `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"s","version":"1"}}}`

// seen is one request as a legacy server saw it.
type seen struct {
	verb, method, id, body string // method and id are JSON-RPC's
	header                 http.Header
}

// legacyServer is a session server written by hand, whose behaviour a test changes.
type legacyServer struct {
	url string

	// answer serves every request that is not initialize; nil answers calls with result and accepts the rest.
	answer func(w http.ResponseWriter, r *http.Request, m *mcp.Message)
	// welcome answers initialize in the n-th session; nil: as usual.
	welcome func(w http.ResponseWriter, n int)

	mu       sync.Mutex
	requests []seen
	news     chan struct{} // capacity 1: there is one more request
	sessions int           // how many were opened; only the last is known
	forgot   bool          // the last, too
}

func newLegacyServer(t testing.TB, tune ...func(*legacyServer)) *legacyServer {
	l := &legacyServer{news: make(chan struct{}, 1)}
	for _, f := range tune {
		f(l)
	}
	srv := httptest.NewServer(l)
	l.url = srv.URL
	t.Cleanup(srv.Close)
	return l
}

func (l *legacyServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	m, _ := mcp.Scan(body, mcp.Limits{}) // GET and DELETE have none
	l.mu.Lock()
	l.requests = append(l.requests, seen{r.Method, m.Method, string(m.ID.Of(m.Raw)), string(body), r.Header})
	if m.Method == mcp.MethodInitialize {
		l.sessions++
		l.forgot = false
	}
	n, known := l.sessions, !l.forgot && r.Header.Get("Mcp-Session-Id") == fmt.Sprintf("session-%d", l.sessions)
	l.mu.Unlock()
	select {
	case l.news <- struct{}{}:
	default:
	}
	switch {
	case m.Method == mcp.MethodInitialize && l.welcome != nil:
		l.welcome(w, n)
	case m.Method == mcp.MethodInitialize:
		w.Header().Set("Mcp-Session-Id", fmt.Sprintf("session-%d", n))
		writeJSON(w, 200, initializeResultFor(string(m.ID.Of(m.Raw))))
	case !known:
		writeJSON(w, 404, `{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}`)
	case l.answer != nil:
		l.answer(w, r, &m)
	case m.Kind == mcp.Request:
		writeJSON(w, 200, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID.Of(m.Raw)))
	case r.Method == http.MethodPost:
		w.WriteHeader(http.StatusAccepted)
	default:
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

// initializeResultFor is initializeResult with another id than the client's of these tests.
func initializeResultFor(id string) string {
	return strings.Replace(initializeResult, `"id":0`, `"id":`+id, 1)
}

func writeJSON(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

// events starts a stream of events and returns what writes to it.
func sse(w http.ResponseWriter) func(string) {
	w.Header().Set("Content-Type", "text/event-stream")
	flush := func() { _ = http.NewResponseController(w).Flush() }
	flush()
	return func(s string) { _, _ = io.WriteString(w, s); flush() }
}

func (l *legacyServer) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgot = true
}

// log is what was seen, as "POST tools/call session-1".
func (l *legacyServer) log() (log []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.requests {
		log = append(log, strings.Join(strings.Fields(r.verb+" "+r.method+" "+r.header.Get("Mcp-Session-Id")), " "))
	}
	return log
}

func (l *legacyServer) count(line string) (n int) {
	for _, s := range l.log() {
		if s == line {
			n++
		}
	}
	return n
}

// wait returns the n-th request of a kind, counted from 1, once it was seen.
func (l *legacyServer) wait(t testing.TB, verb, method string, n int) seen {
	t.Helper()
	late := time.After(patience)
	for {
		l.mu.Lock()
		left := n
		for _, r := range l.requests {
			if r.verb == verb && r.method == method {
				if left--; left == 0 {
					l.mu.Unlock()
					return r
				}
			}
		}
		l.mu.Unlock()
		select {
		case <-l.news:
		case <-late:
			t.Fatalf("the server saw %q, want %d of %s %s", l.log(), n, verb, method)
		}
	}
}

func TestALegacySessionFromItsBeginningToItsEnd(t *testing.T) {
	l := newLegacyServer(t)
	s := newServer(t, l.url)
	c := call(t, initialize)
	c.Header.Set("Mcp-Protocol-Version", "2026-07-28")
	c.Header.Set("Authorization", "Bearer the client's")
	session, a, err := s.Open(testContext(t), c)
	if got, _ := responseOf(t, a, err); got != initializeResult {
		t.Errorf("initialize answered %s, want the server's own", got)
	}
	if _, err := session.Call(testContext(t), call(t, initialized)); err != nil {
		t.Fatal(err)
	}
	c = call(t, legacyCall)
	c.Header.Set("Mcp-Session-Id", "the client's")
	c.Header.Set("Mcp-Method", "tools/call")
	c.Header.Set("Tracestate", "x=y")
	a, err = session.Call(testContext(t), c)
	responseOf(t, a, err)
	if err := session.Close(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if n := len(s.sessions); n != 0 {
		t.Errorf("%d sessions are remembered after the last was closed", n)
	}
	want := []string{"POST initialize", "POST notifications/initialized session-1", "POST tools/call session-1", "DELETE session-1"}
	if got := l.log(); !slices.Equal(got, want) {
		t.Errorf("the server saw %q, want %q", got, want)
	}
	for i, r := range l.requests {
		version := "2025-11-25"
		if i == 0 {
			version = ""
		}
		if r.header.Get("Mcp-Protocol-Version") != version || r.header["Mcp-Method"] != nil || r.header["Authorization"] != nil {
			t.Errorf("request %d had headers %v, want version %q and none of the client's", i, r.header, version)
		}
	}
	if l.requests[0].body != initialize || l.requests[2].body != legacyCall || l.requests[2].header.Get("Tracestate") != "x=y" {
		t.Errorf("requests %+v, want bodies as they came and trace context kept", l.requests)
	}
}

func TestAnInitializeAnsweredInEvents(t *testing.T) {
	l := newLegacyServer(t, func(l *legacyServer) {
		l.welcome = func(w http.ResponseWriter, _ int) {
			w.Header().Set("Mcp-Session-Id", "session-1")
			sse(w)("id: 1\ndata:\n\ndata: " + progressed + "\n\ndata: " + initializeResult + "\n\n")
		}
	})
	open(t, newServer(t, l.url), initialize)
}

func TestAnInitializeThatOpensNothing(t *testing.T) {
	const refused = `{"jsonrpc":"2.0","id":0,"error":{"code":-32602,"message":"no"}}`
	tests := []struct {
		name    string
		welcome func(w http.ResponseWriter)
		want    upstream.Kind
	}{
		{"a session id with a space", func(w http.ResponseWriter) {
			w.Header().Set("Mcp-Session-Id", "a b")
			writeJSON(w, 200, initializeResult)
		}, upstream.BadAnswer},
		{"no version", func(w http.ResponseWriter) { writeJSON(w, 200, `{"jsonrpc":"2.0","id":0,"result":{}}`) }, upstream.BadAnswer},
		{"no response", func(w http.ResponseWriter) { writeJSON(w, 200, legacyCall) }, upstream.BadAnswer},
		{"a redirect", func(w http.ResponseWriter) { w.WriteHeader(302) }, upstream.BadAnswer},
		{"405", func(w http.ResponseWriter) { w.WriteHeader(405) }, upstream.BadAnswer},
		{"401", func(w http.ResponseWriter) { w.WriteHeader(401) }, upstream.Unauthorized},
		{"503", func(w http.ResponseWriter) { w.WriteHeader(503) }, upstream.BadAnswer},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLegacyServer(t, func(l *legacyServer) { l.welcome = func(w http.ResponseWriter, _ int) { tt.welcome(w) } })
			session, a, err := newServer(t, l.url).Open(testContext(t), call(t, initialize))
			if session != nil || a != nil {
				t.Errorf("session %v, answer %v; want neither", session, a)
			}
			wantKind(t, err, tt.want)
		})
	}
	for _, status := range []int{200, 400} {
		l := newLegacyServer(t, func(l *legacyServer) {
			l.welcome = func(w http.ResponseWriter, _ int) { writeJSON(w, status, refused) }
		})
		session, a, err := newServer(t, l.url).Open(testContext(t), call(t, initialize))
		if got, _ := responseOf(t, a, err); session != nil || got != refused || a.Status != status {
			t.Errorf("an error with %d: session %v, answer %d %s; want the error alone", status, session, a.Status, got)
		}
	}
}

func TestAForgottenSessionIsOpenedAgainBehindTheClientsBack(t *testing.T) {
	for _, message := range []string{
		legacyCall, `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`, `{"jsonrpc":"2.0","id":5,"result":{}}`,
	} {
		l := newLegacyServer(t)
		s := newServer(t, l.url)
		session := open(t, s, initialize)
		l.forget()
		c := call(t, message)
		a, err := session.Call(testContext(t), c)
		if err != nil || (a == nil) != (c.Message.Kind != mcp.Request) {
			t.Fatalf("%s: answer %v, error %v", message, a, err)
		}
		a.Close()
		again := strings.TrimSpace("POST " + c.Message.Method)
		want := []string{
			"POST initialize", "POST notifications/initialized session-1", again + " session-1",
			"POST initialize", "POST notifications/initialized session-2", again + " session-2",
		}
		if got := l.log(); !slices.Equal(got, want) {
			t.Errorf("%s: the server saw %q, want %q", message, got, want)
		}
	}
}

func TestManyCallsOpenAForgottenSessionOnce(t *testing.T) {
	l := newLegacyServer(t)
	session := open(t, newServer(t, l.url), initialize)
	l.forget()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if err := failureOf(session.Call(testContext(t), call(t, legacyCall))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := l.count("POST initialize"); n != 2 {
		t.Errorf("%d initializes, want 2", n)
	}
}

func TestASessionThatCannotBeOpenedAgainIsGone(t *testing.T) {
	again := func(f func(w http.ResponseWriter)) func(http.ResponseWriter, int) {
		return func(w http.ResponseWriter, n int) {
			w.Header().Set("Mcp-Session-Id", fmt.Sprintf("session-%d", n))
			if n == 1 {
				writeJSON(w, 200, initializeResult)
			} else {
				f(w)
			}
		}
	}
	tests := []struct {
		name  string
		again func(w http.ResponseWriter)
		want  upstream.Kind
	}{
		{"refused", func(w http.ResponseWriter) {
			writeJSON(w, 200, `{"jsonrpc":"2.0","id":0,"error":{"code":-32603,"message":"full"}}`)
		}, upstream.SessionGone},
		{"another version", func(w http.ResponseWriter) {
			writeJSON(w, 200, strings.Replace(initializeResult, "2025-11-25", "2025-06-18", 1))
		}, upstream.SessionGone},
		{"another id than it knows", func(w http.ResponseWriter) {
			w.Header().Set("Mcp-Session-Id", "nonsense")
			writeJSON(w, 200, initializeResult)
		}, upstream.SessionGone},
		{"not at that place any more", func(w http.ResponseWriter) { w.WriteHeader(404) }, upstream.SessionGone},
		{"not with sessions any more", func(w http.ResponseWriter) { w.WriteHeader(405) }, upstream.SessionGone},
		{"not well", func(w http.ResponseWriter) { w.WriteHeader(503) }, upstream.BadAnswer},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLegacyServer(t, func(l *legacyServer) { l.welcome = again(tt.again) })
			session := open(t, newServer(t, l.url), initialize)
			l.forget()
			_, err := session.Call(testContext(t), call(t, legacyCall))
			wantKind(t, err, tt.want)
		})
	}
}

func TestAnUnknownMethodWith404IsNotALostSession(t *testing.T) {
	const refused = `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}`
	l := newLegacyServer(t, func(l *legacyServer) {
		l.answer = func(w http.ResponseWriter, _ *http.Request, m *mcp.Message) {
			if m.Kind == mcp.Request {
				writeJSON(w, 404, refused)
			}
		}
	})
	a, err := open(t, newServer(t, l.url), initialize).Call(testContext(t), call(t, legacyCall))
	if got, _ := responseOf(t, a, err); got != refused || a.Status != 404 {
		t.Errorf("got %d %s, want the refusal", a.Status, got)
	}
}

func TestASessionWithoutIdIsLegal(t *testing.T) {
	p := newPeer(t, func(p *peer, c net.Conn, r *bufio.Reader) {
		for {
			_, body, ok := p.read(r)
			switch {
			case !ok:
				return
			case strings.Contains(body, "initialize\""):
				_, _ = io.WriteString(c, jsonAnswer(initializeResult))
			case strings.Contains(body, "tools/call"):
				_, _ = io.WriteString(c, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
			default:
				_, _ = io.WriteString(c, "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
			}
		}
	})
	session := open(t, newServer(t, p.url), initialize)
	_, err := session.Call(testContext(t), call(t, legacyCall))
	wantKind(t, err, upstream.BadAnswer)
	if err := session.Close(testContext(t)); err != nil {
		t.Error(err)
	}
	n := p.count(func(r *http.Request, _ string) bool { return r.Method == "DELETE" || r.Header["Mcp-Session-Id"] != nil })
	if n != 0 {
		t.Errorf("%d requests with a session id or DELETE, want none", n)
	}
}

func TestACallThatIsGivenUpIsCancelledWithItsOwnId(t *testing.T) {
	silent := func(l *legacyServer) {
		l.answer = func(w http.ResponseWriter, r *http.Request, m *mcp.Message) {
			if m.Kind == mcp.Request {
				<-r.Context().Done()
			}
		}
	}
	inStream := func(l *legacyServer) {
		l.answer = func(w http.ResponseWriter, r *http.Request, m *mcp.Message) {
			if m.Kind == mcp.Request {
				sse(w)(": nothing yet\n\n")
				<-r.Context().Done()
			}
		}
	}
	cutWithIDs := func(l *legacyServer) {
		l.answer = func(w http.ResponseWriter, r *http.Request, m *mcp.Message) {
			if m.Kind == mcp.Request {
				sse(w)("retry: 60000\nid: 1\ndata:\n\n")
			}
		}
	}
	for name, behave := range map[string]func(*legacyServer){"before a head": silent, "in a stream": inStream, "between streams": cutWithIDs} {
		for _, id := range []string{`7`, `"7"`} {
			t.Run(name+" by its client, id "+id, func(t *testing.T) {
				l := newLegacyServer(t, behave)
				session := open(t, newServer(t, l.url), initialize)
				ctx, cancel := context.WithCancel(testContext(t))
				defer cancel()
				go func() { l.wait(t, "POST", "tools/call", 1); cancel() }()
				wantKind(t, failureOf(session.Call(ctx, call(t, toolCall(id, "x", "")))), upstream.Lost)
				got := l.wait(t, "POST", "notifications/cancelled", 1)
				if !strings.Contains(got.body, `"requestId":`+id+`,`) || got.header.Get("Mcp-Session-Id") != "session-1" {
					t.Errorf("cancelled with %s in session %q, want id %s in session-1", got.body, got.header.Get("Mcp-Session-Id"), id)
				}
			})
		}
	}
	t.Run("before a stream that was cut is resumed", func(t *testing.T) {
		l := newLegacyServer(t, cutWithIDs)
		ctx, cancel := context.WithCancel(testContext(t))
		defer cancel()
		a, err := open(t, newServer(t, l.url), initialize).Call(ctx, call(t, legacyCall))
		if err != nil {
			t.Fatal(err)
		}
		e := a.Events.(*events)
		for err == nil { // up to the cut
			var event mcp.Event
			if event, err = e.reader.Next(); err == nil {
				e.resumption.note(&event)
			}
		}
		cancel()
		wantKind(t, e.goOnAfter(err), upstream.Lost)
		l.wait(t, "POST", "notifications/cancelled", 1)
	})
	for name, behave := range map[string]func(*legacyServer){"before a head": silent, "in a stream": inStream} {
		t.Run(name+" when its time is over", func(t *testing.T) {
			l := newLegacyServer(t, behave)
			session := open(t, newServer(t, l.url, callTimeout(200*time.Millisecond)), initialize)
			wantKind(t, failureOf(session.Call(testContext(t), call(t, legacyCall))), upstream.TimedOut)
			l.wait(t, "POST", "notifications/cancelled", 1)
		})
	}
}

func TestACutStreamIsResumedAfterItsLastEvent(t *testing.T) {
	l := newLegacyServer(t, func(l *legacyServer) {
		l.answer = func(w http.ResponseWriter, r *http.Request, m *mcp.Message) {
			switch {
			case m.Kind == mcp.Request:
				sse(w)("id: a\ndata:\n\nretry: 10\nid: b\ndata: " + progressed + "\n\nid: torn\ndata: {\"js")
				panic(http.ErrAbortHandler)
			case r.Header.Get("Last-Event-Id") == "b":
				sse(w)("id: c\ndata: " + progressed + "\n\n")
			case r.Header.Get("Last-Event-Id") == "c":
				sse(w)("id: d\ndata: " + result + "\n\n")
			default:
				w.WriteHeader(http.StatusAccepted)
			}
		}
	})
	a, err := open(t, newServer(t, l.url), initialize).Call(testContext(t), call(t, legacyCall))
	if got, before := responseOf(t, a, err); got != result || !slices.Equal(before, []string{progressed, progressed}) {
		t.Errorf("messages %q, then %s; want two of progress and the response", before, got)
	}
	if n := l.count("POST tools/call session-1"); n != 1 {
		t.Errorf("the call was sent %d times, want once", n)
	}
}

func TestAStreamThatCannotBeResumedIsLost(t *testing.T) {
	tests := []struct {
		name, first string
		gets        int
		get         func(w http.ResponseWriter)
		want        upstream.Kind
	}{
		{"without ids", "data: " + progressed + "\n\n", 0, nil, upstream.Lost},
		{"with its id taken back", "id: 1\ndata: " + progressed + "\n\nid:\ndata: " + progressed + "\n\n", 0, nil, upstream.Lost},
		{"with nothing new", "retry: 1\nid: 1\ndata:\n\n", maxResumes, func(w http.ResponseWriter) { sse(w)(": no\n\n") }, upstream.Lost},
		{"with 404", "retry: 1\nid: 1\ndata:\n\n", 1, func(w http.ResponseWriter) { w.WriteHeader(404) }, upstream.SessionGone},
		{"with 405", "retry: 1\nid: 1\ndata:\n\n", 1, func(w http.ResponseWriter) { w.WriteHeader(405) }, upstream.Lost},
		{"with 503", "retry: 1\nid: 1\ndata:\n\n", maxResumes, func(w http.ResponseWriter) { w.WriteHeader(503) }, upstream.Lost},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLegacyServer(t, func(l *legacyServer) {
				l.answer = func(w http.ResponseWriter, r *http.Request, m *mcp.Message) {
					switch {
					case m.Kind == mcp.Request:
						sse(w)(tt.first)
					case r.Method == http.MethodGet:
						tt.get(w)
					}
				}
			})
			session := open(t, newServer(t, l.url), initialize)
			wantKind(t, failureOf(session.Call(testContext(t), call(t, legacyCall))), tt.want)
			if n := l.count("GET session-1"); n != tt.gets {
				t.Errorf("resumed %d times, want %d", n, tt.gets)
			}
		})
	}
}

func TestClosingAStreamEndsItsWait(t *testing.T) {
	for name, first := range map[string]string{"reading": ": x\n\n", "before resuming": "retry: 60000\nid: 1\ndata:\n\n"} {
		t.Run(name, func(t *testing.T) {
			l := newLegacyServer(t, func(l *legacyServer) {
				l.answer = func(w http.ResponseWriter, r *http.Request, m *mcp.Message) {
					if m.Kind != mcp.Request {
						return
					}
					sse(w)(first)
					if name == "reading" {
						<-r.Context().Done()
					}
				}
			})
			a, err := open(t, newServer(t, l.url), initialize).Call(testContext(t), call(t, legacyCall))
			if err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(50*time.Millisecond, func() { a.Close() })
			_, err = a.Events.Next()
			wantKind(t, err, upstream.Lost)
			if n := l.count("POST notifications/cancelled session-1"); n != 0 {
				t.Errorf("%d cancellations, want none: nobody cancelled the call", n)
			}
		})
	}
}

func TestAServerWithoutAStreamIsNotAskedAgain(t *testing.T) {
	l := newLegacyServer(t)
	session := open(t, newServer(t, l.url), initialize)
	if _, err := session.Listen(testContext(t)); !errors.Is(err, upstream.ErrNoStream) {
		t.Errorf("Listen: %v, want ErrNoStream", err)
	}
	if n := l.count("GET session-1"); n != 1 {
		t.Errorf("%d GETs, want 1", n)
	}
}

func TestAListenStreamComesBackWithoutAStorm(t *testing.T) {
	l := newLegacyServer(t, func(l *legacyServer) {
		l.answer = func(w http.ResponseWriter, r *http.Request, m *mcp.Message) {
			switch {
			case r.Method != http.MethodGet:
				w.WriteHeader(http.StatusAccepted)
			case r.Header.Get("Last-Event-Id") == "":
				sse(w)("id: 1\ndata:\n\nid: 2\ndata: not JSON\n\n") // and drops it
			default:
				sse(w)("data: " + progressed + "\n\n")
				<-r.Context().Done()
			}
		}
	})
	stream, err := open(t, newServer(t, l.url), initialize).Listen(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	begun := time.Now()
	if e, err := stream.Next(); err != nil || string(e.Data) != progressed {
		t.Fatalf("message %s, %v; want %s", e.Data, err, progressed)
	}
	if took := time.Since(begun); took < backoffLeast {
		t.Errorf("it came back after %v, want at least %v", took, backoffLeast)
	}
	if got := l.wait(t, "GET", "", 2).header.Get("Last-Event-Id"); got != "2" || l.count("GET session-1") != 2 {
		t.Errorf("it came back after event %q, with %d GETs in all; want 2 and 2", got, l.count("GET session-1"))
	}
}

func TestTheListenStreamFollowsItsSession(t *testing.T) {
	l := newLegacyServer(t, func(l *legacyServer) {
		l.answer = func(w http.ResponseWriter, r *http.Request, m *mcp.Message) {
			switch {
			case m.Kind == mcp.Request:
				writeJSON(w, 200, result)
			case r.Method != http.MethodGet:
				w.WriteHeader(http.StatusAccepted)
			case r.Header.Get("Mcp-Session-Id") == "session-1":
				sse(w)("id: 9\ndata:\n\n")
				<-r.Context().Done()
			default:
				sse(w)("data: " + progressed + "\n\n")
				<-r.Context().Done()
			}
		}
	})
	session := open(t, newServer(t, l.url), initialize)
	stream, err := session.Listen(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	next := make(chan string)
	go func() {
		for {
			e, err := stream.Next()
			next <- fmt.Sprint(string(e.Data), err)
			if err != nil {
				return
			}
		}
	}()
	l.forget()
	if err := failureOf(session.Call(testContext(t), call(t, legacyCall))); err != nil {
		t.Fatal(err)
	}
	if got := <-next; got != progressed+"<nil>" {
		t.Errorf("after the session was opened again: %s, want %s", got, progressed)
	}
	if got := l.wait(t, "GET", "", 2).header.Get("Last-Event-Id"); got != "" {
		t.Errorf("the new session was asked for events after %q, which is the old one's", got)
	}
	if err := session.Close(testContext(t)); err != nil {
		t.Error(err)
	}
	if got := <-next; got != io.EOF.Error() {
		t.Errorf("after the session was closed: %s, want EOF", got)
	}
}

func TestAListenStreamCarriesDeepMessages(t *testing.T) {
	deep := `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":` +
		strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + `}}`
	l := newLegacyServer(t, func(l *legacyServer) {
		l.answer = func(w http.ResponseWriter, r *http.Request, _ *mcp.Message) {
			if r.Method == http.MethodGet {
				sse(w)("data: " + deep + "\n\ndata: " + progressed + "\n\n")
				<-r.Context().Done()
			}
		}
	})
	stream, err := open(t, newServer(t, l.url), initialize).Listen(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if e, err := stream.Next(); err != nil || string(e.Data) != deep {
		t.Errorf("got %.80s, %v; want the message nested 1000 deep", e.Data, err)
	}
}

func TestListenOpensAForgottenSessionOnce(t *testing.T) {
	l := newLegacyServer(t)
	session := open(t, newServer(t, l.url), initialize)
	l.forget()
	if _, err := session.Listen(testContext(t)); !errors.Is(err, upstream.ErrNoStream) {
		t.Errorf("Listen: %v, want ErrNoStream", err)
	}
	if n := l.count("POST initialize"); n != 2 {
		t.Errorf("%d initializes, want 2", n)
	}
}

func TestClosingAServerEndsItsSessions(t *testing.T) {
	l := newLegacyServer(t)
	s := newServer(t, l.url, func(u *outriggerv1.Upstream) { u.Era = outriggerv1.Era_ERA_LEGACY })
	l.answer = func(w http.ResponseWriter, r *http.Request, m *mcp.Message) {
		writeJSON(w, 200, strings.Replace(result, `"id":1`, `"id":`+string(m.ID.Of(m.Raw)), 1))
	}
	if err := s.Check(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(testContext(t)); err != nil {
		t.Error(err)
	}
	if n := l.count("DELETE session-1"); n != 1 {
		t.Errorf("%d DELETEs, want 1", n)
	}
	_, _, err := s.Open(testContext(t), call(t, initialize))
	wantKind(t, err, upstream.Unreachable)
}

func TestClosingAServerDoesNotWaitForOneThatHangs(t *testing.T) {
	l := newLegacyServer(t, func(l *legacyServer) {
		l.answer = func(w http.ResponseWriter, r *http.Request, _ *mcp.Message) {
			if r.Method == http.MethodDelete {
				<-r.Context().Done()
			}
		}
	})
	s := newServer(t, l.url)
	open(t, s, initialize)
	ctx, stop := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer stop()
	wantKind(t, s.Close(ctx), upstream.TimedOut)
}

func TestAServerThatForgetsWithEveryStreamIsNotStormed(t *testing.T) {
	l := newLegacyServer(t, func(l *legacyServer) {
		l.answer = func(w http.ResponseWriter, r *http.Request, _ *mcp.Message) {
			if r.Method == http.MethodGet {
				sse(w)(": bye\n\n")
				l.forget()
			}
		}
	})
	ctx, stop := context.WithTimeout(context.Background(), 3*backoffLeast)
	defer stop()
	stream, err := open(t, newServer(t, l.url), initialize).Listen(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if _, err := stream.Next(); err == nil {
		t.Error("a message, want none")
	}
	if n := l.count("POST initialize"); n < 2 || n > 4 {
		t.Errorf("%d initializes in %v, want 2 to 4: one, and one with each pause of at least %v", n, 3*backoffLeast, backoffLeast)
	}
}

func TestATimedOutCallWithoutAnEndingContextIsCancelledToo(t *testing.T) {
	l := newLegacyServer(t, func(l *legacyServer) {
		l.answer = func(w http.ResponseWriter, r *http.Request, m *mcp.Message) {
			switch {
			case m.Kind == mcp.Request:
				sse(w)("retry: 1\nid: 1\ndata:\n\n")
			case r.Method == http.MethodGet:
				<-r.Context().Done()
			}
		}
	})
	session := open(t, newServer(t, l.url, callTimeout(200*time.Millisecond)), initialize)
	wantKind(t, failureOf(session.Call(context.Background(), call(t, legacyCall))), upstream.TimedOut)
	l.wait(t, "POST", "notifications/cancelled", 1)
}
