package http1

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"
)

// bounded is a listener whose connections note every write that has no deadline, or one too far away.
type bounded struct {
	net.Listener
	most time.Duration

	mu     sync.Mutex // guards below
	writes int
	faults []string
}

func (l *bounded) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &boundedConn{Conn: nc, l: l}, nil
}

// boundedConn hides that TCP can write several pieces at once, which would go past Write.
type boundedConn struct {
	net.Conn
	l  *bounded
	at time.Time // guarded by l.mu
}

func (c *boundedConn) SyscallConn() (syscall.RawConn, error) {
	return c.Conn.(*net.TCPConn).SyscallConn()
}

func (c *boundedConn) SetWriteDeadline(t time.Time) error {
	c.l.mu.Lock()
	c.at = t
	c.l.mu.Unlock()
	return c.Conn.SetWriteDeadline(t)
}

func (c *boundedConn) SetDeadline(t time.Time) error {
	_ = c.SetWriteDeadline(t) // the next line fails too, then
	return c.Conn.SetDeadline(t)
}

func (c *boundedConn) Write(p []byte) (int, error) {
	c.l.mu.Lock()
	c.l.writes++
	if left := time.Until(c.at); left <= 0 || left > c.l.most {
		c.l.faults = append(c.l.faults, fmt.Sprintf("%d bytes with %v left", len(p), left))
	}
	c.l.mu.Unlock()
	return c.Conn.Write(p)
}

// TestEveryWriteHasADeadline: a client that does not read holds a call for a stated time, also when the handler asks for
// none, and a handler's own deadline ends with its request.
func TestEveryWriteHasADeadline(t *testing.T) {
	l := &bounded{Listener: listen(t), most: writeTimeout + writeTimeout/4 + time.Second}
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/own" {
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Second))
		}
		for range 3 {
			pieces(w, 2, 3000)
			flush(w)
		}
	})
	run(t, l, New(h, standard(h), Options{Log: quiet()}))
	nc := dial(t, l.Addr().String())
	r := bufio.NewReader(nc)
	for _, path := range []string{"/a", "/own", "/b"} {
		send(t, nc, "POST "+path+" HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, res.Body); n != 18_000 || err != nil {
			t.Fatalf("%s: %d bytes, %v", path, n, err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.faults) > 0 || l.writes < 9 {
		t.Errorf("of %d writes these had no deadline within %v: %q", l.writes, l.most, l.faults)
	}
}

// TestHandedConnectionsKeepTheirLimits: net/http's times hold for a connection that it got from here.
func TestHandedConnectionsKeepTheirLimits(t *testing.T) {
	l := listen(t)
	fallback := standard(http.HandlerFunc(echo))
	fallback.ReadHeaderTimeout, fallback.IdleTimeout = 50*time.Millisecond, 50*time.Millisecond
	run(t, l, New(http.HandlerFunc(echo), fallback, Options{Log: quiet()}))
	const get = "GET /?a HTTP/1.1\r\nHost: a\r\n\r\n"
	for what, sent := range map[string]string{
		"one request": get, "half a head": "OPTIONS / HTTP/1.1\r\nHo", "half a head behind a request": get + "GET / HTTP/1.1\r\nHo",
		"a plain one, then half a head": string(callBytes) + "OPTIONS / HTTP/1.1\r\nHo",
	} {
		nc := dial(t, l.Addr().String())
		send(t, nc, sent)
		closedWithin(t, nc, 3*time.Second, what)
	}
}

func TestAClientThatLeavesAHandedConnectionCancelsItsRequest(t *testing.T) {
	for name, leave := range ways {
		if name == "half+data" {
			continue // net/http takes more bytes for the next request, and looks no further
		}
		for _, streams := range []bool{false, true} {
			h := newWaits(streams)
			_, addr := start(t, h, Options{})
			nc := dial(t, addr)
			send(t, nc, "GET /mcp?a HTTP/1.1\r\nHost: a\r\n\r\n")
			within(t, patience, 1, h.runs, "the handler runs")
			leave(nc)
			within(t, time.Second, 1, h.left, name+" seen")
		}
	}
}
