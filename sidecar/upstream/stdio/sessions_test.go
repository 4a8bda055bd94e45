package stdio

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream/mailbox"
)

// say makes the peer write these lines before its answer; it returns all messages of the call.
func say(t *testing.T, s upstream.Session, lines ...string) []string {
	t.Helper()
	quoted := make([]string, 0, len(lines)+1)
	for _, l := range append(lines, `{"jsonrpc":"2.0","id":$ID,"result":{}}`) {
		quoted = append(quoted, quote(l))
	}
	return ask(t, s.Call, toolCall("1", "say", `{"lines":[`+strings.Join(quoted, ",")+`]}`))
}

func listen(t *testing.T, s upstream.Session) upstream.EventStream {
	t.Helper()
	stream, err := s.Listen(within(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stream.Close() })
	return stream
}

// marker is a list change: every session gets it, so what comes before it on a stream is all there was.
const marker = `{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}`

func untilMarker(t *testing.T, stream upstream.EventStream) (all []string) {
	t.Helper()
	for {
		text := next(t, stream)
		if text == marker {
			return all
		}
		all = append(all, text)
	}
}

func subscribed(uri string) string {
	return `{"jsonrpc":"2.0","id":"s","method":"resources/subscribe","params":{"uri":"` + uri + `"}}`
}

func unsubscribed(uri string) string {
	return `{"jsonrpc":"2.0","id":"s","method":"resources/unsubscribe","params":{"uri":"` + uri + `"}}`
}

func updatedNotice(uri string) string {
	return `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"` + uri + `"}}`
}

func TestUpdatesGoToThoseWhoSubscribed(t *testing.T) {
	h := newHarness(t, "strict", legacyOnly)
	a, b, c := h.open(), h.open(), h.open()
	for s, uri := range map[upstream.Session]string{a: "r://1", b: "r://"} {
		if got := ask(t, s.Call, subscribed(uri)); got[0] != `{"jsonrpc":"2.0","id":"s","result":{}}` {
			t.Fatalf("subscribe got %s", got)
		}
	}
	streams := map[string]upstream.EventStream{"a": listen(t, a), "b": listen(t, b), "c": listen(t, c)}
	say(t, c, updatedNotice("r://1"), updatedNotice("r://2"), updatedNotice("x://"), marker)
	want := map[string]string{"a": fmt.Sprint([]string{updatedNotice("r://1")}), "b": fmt.Sprint([]string{updatedNotice("r://2")}), "c": "[]"}
	for name, stream := range streams {
		if got := fmt.Sprint(untilMarker(t, stream)); got != want[name] {
			t.Errorf("%s got %s, want %s", name, got, want[name])
		}
	}
}

func TestASubscriptionIsMadeOnceEndedLastAndKeptOverARestart(t *testing.T) {
	h := newHarness(t, "strict", legacyOnly)
	a, b := h.open(), h.open()
	ask(t, a.Call, subscribed("r://1"))
	ask(t, b.Call, subscribed("r://1"))
	ask(t, a.Call, unsubscribed("r://1"))
	ask(t, b.Call, `{"jsonrpc":"2.0","id":"l","method":"logging/setLevel","params":{"level":"error"}}`)
	if got := tool(t, a.Call, "seen", "{}"); strings.Count(got, "resources/") != 1 {
		t.Errorf("the process saw %s, want one subscribe", got)
	}
	if _, err := a.Call(within(t), message(t, toolCall("1", "exit", "{}"))); err == nil {
		t.Fatal("exit answered")
	}
	eventually(t, "the new process is told of both", func() bool {
		got := tool(t, a.Call, "seen", "{}")
		return strings.Count(got, "logging/setLevel error") == 1 && strings.Count(got, "resources/subscribe r://1") == 1
	})
	b.Close(within(t))
	eventually(t, "the process is told of the end", func() bool {
		return strings.Contains(tool(t, a.Call, "seen", "{}"), "resources/unsubscribe r://1")
	})
	_, err := b.Call(within(t), message(t, toolCall("1", "echo", "{}")))
	wantKind(t, err, upstream.SessionGone)
}

func TestMoreSubscriptionsThanTheQueueHoldsAreKeptOverARestart(t *testing.T) {
	h := newHarness(t, "strict", legacyOnly)
	a, b := h.open(), h.open()
	want := 4 * queuedMost
	for i := range want / 2 {
		ask(t, a.Call, subscribed(fmt.Sprint("a://", i)))
		ask(t, b.Call, subscribed(fmt.Sprint("b://", i)))
	}
	if _, err := a.Call(within(t), message(t, toolCall("1", "exit", "{}"))); err == nil {
		t.Fatal("exit answered")
	}
	eventually(t, "all subscriptions are made again", func() bool {
		return strings.Count(tool(t, a.Call, "seen", "{}"), "resources/subscribe") == want
	})
	b.Close(within(t))
	eventually(t, "those of the session that closed are ended", func() bool {
		return strings.Count(tool(t, a.Call, "seen", "{}"), "resources/unsubscribe b://") == want/2
	})
}

func TestASubscribeThatIsNotAnsweredHoldsUpNobodyForLong(t *testing.T) {
	h := newHarness(t, "aloof", legacyOnly, timeouts(5*time.Second, 500*time.Millisecond, time.Minute))
	a, b := h.open(), h.open()
	began := time.Now()
	failed := make(chan error, 1)
	go func() {
		_, err := a.Call(context.Background(), message(t, subscribed("r://1")))
		failed <- err
	}()
	eventually(t, "the process has the subscribe", func() bool {
		return strings.Contains(tool(t, b.Call, "seen", "{}"), "resources/subscribe")
	})
	_, err := b.Call(within(t), message(t, subscribed("r://2")))
	if e := (*upstream.Error)(nil); !errors.As(err, &e) || e.Kind != upstream.TimedOut && e.Kind != upstream.Unreachable {
		t.Errorf("the second subscribe ended with %v, want no answer in time, or no turn", err)
	}
	wantKind(t, <-failed, upstream.TimedOut)
	if got := ask(t, b.Call, `{"jsonrpc":"2.0","id":"l","method":"logging/setLevel","params":{"level":"error"}}`); !strings.Contains(got[0], `"result"`) {
		t.Errorf("setLevel got %s", got)
	}
	if took := time.Since(began); took > 15*time.Second { // a call may take a minute
		t.Errorf("it took %v, want about two handshakes of 500ms", took)
	}
}

func TestTheProcessHearsTheMostVerboseLevel(t *testing.T) {
	h := newHarness(t, "strict", legacyOnly)
	a, b := h.open(), h.open()
	set := func(s upstream.Session, level string) string {
		return ask(t, s.Call, `{"jsonrpc":"2.0","id":"l","method":"logging/setLevel","params":{"level":"`+level+`"}}`)[0]
	}
	for _, step := range []struct {
		s     upstream.Session
		level string
	}{{a, "error"}, {b, "debug"}, {a, "info"}, {b, "warning"}} {
		if got := set(step.s, step.level); got != `{"jsonrpc":"2.0","id":"l","result":{}}` {
			t.Errorf("setLevel got %s", got)
		}
	}
	if got := set(a, "loud"); !strings.Contains(got, "-32602") {
		t.Errorf("an unknown level got %s", got)
	}
	got := tool(t, a.Call, "seen", "{}")
	if want := `"logging/setLevel error","logging/setLevel debug","logging/setLevel info","tools/call"`; !strings.Contains(got, want) {
		t.Errorf("the process saw %s, want %s", got, want)
	}
}

func logged(level string) string {
	return `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"` + level + `","data":1}}`
}

// A tool of a's may log after its result, while only b has a call in flight.
func TestALogMessageReachesNoOtherSession(t *testing.T) {
	h := newHarness(t, "strict", legacyOnly)
	a, b := h.open(), h.open()
	ask(t, b.Call, `{"jsonrpc":"2.0","id":"l","method":"logging/setLevel","params":{"level":"warning"}}`)
	if all := say(t, b, logged("error")); len(all) != 1 {
		t.Errorf("with two sessions open b got %s, want no message", all)
	}
	p := h.running(mcp.Legacy)
	if n := p.dropped.Load(); n != 1 {
		t.Errorf("%d messages counted as dropped, want 1", n)
	}
	a.Close(within(t))
	if all := say(t, b, logged("error")); len(all) != 1 {
		t.Errorf("right after a was closed b got %s, want no message", all)
	}
	eventually(t, "alone, b gets the messages at its level", func() bool {
		all := say(t, b, logged("info"), logged("warning"), logged("odd"))
		return len(all) == 3 && all[0] == logged("warning") && all[1] == logged("odd")
	})
}

// Whose call it was that logs after its end cannot be told.
func TestALogMessageReachesNoOtherStatelessCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := bare(statelessRouter{})
		begin := func(level string, o order) *call {
			k, err := p.begin(t.Context(), scan(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","_meta":{"progressToken":1`+level+`}}}`), o)
			if err != nil {
				t.Fatal(err)
			}
			return k
		}
		const asks = `,"io.modelcontextprotocol/logLevel":"info"`
		gets := func(k *call) bool {
			p.receive(line{data: []byte(logged("error"))})
			return k.box.HoldsAny()
		}
		first := begin("", order{})
		if gets(first) {
			t.Error("a call that did not ask for log messages got one")
		}
		second := begin(asks, order{})
		if gets(second) {
			t.Error("with two calls in flight one got a message")
		}
		first.abandon(mailbox.ErrGivenUp, nil)
		if gets(second) {
			t.Error("right after the end of another call a call got a message")
		}
		time.Sleep(grace)
		begin("", order{ours: true}).abandon(mailbox.ErrGivenUp, nil) // a readiness check
		if !gets(second) {
			t.Error("the only call for a while did not get its message")
		}
		p.breakDown()
	})
}

func TestListenEndsWithItsContextAndWithItsSession(t *testing.T) {
	h := newHarness(t, "strict", legacyOnly)
	s := h.open()
	ctx, cancel := context.WithCancel(within(t))
	first, err := s.Listen(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if e, err := first.Next(); err == nil {
		t.Errorf("after its context the stream gave %s", e.Data)
	}
	second := listen(t, s)
	s.Close(within(t))
	if e, err := second.Next(); err == nil {
		t.Errorf("after its session the stream gave %s", e.Data)
	}
}

func TestASessionOfItsOwnIsAskedAndAnswers(t *testing.T) {
	h := newHarness(t, "sdk-legacy", perSession)
	s := h.open()
	a, err := s.Call(within(t), message(t, `{"jsonrpc":"2.0","id":"e","method":"tools/call","params":{"name":"elicit","arguments":{}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if a.Events == nil {
		t.Fatalf("elicit answered %s", body(t, a))
	}
	question := scan(t, next(t, a.Events))
	if question.Method != mcp.MethodElicit {
		t.Fatalf("the stream gave %s, want the question", question.Raw)
	}
	reply := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept","content":{"name":"Ada"}}}`, question.ID.Of(question.Raw))
	if answer, err := s.Call(within(t), message(t, reply)); err != nil || answer != nil {
		t.Fatalf("the reply got %v, %v", answer, err)
	}
	rest := messages(t, a)
	if len(rest) != 1 || !strings.Contains(rest[0], `"accept Ada"`) || !strings.Contains(rest[0], `"id":"e"`) {
		t.Errorf("the call ended with %s", rest)
	}
}

func TestSessionsOfTheirOwnShareNothing(t *testing.T) {
	h := newHarness(t, "strict", perSession)
	a, b := h.open(), h.open()
	if x, y := tool(t, a.Call, "pid", "{}"), tool(t, b.Call, "pid", "{}"); x == y {
		t.Errorf("both sessions are on process %s", x)
	}
	stream := listen(t, b)
	if got := ask(t, b.Call, `{"jsonrpc":"2.0","id":"p","method":"ping"}`); got[0] != `{"jsonrpc":"2.0","id":"p","result":{}}` {
		t.Errorf("ping got %s", got)
	}
	say(t, b, marker)
	if got := next(t, stream); got != marker {
		t.Errorf("the stream gave %s", got)
	}
	_, err := a.Call(within(t), message(t, toolCall("1", "exit", "{}")))
	wantKind(t, err, upstream.Lost)
	_, err = a.Call(within(t), message(t, toolCall("1", "echo", "{}")))
	wantKind(t, err, upstream.SessionGone)
	tool(t, b.Call, "echo", "{}")
	if err := h.Check(within(t)); err != nil {
		t.Errorf("Check: %v", err)
	}
}

func TestProcessesOfSessionsAreBounded(t *testing.T) {
	h := newHarness(t, "strict", perSession, legacyOnly)
	h.own.places = ownMost - 1
	s := h.open()
	_, _, err := h.Open(within(t), message(t, initialize))
	wantKind(t, err, upstream.Overloaded)
	s.Close(within(t))
	h.open()
}

func TestARefusedInitializeIsTheClientsToSee(t *testing.T) {
	h := newHarness(t, "refusing", perSession, legacyOnly)
	s, a, err := h.Open(within(t), message(t, initialize))
	if s != nil || err != nil {
		t.Fatalf("Open gave %v, %v", s, err)
	}
	if got := body(t, a); got != `{"jsonrpc":"2.0","id":"init","error":{"code":-32602,"message":"go away"}}` {
		t.Errorf("got %s", got)
	}
	for _, shared := range []*harness{newHarness(t, "refusing", legacyOnly), newHarness(t, "refusing")} {
		_, _, err = shared.Open(within(t), message(t, initialize))
		wantKind(t, err, upstream.BadAnswer)
	}
}

func TestAListenIsToldApartByItsId(t *testing.T) {
	h := newHarness(t, "sdk-stateless")
	ctx, cancel := context.WithCancel(within(t))
	a, err := h.Call(ctx, message(t, `{"jsonrpc":"2.0","id":"L","method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},"_meta":{"progressToken":1`+statelessMeta+`}}}`))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for i, method := range []string{mcp.NotificationAcknowledged, mcp.NotificationToolsChanged} {
		m := scan(t, next(t, a.Events))
		if got := string(m.SubscriptionID.Of(m.Raw)); m.Method != method || got != `"L"` {
			t.Fatalf("message %d is %s, want %s of subscription \"L\"", i, m.Raw, method)
		}
		if i == 0 {
			ask(t, h.Call, `{"jsonrpc":"2.0","id":"L","method":"tools/call","params":{"name":"grow","arguments":{},"_meta":{"progressToken":1`+statelessMeta+`}}}`)
		}
	}
	cancel()
	if e, err := a.Events.Next(); err == nil {
		t.Errorf("after its context the listen gave %s", e.Data)
	}
}

const modernListen = `{"jsonrpc":"2.0","id":"L","method":"subscriptions/listen","params":{"notifications":{},"_meta":{"progressToken":1` + statelessMeta + `}}}`

func acknowledgedListen(t *testing.T, h *harness) upstream.EventStream {
	t.Helper()
	a, err := h.Call(within(t), message(t, modernListen))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	if m := scan(t, next(t, a.Events)); m.Method != mcp.NotificationAcknowledged {
		t.Fatalf("the listen began with %s", m.Raw)
	}
	return a.Events
}

func TestAListenEndsInOrderOrAbruptly(t *testing.T) {
	h := newHarness(t, "modern")
	inOrder, abruptly := acknowledgedListen(t, h), acknowledgedListen(t, h) // the probe was 1, these are 2 and 3
	tool(t, h.Call, "say", `{"lines":["{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":2}}","{\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{}}"]}`)
	want := `{"jsonrpc":"2.0","id":"L","result":{"resultType":"complete","_meta":{"io.modelcontextprotocol/subscriptionId":"L"}}}`
	if got := next(t, inOrder); got != want {
		t.Errorf("the listen ended with %s, want %s", got, want)
	}
	if _, err := inOrder.Next(); err != io.EOF {
		t.Errorf("after its response the listen gave %v", err)
	}
	_, err := h.Call(within(t), message(t, toolCall("1", "exit", "{}")))
	wantKind(t, err, upstream.Lost)
	_, err = abruptly.Next()
	wantKind(t, err, upstream.Lost)
	acknowledgedListen(t, h)
}

func TestALogMessageGoesToTheOnlyCallThatAsked(t *testing.T) {
	h := newHarness(t, "sdk-stateless")
	logging := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"%s","arguments":{},"_meta":{"progressToken":"p"` + statelessMeta +
		`,"io.modelcontextprotocol/logLevel":"info"}}}`
	holding := message(t, fmt.Sprintf(logging, "hold"))
	if all := ask(t, h.Call, fmt.Sprintf(logging, "log")); len(all) != 2 || !strings.Contains(all[0], "hello") {
		t.Errorf("the call got %s, want its log message and the response", all)
	}
	held, err := h.Call(within(t), holding)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if all := ask(t, h.Call, fmt.Sprintf(logging, "log")); len(all) != 1 {
		t.Errorf("with two such calls in flight one got %s", all)
	}
}

// A client's notifications/cancelled names an id of its own, which many share: it must not reach the process.
func TestAStatelessCancelNotificationGoesNowhere(t *testing.T) {
	h := newHarness(t, "modern")
	a, err := h.Call(within(t), message(t, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`))
	if err != nil || a.Status != 202 || a.Body != nil || a.Events != nil {
		t.Fatalf("got %+v, %v", a, err)
	}
	if _, err := h.Call(within(t), message(t, `{"jsonrpc":"2.0","method":"notifications/custom"}`)); err != nil {
		t.Fatal(err)
	}
	if got := tool(t, h.Call, "seen", "{}"); got != `["server/discover","notifications/custom","tools/call"]` {
		t.Errorf("the process saw %s", got)
	}
}
