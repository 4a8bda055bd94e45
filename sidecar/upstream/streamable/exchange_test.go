package streamable

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http/httputil"
	"testing"
	"testing/iotest"
	"time"
)

// wire is a connection whose server sends fixed bytes and then closes.
type wire struct{ io.Reader }

func (wire) Write(p []byte) (int, error)      { return len(p), nil }
func (wire) Close() error                     { return nil }
func (wire) LocalAddr() net.Addr              { return nil }
func (wire) RemoteAddr() net.Addr             { return nil }
func (wire) SetDeadline(time.Time) error      { return nil }
func (wire) SetReadDeadline(time.Time) error  { return nil }
func (wire) SetWriteDeadline(time.Time) error { return nil }

// bodyOf reads a body of chunks that arrives as r gives it.
func bodyOf(r io.Reader) ([]byte, error) {
	cl := &client{tasks: newTasks()}
	x := cl.begin(context.Background(), newConn(&cl.pool, wire{r}, nil, false), &request{}, time.Now())
	x.head = head{status: 200, length: -1, chunked: true}
	x.left = -1
	return io.ReadAll(x)
}

// FuzzChunks holds that a body of chunks which is accepted here is the same to net/http, however it arrives.
func FuzzChunks(f *testing.F) {
	f.Add([]byte("3\r\nabc\r\n0\r\n\r\n"))
	f.Add([]byte("A;x=y\r\n0123456789\r\n2 \t\r\nab\r\n000\r\nTrailer: x\r\n\r\n"))
	f.Add([]byte("1\r\nab\r\n0\r\n\r\n"))
	f.Add([]byte("1\nab\n0\n\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		got, err := bodyOf(bytes.NewReader(in))
		drip, dripErr := bodyOf(iotest.OneByteReader(bytes.NewReader(in)))
		if (err == nil) != (dripErr == nil) || err == nil && !bytes.Equal(got, drip) {
			t.Errorf("%q: %q, %v at once; %q, %v byte by byte", in, got, err, drip, dripErr)
		}
		if err != nil {
			return
		}
		want, err := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(in)))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%q: accepted as %q; net/http has %q, %v", in, got, want, err)
		}
	})
}

func TestAConnectionIsGivenBackOnlyAfterItsWholeBody(t *testing.T) {
	tests := map[string]bool{ // whether it is kept
		"3\r\nabc\r\n0\r\n\r\n":                  true,
		"3\r\nabc\r\n0\r\n\r\nHTTP/1.1 200 OK":   false, // an answer that nobody asked for
		"3\r\nabc\r\n0\r\n":                      false,
		"3\r\nabc\r\n0\r\nTrailer: x\ry\r\n\r\n": true,
	}
	for in, want := range tests {
		cl := &client{tasks: newTasks()}
		cl.pool.maxIdle = 1
		c := newConn(&cl.pool, wire{bytes.NewReader([]byte(in))}, nil, false)
		x := cl.begin(context.Background(), c, &request{}, time.Now())
		x.head, x.left = head{status: 200, length: -1, chunked: true, keep: true}, -1
		_, err := io.Copy(io.Discard, x)
		if kept := len(cl.pool.idle) == 1; kept != want {
			t.Errorf("%q: kept %v (%v), want %v", in, kept, err, want)
		}
		cl.pool.close()
	}
}

func TestARequestIsWrittenAgainOnlyIfNothingOfItWentOut(t *testing.T) {
	for _, tt := range []struct {
		took int // bytes of the request that the idle connection takes before it breaks
		want bool
	}{{0, true}, {1, false}} {
		p := newPeer(t, always(jsonAnswer(result)))
		s := newServer(t, p.url)
		if err := failureOf(s.Call(testContext(t), stateless(t, "1", "echo", "{}"))); err != nil {
			t.Fatal(err)
		}
		c := s.client.pool.idle[0]
		c.net, c.bare = breaking{c.net, tt.took}, false
		err := failureOf(s.Call(testContext(t), stateless(t, "1", "echo", "{}")))
		if again := err == nil; again != tt.want {
			t.Errorf("broken after %d bytes: %v; want another attempt: %v", tt.took, err, tt.want)
		}
	}
}

// breaking is a connection that breaks while it is written to.
type breaking struct {
	net.Conn
	took int
}

func (b breaking) Write([]byte) (int, error) { return b.took, errors.New("broken") }
