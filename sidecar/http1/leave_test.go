package http1

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// ways are how a client goes away.
var ways = map[string]func(*net.TCPConn){
	"close":     func(nc *net.TCPConn) { nc.Close() },
	"reset":     func(nc *net.TCPConn) { _ = nc.SetLinger(0); nc.Close() },
	"half":      func(nc *net.TCPConn) { _ = nc.CloseWrite() },
	"half+data": func(nc *net.TCPConn) { _, _ = nc.Write([]byte("POST")); _ = nc.CloseWrite() },
}

// waits is a handler that tells when it runs and when its client left. It answers first if it streams.
type waits struct {
	streams    bool
	runs, left chan struct{}
}

func newWaits(streams bool) *waits {
	return &waits{streams, make(chan struct{}, 1000), make(chan struct{}, 1000)}
}

func (h *waits) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	if h.streams {
		_, _ = io.WriteString(w, "data: 1\n\n")
		_ = http.NewResponseController(w).Flush()
	}
	h.runs <- struct{}{}
	ended := make(chan struct{})
	context.AfterFunc(r.Context(), func() { close(ended) })
	select {
	case <-ended:
		<-r.Context().Done()
		h.left <- struct{}{}
	case <-time.After(patience):
	}
}

// within fails the test unless c gives n times before the time is over.
func within(t *testing.T, limit time.Duration, n int, c <-chan struct{}, what string) {
	t.Helper()
	late := time.After(limit)
	for i := range n {
		select {
		case <-c:
		case <-late:
			t.Fatalf("%s: %d of %d within %v", what, i, n, limit)
		}
	}
}

func dial(t testing.TB, addr string) *net.TCPConn {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(2 * patience))
	return nc.(*net.TCPConn)
}

func send(t testing.TB, w io.Writer, s string) {
	t.Helper()
	if _, err := io.WriteString(w, s); err != nil {
		t.Fatal(err)
	}
}

func TestAClientThatLeavesCancelsItsRequest(t *testing.T) {
	for name, leave := range ways {
		for _, request := range []string{string(callBytes), getHead} {
			for _, streams := range []bool{false, true} {
				h := newWaits(streams)
				_, addr := start(t, h, Options{})
				nc := dial(t, addr)
				send(t, nc, request)
				within(t, patience, 1, h.runs, "the handler runs")
				leave(nc)
				within(t, time.Second, 1, h.left, name+" seen")
			}
		}
	}
}

func TestAClientThatLeftBeforeItsHandlerRunsCancelsIt(t *testing.T) {
	h := newWaits(false)
	_, addr := start(t, h, Options{})
	nc := dial(t, addr)
	send(t, nc, string(callBytes))
	nc.Close()
	within(t, time.Second, 1, h.left, "seen")
}

func TestThreeHundredClientsLeaveAtOnce(t *testing.T) {
	h := newWaits(true)
	_, addr := start(t, h, Options{})
	var clients []*net.TCPConn
	for range 300 {
		nc := dial(t, addr)
		send(t, nc, string(callBytes))
		clients = append(clients, nc)
	}
	within(t, patience, 300, h.runs, "the handlers run")
	for _, nc := range clients {
		nc.Close()
	}
	within(t, time.Second, 300, h.left, "seen")
}

// TestARequestEndsWithItsHandlerAlone: what was held of one request is cancelled with it, and the next is not.
func TestARequestEndsWithItsHandlerAlone(t *testing.T) {
	var (
		mu    sync.Mutex
		held  []context.Context
		ended = make(chan struct{}, 1000)
	)
	_, addr := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		for i, ctx := range held {
			if ctx.Err() == nil {
				t.Errorf("request %d is still alive in request %d", i, len(held))
			}
		}
		if r.Context().Err() != nil {
			t.Errorf("request %d begins cancelled", len(held))
		}
		ctx, cancel := context.WithTimeout(r.Context(), time.Hour)
		_ = cancel // the request's end is to do it
		context.AfterFunc(ctx, func() { ended <- struct{}{} })
		stop := context.AfterFunc(r.Context(), func() { t.Error("a function that was stopped ran") })
		if !stop() || stop() {
			t.Error("stop: want true, then false")
		}
		held = append(held, r.Context())
	}), Options{})
	nc := dial(t, addr)
	for range 50 {
		send(t, nc, string(callBytes))
	}
	within(t, patience, 50, ended, "contexts end")
}
