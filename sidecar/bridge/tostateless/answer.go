package tostateless

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/outrigger-mesh/outrigger/sidecar/budget"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// maxAnswer is the longest response that is translated, in bytes: it is read whole.
const maxAnswer = 16 << 20

// bodyAnswer is an answer that is here already. Its status is 200, as of every JSON-RPC answer on the legacy wire.
func bodyAnswer(body []byte) *upstream.Answer {
	return &upstream.Answer{Status: http.StatusOK, Length: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body))}
}

// resultAnswer answers a request with a result.
func resultAnswer(m *mcp.Message, result []byte) *upstream.Answer {
	b := append([]byte(`{"jsonrpc":"2.0","id":`), m.ID.Of(m.Raw)...)
	b = append(append(b, `,"result":`...), result...)
	return bodyAnswer(append(b, '}'))
}

// refusal answers a request with an error.
func refusal(m *mcp.Message, code int, message string) *upstream.Answer {
	return bodyAnswer(mcp.AppendError(nil, m.ID.Of(m.Raw), &mcp.Error{Code: code, Message: message}))
}

func scan(raw []byte) (mcp.Message, error) {
	return mcp.Scan(raw, mcp.Limits{MaxDepth: mcp.AnswerDepth})
}

// errorCode is the code of a response's error; 0 when it has none that can be read.
func errorCode(m *mcp.Message) (code int) {
	if json.Unmarshal(rawjson.Find(m.Raw, m.Error, "code").Of(m.Raw), &code) != nil {
		return 0
	}
	return code
}

// readBody reads a body whole, within maxAnswer, and closes it. The caller gives its capacity back to the budget. Errors are
// *upstream.Error, as far as the body's are.
func (s *Server) readBody(a *upstream.Answer) ([]byte, error) {
	defer a.Close()
	b, err := s.o.Budget.ReadAll(a.Body, a.Length, maxAnswer)
	switch {
	case errors.Is(err, budget.ErrTooLong):
		return nil, s.fault(upstream.Overloaded, "answered with more than the sidecar translates", err)
	case errors.Is(err, budget.ErrSpent):
		return nil, s.spent()
	case err != nil:
		return nil, forLegacy(err)
	}
	return b, nil
}

// spent is the error of an answer that there is no memory for now.
func (s *Server) spent() error {
	return s.fault(upstream.Overloaded, "gave an answer for which the sidecar has no memory now: try again later", budget.ErrSpent)
}

// readResponse reads an answer to a request of our own to its response, whose memory is its own, and closes the answer.
func (s *Server) readResponse(a *upstream.Answer) (mcp.Message, error) {
	if a.Body != nil {
		raw, err := s.readBody(a)
		if err != nil {
			return mcp.Message{}, err
		}
		s.o.Budget.Give(cap(raw)) // no client makes us keep it
		return s.response(raw)
	}
	defer a.Close()
	if a.Events == nil {
		return mcp.Message{}, s.fault(upstream.BadAnswer, "gave a request no answer", nil)
	}
	for {
		ev, err := a.Events.Next()
		switch {
		case err == io.EOF:
			return mcp.Message{}, s.fault(upstream.Lost, "the stream ended before the response", nil)
		case err != nil:
			return mcp.Message{}, forLegacy(err)
		case mcp.PeekOutcome(ev.Data) != mcp.OutcomeUnknown:
			return s.response(bytes.Clone(ev.Data))
		}
	}
}

// response scans what has to be a response.
func (s *Server) response(raw []byte) (mcp.Message, error) {
	m, err := scan(raw)
	if err == nil && m.Kind != mcp.Response {
		err = errors.New("not a response")
	}
	if err != nil {
		return mcp.Message{}, s.fault(upstream.BadAnswer, "answered with something else than a response", err)
	}
	return m, nil
}
