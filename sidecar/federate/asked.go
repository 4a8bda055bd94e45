package federate

import (
	"bytes"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// What a client answers to a server is for that server alone (basic/patterns/mrtr), and which member a name leads to may
// change between two rounds. So the requestState that a client gets names the member that asked, sealed, and a retry goes
// to that member or to none.

// statePurpose is what request states are sealed for.
const statePurpose = "member-state"

// maxQuestion is the longest answer that may ask, in bytes. The retry of a longer one is refused.
const maxQuestion = 1 << 20

// The first byte of a sealed state says whether the member gave one of its own.
const (
	withoutState = 'n'
	withState    = 's'
)

// sealState is an answer's result whose requestState names its member, if it asks; others are as they were.
func (s *Server) sealState(principal string, m *member, raw []byte, result mcp.Span) []byte {
	if kind, _ := rawjson.Text(rawjson.Find(raw, result, "resultType").Of(raw)); kind != "input_required" {
		return raw
	}
	at := rawjson.Find(raw, result, "requestState")
	plain := append([]byte(m.Name), 0, withoutState)
	if at.Present() {
		plain = append(append([]byte(m.Name), 0, withState), at.Of(raw)...)
	}
	sealed := rawjson.AppendString(nil, s.o.Sealer.Seal(statePurpose, plain, s.tasks.aad(principal)))
	if at.Present() {
		return rawjson.Splice(raw, mcp.Edit{Span: at, With: sealed})
	}
	begin := result.Start + 1 // the result has a resultType, so another member follows
	return rawjson.Splice(raw, mcp.Edit{Span: mcp.Span{Start: begin, End: begin}, With: append(append([]byte(`"requestState":`), sealed...), ',')})
}

// asks reports whether an answer may be one that asks.
func asks(answer []byte) bool { return bytes.Contains(answer, []byte("input_required")) }

// retried is a client's retry as the member that asked is to get it, and that member; nil for what is no retry. A refusal
// is the answer to a retry that is none of this caller's here.
func (s *Server) retried(c *upstream.Call) (_ *upstream.Call, m *member, refused *upstream.Answer) {
	raw := c.Message.Raw
	state := rawjson.Find(raw, c.Message.Params, "requestState")
	if !state.Present() {
		if rawjson.Find(raw, c.Message.Params, "inputResponses").Present() {
			return nil, nil, invalidParams(c, "inputResponses without the requestState that came with the question: call again without them")
		}
		return c, nil, nil
	}
	text, _ := rawjson.Text(state.Of(raw))
	plain, err := s.o.Sealer.Open(statePurpose, text, s.tasks.aad(c.Principal))
	name, rest, ok := bytes.Cut(plain, []byte{0})
	for _, other := range s.members {
		if other.Name == string(name) {
			m = other
		}
	}
	if err != nil || !ok || len(rest) == 0 || m == nil {
		return nil, nil, invalidParams(c, "this requestState is not one that this endpoint gave to this caller: call again without it")
	}
	call, err := ownState(c, state, rest)
	if err != nil {
		return nil, nil, invalidParams(c, "this requestState cannot be used: call again without it")
	}
	return call, m, nil
}

// ownState is a retry with the member's own state, or without one.
func ownState(c *upstream.Call, state mcp.Span, rest []byte) (*upstream.Call, error) {
	if rest[0] == withState {
		return rewritten(c, mcp.Edit{Span: state, With: rest[1:]})
	}
	params, _ := rawjson.Rewrite(nil, c.Message.Raw, c.Message.Params, func(m rawjson.Member) ([]byte, bool) {
		return nil, string(m.Name) != "requestState"
	})
	return rewritten(c, mcp.Edit{Span: c.Message.Params, With: params})
}
