package tostateless

import (
	"crypto/rand"
	"errors"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
)

// maxQuestions is how much a server may ask at a time.
const maxQuestions = 64

// round is what a server asks of a client at a time.
type round struct {
	questions []asked
	answers   chan reply // has room for one to each question
}

// asked is one entry of inputRequests, and then of inputResponses.
type asked struct {
	key    []byte // its name, as a token
	method string
	params []byte // nil for none
	id     string // of the request to the client, as a token
	result []byte // the client's
}

// reply is a client's answer to a question; result is nil when it was an error.
type reply struct {
	index  int
	result []byte
}

// newRound reads inputRequests; the round is empty when there are none. An error says, for operators, what a client of
// this session must not be asked. Nothing of raw is kept.
func (c *session) newRound(raw []byte, requests mcp.Span) (*round, error) {
	r := new(round)
	if !rawjson.IsObject(requests.Of(raw)) {
		return r, nil
	}
	for m := range rawjson.Members(raw, requests) {
		q := asked{key: rawjson.AppendString(nil, string(m.Name))}
		q.method, _ = rawjson.Text(rawjson.Find(raw, m.Value, "method").Of(raw))
		params := rawjson.Find(raw, m.Value, "params")
		if err := c.mayAsk(q.method, raw, params); err != nil {
			return nil, err
		}
		if params.Present() {
			q.params = c.paramsOf(q.method, raw, params)
		}
		r.questions = append(r.questions, q)
		if len(r.questions) > maxQuestions {
			return nil, errors.New("asked too much at a time")
		}
	}
	r.answers = make(chan reply, len(r.questions))
	return r, nil
}

// mayAsk holds a server to what the client declared (basic/patterns/mrtr).
func (c *session) mayAsk(method string, raw []byte, params mcp.Span) error {
	what, may := "something that no client answers", false
	switch method {
	case mcp.MethodElicit:
		what, may = "a form, which it did not declare", c.declared.form
		if isURL(raw, params) {
			what, may = "a URL to be opened, which it did not declare", c.declared.url
		}
	case mcp.MethodCreateMessage:
		what, may = "sampling, which it did not declare", c.declared.sampling
	case mcp.MethodRootsList:
		what, may = "roots, which it did not declare", c.declared.roots
	}
	if !may {
		return errors.New("asked the client for " + what)
	}
	return nil
}

func isURL(raw []byte, params mcp.Span) bool {
	mode, _ := rawjson.Text(rawjson.Find(raw, params, "mode").Of(raw))
	return mode == "url"
}

// paramsOf copies a question's params. A URL has an elicitationId in 2025-11-25, the only version to have URLs.
func (c *session) paramsOf(method string, raw []byte, params mcp.Span) []byte {
	p := append([]byte(nil), params.Of(raw)...)
	if method != mcp.MethodElicit || !isURL(raw, params) || rawjson.Find(raw, params, "elicitationId").Present() {
		return p
	}
	return rawjson.Insert(p, rawjson.Whole(p), `"elicitationId":"`+rand.Text()+`"`)
}

// message is the question as a request to the client.
func (q *asked) message() []byte {
	b := append([]byte(`{"jsonrpc":"2.0","id":`), q.id...)
	b = append(append(b, `,"method":"`...), q.method...)
	b = append(b, '"')
	if q.params != nil {
		b = append(append(b, `,"params":`...), q.params...)
	}
	return append(b, '}')
}

// take keeps a client's answer. The stateless wire has no form for an error: an elicitation that failed counts as
// cancelled, and without an answer to another question there is none to the call.
func (q *asked) take(result []byte) (ok bool) {
	if q.result = result; !rawjson.IsObject(result) {
		q.result = []byte(`{"action":"cancel"}`)
		return q.method == mcp.MethodElicit
	}
	return true
}

// responses are the answers as inputResponses.
func (r *round) responses() []byte {
	b := []byte{'{'}
	for i, q := range r.questions {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, q.key...), ':'), q.result...)
	}
	return append(b, '}')
}
