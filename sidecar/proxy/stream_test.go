package proxy

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// streaming is a server whose every request is answered by a stream that the test feeds.
func streaming(f *fake) chan *events {
	calls := make(chan *events, 16)
	f.call = func(ctx ctx, c *upstream.Call) (*upstream.Answer, error) {
		if c.Message.Kind != mcp.Request {
			return &upstream.Answer{Status: 202}, nil
		}
		e := newEvents(ctx)
		calls <- e
		return e.answer(), nil
	}
	return calls
}

func response(id, text string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":%q}]}}`, id, text)
}

// L31
func TestEveryEventIsFlushedWhenItComes(t *testing.T) {
	f := &fake{}
	calls := streaming(f)
	r := newRig(t, f)
	for era, open := range map[string]func() *stream{
		"stateless": func() *stream {
			return r.open("POST", modern("tools/call", "echo"), modernCall("1", "echo", "{}"))
		},
		"legacy": func() *stream {
			s := r.open("POST", r.initialize(), toolCall("1", "echo", "{}"))
			if e := s.event(); e.id == "" || e.data != "" {
				t.Errorf("first event %+v, want the priming one", e)
			}
			return s
		},
	} {
		t.Run(era, func(t *testing.T) {
			s := open()
			events := <-calls
			if s.res.Header.Get("X-Accel-Buffering") != "no" || !strings.Contains(s.res.Header.Get("Cache-Control"), "no-transform") {
				t.Errorf("headers %v", s.res.Header)
			}
			for i := range 3 {
				note := strings.Replace(progressNote, `"progress":1`, fmt.Sprintf(`"progress":%d`, i), 1)
				events.feed <- note
				if e := s.event(); e.data != note || (e.id == "") == (era == "legacy") {
					t.Errorf("got %+v, want %s", e, note)
				}
			}
			events.feed <- response("1", "done")
			close(events.feed)
			left, err := s.end()
			if err != nil || len(left) != 1 || left[0].data != response("1", "done") {
				t.Errorf("then %v, %v; want the response and the end", left, err)
			}
		})
	}
}

// L18
func TestNothingIsAddedBetweenANotificationAndTheResult(t *testing.T) {
	f := &fake{}
	calls := streaming(f)
	r := newRig(t, f)
	go func() {
		for e := range calls {
			e.feed <- progressNote
			e.feed <- response("1", "x")
			close(e.feed)
		}
	}()
	t.Cleanup(func() { close(calls) })
	fastest := patience
	for range 50 { // a busy machine delays some of them; a wait would delay all
		begun := time.Now()
		r.callModern("1", "echo", "{}")
		fastest = min(fastest, time.Since(begun))
	}
	if fastest > 20*time.Millisecond {
		t.Errorf("every call with a notification took %v or more", fastest)
	}
}

// L31
func TestTheStatusLineWaitsForTheServers(t *testing.T) {
	f := &fake{}
	release := make(chan struct{})
	f.call = func(_ ctx, c *upstream.Call) (*upstream.Answer, error) {
		<-release
		a := jsonAnswer(`{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no"}}`)
		a.Status = 400
		return a, nil
	}
	r := newRig(t, f)
	status := make(chan int, 1)
	go func() { status <- r.callModern("1", "echo", "{}").status }()
	select {
	case s := <-status:
		t.Fatalf("status %d before the server had one", s)
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	if s := <-status; s != 400 {
		t.Errorf("status %d, want the server's 400", s)
	}
}

// mcp-wire 2026-07-28, basic/transports/streamable-http, Cancellation.
func TestAStatelessClientThatLeavesCancels(t *testing.T) {
	for _, c := range cells {
		if c.version != mcp.Version20260728 || strings.Contains(c.name, "stdio") {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			p := newPeer()
			o := inEvents
			if strings.Contains(c.name, "JSON") {
				o = inJSON
			}
			r := newRig(t, p.serveHTTP(t, o))
			ctx, leave := context.WithCancel(testContext(t))
			gone := make(chan error, 1)
			go func() {
				res, err := r.client.Do(r.request(ctx, "POST", modern("tools/call", "wait"), modernCall("1", "wait", `{"text":"w"}`)))
				if err == nil {
					_, err = io.ReadAll(res.Body)
					res.Body.Close()
				}
				gone <- err
			}()
			<-p.begun
			begun := time.Now()
			leave()
			select {
			case <-p.ended:
			case <-time.After(patience):
				t.Fatal("the call was not cancelled at the server")
			}
			if took := time.Since(begun); took > patience/2 {
				t.Errorf("it took %v", took)
			}
			<-gone
			eventually(t, "one cancelled call is counted", func() bool {
				return r.metric("outrigger_call_duration_seconds", "outcome", "cancelled") == 1
			})
		})
	}
}

func TestAStatelessClientThatLeavesASilentStreamCancels(t *testing.T) {
	f := &fake{}
	calls := streaming(f)
	r := newRig(t, f)
	s := r.open("POST", modern("tools/call", "echo"), modernCall("1", "echo", "{}"))
	e := <-calls
	s.leave()
	select {
	case <-e.ctx.Done():
	case <-time.After(patience):
		t.Error("the call goes on")
	}
}

// 2025-11-25, basic/transports: a disconnection is not a cancellation, and the stream can be resumed.
func TestALegacyClientThatLeavesCanComeBack(t *testing.T) {
	f := &fake{}
	calls := streaming(f)
	r := newRig(t, f)
	for _, tt := range []struct {
		name string
		late bool // comes back after the end
	}{{"while it runs", false}, {"after its end", true}} {
		t.Run(tt.name, func(t *testing.T) {
			h := r.initialize()
			s := r.open("POST", h, toolCall("1", "echo", "{}"))
			primed := s.event()
			events := <-calls
			events.feed <- progressNote
			first := s.event()
			s.leave()
			eventually(t, "the sidecar has noticed", func() bool {
				events.feed <- progressNote
				st := r.table.Load().endpoints["/mcp"].sessions.Get(h[mcp.HeaderSessionID], "")
				reader, err := st.Resume(first.id)
				if err != nil {
					t.Fatal(err)
				}
				defer reader.Detach()
				return true
			})
			if events.ctx.Err() != nil {
				t.Fatal("the call was cancelled")
			}
			if tt.late {
				events.feed <- response("1", "done")
				close(events.feed)
				eventually(t, "the call's stream ends", func() bool { return r.metric("outrigger_open_streams") == 0 })
			}
			back := r.open("GET", h.with("Last-Event-ID", first.id), "")
			if !tt.late {
				if e := back.event(); e.data != progressNote || e.id == first.id || e.id == primed.id {
					t.Errorf("resumed with %+v, want the next event", e)
				}
				events.feed <- response("1", "done")
				close(events.feed)
			}
			left, err := back.end()
			if err != nil || len(left) == 0 || left[len(left)-1].data != response("1", "done") {
				t.Errorf("resumed: %v, %v; want the response at the end", left, err)
			}
			again := r.open("GET", h.with("Last-Event-ID", primed.id), "")
			if left, err := again.end(); err != nil || len(left) < 2 || left[0].id != first.id {
				t.Errorf("from the priming event: %v, %v; want everything", left, err)
			}
		})
	}
}

func TestOnlyClientsOf20251125ArePrimed(t *testing.T) {
	f := &fake{}
	calls := streaming(f)
	r := newRig(t, f)
	for _, version := range []string{mcp.Version20250618, mcp.Version20250326} {
		s := r.open("POST", r.initializeAs(version), toolCall("1", "echo", "{}"))
		e := <-calls
		e.feed <- response("1", "x")
		close(e.feed)
		if first := s.event(); first.data == "" {
			t.Errorf("%s: first event %+v, want the response", version, first)
		}
	}
}

func TestASecondGETReplacesTheFirst(t *testing.T) {
	f := &fake{}
	general := newEvents(context.Background())
	f.listen = func(ctx ctx) (upstream.EventStream, error) { general.ctx = ctx; return general, nil }
	r := newRig(t, f)
	h := r.initialize()
	first := r.open("GET", h, "")
	if e := first.event(); e.id == "" {
		t.Errorf("first event %+v, want the priming one", e)
	}
	general.feed <- `{"jsonrpc":"2.0","method":"notifications/a"}`
	if e := first.event(); !strings.Contains(e.data, "notifications/a") {
		t.Errorf("got %+v", e)
	}
	second := r.open("GET", h, "")
	if left, err := first.end(); err != nil || len(left) != 0 {
		t.Errorf("the first, replaced: %v, %v; want its end", left, err)
	}
	if e := second.event(); e.id == "" || e.data != "" {
		t.Errorf("the second's first event %+v, want a priming one", e)
	}
	general.feed <- `{"jsonrpc":"2.0","method":"notifications/b"}`
	e := second.event()
	if !strings.Contains(e.data, "notifications/b") {
		t.Errorf("the second got %+v", e)
	}
	second.leave()
	general.feed <- `{"jsonrpc":"2.0","method":"notifications/c"}`
	third := r.open("GET", h.with("Last-Event-ID", e.id), "")
	if e := third.event(); !strings.Contains(e.data, "notifications/c") {
		t.Errorf("resumed with %+v, want what came meanwhile", e)
	}
	r.do("DELETE", h, "")
	if left, err := third.end(); err != nil || len(left) != 0 {
		t.Errorf("after DELETE: %v, %v; want the end", left, err)
	}
}

// A priming event is for what comes next: resuming from it repeats nothing that another connection was sent.
func TestAGETThatWasPrimedInTheMiddleResumesFromThere(t *testing.T) {
	f := &fake{}
	general := newEvents(context.Background())
	f.listen = func(ctx ctx) (upstream.EventStream, error) { general.ctx = ctx; return general, nil }
	r := newRig(t, f)
	h := r.initialize()
	first := r.open("GET", h, "")
	first.event()
	general.feed <- `{"jsonrpc":"2.0","method":"notifications/a"}`
	first.event()
	first.leave()
	second := r.open("GET", h, "")
	primed := second.event()
	second.leave()
	third := r.open("GET", h.with("Last-Event-ID", primed.id), "")
	general.feed <- `{"jsonrpc":"2.0","method":"notifications/b"}`
	if e := third.event(); !strings.Contains(e.data, "notifications/b") {
		t.Errorf("resumed from the middle with %+v, want only what came after", e)
	}
}

// L32
func TestAQuietStreamCarriesComments(t *testing.T) {
	f := &fake{}
	calls := streaming(f)
	f.listen = func(ctx ctx) (upstream.EventStream, error) { return newEvents(ctx), nil }
	r := newRig(t, f, func(b *bindingSpec) { b.KeepAlive = durationpb.New(20 * time.Millisecond) })
	h := r.initialize()
	for name, open := range map[string]func() *stream{
		"stateless": func() *stream {
			return r.open("POST", modern("tools/call", "echo"), modernCall("1", "echo", "{}"))
		},
		"legacy": func() *stream { return r.open("POST", h, toolCall("1", "echo", "{}")) },
		"GET":    func() *stream { return r.open("GET", h, "") },
	} {
		t.Run(name, func(t *testing.T) {
			s := open()
			for comments := 0; comments < 3; {
				e, err := s.next()
				if err != nil {
					t.Fatal(err)
				}
				if e.comment != "" {
					comments++
				}
			}
			if name != "GET" {
				e := <-calls
				e.feed <- response("1", "x")
				close(e.feed)
				if left, err := s.end(); err != nil || len(left) != 1 {
					t.Errorf("then %v, %v", left, err)
				}
			}
		})
	}
}

// broken is a body that breaks off.
type broken struct {
	io.Reader
	err error
}

func (b broken) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == io.EOF {
		err = b.err
	}
	return n, err
}

func (b broken) Close() error { return nil }

func TestABodyThatBreaksOffIsNeverTakenForWhole(t *testing.T) {
	lost := &upstream.Error{Kind: upstream.Lost, Upstream: "up", Detail: "the connection broke"}
	for _, length := range []int64{-1, 200_000} {
		f := &fake{}
		f.call = func(_ ctx, c *upstream.Call) (*upstream.Answer, error) {
			text := `{"jsonrpc":"2.0","id":1,"result":{"text":"` + strings.Repeat("x", 100_000)
			return &upstream.Answer{Status: 200, Length: length, Body: broken{strings.NewReader(text), lost}}, nil
		}
		r := newRig(t, f)
		res, err := r.client.Do(r.request(testContext(t), "POST", modern("tools/call", "echo"), modernCall("1", "echo", "{}")))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		if err == nil {
			t.Errorf("length %d: %d bytes and no error, want one", length, len(b))
		}
		res.Body.Close()
	}
	f := &fake{} // before a byte was passed on, there is still a way to say it
	f.call = func(_ ctx, c *upstream.Call) (*upstream.Answer, error) {
		return &upstream.Answer{Status: 200, Length: 100, Body: broken{strings.NewReader(`{"json`), lost}}, nil
	}
	wantOurs(t, newRig(t, f).callModern("1", "echo", "{}").wantError(t, 200, -32603, "1"), "upstream_lost")
}

func TestAStreamThatBreaksOffEndsWithAnError(t *testing.T) {
	f := &fake{}
	calls := streaming(f)
	r := newRig(t, f)
	for _, s := range []*stream{
		r.open("POST", modern("tools/call", "echo"), modernCall("1", "echo", "{}")),
		r.open("POST", r.initialize(), toolCall("1", "echo", "{}")),
	} {
		e := <-calls
		e.feed <- progressNote
		for s.event().data != progressNote {
		}
		e.fail <- &upstream.Error{Kind: upstream.TimedOut, Upstream: "up", Detail: "no whole answer in time"}
		left, err := s.end()
		if err != nil || len(left) != 1 {
			t.Fatalf("then %v, %v; want one event", left, err)
		}
		wantOurs(t, reply{status: 200, body: left[0].data}.wantError(t, 200, -32603, "1"), "upstream_timeout")
	}
}

// L33
func TestBigAnswersPassByteForByte(t *testing.T) {
	for _, size := range []int{1 << 10, 16 << 10, 64 << 10, 1 << 20, 20 << 20} {
		for _, known := range []bool{true, false} {
			t.Run(fmt.Sprint(size, known), func(t *testing.T) {
				body := []byte(response("1", strings.Repeat("0123456789abcdef", size/16)))
				want := sha256.Sum256(body)
				f := &fake{}
				inEvents := false
				f.call = func(ctx ctx, c *upstream.Call) (*upstream.Answer, error) {
					if inEvents {
						e := newEvents(ctx)
						e.feed <- string(body)
						close(e.feed)
						return e.answer(), nil
					}
					length := int64(-1)
					if known {
						length = int64(len(body))
					}
					return &upstream.Answer{Status: 200, Length: length, Body: io.NopCloser(bytes.NewReader(body))}, nil
				}
				r := newRig(t, f)
				if p := r.callModern("1", "echo", "{}"); sha256.Sum256([]byte(p.body)) != want {
					t.Errorf("%d bytes came, other than the %d sent", len(p.body), len(body))
				}
				inEvents = true
				p := r.callModern("1", "echo", "{}")
				if got := strings.TrimPrefix(strings.TrimSpace(p.body), "data: "); sha256.Sum256([]byte(got)) != want {
					t.Errorf("in an event %d bytes came, other than the %d sent", len(got), len(body))
				}
			})
		}
	}
}

func TestABigRequestPasses(t *testing.T) {
	var got int
	f := &fake{}
	f.call = func(_ ctx, c *upstream.Call) (*upstream.Answer, error) {
		got = len(c.Message.Raw)
		return answerTo(c), nil
	}
	r := newRig(t, f)
	body := modernCall("1", "echo", `{"text":"`+strings.Repeat("x", 3<<20)+`"}`)
	if p := r.do("POST", modern("tools/call", "echo"), body); p.status != 200 || got != len(body) {
		t.Errorf("got %d; %d bytes of %d", p.status, got, len(body))
	}
}

// A client that reads nothing must not hold anything for ever, nor anybody else.
func TestASlowReaderDoesNotHoldUpOthers(t *testing.T) {
	f := &fake{}
	calls := streaming(f)
	r := newRig(t, f)
	slow := r.open("POST", modern("tools/call", "echo"), modernCall("1", "echo", "{}"))
	defer slow.leave()
	e := <-calls
	big := response("1", strings.Repeat("x", 8<<20))
	e.feed <- big
	done := make(chan struct{})
	go func() {
		defer close(done)
		other := r.open("POST", modern("tools/call", "echo"), modernCall("2", "echo", "{}"))
		e := <-calls
		e.feed <- response("2", "x")
		close(e.feed)
		other.end()
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Error("another call waits for it")
	}
}

func TestErrorsOfTheUpstreamAreOfTheCallersEra(t *testing.T) {
	for kind, want := range map[upstream.Kind]struct {
		status int
		reason string
	}{
		upstream.Unreachable: {200, "upstream_unreachable"}, upstream.Lost: {200, "upstream_lost"},
		upstream.TimedOut: {200, "upstream_timeout"}, upstream.BadAnswer: {200, "upstream_bad_answer"},
		upstream.Unauthorized: {200, "upstream_unauthorized"}, upstream.Overloaded: {200, "upstream_overloaded"},
		upstream.SessionGone: {404, "upstream_session_gone"},
	} {
		t.Run(want.reason, func(t *testing.T) {
			f := &fake{}
			r := newRig(t, f)
			h := r.initialize()
			f.call = func(ctx, *upstream.Call) (*upstream.Answer, error) {
				return nil, &upstream.Error{Kind: kind, Upstream: "up", Detail: "broken", Cause: errors.New("secret-cause")}
			}
			p := r.do("POST", h, toolCall(`"l"`, "echo", "{}"))
			wantOurs(t, p.wantError(t, want.status, -32603, `"l"`), want.reason)
			if n := r.metric("outrigger_refusals_total", "reason", want.reason, "binding", "main"); n != 1 {
				t.Errorf("%v counted, want 1", n)
			}
			if kind == upstream.SessionGone {
				r.do("POST", h, toolCall("1", "echo", "{}")).wantError(t, 404, -32600, "1")
				return
			}
			wantOurs(t, r.callModern(`"s"`, "echo", "{}").wantError(t, want.status, -32603, `"s"`), want.reason)
			if p := r.do("POST", h, initialized); p.status != http.StatusBadGateway {
				t.Errorf("a notification: %d %s, want 502", p.status, p.body)
			}
			if strings.Contains(p.body, "secret-cause") {
				t.Errorf("the cause is shown: %s", p.body)
			}
		})
	}
}
