package drive

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/outrigger-mesh/outrigger/bench/null/server"
	"github.com/outrigger-mesh/outrigger/bench/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startNull serves the null server of both eras until the test ends, and returns it with its endpoint.
func startNull(tb testing.TB) (*server.Server, string) {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	s, stop := serveNull(tb, l)
	tb.Cleanup(stop)
	return s, "http://" + l.Addr().String() + "/mcp"
}

// serveNull serves a null server at l until stop is called.
func serveNull(tb testing.TB, l net.Listener) (s *server.Server, stop func()) {
	tb.Helper()
	s, err := server.New(server.Config{})
	if err != nil {
		tb.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	return s, func() {
		l.Close()
		<-done
		s.Close()
	}
}

// newDriver is New for a configuration that is right.
func newDriver(tb testing.TB, c Config) *Driver {
	tb.Helper()
	d, err := New(c)
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

// run runs c to its end.
func run(tb testing.TB, c Config) record.Load {
	tb.Helper()
	l, err := newDriver(tb, c).Run(tb.Context())
	if err != nil {
		tb.Fatalf("Run(%+v): %v", c, err)
	}
	return l
}

// expect fails the test unless a run found so many right, failed and wrong calls.
func expect(tb testing.TB, l record.Load, calls, failures, wrong int64) {
	tb.Helper()
	if l.Calls != calls || l.Failures != failures || l.Wrong != wrong {
		tb.Errorf("%d calls, %d failures and %d wrong answers, want %d, %d and %d; first: %s",
			l.Calls, l.Failures, l.Wrong, calls, failures, wrong, l.FirstFailure)
	}
}

// startHandler serves HTTP with a handler until the test ends and returns its endpoint.
func startHandler(tb testing.TB, h http.HandlerFunc) string {
	tb.Helper()
	s := httptest.NewServer(h)
	tb.Cleanup(s.Close)
	return s.URL + "/mcp"
}

// behindHandler passes requests on to the server at an endpoint; change may alter the answer's body.
func behindHandler(tb testing.TB, endpoint string, change func([]byte) []byte) string {
	transport := &http.Transport{}
	tb.Cleanup(transport.CloseIdleConnections)
	return startHandler(tb, func(w http.ResponseWriter, r *http.Request) {
		req, err := http.NewRequestWithContext(r.Context(), r.Method, endpoint, r.Body)
		if err != nil {
			panic(err)
		}
		req.Header = r.Header
		res, err := transport.RoundTrip(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Content-Type", res.Header.Get("Content-Type"))
		w.WriteHeader(res.StatusCode)
		w.Write(change(body))
	})
}

// eventually waits until a Driver's counts are as wanted.
func eventually(t *testing.T, d *Driver, what string, is func(record.Load) bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		_, l := d.Progress()
		if is(l) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("no %s within 20 s: %d calls, %d failures, %d wrong", what, l.Calls, l.Failures, l.Wrong)
		}
	}
}

// inBackground runs a Driver's Run or Hold until the function it returns is called.
func inBackground(t *testing.T, f func(context.Context) (record.Load, error)) (stop func() record.Load) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	type outcome struct {
		l   record.Load
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		l, err := f(ctx)
		done <- outcome{l, err}
	}()
	t.Cleanup(cancel)
	return func() record.Load {
		t.Helper()
		cancel()
		select {
		case o := <-done:
			if o.err != nil {
				t.Error(o.err)
			}
			return o.l
		case <-time.After(20 * time.Second):
			t.Fatal("it did not end within 20 s of being told to")
			return record.Load{}
		}
	}
}

// answerOf is a whole answer to the first call with a JSON body.
func answerOf(body string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}
