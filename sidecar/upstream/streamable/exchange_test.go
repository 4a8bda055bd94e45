package streamable

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httputil"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/background"
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
	cl := &client{tasks: background.New()}
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
		cl := &client{tasks: background.New()}
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

// arrived is an exchange of chunks of which in was read from the network, and nothing more comes. reads counts who asks
// the network all the same.
func arrived(in []byte, inChunks bool) (x *exchange, reads *int) {
	reads = new(int)
	cl := &client{tasks: background.New()}
	c := newConn(&cl.pool, wire{readerFunc(func([]byte) (int, error) { *reads++; return 0, io.EOF })}, nil, false)
	c.in = make([]byte, max(readBuffer, len(in)))
	c.w = copy(c.in, in)
	x = cl.begin(context.Background(), c, &request{}, time.Now())
	x.head = head{status: 200, length: -1, chunked: true}
	x.left, x.inChunks = -1, inChunks
	if inChunks {
		x.left = 0
	}
	return x, reads
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestAChunkThatCameIsBufferedHoweverItsSizeIsWritten(t *testing.T) {
	tests := map[string]bool{
		"5\r\nhello":           true,
		"5\r\nh":               true,
		"00000005\r\nhello":    true,
		"0a\r\nh":              true,
		"5;name=value\r\nh":    true,
		"5 \t\r\nh":            true,
		"0\r\n\r\n":            true, // the end
		"not a size\r\nhello":  true, // nothing is waited for before it is refused
		"5\r\n":                false,
		"00000005\r\n":         false,
		"5\r":                  false,
		"5":                    false,
		"":                     false,
		"0\r\n":                false,
		"0\r\nTrailer: x\r\n":  false,
		"000;name=value\r\n\r": false,
	}
	for in, want := range tests {
		for before, inChunks := range map[string]bool{"": false, "\r\n": true} {
			x, _ := arrived([]byte(before+in), inChunks)
			if got := x.buffered(); got != want {
				t.Errorf("%q, behind a chunk %v: buffered is %v, want %v", before+in, inChunks, got, want)
			}
		}
	}
}

// FuzzBuffered holds that what is buffered is read without asking the network.
func FuzzBuffered(f *testing.F) {
	for _, in := range []string{"5\r\nhello", "0\r\n\r\n", "00000005\r\nh", "000\r\n\r\n", "x\r\nh", "5\nh", "\n\n\n", "0;\n0"} {
		f.Add([]byte(in), false)
		f.Add([]byte("\r\n"+in), true)
	}
	f.Fuzz(func(t *testing.T, in []byte, inChunks bool) {
		x, reads := arrived(in, inChunks)
		if !x.buffered() {
			return
		}
		n, err := x.Read(make([]byte, 16))
		if *reads > 0 || n == 0 && err == nil {
			t.Errorf("%q, behind a chunk %v: buffered, yet %d reads of the network for %d bytes, %v", in, inChunks, *reads, n, err)
		}
	})
}

// What came together is ready together, so that it goes out in one write, however the server cuts and counts its chunks.
func TestEventsThatCameTogetherAreReadyTogether(t *testing.T) {
	want := []string{progressed, progressed, result}
	whole := data(progressed) + data(progressed) + data(result)
	for name, parts := range map[string][]string{
		"one chunk":              {whole},
		"a chunk for each":       {data(progressed), data(progressed), data(result)},
		"a chunk ends within":    {whole[:40], whole[40:]},
		"an event ends within":   {whole[:len(whole)-1], "\n"},
		"a chunk for every byte": strings.Split(whole, ""),
	} {
		for _, size := range []string{"%x", "%X", "%04x", "%08x", "%x;name=value", "%x \t"} {
			body := ""
			for _, part := range parts {
				body += fmt.Sprintf(size+"\r\n%s\r\n", len(part), part)
			}
			wantReady(t, name+", sizes as "+size, body+"0\r\n\r\n", want)
		}
	}
}

// wantReady reads the messages of a body that has come, to a request with the id 1.
func wantReady(t *testing.T, what, body string, want []string) {
	t.Helper()
	x, reads := arrived([]byte(body), false)
	x.id = []byte("1")
	e := &events{stateless: true}
	e.begin(x)
	for i, message := range want {
		ready := e.Ready()
		event, err := e.Next()
		if !ready || err != nil || string(event.Data) != message {
			t.Errorf("%s: message %d is ready %v, %q, %v; want ready, %q", what, i, ready, event.Data, err, message)
		}
	}
	if *reads > 0 {
		t.Errorf("%s: %d reads of the network for what had come, want none", what, *reads)
	}
}
