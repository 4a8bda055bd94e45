package federate

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/outrigger-mesh/outrigger/sidecar/budget"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/seal"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// taskPurpose is what task ids are sealed for.
const taskPurpose = "task-id"

// maxTaskAnswer is the longest answer to a request about a task, in bytes.
const maxTaskAnswer = 64 << 20

// taskIDs are what clients of a binding know tasks by: an id that names the task's server, and belongs to the principal
// that got it, sealed. It is the same for one server and for several, so that tasks outlive a change between the two.
type taskIDs struct {
	binding string
	sealer  *seal.Sealer
	answers *budget.Budget // of answers about tasks, while they are rewritten
}

func (t taskIDs) seal(principal, server, id string) string {
	return t.sealer.Seal(taskPurpose, []byte(server+"\x00"+id), t.aad(principal))
}

// open is the reverse of seal; ok is false for an id that this principal was not given here.
func (t taskIDs) open(principal, sealed string) (server, id string, ok bool) {
	b, err := t.sealer.Open(taskPurpose, sealed, t.aad(principal))
	name, rest, cut := bytes.Cut(b, []byte{0})
	return string(name), string(rest), err == nil && cut
}

// aad is whose something sealed is, and where.
func (t taskIDs) aad(principal string) []byte {
	return []byte(t.binding + "\x00" + principal)
}

// ask sends a request about a task to its server, by the id that the task has there.
func (t taskIDs) ask(ctx context.Context, c *upstream.Call, m Member, id string) (*upstream.Answer, error) {
	call, err := rewritten(c, mcp.Edit{Span: c.Message.NameSpan, With: rawjson.AppendString(nil, id)})
	if err != nil {
		return nil, err
	}
	a, err := m.Server.Call(ctx, call)
	if err != nil {
		return nil, err
	}
	principal, given := c.Principal, string(c.Message.Name) // the answer may be read when the call is not there any more
	return rewriteResult(m, a, maxTaskAnswer, t.answers, func(raw []byte, result mcp.Span) []byte {
		return withTaskID(raw, result, func(of string) string {
			if of == id {
				return given // the client has a name for this task: it gets no other
			}
			return t.seal(principal, m.Name, of)
		})
	})
}

// made is a tool's result with the id of the task that it is sealed; what is no task is as it was.
func (t taskIDs) made(principal string, m Member, raw []byte, result mcp.Span) []byte {
	if kind, _ := rawjson.Text(rawjson.Find(raw, result, "resultType").Of(raw)); kind != "task" {
		return raw
	}
	return withTaskID(raw, result, func(id string) string { return t.seal(principal, m.Name, id) })
}

// needTasks refuses a client that does not declare the tasks extension.
func needTasks(c *upstream.Call) *upstream.Answer {
	id := c.Message.ID.Of(c.Message.Raw)
	return bodyOf(http.StatusBadRequest, mcp.AppendError(nil, id, &mcp.Error{Code: mcp.CodeMissingCapability,
		Message: "tasks need the tasks extension to be declared",
		Data:    []byte(`{"requiredCapabilities":{"extensions":{"` + extensionTasks + `":{}}}}`)}))
}

// task sends tasks/get, tasks/update or tasks/cancel to the member that has the task (the tasks extension).
func (s *Server) task(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	if !hasExtension(c, extensionTasks) {
		return needTasks(c), nil
	}
	t, ok := s.openTask(c.Principal, string(c.Message.Name))
	if !ok {
		return invalidParams(c, "unknown task"), nil
	}
	return s.tasks.ask(ctx, c, t.member.Member, t.name)
}

// openTask is the member that has a task, and its id there; ok is false for an id that this principal was not given here.
func (s *Server) openTask(principal, sealed string) (t target, ok bool) {
	server, id, ok := s.tasks.open(principal, sealed)
	for _, m := range s.members {
		if ok && m.Name == server {
			return target{m, id}, true
		}
	}
	return t, false
}

// sealAnswer seals what a client is to bring back to the member that answered: the id of a task, the state of a question.
// Other answers pass as they come.
func (s *Server) sealAnswer(c *upstream.Call, m *member, a *upstream.Answer) (*upstream.Answer, error) {
	tasks := c.Message.Method == mcp.MethodToolsCall && hasExtension(c, extensionTasks)
	principal := c.Principal // the answer may be read when the call is not there any more
	return rewriteResult(m.Member, a, maxQuestion, nil, func(raw []byte, result mcp.Span) []byte {
		switch {
		case asks(raw):
			return s.sealState(principal, m, raw, result)
		case tasks:
			return s.tasks.made(principal, m.Member, raw, result)
		}
		return raw
	})
}

// withTaskID is a message with the taskId of an object in it replaced, or as it is where there is none.
func withTaskID(raw []byte, object mcp.Span, name func(id string) string) []byte {
	at := rawjson.Find(raw, object, "taskId")
	id, ok := rawjson.Text(at.Of(raw))
	if !ok {
		return raw
	}
	return rawjson.Splice(raw, mcp.Edit{Span: at, With: rawjson.AppendString(nil, name(id))})
}

// rewriteResult has f change the result of an answer of m's. A body of more than most bytes passes unchanged. room bounds
// what is held of bodies; nil is no bound.
func rewriteResult(m Member, a *upstream.Answer, most int, room *budget.Budget, f func(raw []byte, result mcp.Span) []byte) (*upstream.Answer, error) {
	switch {
	case a.Events != nil:
		a.Events = &rewrittenEvents{a.Events, f}
		return a, nil
	case a.Body == nil || a.Length > int64(most):
		return a, nil
	}
	begin, err := room.ReadAll(io.LimitReader(a.Body, int64(most)+1), a.Length, most+1)
	if err != nil {
		a.Close()
		return nil, unread(m, err)
	}
	room.Give(cap(begin) - len(begin))
	if len(begin) > most {
		held := room.Body(begin)
		a.Body = &rejoined{Reader: io.MultiReader(held, a.Body), Closer: both{held, a.Body}}
		return a, nil
	}
	a.Close()
	whole := begin
	if msg, err := mcp.ScanAnswer(begin); err == nil && msg.Result.Present() {
		whole = f(msg.Raw, msg.Result)
	}
	room.Hold(len(whole) - len(begin))
	return &upstream.Answer{Status: a.Status, Length: int64(len(whole)), Body: room.Body(whole)}, nil
}

// unread is the failure of an answer of m's that could not be read.
func unread(m Member, err error) error {
	if errors.Is(err, budget.ErrSpent) {
		return &upstream.Error{Kind: upstream.Overloaded, Upstream: m.Name,
			Detail: "gave an answer for which the sidecar has no memory now: try again later", Cause: err}
	}
	return &upstream.Error{Kind: upstream.Lost, Upstream: m.Name, Detail: "its answer broke off", Cause: err}
}

// both closes two.
type both [2]io.Closer

func (b both) Close() error { return errors.Join(b[0].Close(), b[1].Close()) }

// rewrittenEvents has f change the result at the end of a call's stream.
type rewrittenEvents struct {
	upstream.EventStream
	f func(raw []byte, result mcp.Span) []byte
}

func (t *rewrittenEvents) Next() (mcp.Event, error) {
	ev, err := t.EventStream.Next()
	if err != nil || mcp.PeekOutcome(ev.Data) == mcp.OutcomeError {
		return ev, err
	}
	if msg, err := mcp.ScanAnswer(ev.Data); err == nil && msg.Result.Present() {
		ev.Data = t.f(msg.Raw, msg.Result)
	}
	return ev, nil
}
