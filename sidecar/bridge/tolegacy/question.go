package tolegacy

import (
	"bytes"
	"strconv"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// question is a request of the server's that its client has not answered.
type question struct {
	key    string // in inputRequests
	id     []byte // the server's, as its token
	method string
	params []byte // as the client gets them
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
