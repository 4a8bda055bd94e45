package federate

import (
	"context"
	"io"
	"net/http"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// taskPurpose is what task ids are sealed for.
const taskPurpose = "task-id"

// maxTaskAnswer is the longest answer to a request about a task, in bytes.
const maxTaskAnswer = 64 << 20

// A task's id names its member, and belongs to the principal that got it: a client sees it sealed.
func (s *Server) sealTask(principal string, t target) string {
	return s.o.Sealer.Seal(taskPurpose, []byte(t.member.Name+"\x00"+t.name), s.taskAAD(principal))
}

func (s *Server) taskAAD(principal string) []byte {
	return []byte(s.o.Binding.GetName() + "\x00" + principal)
}

// openTask is the reverse of sealTask; ok is false for an id that this principal was not given here.
func (s *Server) openTask(principal, sealed string) (t target, ok bool) {
	b, err := s.o.Sealer.Open(taskPurpose, sealed, s.taskAAD(principal))
	if err != nil {
		return t, false
	}
	for _, m := range s.members {
		if n := len(m.Name); len(b) > n && string(b[:n]) == m.Name && b[n] == 0 {
			return target{m, string(b[n+1:])}, true
		}
	}
	return t, false
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
	a, err := s.send(ctx, c, t, c.Message.NameSpan)
	if err != nil {
		return nil, err
	}
	// The client has a name for this task: it gets no other.
	return s.rewriteResult(t.member, a, maxTaskAnswer, func(raw []byte, result mcp.Span) []byte {
		return s.withTaskID(raw, result, func(id string) string {
			if id == t.name {
				return string(c.Message.Name)
			}
			return s.sealTask(c.Principal, target{t.member, id})
		})
	})
}

// sealAnswer seals what a client is to bring back to the member that answered: the id of a task, the state of a question.
// Other answers pass as they come.
func (s *Server) sealAnswer(c *upstream.Call, m *member, a *upstream.Answer) (*upstream.Answer, error) {
	tasks := c.Message.Method == mcp.MethodToolsCall && hasExtension(c, extensionTasks)
	principal := c.Principal // the answer may be read when the call is not there any more
	return s.rewriteResult(m, a, maxQuestion, func(raw []byte, result mcp.Span) []byte {
		if asks(raw) {
			return s.sealState(principal, m, raw, result)
		}
		if kind, _ := rawjson.Text(rawjson.Find(raw, result, "resultType").Of(raw)); !tasks || kind != "task" {
			return raw
		}
		return s.withTaskID(raw, result, func(id string) string { return s.sealTask(principal, target{m, id}) })
	})
}

// withTaskID is a message with the taskId of an object in it replaced, or as it is where there is none.
func (s *Server) withTaskID(raw []byte, object mcp.Span, name func(id string) string) []byte {
	at := rawjson.Find(raw, object, "taskId")
	id, ok := rawjson.Text(at.Of(raw))
	if !ok {
		return raw
	}
	return rawjson.Splice(raw, mcp.Edit{Span: at, With: rawjson.AppendString(nil, name(id))})
}

// rewriteResult has f change the result of an answer. A body of more than most bytes passes unchanged.
func (s *Server) rewriteResult(m *member, a *upstream.Answer, most int, f func(raw []byte, result mcp.Span) []byte) (*upstream.Answer, error) {
	switch {
	case a.Events != nil:
		a.Events = &rewrittenEvents{a.Events, f}
		return a, nil
	case a.Body == nil || a.Length > int64(most):
		return a, nil
	}
	begin, err := io.ReadAll(io.LimitReader(a.Body, int64(most)+1))
	if err != nil {
		a.Close()
		return nil, &upstream.Error{Kind: upstream.Lost, Upstream: m.Name, Detail: "its answer broke off", Cause: err}
	}
	if len(begin) > most {
		a.Body = &rejoined{Reader: io.MultiReader(bodyOf(0, begin).Body, a.Body), Closer: a.Body}
		return a, nil
	}
	a.Close()
	if msg, err := mcp.Scan(begin, mcp.Limits{MaxDepth: mcp.AnswerDepth}); err == nil && msg.Result.Present() {
		begin = f(msg.Raw, msg.Result)
	}
	return bodyOf(a.Status, begin), nil
}

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
	if msg, err := mcp.Scan(ev.Data, mcp.Limits{MaxDepth: mcp.AnswerDepth}); err == nil && msg.Result.Present() {
		ev.Data = t.f(msg.Raw, msg.Result)
	}
	return ev, nil
}
