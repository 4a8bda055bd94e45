package tostateless

import (
	"net/http"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// maxAnswer is the longest response that is translated, in bytes: it is read whole.
const maxAnswer = 16 << 20

// resultAnswer answers a request with a result.
func resultAnswer(m *mcp.Message, result []byte) *upstream.Answer {
	b := append([]byte(`{"jsonrpc":"2.0","id":`), m.ID.Of(m.Raw)...)
	b = append(append(b, `,"result":`...), result...)
	return upstream.Whole(http.StatusOK, append(b, '}'))
}

// refusal answers a request with an error.
func refusal(m *mcp.Message, code int, message string) *upstream.Answer {
	return upstream.Whole(http.StatusOK, mcp.AppendError(nil, m.ID.Of(m.Raw), &mcp.Error{Code: code, Message: message}))
}

// readBody reads a body whole, within maxAnswer, and closes it. The caller gives its capacity back to the budget. Errors are
// *upstream.Error, as far as the body's are.
func (s *Server) readBody(a *upstream.Answer) ([]byte, error) {
	defer a.Close()
	b, err := s.o.Budget.ReadAll(a.Body, a.Length, maxAnswer)
	if err != nil {
		return nil, forLegacy(upstream.Unread(s.o.Upstream, err))
	}
	return b, nil
}

// readResponse reads the answer to a request of our own to its response.
func (s *Server) readResponse(a *upstream.Answer) (mcp.Message, error) {
	m, taken, err := upstream.ReadResponse(s.o.Upstream, a, s.o.Budget, maxAnswer)
	s.o.Budget.Give(taken) // no client makes us keep it
	return m, forLegacy(err)
}
