package federate

import (
	"context"
	"net/http"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// taskPurpose is what task ids are sealed for.
const taskPurpose = "task-id"

// maxTaskAnswer is the longest answer that is looked into for a task's id, in bytes.
const maxTaskAnswer = 64 << 20

// A task's id names its member, and belongs to the principal that got it: a client sees it sealed.
func (s *Server) sealTask(principal string, m *member, id string) string {
	return s.o.Sealer.Seal(taskPurpose, []byte(m.Name+"\x00"+id), s.taskAAD(principal))
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

// task sends tasks/get, tasks/update or tasks/cancel to the member that has the task (the tasks extension).
func (s *Server) task(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	if !hasExtension(c, extensionTasks) {
		id := c.Message.ID.Of(c.Message.Raw)
		return bodyOf(http.StatusBadRequest, mcp.AppendError(nil, id, &mcp.Error{Code: mcp.CodeMissingCapability,
			Message: "tasks need the tasks extension to be declared",
			Data:    []byte(`{"requiredCapabilities":{"extensions":{"` + extensionTasks + `":{}}}}`)})), nil
	}
	t, ok := s.openTask(c.Principal, string(c.Message.Name))
	if !ok {
		return invalidParams(c, "unknown task"), nil
	}
	a, err := s.send(ctx, c, t, c.Message.NameSpan)
	if err != nil {
		return nil, err
	}
	return s.wrapTask(c, t.member, a)
}

// wrapTask seals the task's id in a result, or in what a stream says of it. Everything else stays as it came.
func (s *Server) wrapTask(c *upstream.Call, m *member, a *upstream.Answer) (*upstream.Answer, error) {
	if a.Events != nil {
		a.Events = &taskEvents{EventStream: a.Events, s: s, m: m, principal: c.Principal}
		return a, nil
	}
	if a.Body == nil {
		return a, nil
	}
	status := a.Status
	answer, err := readAnswer(a, maxTaskAnswer)
	if err != nil {
		return nil, &upstream.Error{Kind: upstream.BadAnswer, Upstream: m.Name, Detail: "its answer could not be read", Cause: err}
	}
	return bodyOf(status, s.withSealedTask(answer.Raw, answer.Result, c.Principal, m)), nil
}

// withSealedTask is a message with the taskId of an object in it sealed, or as it is where there is none.
func (s *Server) withSealedTask(raw []byte, object mcp.Span, principal string, m *member) []byte {
	at := rawjson.Find(raw, object, "taskId")
	id, ok := rawjson.Text(at.Of(raw))
	if !ok {
		return raw
	}
	return rawjson.Splice(raw, mcp.Edit{Span: at, With: rawjson.AppendString(nil, s.sealTask(principal, m, id))})
}

// taskEvents seals task ids in a call's stream.
type taskEvents struct {
	upstream.EventStream
	s         *Server
	m         *member
	principal string
}

func (t *taskEvents) Next() (mcp.Event, error) {
	ev, err := t.EventStream.Next()
	if err != nil {
		return ev, err
	}
	if msg, err := mcp.Scan(ev.Data, mcp.Limits{MaxDepth: mcp.AnswerDepth}); err == nil && msg.Result.Present() {
		ev.Data = t.s.withSealedTask(msg.Raw, msg.Result, t.principal, t.m)
	}
	return ev, nil
}
