// Package wire is what the load generator and the null server put on a connection: HTTP/1.1 heads and bodies, event
// streams, and the texts that both sides must agree on byte for byte.
//
// It reads little and reads it cheaply, since its cost is part of every measurement: a head is looked at in place, and
// nothing is allocated for a call once its buffers have grown. It reads what any conforming peer sends; what is not
// HTTP/1.1 is an error and never a panic. Every size has a bound.
//
// Its readers belong to one goroutine each. Not here: when to connect, send or give up (package drive).
package wire

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// Request headers of MCP's Streamable HTTP transport.
const (
	HeaderVersion = "MCP-Protocol-Version" // 2026-07-28, Protocol Version Header
	HeaderMethod  = "Mcp-Method"           // 2026-07-28, Standard Request Headers
	HeaderName    = "Mcp-Name"
	HeaderSession = "Mcp-Session-Id" // 2025-11-25, Session Management
)

// Revisions of the protocol, one for each era.
const (
	VersionStateless = "2026-07-28"
	VersionLegacy    = "2025-11-25"
)

// MaxBody is the largest body that is read, in bytes.
const MaxBody = 64 << 20

// ErrHead is a head that is not HTTP/1.1, or longer than the reader's buffer.
var ErrHead = errors.New("not an HTTP/1.1 head")

// Head is what matters of a request's or an answer's head. The zero value is ready for Read, which reuses its slices.
type Head struct {
	Start   []byte // the first line, without its end
	Status  int    // of an answer; 0 for a request
	Length  int64  // of the body; -1 when no header says it
	Chunked bool
	Close   bool // the connection ends with this message
	Events  bool // the body is an event stream
	Session []byte
	Version []byte
	Name    []byte // Mcp-Name
}

// Read reads up to and including the empty line that ends a head.
func (h *Head) Read(r *bufio.Reader) error {
	raw, err := peekHead(r)
	if err != nil {
		return err
	}
	err = h.parse(raw)
	r.Discard(len(raw)) //nolint:errcheck // they are buffered
	return err
}

func (h *Head) parse(raw []byte) error {
	line, rest, _ := bytes.Cut(raw, crlf)
	*h = Head{Start: append(h.Start[:0], line...), Length: -1,
		Session: h.Session[:0], Version: h.Version[:0], Name: h.Name[:0]}
	if err := h.parseStatus(); err != nil {
		return err
	}
	for len(rest) > len(crlf) {
		line, rest, _ = bytes.Cut(rest, crlf)
		name, value, ok := bytes.Cut(line, colon)
		if !ok || len(name) == 0 {
			return fmt.Errorf("%w: line %q", ErrHead, line)
		}
		if err := h.field(name, bytes.TrimSpace(value)); err != nil {
			return err
		}
	}
	return nil
}

var (
	crlf    = []byte("\r\n")
	colon   = []byte(":")
	headEnd = []byte("\r\n\r\n")
)

// parseStatus reads the status of a status line, and leaves a request line alone (RFC 9112, 3 and 4).
func (h *Head) parseStatus() error {
	code, ok := bytes.CutPrefix(h.Start, []byte("HTTP/1."))
	if !ok {
		return nil
	}
	if len(code) < 5 || code[1] != ' ' {
		return fmt.Errorf("%w: status line %q", ErrHead, h.Start)
	}
	h.Close = code[0] == '0'
	for _, d := range code[2:5] {
		if d < '0' || d > '9' {
			return fmt.Errorf("%w: status line %q", ErrHead, h.Start)
		}
		h.Status = h.Status*10 + int(d-'0')
	}
	return nil
}

// field takes one header line.
func (h *Head) field(name, value []byte) error {
	switch {
	case named(name, "content-length"):
		n, err := strconv.ParseInt(string(value), 10, 64)
		if err != nil || n < 0 || n > MaxBody {
			return fmt.Errorf("%w: Content-Length %q", ErrHead, value)
		}
		h.Length = n
	case named(name, "transfer-encoding"):
		if !bytes.EqualFold(value, []byte("chunked")) {
			return fmt.Errorf("%w: Transfer-Encoding %q", ErrHead, value)
		}
		h.Chunked = true
	case named(name, "connection"):
		h.Close = h.Close || bytes.EqualFold(value, []byte("close"))
	case named(name, "content-type"):
		const events = "text/event-stream"
		h.Events = len(value) >= len(events) && bytes.EqualFold(value[:len(events)], []byte(events))
	case named(name, "mcp-session-id"):
		h.Session = append(h.Session, value...)
	case named(name, "mcp-protocol-version"):
		h.Version = append(h.Version, value...)
	case named(name, "mcp-name"):
		h.Name = append(h.Name, value...)
	}
	return nil
}

// named is bytes.EqualFold for a name in lower case, quick to say no.
func named(name []byte, lower string) bool {
	return len(name) == len(lower) && name[0]|0x20 == lower[0] && bytes.EqualFold(name, []byte(lower))
}

// peekHead waits until a whole head is buffered and returns it, not yet read.
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
		if i := bytes.Index(buffered, headEnd); i >= 0 {
			return buffered[:i+len(headEnd)], nil
		}
		if n = len(buffered) + 1; n > r.Size() {
			return nil, fmt.Errorf("%w: it is over %d bytes", ErrHead, r.Size())
		}
	}
}
