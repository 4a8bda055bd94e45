package tolegacy

import (
	"context"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// retry goes on with the call that a requestState names. forward says whether another sidecar may be asked.
func (s *Server) retry(ctx context.Context, o *order, forward bool) (*upstream.Answer, error) {
	st, refused := s.openState(o)
	switch {
	case refused != nil:
		return refusal(o.m, refused), nil
	case st.Holder == "" && !forward:
		return refusal(o.m, invalid(notHeld)), nil // another sidecar asks for what is held, and begins nothing here
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
