package tolegacy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// call is one request at the server. While its answer is a stream a goroutine reads it, run, for the reader that is
// attached: the client's request, or later its retry. Between the two, while the client looks for answers to what the
// server asked, there is none, and the call is held (hold.go).
//
// It ends in one of two ways, which may come in either order: the server's stream ends, and with it run; and it is over,
// when nobody can get anything of it any more.
type call struct {
	// Set by newCall, never changed.
	server    *Server
	on        *pooled
	method    string
	principal string
	caller    *identity.Principal
	binding   string
	declared  *capabilities
	level     level // that the session was told for it
	token     []byte
	ctx       context.Context // ends when the call is cancelled at the server
	cancel    context.CancelFunc

	// Owned by who reads the answer: send at first, then run.
	request  *mcp.Message         // what goes to the server
	events   upstream.EventStream // nil when the answer is a body
	answered bool                 // the response came

	mu      sync.Mutex   // guards below; taken before a reader's and the held calls'
	sent    *mcp.Message // what went to the server; nil once its digest is known
	digest  []byte
	reader  *reader // nil while nobody waits
	round   int     // of the questions that are pending, or would come next; from 1
	pending []question
	asked   int         // questions so far, for their keys
	heldAs  string      // empty until the call was held
	bytes   int         // that the call keeps in memory, as counted among the held calls
	expiry  *time.Timer // runs while the client is away
	absence int         // how often the client was away, to tell a late expiry from one that counts
	outcome outcome     // what a reader gets; nil until the server's stream has ended
	over    bool
}

// outcome makes the end of what a request with that id gets: a response, or an error.
type outcome func(id []byte) (response []byte, status int, err error)

// carry sends a client's request to a session.
func (s *Server) carry(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	o, refused := s.read(c)
	if refused != nil {
		return refusal(c.Message, refused), nil
	}
	if e := s.mirrored.Check(o.principal, c.Header, c.Message); e != nil { // this is the tools' HTTP server
		return refusal(c.Message, e), nil
	}
	if o.state != "" {
		return s.retry(ctx, o, true)
	}
	return s.begin(ctx, o, 1)
}

// begin makes the call. When the session turns out to be gone the call did not happen, so it is made once more on
// another.
func (s *Server) begin(ctx context.Context, o *order, round int) (*upstream.Answer, error) {
	for again := false; ; again = true {
		p, err := s.pool.acquire(ctx, o)
		if err != nil {
			return nil, err
		}
		a, err := s.send(ctx, o, s.newCall(o, p, round))
		var not notHappened
		switch {
		case !errors.As(err, &not):
			return a, err
		case again:
			return nil, s.fault(upstream.Unreachable, "forgot its session twice in a row", not.error)
		}
	}
}

// notHappened is the failure of a call that the server refused because it does not know the session any more. It is for
// begin, which makes the call once more; a client sees shown.
type notHappened struct{ error }

func (e notHappened) Unwrap() error { return e.error }

// shown is what an error is to a client whose answer has begun, so that nothing can be made once more behind its back. It
// can do that itself.
func (s *Server) shown(err error) error {
	var not notHappened
	if errors.As(err, &not) {
		return s.fault(upstream.Unreachable, "forgot its session before the call, which did not happen: try again", not.error)
	}
	return err
}

func (s *Server) newCall(o *order, p *pooled, round int) *call {
	id := s.nextID()
	k := &call{
		server: s, on: p, method: o.m.Method, principal: o.principal, caller: o.call.Caller, binding: o.call.Binding,
		declared: o.declared, level: o.level,
		request: message(toLegacy(o.m, id)), round: round,
	}
	k.sent = k.request
	if o.m.ProgressToken.Present() {
		k.token = id
	}
	k.ctx, k.cancel = context.WithCancel(s.tasks.Context())
	return k
}

// send makes one attempt, and returns the answer as far as it is here. A server that can ask outside of the call's own
// stream may do so before it answers at all; then the call is made by a goroutine that does not end with the client's
// request.
func (s *Server) send(ctx context.Context, o *order, k *call) (*upstream.Answer, error) {
	k.on.want(ctx, k.level)
	r := s.newReader(o.m, o.level)
	r.leave = func() { k.left(r) }
	k.reader = r
	k.on.calls.add(k)
	r.watch(ctx)
	if k.on.listen.asksAside() {
		header := o.call.Header.Clone() // the client's may be gone before it is sent
		if !s.tasks.Run(func() { k.carry(header) }) {
			k.removed()
		}
	} else if !k.open(o.call.Header) || k.events.Ready() && k.step() { // the usual short answer needs no goroutine
		k.end()
	} else if !s.tasks.Run(k.run) {
		k.removed()
	}
	return r.answer(ctx)
}

// carry makes the call and reads what comes of it.
func (k *call) carry(header http.Header) {
	if k.open(header) {
		k.run()
	} else {
		k.end()
	}
}

// removed ends a call that came too late.
func (k *call) removed() {
	k.fail(k.server.fault(upstream.Lost, "the upstream was removed", nil))
	k.end()
}

// open sends the request, and reports whether its answer is a stream; anything else is the end of it.
func (k *call) open(header http.Header) (streams bool) {
	a, err := k.on.session.Call(k.ctx, &upstream.Call{Message: k.request, Header: header, Principal: k.principal, Caller: k.caller})
	if isGone(err) {
		k.server.pool.forget(k.on)
		k.fail(notHappened{err})
		return false
	}
	if err != nil {
		k.fail(k.failure(err))
		return false
	}
	if a.Events != nil {
		k.events = a.Events
		return true
	}
	err = k.server.readResponse(a, k.respond)
	if err != nil {
		k.fail(k.failure(err))
	}
	return false
}

// failure is what an error of the session's means to the client, and to the session. That the session is gone is nothing
// to a client that has none: the fate of its call is unknown.
func (k *call) failure(err error) error {
	var known *upstream.Error
	switch {
	case isGone(err):
		k.server.pool.forget(k.on)
		return k.server.fault(upstream.Lost, "forgot its session during the call, whose fate is unknown", err)
	case errors.As(err, &known):
		return err
	case k.ctx.Err() != nil:
		return upstream.GaveUp(k.ctx, k.server.name)
	}
	return k.server.fault(upstream.BadAnswer, "answered with something else than a response", err)
}

// respondLocked writes the server's response for the request with that id.
func (k *call) respondLocked(m *mcp.Message, id []byte) (body []byte, status int, err error) {
	if m.Error.Present() && mayAsk(k.method) && upstream.ErrorCode(m) == codeURLElicitation {
		if body, status, err := k.askForURLsLocked(m, id); body != nil || err != nil {
			return body, status, err
		}
	}
	if k.method == mcp.MethodToolsList {
		k.server.mirrored.Learn(k.principal, m)
	}
	body, status, ok := fromLegacy(m, k.method, id)
	if !ok {
		err = k.server.fault(upstream.BadAnswer, "answered with a result that is not an object", nil)
	}
	return body, status, err
}

// run reads the server's stream to its end. Questions that are here together are asked together; none waits for another.
func (k *call) run() {
	k.request = nil // the server has it
	for {
		if !k.events.Ready() {
			k.ask()
		}
		if k.step() {
			break
		}
	}
	k.end()
}

// end lets go of the server's answer and of the session. An answer that is not whole is given up, and the server told.
func (k *call) end() {
	if !k.answered {
		k.cancel()
	}
	if k.events != nil {
		_ = k.events.Close()
	}
	k.cancel()
	k.on.calls.remove(k)
	k.on.unwant(k.level)
	k.server.pool.release(k.on)
}

// step takes the stream's next message in, and reports whether it was the last.
func (k *call) step() (last bool) {
	e, err := k.events.Next()
	if err != nil {
		k.fail(k.failure(err))
		return true
	}
	m, err := mcp.ScanAnswer(e.Data)
	if err != nil {
		k.fail(k.server.fault(upstream.BadAnswer, "sent an event that is not a JSON-RPC message", err))
		return true
	}
	switch m.Kind {
	case mcp.Response:
		k.respond(&m)
		return true
	case mcp.Request:
		return k.question(&m)
	}
	k.notification(&m)
	return false
}

// notification passes what belongs to the call to its reader, and what belongs to the session to its listens. What
// comes while nobody waits has nobody to go to.
func (k *call) notification(m *mcp.Message) {
	switch m.Method {
	case mcp.NotificationProgress, mcp.NotificationMessage:
		if r, data := k.forReader(m); r != nil {
			r.put(k.ctx, data)
		}
	case mcp.NotificationCancelled:
		k.withdraw(m.RequestID.Of(m.Raw))
	default:
		k.on.listen.publish(m)
	}
}

// forReader is what the reader gets of progress or a log message; r is nil when nobody waits, or wants it.
func (k *call) forReader(m *mcp.Message) (r *reader, data []byte) {
	switch r = k.attached(); {
	case r == nil:
	case m.Method == mcp.NotificationMessage && r.level.wants(m):
		return r, rawjson.Splice(m.Raw)
	case m.Method == mcp.NotificationProgress && r.token != nil && k.token != nil && bytes.Equal(m.ProgressToken.Of(m.Raw), k.token):
		return r, rawjson.Splice(m.Raw, mcp.Edit{Span: m.ProgressToken, With: r.token})
	}
	return nil, nil
}

// notificationAside passes progress or a log message that the server sent outside of the call's stream, unless the client
// is slow: others wait behind it.
func (k *call) notificationAside(m *mcp.Message) {
	if r, data := k.forReader(m); r != nil {
		r.offer(data)
	}
}

func (k *call) attached() *reader {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.reader
}

// respond takes the server's response in. The call is in flight no more before its client has the response: the client's
// next call is the only one then.
func (k *call) respond(m *mcp.Message) {
	k.answered = true
	k.on.calls.remove(k)
	k.finish(m)
}

// finish settles the call with the server's response.
func (k *call) finish(m *mcp.Message) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.reader == nil && !k.over { // it has to be kept for the retry
		if len(m.Raw) > maxKept || !k.keepLocked(len(m.Raw)) {
			k.settleLocked(failed(k.server.fault(upstream.Overloaded, "its answer was too large to be kept for the retry", nil)))
			return
		}
		m = message(rawjson.Splice(m.Raw))
	}
	k.settleLocked(func(id []byte) ([]byte, int, error) { return k.respondLocked(m, id) })
}

// fail settles the call with an error.
func (k *call) fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.settleLocked(failed(err))
}

func failed(err error) outcome {
	return func([]byte) ([]byte, int, error) { return nil, 0, err }
}

// refusedWith is the outcome of a call that the sidecar ends with an error of the protocol.
func refusedWith(e *mcp.Error) outcome {
	return func(id []byte) ([]byte, int, error) {
		status := e.Status
		if status == 0 {
			status = statusOf(e.Code)
		}
		return mcp.AppendError(nil, id, e), status, nil
	}
}

// settleLocked notes the outcome, unless there is one, and gives it to the reader that waits.
func (k *call) settleLocked(f outcome) {
	if k.outcome == nil {
		k.outcome = f
	}
	if k.reader == nil {
		return
	}
	response, status, err := k.outcome(k.reader.id)
	k.reader.finish(response, status, err) // a client that has left meanwhile is told nothing
	k.reader = nil
	k.overLocked()
}

// left cancels the call because its reader's client is gone.
func (k *call) left(r *reader) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.reader == r {
		k.reader = nil
		k.overLocked()
		k.cancel()
	}
}

// reply answers a request of the server's with a result or an error, as raw JSON members.
func (k *call) reply(ctx context.Context, id []byte, result string) error {
	ctx, stop := context.WithTimeout(ctx, k.server.settings.times.Handshake)
	defer stop()
	return k.on.reply(ctx, id, result)
}

// reply is the same for any of the session's requests.
func (p *pooled) reply(ctx context.Context, id []byte, result string) error {
	m := message(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,%s}`, id, result))
	_, err := p.session.Call(ctx, &upstream.Call{Message: m, Principal: p.key.principal})
	return err
}

// What a server gets that asks something nobody answers.
const (
	pong        = `"result":{}`
	noSuchThing = `"error":{"code":-32601,"message":"no client answers this here"}`
	noAnswer    = `"error":{"code":-32603,"message":"the client gave no answer"}`
	nobodyCame  = `"result":{"action":"cancel"}`
)
