package tolegacy

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"strconv"
	"sync"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// A call asks its client like this (basic/patterns/mrtr):
//
//	client's request ──▶ running ──the server asks──▶ held ──retry with answers──▶ running ──▶ its result
//	                        │                          │
//	                  client leaves              time is over          both cancel the call at the server
//
// A requestState names the call and a round. The newest state goes on with the call and begins the next round. The one
// before it may come again, for its answer may have got lost: then the current question is asked again, or the result
// waited for, and the answers that come with it are not looked at, because the server has some already. The request that
// came first then ends with an error. Any older state is refused. The server never gets two answers to a question, and a
// call is never run again.

const (
	maxQuestions = 32      // of one call that are not answered
	maxKept      = 1 << 20 // bytes of an answer that came while nobody waited, and of one call's questions
	maxKeptByAll = 64 << 20
)

// question is a request of the server's that its client has not answered.
type question struct {
	key    string // in inputRequests
	id     []byte // the server's, as its token
	method string
	params []byte // as the client gets them
}

// heldCalls are the calls of a Server that have asked, until they are over.
type heldCalls struct {
	most int

	mu    sync.Mutex // guards below
	byID  map[string]*call
	bytes int // that calls keep in memory, in questions and answers
}

func newHeldCalls(most int) *heldCalls { return &heldCalls{most: most, byID: make(map[string]*call)} }

func (h *heldCalls) get(id string) *call {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.byID[id]
}

// add gives a call a name, or reports that there are enough. Names are random: a call of before a restart has none of
// now.
func (h *heldCalls) add(k *call) (id string, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.byID) >= h.most {
		return "", false
	}
	id = rand.Text()
	h.byID[id] = k
	return id, true
}

// keep counts n bytes more, or reports that there are enough. n may be negative.
func (h *heldCalls) keep(n int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n > 0 && h.bytes+n > maxKeptByAll {
		return false
	}
	h.bytes += n
	return true
}

func (h *heldCalls) remove(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.byID, id)
}

// stop gives up every held call: their retries come too late.
func (h *heldCalls) stop() {
	h.mu.Lock()
	var all []*call
	for _, k := range h.byID {
		all = append(all, k)
	}
	h.mu.Unlock()
	for _, k := range all {
		k.mu.Lock()
		if k.reader == nil {
			k.overLocked()
		}
		k.mu.Unlock()
	}
}

// question takes a request of the server's in, and reports whether it ends the call.
func (k *call) question(m *mcp.Message) (last bool) {
	id := bytes.Clone(m.ID.Of(m.Raw))
	switch {
	case m.Method == mcp.MethodPing:
		return k.replied(k.reply(k.ctx, id, pong))
	case !isQuestion(m.Method), !mayAsk(k.method):
		return k.replied(k.reply(k.ctx, id, noSuchThing))
	}
	if lacking := k.declared.lacks(m); lacking != "" {
		k.mu.Lock()
		k.settleLocked(refusedWith(missingCapability(lacking)))
		k.mu.Unlock()
		_ = k.reply(k.ctx, id, noAnswer) // the call is cancelled all the same
		return true
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over {
		return true // the call was cancelled, which the server did not know yet
	}
	q := question{id: id, method: m.Method, params: questionParams(m)}
	if len(k.pending) >= maxQuestions || !k.keepLocked(len(q.params)) {
		k.settleLocked(failed(k.server.fault(upstream.Overloaded, "asked its client too much at once", nil)))
		return true
	}
	k.asked++
	q.key = "q" + strconv.Itoa(k.asked)
	k.pending = append(k.pending, q)
	return false
}

// isQuestion reports whether a request is one that clients answer (basic/patterns/mrtr).
func isQuestion(method string) bool {
	return method == mcp.MethodElicit || method == mcp.MethodCreateMessage || method == mcp.MethodRootsList
}

// questionAside takes a request in that the server sent outside of the call's stream.
func (k *call) questionAside(m *mcp.Message) {
	if k.question(m) {
		k.cancel()
	}
	k.ask()
}

func (k *call) replied(err error) (last bool) {
	if err != nil {
		k.server.log.Debug("a request of the server's could not be answered", "error", err)
	}
	return false
}

func missingCapability(lacking string) *mcp.Error {
	return &mcp.Error{
		Code: mcp.CodeMissingCapability, Message: "the server asks for what the client did not declare",
		Data: []byte(`{"requiredCapabilities":` + lacking + `}`),
	}
}

// questionParams are params as they stand in inputRequests: without what belongs to the session's wire. A request without
// any has an empty object, since clients of go-sdk 1.8 cannot do without.
func questionParams(m *mcp.Message) []byte {
	if !m.Params.Present() {
		return []byte("{}")
	}
	params, _ := rawjson.Rewrite(nil, m.Raw, m.Params, func(p rawjson.Member) ([]byte, bool) {
		switch string(p.Name) {
		case "task", "elicitationId":
			return nil, false
		case "_meta":
			return rawjson.Rewrite(nil, m.Raw, p.Value, func(k rawjson.Member) ([]byte, bool) {
				return nil, string(k.Name) != mcp.MetaKeyProgressToken
			})
		}
		return nil, true
	})
	return params
}

// withdraw drops a question that the server has taken back. If it was the only one, the retry finds nothing to answer
// and waits for the result.
func (k *call) withdraw(id []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, q := range k.pending {
		if bytes.Equal(q.id, id) {
			k.pending = append(k.pending[:i], k.pending[i+1:]...)
			return
		}
	}
}

// ask ends the reader's request with the questions that are pending; the call is held from then on. Without a reader, or
// a question, it does nothing.
func (k *call) ask() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.reader == nil || len(k.pending) == 0 || k.outcome != nil {
		return
	}
	if err := k.holdLocked(); err != nil {
		k.settleLocked(failed(err))
		k.cancel()
		return
	}
	requestState := k.server.sealState(state{
		Holder: k.server.holder.ID, Address: k.server.holder.Address, Call: k.heldAs, Round: k.round,
		Principal: principalDigest(k.principal), Digest: k.digest,
	})
	if !k.reader.finish(inputRequired(k.reader.id, k.pending, requestState), 200, nil) {
		return // the client has just left, which cancels the call
	}
	k.reader = nil
	k.absence++
	absence := k.absence
	k.expiry = time.AfterFunc(k.server.settings.heldTimeout, func() { k.expire(absence) })
}

// holdLocked puts the call among those that are held, if it may ask once more.
func (k *call) holdLocked() error {
	s := k.server
	if k.round > s.settings.maxRounds {
		return s.fault(upstream.Overloaded, "asked its client more often than a call may", nil)
	}
	if k.heldAs != "" {
		return nil
	}
	id, ok := s.held.add(k)
	if !ok {
		return s.fault(upstream.Overloaded, "too many calls wait for their clients' answers", nil)
	}
	k.heldAs = id
	k.digestLocked()
	return nil
}

// digestLocked makes the request's digest, and lets go of the request.
func (k *call) digestLocked() {
	if k.sent != nil {
		k.digest, k.sent = digest(k.sent), nil
	}
}

// keepLocked counts memory that the call keeps, or reports that it is too much.
func (k *call) keepLocked(n int) bool {
	if k.bytes+n > 2*maxKept || !k.server.held.keep(n) {
		return false
	}
	k.bytes += n
	return true
}

// overLocked lets go of what was kept for the client.
func (k *call) overLocked() {
	if k.over {
		return
	}
	k.over = true
	if k.expiry != nil {
		k.expiry.Stop()
	}
	if k.heldAs != "" {
		k.server.held.remove(k.heldAs)
	}
	k.server.held.keep(-k.bytes)
	k.bytes = 0
}

// expire gives up a call whose client did not come back: its questions get no for an answer, and it is cancelled.
func (k *call) expire(absence int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over || k.reader != nil || k.absence != absence {
		return // the client has just come back
	}
	k.overLocked()
	pending := k.pending
	if k.outcome != nil {
		return // the server is done already
	}
	if !k.server.tasks.run(func() { k.abandon(pending) }) {
		k.cancel()
	}
}

func (k *call) abandon(pending []question) {
	defer k.cancel()
	ctx, stop := k.server.brief()
	defer stop()
	for _, q := range pending {
		result := noAnswer
		if q.method == mcp.MethodElicit {
			result = nobodyCame
		}
		if k.on.reply(ctx, q.id, result) != nil {
			return
		}
	}
}

// retry goes on with the call that a requestState names. forward says whether another sidecar may be asked.
func (s *Server) retry(ctx context.Context, o *order, forward bool) (*upstream.Answer, error) {
	st, refused := s.openState(o)
	switch {
	case refused != nil:
		return refusal(o.m, refused), nil
	case st.Holder == "":
		return s.begin(ctx, o, st.Round+1) // the call did not happen, so this is its first time
	case st.Holder != s.holder.ID && forward && s.peers != nil:
		return s.elsewhere(ctx, o, st)
	case st.Holder != s.holder.ID:
		return refusal(o.m, invalid(heldFarAway)), nil
	}
	if k := s.held.get(st.Call); k != nil {
		return k.resume(ctx, o, st.Round)
	}
	return refusal(o.m, invalid(notHeld)), nil
}

// resume attaches a retry to the call, and gives the server its answers.
func (k *call) resume(ctx context.Context, o *order, round int) (*upstream.Answer, error) {
	r := k.server.newReader(o.m, o.level)
	r.leave = func() { k.left(r) }
	answers, refused := k.attach(r, o, round)
	if refused != nil {
		return refusal(o.m, refused), nil
	}
	r.watch(ctx)
	for _, a := range answers {
		if err := k.reply(k.ctx, a.id, `"result":`+string(a.result)); err != nil {
			k.fail(k.failure(err))
			k.cancel()
			break
		}
	}
	k.ask()
	return r.answer(ctx)
}

// answer is a client's, to a question.
type answer struct{ id, result []byte }

// attach makes r the call's reader and takes the answers out of a retry.
func (k *call) attach(r *reader, o *order, round int) ([]answer, *mcp.Error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over {
		return nil, invalid(notHeld)
	}
	if round != k.round && round != k.round-1 {
		return nil, invalid(usedBefore)
	}
	var answers []answer
	if round == k.round {
		var refused *mcp.Error
		if answers, refused = k.answersLocked(o); refused != nil {
			return nil, refused
		}
		k.round++
	}
	if k.expiry != nil {
		k.expiry.Stop()
	}
	if k.reader != nil {
		taken := invalid("another request goes on with this call")
		k.reader.finish(mcp.AppendError(nil, k.reader.id, taken), statusOf(taken.Code), nil)
	}
	k.reader = r
	if k.outcome != nil {
		k.settleLocked(k.outcome)
		return nil, nil
	}
	return answers, nil
}

// answersLocked takes what a retry answers off the pending questions.
func (k *call) answersLocked(o *order) (answers []answer, _ *mcp.Error) {
	var left []question
	for _, q := range k.pending {
		response := rawjson.Find(o.m.Raw, o.responses, q.key).Of(o.m.Raw)
		switch {
		case response == nil:
			left = append(left, q)
		case !rawjson.IsObject(response):
			return nil, invalid("params.inputResponses." + q.key + " is not an object")
		default:
			answers = append(answers, answer{q.id, response})
		}
	}
	k.pending = left
	return answers, nil
}

// elsewhere hands a retry to the sidecar that holds the call, and its answer on.
func (s *Server) elsewhere(ctx context.Context, o *order, st *state) (*upstream.Answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := s.peers.Resume(ctx, Holder{ID: st.Holder, Address: st.Address}, &outriggerv1.ResumeRequest{
		Upstream: s.name, Message: bytes.Clone(o.m.Raw), Principal: o.principal,
	})
	if err != nil {
		gone := ctx.Err()
		cancel()
		var known *upstream.Error
		switch {
		case errors.As(err, &known):
			return nil, err
		case gone != nil:
			return nil, s.gaveUp(ctx)
		}
		s.log.Warn("a sidecar that holds a call could not be asked", "holder", st.Holder, "error", err)
		return refusal(o.m, invalid(heldFarAway)), nil
	}
	r := s.newReader(o.m, o.level)
	r.leave = func() { _ = stream.Close() }
	r.watch(ctx)
	task := func() {
		defer cancel()
		defer stream.Close()
		s.copy(ctx, r, stream)
	}
	if !s.tasks.run(task) {
		cancel()
		return nil, s.fault(upstream.Lost, "the upstream was removed", stream.Close())
	}
	return r.answer(ctx)
}

// copy reads another sidecar's stream for r.
func (s *Server) copy(ctx context.Context, r *reader, stream upstream.EventStream) {
	for {
		e, err := stream.Next()
		if err != nil {
			r.finish(nil, 0, s.fault(upstream.Lost, "the sidecar that holds the call was lost during it", err))
			return
		}
		m, err := scan(bytes.Clone(e.Data))
		switch {
		case err != nil:
			r.finish(nil, 0, s.fault(upstream.BadAnswer, "the sidecar that holds the call sent what is not JSON-RPC", err))
			return
		case m.Kind == mcp.Response && m.Error.Present():
			r.finish(m.Raw, statusOf(errorCode(&m)), nil)
			return
		case m.Kind == mcp.Response:
			r.finish(m.Raw, 200, nil)
			return
		}
		r.put(ctx, m.Raw)
	}
}
