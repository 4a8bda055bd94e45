package server

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/outrigger-mesh/outrigger/bench/drive/wire"
)

const (
	readBuffer = 8 << 10
	keepBuffer = 256 << 10 // a larger body's buffer is given up once the next body is much smaller
	copyPad    = 32 << 10  // longer padding is not copied
)

// errLeft is a client that left before its answer.
var errLeft = errors.New("the client left")

// conn is one connection. It belongs to the goroutine that serves it.
type conn struct {
	s    *Server
	nc   net.Conn
	r    *bufio.Reader
	head wire.Head
	in   wire.Body
	body []byte
	out  []byte // the answer, or a part of one, but for its middle when that is long

	middle  [][]byte // what is left out of out, since it need not be copied
	long    int      // its bytes
	at      int      // where it belongs
	parts   net.Buffers
	writing net.Buffers // of parts, what is not yet written
}

// serve answers requests until the connection ends or sends what is not HTTP.
func (c *conn) serve() {
	for {
		if err := c.head.Read(c.r); err != nil {
			return
		}
		c.in.Reset(c.r, &c.head)
		var err error
		if c.body, err = c.in.Append(c.body[:0]); err != nil {
			return
		}
		c.out = c.out[:0]
		if err := c.answer(); err != nil {
			return
		}
		if len(c.out) > 0 && c.flush() != nil || c.head.Close {
			return
		}
		c.trim()
	}
}

// trim gives up a buffer that one large request has grown.
func (c *conn) trim() {
	if cap(c.body) > keepBuffer && len(c.body) < keepBuffer/2 {
		c.body = nil
	}
}

// flush writes what is in out, with the middle where it belongs, in one write.
func (c *conn) flush() (err error) {
	if c.long == 0 {
		_, err = c.nc.Write(c.out)
		c.out = c.out[:0]
		return err
	}
	c.parts = append(append(append(c.parts[:0], c.out[:c.at]), c.middle...), c.out[c.at:])
	c.writing = c.parts
	_, err = c.writing.WriteTo(c.nc)
	c.out, c.middle, c.long = c.out[:0], c.middle[:0], 0
	return err
}

// insert puts long bytes that nobody changes before the last so many of out, without copying them.
func (c *conn) insert(b []byte, before int) {
	c.middle = append(c.middle, b)
	c.at, c.long = len(c.out)-before, c.long+len(b)
}

// answerText appends a whole answer of the null server, all but a long padding.
func (c *conn) answerText(r wire.Result, id []byte, k *knobs) {
	if k.pad <= copyPad {
		c.out = wire.AppendResult(c.out, r, id, k.owner, k.number, k.pad)
		return
	}
	c.out = wire.AppendResult(c.out, r, id, k.owner, k.number, 0)
	for n := k.pad; n > 0; n -= len(wire.Padding) {
		c.insert(wire.Padding[:min(n, len(wire.Padding))], len(r.After))
	}
}

// answer leaves an answer in out. An error ends the connection.
func (c *conn) answer() error {
	switch start := c.head.Start; {
	case bytes.HasPrefix(start, []byte("POST ")):
		return c.post()
	case bytes.HasPrefix(start, []byte("GET /stats ")):
		stats, err := json.Marshal(c.s.Stats())
		c.plain("200 OK", "", stats)
		return err
	case bytes.HasPrefix(start, []byte("GET ")) && c.s.legacy:
		if c.inSession() {
			return c.hold("")
		}
	case bytes.HasPrefix(start, []byte("DELETE ")) && c.s.legacy:
		if c.inSession() {
			c.s.sessions.Delete(string(c.head.Session))
			c.s.counters.sessions.Add(-1)
			c.plain("204 No Content", "", nil)
		}
	default:
		c.plain("405 Method Not Allowed", "Allow: POST\r\n", nil)
	}
	return nil
}

// inSession reports whether the request names an open session, and answers it when it does not (MCP 2025-11-25,
// Session Management).
func (c *conn) inSession() bool {
	if len(c.head.Session) == 0 {
		c.plain("400 Bad Request", "", nil)
		return false
	}
	if _, ok := c.s.sessions.Load(string(c.head.Session)); !ok {
		c.plain("404 Not Found", "", nil)
		return false
	}
	return true
}

// plain appends an answer with a JSON body, or none. extra is whole header lines.
func (c *conn) plain(status, extra string, body []byte) {
	c.out = append(append(append(append(c.out, "HTTP/1.1 "...), status...), "\r\n"...), extra...)
	if body != nil {
		c.out = append(c.out, "Content-Type: application/json\r\n"...)
	}
	if body != nil || status != "204 No Content" {
		c.out = strconv.AppendInt(append(c.out, "Content-Length: "...), int64(len(body)), 10)
		c.out = append(c.out, "\r\n"...)
	}
	c.out = append(append(c.out, "\r\n"...), body...)
}

// wait lets d pass. It returns errLeft as soon as the client has closed the connection; a request that comes meanwhile
// waits its turn.
func (c *conn) wait(d time.Duration) error {
	if d <= 0 {
		return nil
	}
	c.s.counters.delayed.Add(1)
	defer c.s.counters.delayed.Add(-1)
	end := time.Now().Add(d)
	c.nc.SetReadDeadline(end)               //nolint:errcheck // the read tells
	defer c.nc.SetReadDeadline(time.Time{}) //nolint:errcheck // the next read tells
	_, err := c.r.Peek(1)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil
	case err != nil:
		return errLeft
	}
	time.Sleep(time.Until(end))
	return nil
}

// hold opens a stream, writes its first event when there is one, and keeps it until the client leaves. The request's
// buffers are given up first: there may be very many streams.
func (c *conn) hold(event string) error {
	c.out = append(c.out, streamHead...)
	if event == "" {
		c.chunk(": open\n\n")
	} else {
		c.chunk("event: message\ndata: " + event + "\n\n")
	}
	c.s.counters.streams.Add(1)
	defer c.s.counters.streams.Add(-1)
	if err := c.flush(); err != nil {
		return err
	}
	c.body, c.out, c.r = nil, nil, nil
	var b [1]byte
	if _, err := c.nc.Read(b[:]); err != nil {
		return err
	}
	return errors.New("a request on a connection that holds a stream")
}

const streamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n" +
	"X-Accel-Buffering: no\r\nTransfer-Encoding: chunked\r\n\r\n"

// chunk appends a chunk of a stream.
func (c *conn) chunk(data string) {
	c.out = strconv.AppendInt(c.out, int64(len(data)), 16)
	c.out = append(append(append(c.out, "\r\n"...), data...), "\r\n"...)
}
