package tolegacy

import (
	"crypto/sha256"
	"io"
	"net/http"
	"strconv"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// order is a client's request and what was read of it.
type order struct {
	call      *upstream.Call
	m         *mcp.Message
	principal string
	declared  *capabilities
	level     level // of the log messages it wants

	state     string   // its requestState, decoded; empty when it is no retry
	responses mcp.Span // its inputResponses; absent when there are none
}

// read looks at a request, and refuses what it cannot mean.
func (s *Server) read(c *upstream.Call) (*order, *mcp.Error) {
	m := c.Message
	o := &order{call: c, m: m, principal: c.Principal, level: noLevel}
	if o.declared = s.declared.read(m.ClientCapabilities.Of(m.Raw)); o.declared == nil {
		return nil, badMeta("params._meta: " + mcp.MetaKeyClientCapabilities + " is no object, or too large")
	}
	if m.LogLevel.Present() {
		if o.level = levelOf(m.LogLevel.Of(m.Raw)); o.level == noLevel {
			return nil, badMeta("params._meta: " + mcp.MetaKeyLogLevel + " is none of the levels of log messages")
		}
	}
	if !mayAsk(m.Method) {
		return o, nil
	}
	return o, o.readRetry()
}

// readRetry finds what makes a request a retry (basic/patterns/mrtr).
func (o *order) readRetry() *mcp.Error {
	raw := o.m.Raw
	state := rawjson.Find(raw, o.m.Params, "requestState")
	o.responses = rawjson.Find(raw, o.m.Params, "inputResponses")
	switch {
	case state.Present() && (!rawjson.IsString(state.Of(raw)) || state.End-state.Start == len(`""`)):
		return invalid("params.requestState is not a string that was given here")
	case o.responses.Present() && !rawjson.IsObject(o.responses.Of(raw)):
		return invalid("params.inputResponses is not an object")
	case o.responses.Present() && !state.Present():
		return invalid("params.inputResponses without the requestState that came with the questions: start the call again")
	case state.Present():
		o.state = string(rawjson.Decoded(state.Of(raw)))
	}
	return nil
}

// mayAsk reports whether a method's result may be input_required (basic/patterns/mrtr).
func mayAsk(method string) bool {
	switch method {
	case mcp.MethodToolsCall, mcp.MethodPromptsGet, mcp.MethodResourcesRead:
		return true
	}
	return false
}

// toLegacy writes a request for a session: with that id, which is its progress token too if it had one, and without what
// only the stateless wire has, or what the two have in different forms (params.task).
func toLegacy(m *mcp.Message, id []byte) []byte {
	edits := []mcp.Edit{{Span: m.ID, With: id}}
	if m.Params.Present() {
		params, _ := rawjson.Rewrite(make([]byte, 0, m.Params.End-m.Params.Start), m.Raw, m.Params, func(p rawjson.Member) ([]byte, bool) {
			switch string(p.Name) {
			case "inputResponses", "requestState", "task":
				return nil, false
			case "_meta":
				return legacyMeta(m, p.Value, id)
			}
			return nil, true
		})
		edits = append(edits, mcp.Edit{Span: m.Params, With: params})
	}
	return rawjson.Splice(m.Raw, edits...)
}

// legacyMeta drops a _meta of which nothing is left.
func legacyMeta(m *mcp.Message, meta mcp.Span, id []byte) ([]byte, bool) {
	return rawjson.Rewrite(nil, m.Raw, meta, func(k rawjson.Member) ([]byte, bool) {
		switch string(k.Name) {
		case mcp.MetaKeyVersion, mcp.MetaKeyClientInfo, mcp.MetaKeyClientCapabilities, mcp.MetaKeyLogLevel:
			return nil, false
		case mcp.MetaKeyProgressToken:
			return id, m.ProgressToken.Present()
		}
		return nil, true
	})
}

// nextID makes the id of a request of ours: an integer, never used twice.
func (s *Server) nextID() []byte { return strconv.AppendInt(nil, s.lastID.Add(1), 10) }

// digest tells requests apart by method, name or uri, and arguments: a retry repeats the three. How they are written
// does not matter.
func digest(m *mcp.Message) []byte {
	h := sha256.New()
	io.WriteString(h, m.Method)
	h.Write([]byte{0})
	h.Write(m.Name)
	h.Write([]byte{0})
	if m.Arguments.Present() {
		h.Write(rawjson.Canonical(m.Arguments.Of(m.Raw)))
	}
	return h.Sum(nil)[:16]
}

// principalDigest stands for a principal in states.
func principalDigest(principal string) []byte {
	sum := sha256.Sum256([]byte(principal))
	return sum[:16]
}

// message scans what this package wrote.
func message(raw []byte) *mcp.Message {
	m, err := mcp.ScanAnswer(raw)
	if err != nil {
		panic("tolegacy: wrote " + err.Error())
	}
	return &m
}

func badMeta(text string) *mcp.Error {
	return &mcp.Error{Code: mcp.CodeInvalidParams, Message: text, Status: http.StatusBadRequest}
}

func invalid(text string) *mcp.Error {
	return &mcp.Error{Code: mcp.CodeInvalidParams, Message: text}
}

// refusal answers a request with an error.
func refusal(m *mcp.Message, e *mcp.Error) *upstream.Answer {
	status := e.Status
	if status == 0 {
		status = statusOf(e.Code)
	}
	return upstream.Whole(status, mcp.AppendError(nil, m.ID.Of(m.Raw), e))
}
