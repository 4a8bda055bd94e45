package proxy

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"sync"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/session"
)

const (
	// maxBatch is how many messages a batch may have.
	maxBatch = 100
	// batchWorkers is how many of a batch's requests are under way at once.
	batchWorkers = 8
)

// serveBatch carries an array of messages, which only 2025-03-26 has. Each member takes the same way as if it had come
// alone, with its own count and access line. Requests are answered on one SSE stream, each when its answer is there.
func (x *exchange) serveBatch() error {
	if len(x.r.Header[mcp.HeaderSessionID]) == 0 {
		return noBatch()
	}
	s, err := x.session()
	if err != nil {
		return err
	}
	if s.Version != mcp.Version20250326 {
		return noBatch()
	}
	msgs, err := mcp.ScanBatch(x.body, x.ep.limits, maxBatch)
	if err != nil {
		return err
	}
	var requests []*exchange
	for i := range msgs {
		m := x.member(msgs[i])
		if m.msg.Kind == mcp.Request {
			requests = append(requests, m)
		} else {
			m.tellMember(s)
		}
	}
	if len(requests) == 0 {
		return x.accepted()
	}
	x.answerBatch(s, requests)
	return nil
}

func noBatch() error {
	return &refusal{status: http.StatusBadRequest, code: mcp.CodeInvalidRequest, reason: "batch",
		message: "one JSON-RPC message per request: batches exist in sessions of 2025-03-26 only"}
}

// member is a batch's message as an exchange of its own, which shares the connection.
func (x *exchange) member(m mcp.Message) *exchange {
	return &exchange{
		p: x.p, w: x.w, r: x.r, ctx: x.ctx, remote: x.remote, start: x.start, ep: x.ep, guard: x.guard, who: x.who, era: mcp.Legacy, msg: m,
		label: methodLabel(&m),
	}
}

// tellMember carries a notification or response; there is no answer to show a failure in.
func (x *exchange) tellMember(s *session.Session) {
	x.status = http.StatusAccepted
	err := x.authorise(s.Upstream)
	if err == nil {
		err = x.tell(s)
	}
	if err != nil {
		x.show(err)
	}
	x.p.record(x)
}

// answerBatch runs the requests, some at a time, and sends what they answer.
func (x *exchange) answerBatch(s *session.Session, requests []*exchange) {
	out := x.openEvents()
	defer out.close()
	_ = out.flush() // the head: the first answer may take its time
	var wait sync.WaitGroup
	places := make(chan struct{}, batchWorkers)
	for _, m := range requests {
		places <- struct{}{}
		wait.Go(func() {
			defer func() { <-places }()
			m.serveMember(s, out)
		})
	}
	wait.Wait()
}

// serveMember carries one request. Its panic is its own failure: here is no server above that would catch it.
func (x *exchange) serveMember(s *session.Session, out *eventWriter) {
	defer x.p.record(x)
	defer func() {
		if v := recover(); v != nil {
			x.sendError(out, fmt.Errorf("panic: %v\n%s", v, debug.Stack()))
		}
	}()
	x.status = http.StatusOK
	if err := x.callMember(s, out); err != nil {
		x.sendError(out, err)
	}
}

func (x *exchange) sendError(out *eventWriter, err error) {
	_, e, _ := x.show(err)
	_ = out.sendNow(mcp.Event{Data: mcp.AppendError(nil, e.ID, e)}) // a client that is gone cannot be told
}

// callMember sends the messages of one request on the batch's stream. A client that leaves has not cancelled: then they
// are read and not sent.
func (x *exchange) callMember(s *session.Session, out *eventWriter) error {
	if err := x.authorise(s.Upstream); err != nil {
		return err
	}
	ctx, done, err := x.begin(s)
	if err != nil {
		return err
	}
	defer done()
	a, err := s.Upstream.Call(ctx, x.call())
	if err != nil {
		return lostSession(s, err)
	}
	defer a.Close()
	if err := x.filter(a); err != nil {
		return err
	}
	if a.Body != nil {
		body, err := readAnswer(a.Body)
		if err != nil {
			return err
		}
		x.outcome = outcomeOf(body)
		_ = out.sendNow(mcp.Event{Data: body})
		return nil
	}
	for {
		ev, err := a.Events.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		x.outcome = outcomeOf(ev.Data)
		_ = out.sendNow(mcp.Event{Data: ev.Data})
	}
}

// maxBatchAnswer is the longest JSON answer of a batch's member: it is held whole to become one event.
const maxBatchAnswer = 16 << 20

func readAnswer(r io.Reader) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r, maxBatchAnswer+1))
	if err == nil && len(body) > maxBatchAnswer {
		err = errors.New("the answer is too long for a batch")
	}
	return body, err
}
