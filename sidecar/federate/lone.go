package federate

import (
	"context"
	"net/http"
	"strings"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// maxTask is the longest answer of a tool that can be a task, in bytes: a task says nothing yet of its result.
const maxTask = 64 << 10

// Lone is one server that an endpoint offers by itself, as its stateless clients reach it. All passes as it comes but the
// ids of tasks, which are sealed as a federation's are: to the server all clients are one, so it cannot tell whose a task
// is.
type Lone struct {
	upstream.Server
	member Member
	tasks  taskIDs
}

// NewLone offers one server. Of the options it needs Binding and Sealer, and takes Answers. It reaches for nothing, and
// the server is not its to close.
func NewLone(m Member, o Options) *Lone {
	return &Lone{Server: m.Server, member: m, tasks: o.taskIDs()}
}

// Call implements upstream.Server.
//
// Hot: runs on every stateless call. What can have no task costs a look at its method and, for a tool, at what the client
// declares (BenchmarkLone, TestACallWithoutTasksAllocatesNothing).
func (l *Lone) Call(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	switch c.Message.Method {
	case mcp.MethodToolsCall:
		if hasExtension(c, extensionTasks) {
			return l.callTool(ctx, c)
		}
	case mcp.MethodTasksGet, mcp.MethodTasksUpdate, mcp.MethodTasksCancel:
		return l.task(ctx, c)
	case mcp.MethodListen:
		return l.listen(ctx, c)
	}
	return l.Server.Call(ctx, c)
}

// callTool calls a tool that may make a task.
func (l *Lone) callTool(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	principal := c.Principal // the answer may be read when the call is not there any more
	a, err := l.Server.Call(ctx, c)
	if err != nil {
		return nil, err
	}
	return rewriteResult(l.member, a, maxTask, nil, func(raw []byte, result mcp.Span) []byte {
		return l.tasks.made(principal, l.member, raw, result)
	})
}

// task sends tasks/get, tasks/update or tasks/cancel on, of a task that is the caller's (the tasks extension).
func (l *Lone) task(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	switch {
	case c.Message.Kind != mcp.Request:
		return &upstream.Answer{Status: http.StatusAccepted}, nil // they are no notifications
	case !hasExtension(c, extensionTasks):
		return needTasks(c), nil
	}
	id, ok := l.open(c.Principal, string(c.Message.Name))
	if !ok {
		return invalidParams(c, "unknown task"), nil
	}
	return l.tasks.ask(ctx, c, l.member, id)
}

// open is the server's id of a task; ok is false for one that this principal was not given here.
func (l *Lone) open(principal, sealed string) (id string, ok bool) {
	server, id, ok := l.tasks.open(principal, sealed)
	return id, ok && server == l.member.Name
}

// listen passes a listen on. One for tasks gets those that are the caller's, under the ids that the caller has.
func (l *Lone) listen(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	raw := c.Message.Raw
	notifications, ok := only(raw, c.Message.Params, "notifications")
	at := mcp.Span{}
	if ok && rawjson.IsObject(notifications.Of(raw)) {
		at, ok = only(raw, notifications, "taskIds")
	}
	switch {
	case !ok:
		return invalidParams(c, "notifications, or taskIds in it, come twice or in another case"), nil
	case !at.Present():
		return l.Server.Call(ctx, c)
	case c.Message.Kind != mcp.Request:
		return &upstream.Answer{Status: http.StatusAccepted}, nil
	case !hasExtension(c, extensionTasks):
		return needTasks(c), nil
	}
	return l.listenForTasks(ctx, c, at)
}

// listenForTasks passes on a listen that names tasks, at that place.
func (l *Lone) listenForTasks(ctx context.Context, c *upstream.Call, at mcp.Span) (*upstream.Answer, error) {
	var ids []string
	names := make(map[string]string) // what the client calls them, by id
	for _, sealed := range texts(c.Message.Raw, at) {
		if id, ok := l.open(c.Principal, sealed); ok && names[id] == "" {
			ids, names[id] = append(ids, id), sealed
		}
	}
	call, err := rewritten(c, mcp.Edit{Span: at, With: appendTexts(nil, ids)})
	if err != nil {
		return nil, err
	}
	a, err := l.Server.Call(ctx, call)
	if err == nil && a.Events != nil {
		a.Events = &taskEvents{EventStream: a.Events, names: names}
	}
	return a, err
}

// only is the value of an object's member with that name, absent where there is none. It is not ok when there is another
// that a reader could take for it: one more, or one in another case.
func only(raw []byte, object mcp.Span, name string) (value mcp.Span, ok bool) {
	if !object.Present() {
		return value, true
	}
	for m := range rawjson.Members(raw, object) {
		if !strings.EqualFold(string(m.Name), name) {
			continue
		}
		if value.Present() || string(m.Name) != name {
			return mcp.Span{}, false
		}
		value = m.Value
	}
	return value, true
}

// taskEvents are a listen's messages, in which a client finds its own ids of tasks. What is of another task is dropped.
type taskEvents struct {
	upstream.EventStream
	names map[string]string // what the client calls its tasks, by the server's id

	next *mcp.Event // read ahead by Ready; nil for none
	err  error      // likewise
}

// Next implements upstream.EventStream.
func (t *taskEvents) Next() (mcp.Event, error) {
	for t.next == nil && t.err == nil {
		t.read()
	}
	if t.next == nil {
		return mcp.Event{}, t.err
	}
	ev := *t.next
	t.next = nil
	return ev, nil
}

// Ready implements upstream.EventStream.
func (t *taskEvents) Ready() bool {
	for t.next == nil && t.err == nil && t.EventStream.Ready() {
		t.read()
	}
	return t.next != nil || t.err != nil
}

// read takes one message in.
func (t *taskEvents) read() {
	ev, err := t.EventStream.Next()
	if err != nil {
		t.err = err
		return
	}
	if ev.Data = t.rewritten(ev.Data); ev.Data != nil {
		t.next = &ev
	}
}

// rewritten is a message as the client is to get it; nil for none.
func (t *taskEvents) rewritten(data []byte) []byte {
	m, err := mcp.ScanAnswer(data)
	if err != nil {
		return data
	}
	switch m.Method {
	case mcp.NotificationAcknowledged:
		at := rawjson.Find(m.Raw, m.Params, "notifications", "taskIds")
		if !at.Present() {
			return data
		}
		var granted []string
		for _, id := range texts(m.Raw, at) {
			if name := t.names[id]; name != "" {
				granted = append(granted, name)
			}
		}
		return rawjson.Splice(m.Raw, mcp.Edit{Span: at, With: appendTexts(nil, granted)})
	case mcp.NotificationTasks:
		id, _ := rawjson.Text(rawjson.Find(m.Raw, m.Params, "taskId").Of(m.Raw))
		if t.names[id] == "" {
			return nil
		}
		return withTaskID(m.Raw, m.Params, func(id string) string { return t.names[id] })
	}
	return data
}
