package sse

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream/mailbox"
)

func progress(token string) string {
	return `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":` + token + `,"progress":1}}`
}

const (
	logged  = `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}`
	elicit  = `{"jsonrpc":"2.0","id":"e1","method":"elicitation/create","params":{"message":"?"}}`
	updated = `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:b"}}`
)

// inFlight starts calls with ids from 1 and brings each to its stream with a progress.
func inFlight(t *testing.T, p *peer, session upstream.Session, n int) []upstream.EventStream {
	t.Helper()
	var all []upstream.EventStream
	for id := range n {
		done := start(t, testContext(t), session, toolCall(fmt.Sprint(id+1), "x", ""))
		p.wait("the call", id, method("tools/call"))
		p.say(0, progress(fmt.Sprint(id+1)))
		a, err := wait(t, done)
		if err != nil || a.Events == nil {
			t.Fatalf("%v, %v; want a stream", a, err)
		}
		t.Cleanup(func() { a.Close() })
		if text, _ := next(t, a.Events); !strings.Contains(text, fmt.Sprintf(`"progressToken":%d`, id+1)) {
			t.Fatalf("call %d got %s", id+1, text)
		}
		all = append(all, a.Events)
	}
	return all
}

func wantNext(t *testing.T, what string, events upstream.EventStream, want string) {
	t.Helper()
	if got, _ := next(t, events); got != want {
		t.Errorf("%s got %s, want %s", what, got, want)
	}
}

func TestWhatBelongsToNoCallGoesToTheOnlyOne(t *testing.T) {
	p := newPeer(t)
	session := open(t, newServer(t, p.url))
	own, err := session.Listen(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	calls := inFlight(t, p, session, 1)
	for _, m := range []string{logged, elicit, updated, progress("77")} {
		p.say(0, m)
	}
	wantNext(t, "the only call", calls[0], logged)
	wantNext(t, "the only call", calls[0], elicit)
	wantNext(t, "the session", own, updated)
	wantNext(t, "the session", own, progress("77"))
}

func TestWhatBelongsToNoCallGoesToWhoListensWhenThereAreSeveral(t *testing.T) {
	p := newPeer(t)
	session := open(t, newServer(t, p.url))
	own, err := session.Listen(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	calls := inFlight(t, p, session, 2)
	p.say(0, elicit)
	p.say(0, progress("2"))
	wantNext(t, "the session", own, elicit)
	wantNext(t, "the second call", calls[1], progress("2"))
}

func TestWhatBelongsToNoCallGoesToTheOldestWhenNobodyListens(t *testing.T) {
	p := newPeer(t)
	session := open(t, newServer(t, p.url))
	own, err := session.Listen(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	own.Close()
	own.Close()
	calls := inFlight(t, p, session, 2)
	p.say(0, elicit)
	wantNext(t, "the oldest call", calls[0], elicit)
}

func TestWhatBelongsToNoCallWaitsForWhoListensWhenThereIsNone(t *testing.T) {
	p := newPeer(t)
	session := open(t, newServer(t, p.url))
	p.say(0, logged)
	p.say(0, elicit)
	own, err := session.Listen(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	wantNext(t, "the session", own, logged)
	wantNext(t, "the session", own, elicit)
	ctx, stop := context.WithCancel(testContext(t))
	other, err := session.Listen(ctx)
	if err != nil {
		t.Fatal(err)
	}
	stop()
	if _, err := other.Next(); err != io.EOF {
		t.Errorf("a stream whose context ended: %v, want io.EOF", err)
	}
}

func TestAPingIsAnsweredWithoutAClient(t *testing.T) {
	p := newPeer(t)
	open(t, newServer(t, p.url))
	p.say(0, `{"jsonrpc":"2.0","id":"are you there","method":"ping"}`)
	got := p.wait("a response", 0, func(m posted) bool { return m.m.Kind == mcp.Response })
	if want := `{"jsonrpc":"2.0","id":"are you there","result":{}}`; got.body != want {
		t.Errorf("answered %s, want %s", got.body, want)
	}
}

func TestAResponseGoesOnlyToARequestThatWaitsForIt(t *testing.T) {
	p := newPeer(t)
	session := open(t, newServer(t, p.url))
	calls := inFlight(t, p, session, 1)
	p.say(0, elicit)
	p.say(0, `{"jsonrpc":"2.0","id":2,"method":"sampling/createMessage","params":{}}`)
	p.say(0, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
	for range 3 {
		next(t, calls[0])
	}
	tell(t, session, `{"jsonrpc":"2.0","id":2,"result":{"too":"late"}}`)
	tell(t, session, `{"jsonrpc":"2.0","id":"e9","result":{"never":"asked"}}`)
	const answer = `{"jsonrpc":"2.0","id":"e1","result":{"action":"accept"}}`
	tell(t, session, answer)
	tell(t, session, answer)
	tell(t, session, `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)
	p.wait("what came after", 0, method(mcp.NotificationRootsChanged))
	isResponse := func(m posted) bool { return m.m.Kind == mcp.Response }
	if n := p.count(isResponse); n != 1 || p.wait("it", 0, isResponse).body != answer {
		t.Errorf("%d responses were sent, want the one that was asked for", n)
	}
}

func TestAFloodThatNobodyReadsIsBounded(t *testing.T) {
	p := newPeer(t)
	session := open(t, newServer(t, p.url))
	for range mailbox.Most + 10 {
		p.say(0, logged)
	}
	for i := range maxAsked + 1 {
		p.say(0, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"elicitation/create","params":{}}`, i))
	}
	refused := p.wait("a refusal", 0, func(m posted) bool { return m.m.Kind == mcp.Response })
	if !strings.Contains(refused.body, fmt.Sprintf(`"id":%d`, maxAsked)) || !refused.m.Error.Present() {
		t.Errorf("answered %s, want an error to request %d", refused.body, maxAsked)
	}
	own, err := session.Listen(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	for i := range maxAsked {
		if _, m := next(t, own); string(m.ID.Of(m.Raw)) != fmt.Sprint(i) {
			t.Fatalf("message %d is %s, want request %d: requests are not dropped, notifications are", i, m.Raw, i)
		}
	}
}
