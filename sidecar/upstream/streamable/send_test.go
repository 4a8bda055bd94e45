package streamable

import (
	"bufio"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// narrow makes the buffers of a connection as small as the system lets them be.
func narrow(t *testing.T, c net.Conn) {
	t.Helper()
	tcp := c.(*net.TCPConn)
	if err := errors.Join(tcp.SetReadBuffer(1), tcp.SetWriteBuffer(1)); err != nil {
		t.Fatal(err)
	}
}

// longCall is a call of which no narrow socket takes all at once, but which goes out in one piece.
func longCall(t *testing.T) *upstream.Call {
	return stateless(t, "1", "echo", `{"text":"`+strings.Repeat("a", copiedBody-1<<10)+`"}`)
}

func TestARequestBeyondTheSocketsBufferGoesOutWhole(t *testing.T) {
	p := newPeer(t, always(jsonAnswer(result)))
	s := newServer(t, p.url)
	if err := failureOf(s.Call(testContext(t), stateless(t, "1", "echo", "{}"))); err != nil {
		t.Fatal(err)
	}
	narrow(t, s.client.pool.idle[0].net)
	long := longCall(t)
	for range 3 {
		if err := failureOf(s.Call(testContext(t), long)); err != nil {
			t.Fatal(err)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if got := p.bodies[len(p.bodies)-1]; got != string(long.Message.Raw) || p.conns.Load() != 1 {
		t.Errorf("the server read %d bytes on %d connections, want the %d of the request on one",
			len(got), p.conns.Load(), len(long.Message.Raw))
	}
}

func TestARequestThatWentOutInPartIsNotSentAgain(t *testing.T) {
	answered := make(chan net.Conn, 10)
	p := newPeer(t, func(p *peer, c net.Conn, r *bufio.Reader) {
		narrow(t, c)
		onceEach(jsonAnswer(result))(p, c, r)
		answered <- c
		if _, err := r.ReadByte(); err != nil { // of the request after that, which breaks off
			return
		}
		_ = c.(*net.TCPConn).SetLinger(0)
	})
	s := newServer(t, p.url)
	if err := failureOf(s.Call(testContext(t), stateless(t, "1", "echo", "{}"))); err != nil {
		t.Fatal(err)
	}
	<-answered
	narrow(t, s.client.pool.idle[0].net)
	wantKind(t, failureOf(s.Call(testContext(t), longCall(t))), upstream.Lost)
	if n := p.conns.Load(); n != 1 {
		t.Errorf("%d connections, want 1: the request was sent again", n)
	}
}
