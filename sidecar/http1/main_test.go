package http1

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must come.
const patience = 10 * time.Second

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// standard is net/http's server as the sidecar sets it up.
func standard(h http.Handler) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler: h, Protocols: protocols, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(quiet().Handler(), slog.LevelDebug),
	}
}

// serveFor serves h until the test's end, by "net/http" or by "http1", and returns the address.
func serveFor(tb testing.TB, with string, h http.Handler) string {
	if with == "http1" {
		_, addr := start(tb, h, Options{Log: quiet()})
		return addr
	}
	l := listen(tb)
	s := standard(h)
	run(tb, l, s)
	return l.Addr().String()
}

// start serves h by a Server until the test's end.
func start(tb testing.TB, h http.Handler, o Options) (*Server, string) {
	tb.Helper()
	l := listen(tb)
	if o.Log == nil {
		o.Log = quiet()
	}
	s := New(h, standard(h), o)
	run(tb, l, s)
	return s, l.Addr().String()
}

func listen(tb testing.TB) net.Listener {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

type server interface {
	Serve(net.Listener) error
	Shutdown(context.Context) error
	Close() error
}

func run(tb testing.TB, l net.Listener, s server) {
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	tb.Cleanup(func() {
		_ = s.Close()
		select {
		case err := <-done:
			if !errors.Is(err, http.ErrServerClosed) {
				tb.Errorf("Serve: got %v, want %v", err, http.ErrServerClosed)
			}
		case <-time.After(patience):
			tb.Error("Serve did not return")
		}
	})
}
