package streamable

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/background"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
)

// pair is a connection as the pool has it, and the server's side of it.
func pair(t *testing.T) (c *conn, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close(); server.Close() })
	raw, err := nc.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	return newConn(new(pool), nc, raw, true), server
}

func TestAConnectionAwaitsWithoutABuffer(t *testing.T) {
	c, server := pair(t)
	for _, sent := range []string{"one", "two"} {
		time.AfterFunc(10*time.Millisecond, func() { _, _ = io.WriteString(server, sent) })
		c.await()
		if c.in != nil {
			t.Fatalf("a buffer of %d bytes after the wait for %q, want none", len(c.in), sent)
		}
		if err := c.fill(readBuffer); err != nil || string(c.in[c.r:c.w]) != sent {
			t.Fatalf("read %q, %v, want %q", c.in[c.r:c.w], err, sent)
		}
		c.await() // returns at once, and loses nothing
		if got := string(c.in[c.r:c.w]); got != sent {
			t.Fatalf("%q is left after a wait with bytes unread, want %q", got, sent)
		}
		c.r = c.w
	}
}

func TestAwaitEndsWithTheConnection(t *testing.T) {
	for name, row := range map[string]struct {
		end  func(c *conn, server net.Conn)
		want error
	}{
		"the server closes": {func(_ *conn, server net.Conn) { server.Close() }, io.EOF},
		"closed here":       {func(c *conn, _ net.Conn) { c.close() }, net.ErrClosed},
		"its time is over":  {func(c *conn, _ net.Conn) { _ = c.net.SetDeadline(time.Unix(1, 0)) }, os.ErrDeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			c, server := pair(t)
			time.AfterFunc(10*time.Millisecond, func() { row.end(c, server) })
			c.await()
			if err := c.fill(readBuffer); !errors.Is(err, row.want) {
				t.Errorf("then reading gives %v, want %v", err, row.want)
			}
		})
	}
}

// TestEventsComeWholeThroughWaits: wherever the bytes of a stream in chunks are cut, its events are the same.
func TestEventsComeWholeThroughWaits(t *testing.T) {
	const stream = "1d\r\n: hello\nid: 1\ndata: {\"a\":1}\n\n\r\n2;x=y\r\n: \r\n2\r\n\n\n\r\n10\r\ndata: {\"b\":2}\r\n\n\r\n0\r\n\r\n"
	for i := range 2 * (len(stream) - 1) {
		cut, polls := 1+i/2, i%2 == 1
		c, server := pair(t)
		cl := &client{tasks: background.New()}
		x := cl.begin(context.Background(), c, &request{timeout: 10 * time.Second}, time.Now())
		x.head = head{status: 200, length: -1, chunked: true}
		x.left = -1
		_, _ = io.WriteString(server, stream[:cut])
		r := mcp.NewEventReader(x, maxEvent)
		r.Rest(x.await, x.buffered)
		r.Poll(polls)
		later := time.AfterFunc(time.Millisecond, func() { _, _ = io.WriteString(server, stream[cut:]) })
		defer later.Stop()
		var got []string
		var err error
		for {
			var e mcp.Event
			if e, err = r.Next(); err == mcp.ErrIdle {
				r.Await()
				continue
			} else if err != nil {
				break
			}
			got = append(got, string(e.Data))
		}
		if s := strings.Join(got, " "); s != `{"a":1} {"b":2}` || err != io.EOF {
			t.Errorf("cut at %d, polls %v: got %q, %v", cut, polls, s, err)
		}
	}
}
