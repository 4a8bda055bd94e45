package tostateless

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/budget"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	// maxEmptyRounds is how often a server may ask for a retry without asking anything, as it does under load.
	maxEmptyRounds = 3
	// leastPause is before the first such retry; it doubles.
	leastPause = 250 * time.Millisecond
)

// phase is what a call does next. All of these may end it.
//
//	sending ──events──▶ relaying ──input_required──▶ asking ──all answers──▶ sending
//	  │  ▲ └────────────input_required, as a body───────▲
//	  │  └── pausing ◀──input_required with no questions (from relaying too)
//	  └──-32020, once──▶ learning ──the tool's headers──▶ sending
type phase uint8

const (
	sending  phase = iota // a request goes to the server
	relaying              // the server's messages go to the client
	asking                // the client has been asked
	pausing               // the server asked for a retry later
	learning              // the server wants headers that only its tools/list tells of
)

// call is one request of a client on its way, and the event stream that it may become. Whoever calls Next does its work;
// it has no goroutine.
type call struct {
	// Set by carry, never changed.
	session   *session
	ctx       context.Context
	stop      context.CancelFunc // ends every wait of the call, and the call at the server
	id        []byte             // the client's, as its token
	principal string
	caller    *identity.Principal
	first     mcp.Message // the request as the server gets it first
	header    http.Header // likewise, but for what is learned of Mcp-Param-*

	// Owned by the goroutine that calls Next.
	phase   phase
	next    mcp.Message // what sending sends
	out     [][]byte    // messages for the client
	err     error       // what comes after out; nil while there is more to do
	rounds  int         // times that the server did not answer at once
	empty   int         // of these, those without a question
	state   []byte      // requestState for the retry, as its token; nil for none
	round   *round      // set when the client was asked; guarded by session.mu too
	learned bool        // learning was tried
	refused []byte      // the answer that led to learning

	mu     sync.Mutex           // guards below
	events upstream.EventStream // while relaying; set by the goroutine that calls Next, which needs no lock to read it
	closed bool
	taken  int // bytes of the budget: the response's, until Close
}

// carry sends a client's request to the server. The answer is a body unless something comes before the response.
func (c *session) carry(ctx context.Context, q *upstream.Call) (*upstream.Answer, error) {
	first, err := toStateless(q.Message, c.metaNow())
	if err != nil {
		return nil, err
	}
	k := &call{
		session: c, id: bytes.Clone(q.Message.ID.Of(q.Message.Raw)), principal: q.Principal, caller: q.Caller,
		first: first, next: first, header: headerFor(&first, q.Header),
	}
	if first.Method == mcp.MethodToolsCall {
		setParams(k.header, &first, c.server.mirrored.Of(k.principal, k.first.Name))
	}
	k.ctx, k.stop = context.WithCancel(ctx)
	if !c.begin(k) {
		k.stop()
		return nil, c.server.fault(upstream.Lost, "the session has ended", context.Canceled)
	}
	for len(k.out) == 0 && k.err == nil && k.phase != relaying {
		k.step()
	}
	if !errors.Is(k.err, io.EOF) && k.err != nil {
		defer k.Close()
		return nil, k.err
	}
	if k.err != nil && len(k.out) == 1 { // the response, and the end
		defer k.Close()
		return k.wholeBody(), nil
	}
	return &upstream.Answer{Status: http.StatusOK, Length: -1, Events: k}, nil
}

// wholeBody is the response as a body, which gives back what was taken for it.
func (k *call) wholeBody() *upstream.Answer {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.taken = 0
	a := upstream.Whole(http.StatusOK, k.out[0])
	a.Body = k.session.server.o.Budget.Body(k.out[0])
	return a
}

// Next implements upstream.EventStream.
func (k *call) Next() (mcp.Event, error) {
	for len(k.out) == 0 {
		if k.err != nil {
			return mcp.Event{}, k.err
		}
		k.step()
	}
	data := k.out[0]
	k.out = k.out[1:]
	return mcp.Event{Data: data}, nil
}

// Ready implements upstream.EventStream. A response that is here may be a question without anything to ask, so whether
// there is a message to return is known only when it was looked at.
func (k *call) Ready() bool {
	for len(k.out) == 0 && k.err == nil {
		if k.phase != relaying || !k.events.Ready() {
			return false
		}
		k.step()
	}
	return true
}

// Close implements upstream.EventStream. Before the response it ends the call at the server.
func (k *call) Close() error {
	k.mu.Lock()
	events := k.events
	k.closed = true
	k.session.server.o.Budget.Give(k.taken)
	k.taken = 0
	k.mu.Unlock()
	if events != nil {
		_ = events.Close() // nobody is left to hear of it
	}
	k.stop()
	k.session.finish(k)
	return nil
}

// step does one thing. Only relaying may be known not to wait.
func (k *call) step() {
	switch k.phase {
	case sending:
		k.send()
	case relaying:
		k.relay()
	case asking:
		k.await()
	case pausing:
		k.pause()
	case learning:
		k.learn()
	}
}

// fail ends the call without a response.
func (k *call) fail(err error) { k.err = forLegacy(err) }

// end gives the client its response, if there is memory for it.
func (k *call) end(response []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.closed { // or nobody is left to get it, and to give it back
		if !k.session.server.o.Budget.Take(len(response)) {
			k.err = upstream.Unread(k.session.server.o.Upstream, budget.ErrSpent)
			return
		}
		k.taken = len(response)
	}
	k.out, k.err = append(k.out, response), io.EOF
}

// refuse ends the call with an error of our own that is nobody's failure: the client's answers, or their lack.
func (k *call) refuse(reason, message string) {
	data := append([]byte(`{"source":"outrigger","reason":"`+reason), `"}`...)
	k.end(mcp.AppendError(nil, k.id, &mcp.Error{Code: mcp.CodeInternalError, Message: message, Data: data}))
}

func (k *call) badAnswer(detail string, cause error) {
	k.fail(k.session.server.fault(upstream.BadAnswer, detail, cause))
}

func (k *call) send() {
	s := k.session.server
	a, err := s.inner.Call(k.ctx, &upstream.Call{Message: &k.next, Header: k.header, Principal: k.principal, Caller: k.caller})
	switch {
	case err != nil:
		k.fail(err)
	case a.Body != nil:
		raw, err := s.readBody(a)
		if err != nil {
			k.fail(err)
			return
		}
		k.settle(raw)
		s.o.Budget.Give(cap(raw))
	case a.Events == nil:
		k.badAnswer("gave a request no answer", nil)
	case !k.take(a.Events):
		_ = a.Events.Close()
		k.fail(upstream.GaveUp(k.ctx, s.o.Upstream))
	default:
		k.phase = relaying
	}
}

// take makes a stream the call's. It is not ok once the call was closed.
func (k *call) take(events upstream.EventStream) (ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.closed {
		k.events = events
	}
	return !k.closed
}

// relay hands on one message, or takes the response.
func (k *call) relay() {
	events := k.events
	ev, err := events.Next()
	switch {
	case err == io.EOF:
		k.fail(k.session.server.fault(upstream.Lost, "the stream ended before the response", nil))
	case err != nil:
		k.fail(err)
	case mcp.PeekOutcome(ev.Data) == mcp.OutcomeUnknown:
		k.out = append(k.out, ev.Data)
	default:
		k.settle(ev.Data) // which keeps nothing of it
		k.mu.Lock()
		k.events = nil
		k.mu.Unlock()
		_ = events.Close() // after the response there is nothing to lose
	}
}

// settle takes what should be the response. Nothing of raw is kept.
func (k *call) settle(raw []byte) {
	m, err := upstream.ScanResponse(k.session.server.o.Upstream, raw)
	switch {
	case err != nil:
		k.fail(err)
	case m.Error.Present():
		k.settleError(&m)
	default:
		k.settleResult(&m)
	}
}

// settleError takes an error. One for want of headers came before anything happened, so the call may be sent again
// (server/tools, "x-mcp-header").
func (k *call) settleError(m *mcp.Message) {
	said := legacyError(m, k.id)
	if upstream.ErrorCode(m) == mcp.CodeHeaderMismatch && k.first.Method == mcp.MethodToolsCall && !k.learned {
		k.learned, k.refused, k.phase = true, said, learning
		return
	}
	k.end(said)
}

func (k *call) settleResult(m *mcp.Message) {
	w := rewrite(m, k.first.Method, k.session.version)
	w.all = k.session.server.mirrored.Some() // or nothing is to be forgotten
	switch w.resultType() {
	case resultComplete:
		k.end(w.response(k.id))
		if w.mirrored != nil {
			k.session.server.mirrored.Merge(k.principal, w.mirrored)
		}
		for _, why := range w.dropped {
			k.session.server.o.Log.Warn("left a tool out of a list, since the server's annotations are at fault", "tool", why)
		}
	case resultInputRequired:
		k.inputRequired(m, w.find("requestState"), w.find("inputRequests"))
	default:
		k.badAnswer("answered with a type of result that the client did not ask for", nil)
	}
}

// learn asks for the tool's headers, and sends the call again if there is something to add.
func (k *call) learn() {
	if err := k.askForTool(string(k.first.Name)); err != nil {
		if k.ctx.Err() != nil {
			k.fail(err)
			return
		}
		k.session.server.o.Log.Debug("could not list tools after a refused call", "error", err)
	}
	if !setParams(k.header, &k.first, k.session.server.mirrored.Of(k.principal, k.first.Name)) {
		k.end(k.refused)
		return
	}
	k.phase = sending
}

// inputRequired turns the server's questions into requests to the client (basic/patterns/mrtr).
func (k *call) inputRequired(m *mcp.Message, state, requests mcp.Span) {
	k.state = nil
	if rawjson.IsString(state.Of(m.Raw)) {
		k.state = bytes.Clone(state.Of(m.Raw))
	}
	r, err := k.session.newRound(m.Raw, requests)
	k.rounds++
	switch {
	case err != nil:
		k.badAnswer(err.Error(), nil)
	case len(r.questions) == 0 && k.state == nil:
		k.badAnswer("asked for a retry without saying for what", nil)
	case len(r.questions) == 0 && k.empty == maxEmptyRounds, k.rounds > k.session.server.o.MaxRounds:
		k.refuse("too_many_rounds", "the server asked more often than this sidecar lets it")
	case len(r.questions) == 0:
		k.empty++
		k.phase = pausing
	default:
		k.setRound(r)
		k.session.ask(r)
		for _, q := range r.questions {
			k.out = append(k.out, q.message())
		}
		k.phase = asking
	}
}

func (k *call) setRound(r *round) {
	k.session.mu.Lock()
	defer k.session.mu.Unlock()
	k.round = r
}

// await waits for the client's answers.
func (k *call) await() {
	late := time.NewTimer(k.session.server.o.AnswerTimeout)
	defer late.Stop()
	for answered := 0; answered < len(k.round.questions); answered++ {
		select {
		case a := <-k.round.answers:
			if !k.round.questions[a.index].take(a.result) {
				k.withdraw()
				k.refuse("client_refused", "the client did not answer "+k.round.questions[a.index].method+", which the call needs")
				return
			}
		case <-late.C:
			k.withdraw()
			k.refuse("client_timeout", "the client did not answer in time what the server asked")
			return
		case <-k.ctx.Done():
			k.fail(upstream.GaveUp(k.ctx, k.session.server.o.Upstream))
			return
		}
	}
	k.retry(k.round.responses())
}

// withdraw tells the client that nobody waits for its answers any more.
func (k *call) withdraw() {
	for _, id := range k.session.withdraw(k.round) {
		k.out = append(k.out, []byte(`{"jsonrpc":"2.0","method":"`+mcp.NotificationCancelled+`","params":{"requestId":`+id+`}}`))
	}
}

// pause lets a server that is busy be, for a while that grows.
func (k *call) pause() {
	d := leastPause << (k.empty - 1)
	late := time.NewTimer(d/2 + rand.N(d))
	defer late.Stop()
	select {
	case <-late.C:
		k.retry(nil)
	case <-k.ctx.Done():
		k.fail(upstream.GaveUp(k.ctx, k.session.server.o.Upstream))
	}
}

// retry sends the request again: with another id, with what the server wants back, and otherwise as it was first.
func (k *call) retry(responses []byte) {
	var more []byte
	if responses != nil {
		more = append([]byte(`,"inputResponses":`), responses...)
	}
	if k.state != nil {
		more = append(append(more, `,"requestState":`...), k.state...)
	}
	end := k.first.Params.End - 1 // behind _meta at least
	raw := rawjson.Splice(k.first.Raw,
		mcp.Edit{Span: k.first.ID, With: k.session.server.newID()},
		mcp.Edit{Span: mcp.Span{Start: end, End: end}, With: more})
	next, err := mcp.ScanAnswer(raw)
	if err != nil {
		k.fail(err)
		return
	}
	k.next, k.phase = next, sending
}
