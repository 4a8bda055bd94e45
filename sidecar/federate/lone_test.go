package federate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/outrigger-mesh/outrigger/sidecar/budget"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/seal"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// lone offers a server by itself, as m0 of the binding b.
func lone(t testing.TB, sealer *seal.Sealer, server upstream.Server) *Lone {
	t.Helper()
	return NewLone(Member{Name: "m0", Server: server}, Options{Binding: testBinding(t, ""), Sealer: sealer, Answers: testBudget(t, "answers")})
}

func TestALoneServersTasksBelongToTheirPrincipal(t *testing.T) {
	for _, inEvents := range []bool{false, true} {
		sealer, server := seal.New(), tasking("m0", inEvents)
		ann := newClient(t, lone(t, sealer, server)).as("ann").declaring(declaresTasks)
		ann.ownsItsTask("m0", "a", lone(t, sealer, tasking("m0", inEvents)))
		nobody := ann.as("")
		nobody.ownsNothingOf(ann.makes("a"))
		if id := nobody.makes("a"); !strings.Contains(nobody.do(mcp.MethodTasksGet, fmt.Sprintf(`"taskId":%q`, id)), `"owner":"m0"`) {
			t.Error("callers without a credential have no tasks, want that they are one caller")
		}
	}
}

// ownsNothingOf checks that a task is unknown to the client.
func (c *client) ownsNothingOf(id string) {
	c.t.Helper()
	if got := c.do(mcp.MethodTasksGet, fmt.Sprintf(`"taskId":%q`, id)); !strings.Contains(got, "unknown task") {
		c.t.Errorf("%q is told %s of another's task, want that it is unknown", c.principal, got)
	}
}

// An id that was given before ids were sealed is one of these.
func TestALoneServersOwnIdsReachItNever(t *testing.T) {
	server := tasking("m0", false)
	ann := newClient(t, lone(t, seal.New(), server)).as("ann").declaring(declaresTasks)
	for _, method := range []string{mcp.MethodTasksGet, mcp.MethodTasksUpdate, mcp.MethodTasksCancel} {
		for _, id := range noTasks {
			if got := ann.do(method, `"taskId":`+id); !strings.Contains(got, "-32602") {
				t.Errorf("%s of %s: %s, want -32602", method, id, got)
			}
		}
		c := ann.message(method, `"taskId":"t/1"`)
		c.Message.Kind = mcp.Notification
		if a, err := ann.s.Call(t.Context(), c); err != nil || a.Status != 202 || a.Body != nil {
			t.Errorf("%s as a notification: %v, %v; want 202", method, a, err)
		}
		if n := server.count(method); n != 0 {
			t.Errorf("the server heard %d times of %s, want never", n, method)
		}
	}
}

func TestTasksOutliveAChangeFromOneServerToSeveralAndBack(t *testing.T) {
	sealer := seal.New()
	alone, two := lone(t, sealer, tasking("m0", false)), sealedFederation(t, sealer, "", tasking("m0", false), tasking("m1", false))
	ann := newClient(t, alone).as("ann").declaring(declaresTasks)
	after := newClient(t, two).as("ann").declaring(declaresTasks)
	kept, kept2, gone := ann.makes("a"), after.makes("m0_a"), after.makes("m1_a")
	for what, c := range map[string]struct {
		*client
		id string
	}{"one server's at several": {after, kept}, "several servers' at one of them": {ann, kept2}} {
		if got := c.do(mcp.MethodTasksGet, fmt.Sprintf(`"taskId":%q`, c.id)); !strings.Contains(got, `"owner":"m0"`) {
			t.Errorf("%s: %s, want the task", what, got)
		}
	}
	ann.ownsNothingOf(gone) // it is of the server that left
}

// server is an upstream.Server that is a function.
type server struct {
	upstream.Server
	call handler
}

func (s server) Call(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	return s.call(ctx, c)
}

func TestWhatHasNoTaskPassesALoneServerUntouched(t *testing.T) {
	var got *upstream.Call
	answer := &upstream.Answer{Status: 200}
	l := lone(t, seal.New(), server{call: func(_ context.Context, c *upstream.Call) (*upstream.Answer, error) {
		got = c
		return answer, nil
	}})
	plain := newClient(t, l)
	for what, c := range map[string]*upstream.Call{
		"a call":                      plain.message(mcp.MethodToolsCall, `"name":"a"`),
		"a call that declares more":   plain.declaring(`{"extensions":{"io.modelcontextprotocol/ui":{}}}`).message(mcp.MethodToolsCall, `"name":"a"`),
		"another method":              plain.declaring(declaresTasks).message(mcp.MethodDiscover, ""),
		"a method that nobody knows":  plain.message("acme/tasks", `"taskId":"t/1"`),
		"a listen for lists":          plain.message(mcp.MethodListen, `"notifications":`+everyList),
		"a listen for something else": plain.message(mcp.MethodListen, `"acme":{"taskIds":["t/1"]}`),
		"a listen of another form":    plain.message(mcp.MethodListen, `"notifications":["taskIds"]`),
	} {
		if a, err := l.Call(t.Context(), c); err != nil || a != answer || got != c {
			t.Errorf("%s: %v, %v; want the same call at the server, and its answer", what, a, err)
		}
	}
}

func TestAToolsAnswerThatIsNoTaskPassesALoneServer(t *testing.T) {
	long := `{"resultType":"task","taskId":"` + strings.Repeat("x", 2*maxTask) + `"}`
	for what, text := range map[string]string{
		"a result":   `{"resultType":"complete","taskId":"t/1","task":9007199254740993}`,
		"too long":   long,
		"no id":      `{"resultType":"task","taskId":7}`,
		"no object":  `"task"`,
		"a question": `{"resultType":"input_required","requestState":"s","inputRequests":{},"taskId":"t/1"}`,
	} {
		for _, length := range []bool{true, false} {
			l := lone(t, seal.New(), server{call: func(_ context.Context, c *upstream.Call) (*upstream.Answer, error) {
				a := result(c, text)
				if !length {
					a.Length = -1
				}
				return a, nil
			}})
			if got := newClient(t, l).declaring(declaresTasks).do(mcp.MethodToolsCall, `"name":"a"`); got != text {
				t.Errorf("%s: got %.200q, want it as it was", what, got)
			}
		}
	}
}

func TestALoneServersListenTellsOfTheCallersTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sealer, server := seal.New(), tasking("m0", false).notifies(func(f filter) filter {
			f.tasks = append(f.tasks, "t/2") // more than it is asked for
			return f
		})
		l := lone(t, sealer, server)
		ann := newClient(t, l).as("ann").declaring(declaresTasks)
		id, again, bobs := ann.makes("a"), ann.makes("a"), ann.as("bob").makes("a")
		h := ann.listens(fmt.Sprintf(`{"toolsListChanged":true,"taskIds":["t/1",%q,%q,%q,7],"acme":[1]}`, bobs, id, again))
		defer h.close()
		if got := fmt.Sprint(server.open()[0].asked.tasks); got != "[t/1]" {
			t.Errorf("the server is asked for %s, want its id of the caller's task, once", got)
		}
		h.want("first", acknowledged(fmt.Sprintf(`{"toolsListChanged":true,"taskIds":[%q]}`, id)))
		server.tell(mcp.NotificationTasks, `"taskId":"t/1","n":9007199254740993`)
		h.want("the task", fmt.Sprintf(`tasks {"n":9007199254740993,"taskId":%q}`, id))
		server.tell(mcp.NotificationTasks, `"taskId":"t/2"`)
		h.want("another's task")
		server.tell(mcp.NotificationToolsChanged, "")
		h.want("a list", "tools/list_changed {}")

		for what, refused := range map[string]struct {
			*client
			params, want string
		}{
			"without the extension": {ann.declaring("{}"), `"notifications":{"taskIds":["x"]}`, "-32021"},
			"ids that come twice":   {ann, `"notifications":{"taskIds":[],"taskIds":["t/1"]}`, "-32602"},
			"ids in another case":   {ann, `"notifications":{"taskIds":[],"taſkids":["t/1"]}`, "-32602"},
			"filters that do":       {ann, `"notifications":{},"Notifications":{"taskIds":["t/1"]}`, "-32602"},
		} {
			if got := refused.do(mcp.MethodListen, refused.params); !strings.Contains(got, refused.want) {
				t.Errorf("%s: %s, want %s", what, got, refused.want)
			}
		}
	})
}

// What is read ahead to know whether there is a message for the client is not lost, and waits for nothing.
func TestAListenIsReadyOnlyForAMessageOfItsOwn(t *testing.T) {
	s := &peerStream{events: make(chan []byte, 9), ctx: t.Context(), gone: make(chan struct{})}
	l := &taskEvents{EventStream: s, names: map[string]string{"t/1": "mine"}}
	tell := func(id string) {
		s.events <- fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/tasks","params":{"taskId":%q}}`, id)
	}
	tell("t/2")
	if l.Ready() {
		t.Error("ready with nothing but another's task")
	}
	tell("t/2")
	tell("t/1")
	for range 2 { // asking takes nothing away
		if !l.Ready() {
			t.Error("not ready with a message")
		}
	}
	if ev, err := l.Next(); err != nil || !strings.Contains(string(ev.Data), `"taskId":"mine"`) {
		t.Errorf("got %s, %v; want the client's own task", ev.Data, err)
	}
	close(s.events)
	if _, err := l.Next(); err == nil {
		t.Error("the end is no error")
	}
}

// FuzzLoneListen holds that no reader of what goes to a server finds an id there that the caller was not given, as
// encoding/json, which minds no case and takes the last of what comes twice.
func FuzzLoneListen(f *testing.F) {
	for _, seed := range []string{
		`"notifications":{"taskIds":["given","t/1"]}`, `"notifications":{"taskIds":[],"taſkIds":["t/1"]}`,
		`"notifications":{"taskIds":"t/1"},"\u004eotifications":{"taskIds":["t/1"]}`, `"notifications":[]`,
	} {
		f.Add(seed)
	}
	var passed *mcp.Message
	l := lone(f, seal.New(), server{call: func(_ context.Context, c *upstream.Call) (*upstream.Answer, error) {
		passed = c.Message
		return result(c, "{}"), nil
	}})
	given := l.tasks.seal("", "m0", "mine")
	f.Fuzz(func(t *testing.T, params string) {
		params = strings.ReplaceAll(params, "given", given)
		m, err := mcp.Scan(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"_meta":{%q:%s},%s}}`,
			mcp.MetaKeyClientCapabilities, declaresTasks, params), mcp.Limits{})
		if err != nil {
			return
		}
		passed = nil
		if _, err := l.Call(t.Context(), &upstream.Call{Message: &m}); err != nil || passed == nil {
			return
		}
		var read struct {
			Params struct {
				Notifications struct{ TaskIDs []any }
			}
		}
		_ = json.Unmarshal(passed.Raw, &read) // what is of another type is not read
		for _, id := range read.Params.Notifications.TaskIDs {
			if id != "mine" {
				t.Errorf("%s\nreaches the server as\n%s", params, passed.Raw)
			}
		}
	})
}

func BenchmarkLone(b *testing.B) {
	c, l := plainCall(b)
	b.ReportAllocs()
	for b.Loop() {
		l.Call(b.Context(), c)
	}
}

func TestACallWithoutTasksAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	c, l := plainCall(t)
	if n := testing.AllocsPerRun(100, func() { l.Call(t.Context(), c) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// plainCall is a tool's call as most clients make it, and a lone server that answers it with nothing.
func plainCall(t testing.TB) (*upstream.Call, *Lone) {
	l := lone(t, seal.New(), server{call: func(context.Context, *upstream.Call) (*upstream.Answer, error) { return nil, nil }})
	return newClient(t, l).declaring(`{"elicitation":{"form":{}},"sampling":{},"roots":{}}`).message(mcp.MethodToolsCall, `"name":"a"`), l
}

// brokenBody ends before its answer does.
type brokenBody struct{ closed bool }

func (*brokenBody) Read([]byte) (int, error) { return 0, errors.New("reset") }
func (b *brokenBody) Close() error           { b.closed = true; return nil }

func TestAnAnswerAboutATaskThatCannotBeHeldIsAFailure(t *testing.T) {
	broken := &brokenBody{}
	long := `{"resultType":"complete","taskId":"t/1","result":"` + strings.Repeat("x", 1<<20) + `"}`
	answer := func(c *upstream.Call) *upstream.Answer { return result(c, long) }
	server := tasking("m0", false).on(mcp.MethodTasksGet, func(_ context.Context, c *upstream.Call) (*upstream.Answer, error) {
		return answer(c), nil
	})
	small := budget.New(1 << 16)
	l := NewLone(Member{Name: "m0", Server: server}, Options{Binding: testBinding(t, ""), Sealer: seal.New(), Answers: small})
	ann := newClient(t, l).declaring(declaresTasks)
	named := fmt.Sprintf(`"taskId":%q`, ann.makes("a"))
	for what, want := range map[string]struct {
		answer func(c *upstream.Call) *upstream.Answer
		kind   upstream.Kind
	}{
		"no room":   {answer, upstream.Overloaded},
		"broke off": {func(*upstream.Call) *upstream.Answer { return &upstream.Answer{Status: 200, Length: -1, Body: broken} }, upstream.Lost},
	} {
		answer = want.answer
		_, err := l.Call(t.Context(), ann.message(mcp.MethodTasksGet, named))
		var failed *upstream.Error
		if !errors.As(err, &failed) || failed.Kind != want.kind || failed.Upstream != "m0" {
			t.Errorf("%s: %v, want %s of m0", what, err, want.kind.Reason())
		}
	}
	if n := small.Used(); n != 0 || !broken.closed {
		t.Errorf("%d bytes are still taken, the broken answer is closed: %v; want none, and that it is", n, broken.closed)
	}
}

func TestATaskIsFoundThroughTwoSidecars(t *testing.T) {
	behind := lone(t, seal.New(), tasking("m0", false))
	front := lone(t, seal.New(), server{call: func(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
		c = &upstream.Call{Message: c.Message} // no credential goes on
		return behind.Call(ctx, c)
	}})
	newClient(t, front).as("ann").declaring(declaresTasks).ownsItsTask("m0", "a", front)
}
