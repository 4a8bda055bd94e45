package http1

import (
	"bytes"
	"net/http"
)

// refusal takes the place of what strict refuses. Wherever in a head it comes, net/http answers it with an error.
const refusal = "\x00\r\n\r\n"

// strict looks at the bytes that go to net/http for what servers read differently, and net/http forgives: lines that end
// without CR, folded lines, more than one Content-Length, Transfer-Encoding beside one or on HTTP/1.0 (RFC 9112, sections
// 2.2, 5.2, 6.1 and 6.3). A proxy in front of the sidecar may have read another request there.
//
// It follows the connection from head to head. A body in chunks has no length to follow, so nothing behind one is looked
// at: the server that has the connection must end it with that request's answer, as proxy.NewServer does. Nor is HTTP/2.
type strict struct {
	line    []byte // of a head, so far
	size    int    // of the head, so far
	inLines bool   // behind the request line
	old     bool   // the request is one of HTTP/1.0
	length  int64  // of the request's body
	lengths int
	codings int

	left    int64 // bytes of a body that are still to come
	passing bool  // the rest is not looked at
}

// pass returns how many bytes of b may go on. Of what is behind them nothing may, if there is any.
func (g *strict) pass(b []byte) (n int) {
	for n < len(b) && !g.passing {
		if g.left > 0 {
			body := min(g.left, int64(len(b)-n))
			g.left -= body
			n += int(body)
		} else if g.take(b[n]) {
			n++
		} else {
			return n
		}
	}
	return len(b)
}

// take takes a head's next byte, and reports whether it may go on.
func (g *strict) take(c byte) bool {
	if g.size++; g.size > 2*http.DefaultMaxHeaderBytes {
		g.passing = true // no server of ours takes such a head
		return true
	}
	if c != '\n' {
		folded := g.inLines && len(g.line) == 0 && (c == ' ' || c == '\t')
		g.line = append(g.line, c)
		return !folded
	}
	line, ok := bytes.CutSuffix(g.line, []byte("\r"))
	g.line = g.line[:0]
	switch {
	case !ok:
		return false
	case !g.inLines:
		g.inLines = len(line) > 0 // an empty line before a request is net/http's to judge
		g.old = bytes.HasSuffix(line, []byte(" HTTP/1.0"))
		g.passing = string(line) == "PRI * HTTP/2.0"
		return true
	case len(line) == 0:
		*g = strict{left: g.length, passing: g.codings > 0}
		return true
	}
	return g.field(line)
}

// field looks at a header line. A Content-Length that is no plain number is refused too, since the body's end would be unknown.
func (g *strict) field(line []byte) (ok bool) {
	name, value, _ := bytes.Cut(line, []byte(":"))
	switch {
	case fold(name, "content-length"):
		g.lengths++
		g.length, ok = parseLength(trim(value))
		return ok && g.lengths == 1 && g.codings == 0
	case fold(name, "transfer-encoding"):
		g.codings++
		return g.codings == 1 && g.lengths == 0 && !g.old
	}
	return true
}
