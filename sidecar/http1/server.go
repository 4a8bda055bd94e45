// Package http1 carries the sidecar's calls: a strict HTTP/1.1 server for plain requests in front of net/http's.
//
// A connection is ours request by request for as long as each is a POST with a body of a known length, or a GET or DELETE
// without one, whose head holds nothing unusual (plainHead says what that is). At the first request that is anything
// else the connection goes to an http.Server, with all bytes of it that were read, and stays there: HTTP/2, 100-continue,
// chunked bodies and all malformed things are never ours to parse. What plainHead accepts, net/http accepts with the same meaning (FuzzHead,
// TestBothServersAgree). What net/http would forgive though servers read it differently is kept from it (strict).
//
// Handlers see what net/http would show them, with these differences. They must not change the request's header, nor keep
// it or the answer's after they return: the connection uses both again. They must not read the body while they answer. There is no
// Hijack and there are no trailers. BaseContext, ConnContext and ConnState of the http.Server are not called.
//
// A connection has one goroutine, and none while its answer rests: what waits for long does so for little memory. On Linux
// one more for each Server watches for clients that leave, and cancels their requests' contexts; elsewhere there is no such
// watch, and every connection goes to net/http. Not here: TLS.
package http1

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// DefaultMaxConns is Options.MaxConns when that is zero.
const DefaultMaxConns = 20_000

// Options are a Server's settings. Zero values take the defaults.
type Options struct {
	Log          *slog.Logger  // required
	HeadTimeout  time.Duration // from a head's first byte to its last; default 10 s
	IdleTimeout  time.Duration // a connection without a request, and one read of a body; default 2 min
	MaxHeadBytes int           // a longer head is net/http's to refuse; default 64 KiB
	MaxConns     int           // open at a time, net/http's included; accepting waits beyond it; default DefaultMaxConns
}

func (o Options) withDefaults() Options {
	if o.HeadTimeout == 0 {
		o.HeadTimeout = 10 * time.Second
	}
	if o.IdleTimeout == 0 {
		o.IdleTimeout = 2 * time.Minute
	}
	if o.MaxHeadBytes == 0 {
		o.MaxHeadBytes = 64 << 10
	}
	if o.MaxConns == 0 {
		o.MaxConns = DefaultMaxConns
	}
	return o
}

// Server serves plain requests itself and everything else through an http.Server. Its methods may be called by
// several goroutines.
type Server struct {
	// Set by New, never changed.
	Options
	handler  http.Handler
	fallback *http.Server
	handed   *handover     // the fallback's listener
	slots    chan struct{} // one element for each open connection
	stopped  chan struct{} // closed when stopping becomes true
	drained  chan struct{} // closed when stopping and no connection is left

	fallbackEnded chan struct{} // closed when serveFallback returned

	stopping atomic.Bool // set under mu; a connection that becomes idle looks at it
	today    atomic.Pointer[date]
	lastID   atomic.Uint64

	mu        sync.Mutex // guards below
	listeners map[net.Listener]bool
	conns     map[*conn]bool
	watch     *watcher // nil before Serve
}

// New makes a Server. Its fallback should have the same handler; Serve serves it, Shutdown and Close end it.
func New(h http.Handler, fallback *http.Server, o Options) *Server {
	o = o.withDefaults()
	return &Server{
		Options:  o,
		handler:  h,
		fallback: fallback,
		handed:   newHandover(),
		slots:    make(chan struct{}, o.MaxConns),
		stopped:  make(chan struct{}),
		drained:  make(chan struct{}),

		fallbackEnded: make(chan struct{}),

		listeners: make(map[net.Listener]bool),
		conns:     make(map[*conn]bool),
	}
}

// Serve accepts connections until Shutdown or Close, after which it returns http.ErrServerClosed, or until the listener
// fails for good.
func (s *Server) Serve(l net.Listener) error {
	if err := s.start(l); err != nil {
		_ = l.Close() // it was to be ours
		return err
	}
	defer s.forgetListener(l)
	for pause := time.Duration(0); ; {
		select {
		case s.slots <- struct{}{}:
		case <-s.stopped:
			return http.ErrServerClosed
		}
		nc, err := l.Accept()
		if err == nil {
			pause = 0
			s.admit(nc)
			continue
		}
		s.free()
		if s.stopping.Load() {
			return http.ErrServerClosed
		}
		if !temporary(err) {
			return err
		}
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		s.Log.Warn("accepting a connection failed", "error", err, "again_in", pause)
		select {
		case <-time.After(pause):
		case <-s.stopped:
		}
	}
}

// temporary reports whether accepting may succeed later, as when the process had too many open files.
func temporary(err error) bool {
	var ne net.Error
	//lint:ignore SA1019 there is no other word for it, and net/http's server asks the same
	return errors.As(err, &ne) && ne.Temporary()
}

// start notes a listener, and at the first starts what runs beside the accept loop.
func (s *Server) start(l net.Listener) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping.Load() {
		return http.ErrServerClosed
	}
	if s.watch == nil {
		w, err := newWatcher()
		if err != nil {
			return err
		}
		s.watch = w
		s.handed.addr = l.Addr()
		go s.serveFallback()
	}
	s.listeners[l] = true
	return nil
}

func (s *Server) serveFallback() {
	defer close(s.fallbackEnded)
	if err := s.fallback.Serve(s.handed); !errors.Is(err, http.ErrServerClosed) {
		s.Log.Error("the server for unusual requests stopped", "error", err)
	}
	_ = s.handed.Close() // it never fails
}

func (s *Server) forgetListener(l net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.listeners, l)
	_ = l.Close() // closed already, or failed
}

// admit serves a new connection in a goroutine of its own.
func (s *Server) admit(nc net.Conn) {
	raw, ok := rawConn(nc)
	if !canWatch || !ok {
		s.handOver(nc, nil)
		return
	}
	c := newConn(s, nc, raw)
	s.mu.Lock()
	stopping := s.stopping.Load()
	if !stopping {
		s.conns[c] = true
	}
	s.mu.Unlock()
	if stopping {
		s.free()
		_ = nc.Close() // it was never used
		return
	}
	go c.serve()
}

// forget takes a connection that ended, or was handed over, off the books.
func (s *Server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.checkDrainedLocked()
}

func (s *Server) checkDrainedLocked() {
	if !s.stopping.Load() || len(s.conns) > 0 {
		return
	}
	select {
	case <-s.drained:
	default:
		close(s.drained)
	}
}

// free gives back one connection's place.
func (s *Server) free() { <-s.slots }

// handOver gives a connection to the fallback, which has its place from then on.
func (s *Server) handOver(nc net.Conn, read []byte) {
	s.handed.give(&handedConn{Conn: nc, read: read, free: s.free})
}

// Shutdown stops accepting, closes connections without a request, and waits until the others have answered theirs, or
// for ctx, whose error it then returns.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stop()
	s.mu.Lock()
	for c := range s.conns {
		c.closeIfIdle()
	}
	s.mu.Unlock()
	err := s.fallback.Shutdown(ctx)
	select {
	case <-s.drained:
		s.wait()
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close closes all connections at once. It does not wait for handlers; their contexts are cancelled.
func (s *Server) Close() error {
	s.stop()
	s.mu.Lock()
	for c := range s.conns {
		c.cut()
	}
	s.mu.Unlock()
	err := s.fallback.Close()
	s.wait()
	return err
}

// wait ends what start started.
func (s *Server) wait() {
	s.mu.Lock()
	w := s.watch
	s.mu.Unlock()
	if w != nil {
		w.close()
		<-s.fallbackEnded
	}
}

// stop begins the end: no new connections, and no further request on those there are.
func (s *Server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping.Swap(true) {
		return
	}
	close(s.stopped)
	for l := range s.listeners {
		_ = l.Close() // nothing could be done about it
	}
	s.checkDrainedLocked()
}

// date is the Date header of one second.
type date struct {
	second int64
	text   string
}

// date is the Date header's value, made once a second.
func (s *Server) date(now time.Time) string {
	d := s.today.Load()
	if d == nil || d.second != now.Unix() {
		d = &date{second: now.Unix(), text: now.UTC().Format(http.TimeFormat)}
		s.today.Store(d)
	}
	return d.text
}
