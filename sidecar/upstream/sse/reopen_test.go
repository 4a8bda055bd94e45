package sse

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// cutAndNotice ends a stream of the peer's and waits until the session knows.
func cutAndNotice(t *testing.T, p *peer, stream int, of upstream.Session) {
	t.Helper()
	l, err := of.(*session).now()
	if err != nil {
		t.Fatal(err)
	}
	p.cut(stream)
	eventually(t, "the link has ended", l.ended)
}

// grantSettings leaves the session with a level, and a subscription to a:b.
func grantSettings(t *testing.T, p *peer, session upstream.Session) {
	t.Helper()
	for i, set := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"info"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"a:b"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"c:d"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"resources/unsubscribe","params":{"uri":"c:d"}}`,
	} {
		done := start(t, testContext(t), session, set)
		p.wait("a setting", i, func(m posted) bool { return string(m.m.ID.Of(m.m.Raw)) == "1" })
		p.say(0, `{"jsonrpc":"2.0","id":1,"result":{}}`)
		a, err := wait(t, done)
		responseOf(t, a, err)
	}
}

func TestALostSessionIsOpenedAgainWithWhatTheClientSaid(t *testing.T) {
	p := newPeer(t)
	session := open(t, newServer(t, p.url))
	grantSettings(t, p, session)
	done := start(t, testContext(t), session, toolCall("2", "lost", ""))
	p.wait("the call", 0, method("tools/call"))
	cutAndNotice(t, p, 0, session)
	_, err := wait(t, done)
	wantKind(t, err, upstream.Lost)

	p.mu.Lock()
	p.refuse = func(m string) (int, string) {
		if strings.Contains(m, "outrigger-again") {
			scanned, _ := mcp.ScanAnswer([]byte(m))
			p.say(1, `{"jsonrpc":"2.0","id":`+string(scanned.ID.Of(scanned.Raw))+`,"result":{}}`)
		}
		return 0, ""
	}
	p.mu.Unlock()
	var all sync.WaitGroup
	for _, id := range []string{"11", "12", "13", "14"} {
		all.Go(func() {
			done := start(t, testContext(t), session, toolCall(id, "again", ""))
			p.wait("call "+id, 0, func(m posted) bool { return string(m.m.ID.Of(m.m.Raw)) == id })
			p.say(1, `{"jsonrpc":"2.0","id":`+id+`,"result":{}}`)
			if a, err := wait(t, done); err != nil || a.Body == nil {
				t.Errorf("call %s: %v, %v", id, a, err)
			}
		})
	}
	all.Wait()
	if p.opened() != 2 {
		t.Errorf("%d streams were opened, want one more", p.opened())
	}
	var again []string
	p.mu.Lock()
	for _, m := range p.messages {
		if m.stream == 1 && m.m.Method != "tools/call" {
			again = append(again, m.body)
		}
	}
	p.mu.Unlock()
	if len(again) != 4 || again[0] != initialize || again[1] != initialized {
		t.Fatalf("the new session heard %q, want the client's handshake, a level and a subscription", again)
	}
	settings := again[2] + again[3]
	if !strings.Contains(settings, `"params":{"level":"info"}`) || !strings.Contains(settings, `"params":{"uri":"a:b"}`) {
		t.Errorf("the new session heard %q, want the level and the subscription to a:b", settings)
	}
}

func TestAMessageRefusedForWantOfTheSessionIsSentAgainOnce(t *testing.T) {
	for _, again := range []bool{true, false} {
		p := newPeer(t)
		session := open(t, newServer(t, p.url))
		p.mu.Lock()
		p.refuse = func(m string) (int, string) {
			if strings.Contains(m, "tools/call") && (p.opened() == 1 || !again) {
				return 404, "which session?"
			}
			return 0, ""
		}
		p.mu.Unlock()
		done := start(t, testContext(t), session, toolCall("1", "x", ""))
		p.wait("the call twice", 1, method("tools/call"))
		if !again {
			_, err := wait(t, done)
			wantKind(t, err, upstream.SessionGone)
			continue
		}
		p.say(1, `{"jsonrpc":"2.0","id":1,"result":{}}`)
		a, err := wait(t, done)
		responseOf(t, a, err)
		if n := p.count(method("tools/call")); n != 2 {
			t.Errorf("the call was sent %d times, want twice", n)
		}
	}
}

func TestASessionThatCannotBeOpenedAgainIsGone(t *testing.T) {
	for name, change := range map[string]func(*peer){
		"another version": func(p *peer) { p.version = mcp.Version20250326 },
		"an error to initialize": func(p *peer) {
			p.refuse = func(m string) (int, string) {
				return 400, `{"jsonrpc":"2.0","id":0,"error":{"code":-32600,"message":"no more"}}`
			}
		},
		"settings refused": func(p *peer) {
			p.refuse = func(m string) (int, string) {
				if strings.Contains(m, "outrigger-again") {
					return 400, `{"jsonrpc":"2.0","id":"outrigger-again-1","error":{"code":-32600,"message":"no more"}}`
				}
				return 0, ""
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t)
			session := open(t, newServer(t, p.url))
			done := start(t, testContext(t), session, `{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":"info"}}`)
			p.wait("a setting", 0, method(mcp.MethodSetLevel))
			p.say(0, `{"jsonrpc":"2.0","id":1,"result":{}}`)
			a, err := wait(t, done)
			responseOf(t, a, err)
			cutAndNotice(t, p, 0, session)
			p.mu.Lock()
			change(p)
			p.mu.Unlock()
			_, err = session.Call(testContext(t), message(t, toolCall("2", "x", "")))
			wantKind(t, err, upstream.SessionGone)
			if n := p.count(method("tools/call")); n != 0 {
				t.Errorf("the call was sent %d times, want never", n)
			}
		})
	}
}

func TestAListenerBringsTheSessionBackByItself(t *testing.T) {
	p := newPeer(t)
	session := open(t, newServer(t, p.url))
	own, err := session.Listen(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	p.say(0, updated)
	wantNext(t, "the session", own, updated)
	got := make(chan string, 1)
	go func() {
		text, _ := next(t, own)
		got <- text
	}()
	p.cut(0)
	p.wait("a second handshake", 1, method(mcp.NotificationInitialized))
	p.say(1, logged)
	if text := <-got; text != logged {
		t.Errorf("got %s, want what the new session said", text)
	}
}

func TestWhatWouldMeanNothingToANewSessionIsNotSentThere(t *testing.T) {
	p := newPeer(t)
	session := open(t, newServer(t, p.url))
	calls := inFlight(t, p, session, 1)
	p.say(0, elicit)
	wantNext(t, "the call", calls[0], elicit)
	cutAndNotice(t, p, 0, session)
	_, err := calls[0].Next()
	wantKind(t, err, upstream.Lost)
	tell(t, session, `{"jsonrpc":"2.0","id":"e1","result":{}}`)
	tell(t, session, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	if p.opened() != 1 {
		t.Error("a response or a cancellation opened the session again")
	}
	tell(t, session, `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)
	tell(t, session, `{"jsonrpc":"2.0","id":"e1","result":{}}`)
	tell(t, session, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`)
	p.wait("what came after", 0, method(mcp.NotificationProgress))
	if n := p.count(func(m posted) bool { return m.m.Kind == mcp.Response }); n != 0 {
		t.Errorf("%d responses were sent, want none", n)
	}
}

func TestAClosedSessionIsNotOpenedAgain(t *testing.T) {
	p := newPeer(t)
	session := open(t, newServer(t, p.url))
	own, err := session.Listen(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := session.Close(testContext(t)); err != nil {
			t.Error(err)
		}
	}
	if _, err := own.Next(); err != io.EOF {
		t.Errorf("the session's stream: %v, want io.EOF", err)
	}
	_, err = session.Call(testContext(t), message(t, toolCall("1", "x", "")))
	wantKind(t, err, upstream.SessionGone)
	if p.opened() != 1 {
		t.Errorf("%d streams were opened, want one", p.opened())
	}
}

func TestWhoeverWaitsForAReopeningMayLeave(t *testing.T) {
	p := newPeer(t)
	session := open(t, newServer(t, p.url))
	cutAndNotice(t, p, 0, session)
	hold := make(chan struct{})
	defer close(hold)
	p.mu.Lock()
	p.refuse = func(string) (int, string) { <-hold; return 500, "" }
	p.mu.Unlock()
	ctx, stop := context.WithCancel(testContext(t))
	done := start(t, ctx, session, toolCall("1", "x", ""))
	p.wait("initialize again", 1, method(mcp.MethodInitialize))
	stop()
	_, err := wait(t, done)
	wantKind(t, err, upstream.Lost)
}
