package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync/atomic"
)

// The null upstream is an MCP server that does nothing, as cheaply as it can, so that it is never what limits a run.
// It speaks one era. Calls of the tool "json" are answered with a JSON body, those of "sse" with an event stream.
type nullServer struct {
	era           string
	before, after string // of an answer, around its id
	sessions      atomic.Int64
}

// serveNull serves one era on a free port, which it prints as "listening ADDRESS".
func serveNull(era string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("listening", l.Addr())
	s := newNullServer(era)
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go s.serve(c)
	}
}

func newNullServer(era string) *nullServer {
	s := &nullServer{era: era}
	s.before, s.after = answerParts(era)
	return s
}

// serve answers one connection's requests until it ends or sends what is not HTTP.
func (s *nullServer) serve(c net.Conn) {
	defer c.Close()
	r := bufio.NewReaderSize(c, 16<<10)
	var body, out []byte
	for {
		h, err := readHead(r)
		if err != nil {
			return
		}
		if cap(body) < h.length {
			body = make([]byte, h.length)
		}
		body = body[:h.length]
		if _, err := io.ReadFull(r, body); err != nil {
			return
		}
		out = s.answer(out[:0], h, body)
		if _, err := c.Write(out); err != nil {
			return
		}
	}
}

// answer appends the whole answer to one request.
func (s *nullServer) answer(out []byte, h head, body []byte) []byte {
	id := idOf(body)
	switch {
	case string(h.start[:5]) != "POST ":
		return appendAnswer(out, "405 Method Not Allowed", "Allow: POST\r\n", nil)
	case bytes.Contains(body, []byte(`"method":"tools/call"`)):
		if s.era == legacy && len(h.session) == 0 {
			return appendAnswer(out, "400 Bad Request", "", nil)
		}
		return s.appendCall(out, id, bytes.Contains(body, []byte(`"name":"sse"`)))
	case id == nil:
		return appendAnswer(out, "202 Accepted", "", nil)
	case bytes.Contains(body, []byte(`"method":"initialize"`)) && s.era == legacy:
		session := fmt.Sprintf("Mcp-Session-Id: null-%d\r\n", s.sessions.Add(1))
		return appendAnswer(out, "200 OK", session, result(id, `"protocolVersion":"2025-11-25",`+
			`"capabilities":{"tools":{}},"serverInfo":{"name":"null","version":"1"}`))
	case bytes.Contains(body, []byte(`"method":"server/discover"`)) && s.era == stateless:
		return appendAnswer(out, "200 OK", "", result(id, `"resultType":"complete","supportedVersions":["2026-07-28"],`+
			`"capabilities":{"tools":{}},"ttlMs":60000,"cacheScope":"public"`))
	case bytes.Contains(body, []byte(`"method":"tools/list"`)):
		return appendAnswer(out, "200 OK", "", result(id, `"resultType":"complete","tools":[`+
			`{"name":"json","inputSchema":{"type":"object"}},{"name":"sse","inputSchema":{"type":"object"}}],`+
			`"ttlMs":60000,"cacheScope":"public"`))
	case bytes.Contains(body, []byte(`"method":"ping"`)) && s.era == legacy:
		return appendAnswer(out, "200 OK", "", result(id, ""))
	}
	return appendAnswer(out, s.unknownStatus(), "", fmt.Appendf(nil,
		`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"method not found"}}`, id))
}

// unknownStatus is the HTTP status of an unknown method.
func (s *nullServer) unknownStatus() string {
	if s.era == stateless {
		return "404 Not Found" // MCP 2026-07-28, basic, Error Codes
	}
	return "400 Bad Request"
}

func result(id []byte, fields string) []byte {
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{%s}}`, id, fields)
}

// appendCall appends a tool's answer with the id as it came.
func (s *nullServer) appendCall(out, id []byte, stream bool) []byte {
	n := len(s.before) + len(id) + len(s.after)
	if stream {
		const open, end = "event: message\ndata: ", "\n\n"
		out = append(out, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"+
			"Transfer-Encoding: chunked\r\n\r\n"...)
		out = strconv.AppendInt(out, int64(len(open)+n+len(end)), 16)
		out = append(out, "\r\n"+open...)
		out = append(append(append(out, s.before...), id...), s.after...)
		return append(out, end+"\r\n0\r\n\r\n"...)
	}
	out = append(out, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "...)
	out = append(strconv.AppendInt(out, int64(n), 10), "\r\n\r\n"...)
	return append(append(append(out, s.before...), id...), s.after...)
}

// appendAnswer appends an answer with a JSON body, or none. extra is whole header lines.
func appendAnswer(out []byte, status, extra string, body []byte) []byte {
	out = fmt.Appendf(out, "HTTP/1.1 %s\r\n%sContent-Length: %d\r\n", status, extra, len(body))
	if body != nil {
		out = append(out, "Content-Type: application/json\r\n"...)
	}
	return append(append(out, "\r\n"...), body...)
}

// idOf is the first id in a body as it is written, or nil. It suits what the load and the proxies send: an id that is
// a number or a plain string, before any argument.
func idOf(body []byte) []byte {
	_, after, ok := bytes.Cut(body, []byte(idKey))
	if !ok {
		return nil
	}
	end := bytes.IndexAny(after, ",}")
	if end < 0 {
		return nil
	}
	return bytes.TrimSpace(after[:end])
}

// head is what a run needs of a request's or an answer's head.
type head struct {
	start   [12]byte // how it begins: "HTTP/1.1 200", or the method and some of the path
	length  int      // of the body; 0 without one
	chunked bool
	session []byte // Mcp-Session-Id
}

var errHead = errors.New("not an HTTP/1.1 head")

// readHead reads up to and including the empty line. Obsolete folding and lines over the buffer's size are errors.
func readHead(r *bufio.Reader) (head, error) {
	var h head
	raw, err := peekHead(r)
	if err != nil {
		return h, err
	}
	defer r.Discard(len(raw))
	copy(h.start[:], raw)
	_, raw, _ = bytes.Cut(raw, []byte("\r\n"))
	for len(raw) > 2 {
		var line []byte
		line, raw, _ = bytes.Cut(raw, []byte("\r\n"))
		name, value, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			return h, errHead
		}
		value = bytes.TrimSpace(value)
		switch {
		case equalFold(name, "content-length"):
			if h.length, err = strconv.Atoi(string(value)); err != nil || h.length < 0 || h.length > 16<<20 {
				return h, errHead
			}
		case equalFold(name, "transfer-encoding"):
			h.chunked = bytes.EqualFold(value, []byte("chunked"))
		case equalFold(name, "mcp-session-id"):
			h.session = bytes.Clone(value)
		}
	}
	return h, nil
}

// equalFold is bytes.EqualFold for a name in lower case, quick to say no.
func equalFold(name []byte, lower string) bool {
	return len(name) == len(lower) && name[0]|0x20 == lower[0] && bytes.EqualFold(name, []byte(lower))
}

// peekHead waits until a whole head is buffered and returns it.
func peekHead(r *bufio.Reader) ([]byte, error) {
	n := 1
	for {
		if _, err := r.Peek(n); err != nil {
			return nil, err
		}
		buffered, err := r.Peek(r.Buffered())
		if err != nil {
			return nil, err
		}
		if i := bytes.Index(buffered, []byte("\r\n\r\n")); i >= 0 {
			return buffered[:i+4], nil
		}
		if n = len(buffered) + 1; n > r.Size() {
			return nil, errHead
		}
	}
}
