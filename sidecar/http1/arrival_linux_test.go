package http1

import (
	"bytes"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/outrigger-mesh/outrigger/sidecar/proxy"
)

// observed is a listener that lets a test see whether the server has taken what was sent.
type observed struct {
	net.Listener
	conns sync.Map     // syscall.RawConn by the client's address
	waits atomic.Int64 // pieces that were seen to be taken before more was sent
}

func (l *observed) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	raw, err := nc.(*net.TCPConn).SyscallConn()
	if err == nil {
		l.conns.Store(nc.RemoteAddr().String(), raw)
	}
	return nc, err
}

// taken waits until the server has read all that a client has sent, or has ended the connection. It reports false when
// that takes long: the server reads no more.
func (l *observed) taken(client string) bool {
	for begun := time.Now(); time.Since(begun) < 50*time.Millisecond; runtime.Gosched() {
		raw, ok := l.conns.Load(client)
		if !ok {
			continue // not accepted yet
		}
		left, closed := 0, false
		if raw.(syscall.RawConn).Control(func(fd uintptr) {
			n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
			left, closed = n, err != nil
		}) != nil || closed || left == 0 {
			return true
		}
	}
	return false
}

// slowly sends pieces, each when the server has taken the one before.
func (l *observed) slowly(pieces ...[]byte) func(*net.TCPConn) {
	return func(nc *net.TCPConn) {
		_ = nc.SetNoDelay(true)
		reads, client := true, nc.LocalAddr().String()
		for i, p := range pieces {
			if i > 0 && reads {
				if reads = l.taken(client); reads {
					l.waits.Add(1)
				}
			}
			if _, err := nc.Write(p); err != nil {
				return // a server may refuse before it has all
			}
		}
		l.conns.Delete(client)
	}
}

// observedStack is sidecarStack, and the listener that sees what it has taken.
func observedStack(tb testing.TB) (target, *observed) {
	rec := newRecorder()
	l := &observed{Listener: listen(tb)}
	run(tb, l, New(rec, proxy.NewServer(rec, nil, quiet()), Options{Log: quiet()}))
	return target{"the sidecar", l.Addr().String(), rec}, l
}

// TestBytesMeanTheSameHoweverTheyArrive cuts examples at every position, and has more of them come byte by byte.
func TestBytesMeanTheSameHoweverTheyArrive(t *testing.T) {
	ours, l := observedStack(t)
	as := func(e *example, how string, pieces ...[]byte) {
		t.Helper()
		if got := ours.feedBy(t, e.raw, l.slowly(pieces...)).lines(); !slices.Equal(got, e.want) {
			t.Errorf("%s, %s:\ngot  %q\nwant %q\nof %.500q", e.name, how, got, e.want, e.raw)
		}
	}
	for i, e := range corpus(t) {
		if len(e.raw) > 400 {
			continue
		}
		if i%4 == 0 {
			as(e, "byte by byte", slices.Collect(slices.Chunk(e.raw, 1))...)
		}
		for cut := 1; cut < len(e.raw) && i%16 == 1; cut++ {
			as(e, "in two pieces", e.raw[:cut], e.raw[cut:])
		}
	}
	if n := l.waits.Load(); n < 5_000 { // of some 15,000; a busy machine has fewer
		t.Errorf("%d pieces came apart from the next, want most of them", n)
	}
}

// FuzzConnection holds the sidecar's servers to net/http on whatever a client sends, in one piece or in two.
func FuzzConnection(f *testing.F) {
	for _, e := range corpus(f) {
		if len(e.raw) < 1<<10 {
			f.Add(e.raw, uint16(len(e.raw)/2))
		}
	}
	ours, l := observedStack(f)
	alone := standardStack(f)
	f.Fuzz(func(t *testing.T, raw []byte, cut uint16) {
		if bytes.HasPrefix(raw, []byte("PRI ")) {
			t.Skip("HTTP/2 has no order of requests, and both have the same server for it")
		}
		at := min(int(cut), len(raw))
		got, want := ours.feedBy(t, raw, l.slowly(raw[:at], raw[at:])), alone.feed(t, raw)
		if d := disagreement(got, want); d != "" {
			t.Errorf("%s\n%s: %v\n%s: %v\nof %q", d, ours.name, got, alone.name, want, raw)
		}
	})
}
