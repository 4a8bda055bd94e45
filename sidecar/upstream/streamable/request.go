package streamable

import (
	"cmp"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/credential"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
)

const (
	copiedBody = 64 << 10  // bytes; a body up to here goes out in the head's buffer, a longer one beside it
	keptBuffer = 128 << 10 // bytes; a larger write buffer is not kept
)

// request is one HTTP request. What is the same for all of a server's requests is in client.
type request struct {
	method      string      // POST, GET or DELETE
	body        []byte      // for POST
	relay       http.Header // the client's, of which some travel on; may be nil
	traceOnly   bool        // of relay, only the trace context does: the other headers are of the other wire
	version     string      // MCP-Protocol-Version; empty for none
	session     string      // Mcp-Session-Id; empty for none
	lastEventID string      // empty for none
	mcpMethod   string      // Mcp-Method; empty for none
	mcpName     string      // Mcp-Name, encoded where it must be; empty for none

	caller     *identity.Principal // whose it is
	credential string              // what it presents, beside the fixed head; empty for nothing

	timeout   time.Duration // of the whole exchange
	id        []byte        // the request's token in body; nil when there is no response to it
	canceller canceller     // told at the end of the context; nil closes the connection
}

// fixedHead is what all requests of one method begin with.
func fixedHead(method string, to *url.URL, o Options) string {
	var b strings.Builder
	b.WriteString(method + " " + to.RequestURI() + " HTTP/1.1\r\nHost: " + to.Host + "\r\nUser-Agent: " + o.UserAgent + "\r\n")
	switch method {
	case http.MethodPost:
		b.WriteString("Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n")
	case http.MethodGet:
		b.WriteString("Accept: text/event-stream\r\n")
	}
	b.WriteString("Accept-Encoding: identity\r\n")
	if o.Via != "" {
		b.WriteString("Via: 1.1 " + o.Via + "\r\n")
	}
	if value, ok := o.Credential.Fixed(); ok {
		b.WriteString(o.Credential.Header() + ": " + value + "\r\n")
	}
	return b.String()
}

// appendHead writes the request's head. It fails on a value that could not stand in a header.
func (r *request) appendHead(b []byte, fixed string, presented *credential.Source) ([]byte, error) {
	b = append(b, fixed...)
	var err error
	if r.credential != "" {
		if b, err = appendValue(b, presented.Header(), r.credential); err != nil {
			return b, err
		}
	}
	for name, values := range r.relay {
		if !isTrace(name) && (r.traceOnly || !isParam(name)) {
			continue
		}
		for _, v := range values {
			if b, err = appendField(b, name, v); err != nil {
				return b, err
			}
		}
	}
	for _, own := range [...]struct{ name, value string }{
		{mcp.HeaderVersion, r.version}, {mcp.HeaderSessionID, r.session}, {mcp.HeaderLastEventID, r.lastEventID},
		{mcp.HeaderMethod, r.mcpMethod}, {mcp.HeaderName, r.mcpName},
	} {
		if own.value == "" {
			continue
		}
		if b, err = appendValue(b, own.name, own.value); err != nil {
			return b, err
		}
	}
	if r.method == http.MethodPost {
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, int64(len(r.body)), 10)
		b = append(b, "\r\n"...)
	}
	return append(b, "\r\n"...), nil
}

// mirror sets the headers that repeat a stateless request's body. They are written anew, in the plain form wherever
// that can be, since not every server decodes the other. A client's own value is used where it is the same: it is there
// already.
func (r *request) mirror(m *mcp.Message, client http.Header) {
	r.mcpMethod = m.Method
	if r.version = mcp.Version20260728; string(m.MetaVersion) != r.version {
		r.version = cmp.Or(string(m.MetaVersion), first(client, mcp.HeaderVersion))
	}
	if m.Name == nil {
		return
	}
	if r.mcpName = first(client, mcp.HeaderName); r.mcpName != string(m.Name) || !mcp.Mirrors(r.mcpName, m.Name) {
		r.mcpName = mcp.EncodeHeaderValue(string(m.Name))
	}
}

// first is http.Header's Get for a name in canonical form, at less cost.
func first(h http.Header, name string) string {
	if values := h[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}

// isParam reports whether a client's header repeats an argument for the server. Beside these only what says where a call
// came from travels on, so neither a credential nor another session's id can.
func isParam(name string) bool { return strings.HasPrefix(name, mcp.HeaderParamPrefix) }

// isTrace reports whether a header is trace context, or the way that the call took.
func isTrace(name string) bool {
	return name == "Traceparent" || name == "Tracestate" || name == "Baggage" || name == "Via"
}

func appendField(b []byte, name, value string) ([]byte, error) {
	if !isToken(name) {
		return b, malformed("a header's name is not a token")
	}
	return appendValue(b, name, value)
}

// appendValue is appendField for a name that is known to be good.
func appendValue(b []byte, name, value string) ([]byte, error) {
	for i := range len(value) {
		if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
			return b, malformed("a control character in a header")
		}
	}
	b = append(b, name...)
	b = append(b, ": "...)
	b = append(b, value...)
	return append(b, "\r\n"...), nil
}

// writeBuffers are owned by client.send until the request is written, and hold no more than keptBuffer bytes when put
// back.
var writeBuffers = sync.Pool{New: func() any { return new([]byte) }}

func keepWriteBuffer(b *[]byte) {
	if cap(*b) <= keptBuffer {
		writeBuffers.Put(b)
	}
}

// encode writes the request into buf: all of it, or its head only when the body is too long to be copied.
func (r *request) encode(buf *[]byte, fixed string, presented *credential.Source) error {
	b, err := r.appendHead((*buf)[:0], fixed, presented)
	if len(r.body) <= copiedBody {
		b = append(b, r.body...)
	}
	*buf = b
	return err
}
