package proxy

import (
	"bytes"
	"io"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/mirror"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// maxToolsPage is the longest page of tools/list that is looked into.
const maxToolsPage = 16 << 20

// mirrors is what a server's tools/list said of arguments that clients repeat in headers. A server over HTTP judges those
// itself, by the same bytes; for a process behind stdio the sidecar is the HTTP server, so it has to. It knows the tools
// that were listed through it. Nil for servers over HTTP.
type mirrors struct{ tools mirror.Tools }

// check holds a call's headers to its arguments.
func (m *mirrors) check(x *exchange) error {
	if m == nil {
		return nil
	}
	if e := m.tools.Check("", x.r.Header, &x.msg); e != nil {
		return e
	}
	return nil
}

// learn looks into an answer to tools/list and hands it on unchanged.
func (m *mirrors) learn(x *exchange, a *upstream.Answer) error {
	if m == nil || x.msg.Method != mcp.MethodToolsList || a.Body == nil || a.Length > maxToolsPage {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(a.Body, maxToolsPage+1))
	if err != nil {
		return err
	}
	a.Body = readAhead{io.MultiReader(bytes.NewReader(body), a.Body), a.Body}
	if len(body) > maxToolsPage {
		return nil
	}
	if response, err := mcp.ScanAnswer(body); err == nil {
		m.tools.Learn("", &response)
	}
	return nil // the client will see for itself what is wrong with it
}

// readAhead is a body of which some was read, from its beginning.
type readAhead struct {
	io.Reader
	io.Closer
}
