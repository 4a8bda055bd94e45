package http1

import (
	"bytes"
	"net"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/proxy"
)

// byByte makes a slow listener's connections give one byte at a time.
const byByte = -1

// slow is a listener whose connections give what the client sent in pieces, however the network brought it.
type slow struct {
	net.Listener
	cut   atomic.Int64 // the first read gives at most so many bytes, later ones anything; byByte; 0 for no limit
	short atomic.Int64 // reads that a limit shortened
}

func (l *slow) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &slowConn{TCPConn: nc.(*net.TCPConn), l: l, cut: l.cut.Load()}, nil
}

type slowConn struct {
	*net.TCPConn
	l   *slow
	cut int64 // one goroutine reads at a time
}

func (c *slowConn) Read(p []byte) (int, error) {
	limit := c.cut
	if limit == byByte {
		limit = 1
	} else {
		c.cut = 0
	}
	if limit > 0 && limit < int64(len(p)) {
		p = p[:limit]
		c.l.short.Add(1)
	}
	return c.TCPConn.Read(p)
}

// slowSidecarStack is sidecarStack, and the listener that slows it down.
func slowSidecarStack(tb testing.TB) (target, *slow) {
	rec := newRecorder()
	l := &slow{Listener: listen(tb)}
	run(tb, l, New(rec, proxy.NewServer(rec, nil, quiet()), Options{Log: quiet()}))
	return target{"the sidecar", l.Addr().String(), rec}, l
}

// TestBytesMeanTheSameHoweverTheyArrive cuts examples at every position, and has all others come byte by byte.
func TestBytesMeanTheSameHoweverTheyArrive(t *testing.T) {
	ours, l := slowSidecarStack(t)
	as := func(e *example, cut int64) {
		t.Helper()
		l.cut.Store(cut)
		if got := ours.feed(t, e.raw).lines(); !slices.Equal(got, e.want) {
			t.Errorf("%s, cut at %d:\ngot  %q\nwant %q\nof %.500q", e.name, cut, got, e.want, e.raw)
		}
	}
	for i, e := range corpus(t) {
		if len(e.raw) < 4<<10 {
			as(e, byByte)
		}
		for cut := 1; cut < len(e.raw) && len(e.raw) < 400 && i%12 == 0; cut++ {
			as(e, int64(cut))
		}
	}
	if l.short.Load() < 20_000 {
		t.Errorf("%d reads were cut short, want some for most bytes of the corpus", l.short.Load())
	}
}

// FuzzConnection holds the sidecar's servers to net/http on whatever a client sends, in one piece or in two.
func FuzzConnection(f *testing.F) {
	for _, e := range corpus(f) {
		if len(e.raw) < 1<<10 {
			f.Add(e.raw, uint16(len(e.raw)/2))
		}
	}
	ours, l := slowSidecarStack(f)
	alone := standardStack(f)
	f.Fuzz(func(t *testing.T, raw []byte, cut uint16) {
		if bytes.HasPrefix(raw, []byte("PRI ")) {
			t.Skip("HTTP/2 has no order of requests, and both have the same server for it")
		}
		l.cut.Store(int64(cut))
		got, want := ours.feed(t, raw), alone.feed(t, raw)
		if d := disagreement(got, want); d != "" {
			t.Errorf("%s\n%s: %v\n%s: %v\nof %q", d, ours.name, got, alone.name, want, raw)
		}
	})
}
