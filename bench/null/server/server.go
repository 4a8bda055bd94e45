// Package server is the null server: an MCP server that does nothing, as cheaply as it can, so that it is never what
// limits a measurement.
//
// A connection is served by one goroutine: it reads a request, writes the answer in one write, and reads the next.
// What an answer shall be rides in the call's arguments (request.go), so that one server serves every scenario, and
// each answer repeats its caller's name and number, so that one that reached somebody else is noticed. A delay is a
// read with a deadline: it notices at once when the client leaves. A held stream keeps a goroutine and no buffer.
//
// It is strict about what a proxy may get wrong (eras, sessions, methods, names) and about nothing else. A Server is
// safe for concurrent use. Not here: TLS, limits, authorisation.
package server

import (
	"bufio"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/outrigger-mesh/outrigger/bench/drive/wire"
)

// Both is the era of a server that speaks both; the other eras are wire.Stateless and wire.Legacy.
const Both = "both"

// Config is what a server is. The zero value speaks both eras and has one tool.
type Config struct {
	Era    string // default Both
	Tools  int    // how many are listed; default 1, the null tool
	Prefix string // of the tools' names
}

// Validate reports what is wrong with c.
func (c Config) Validate() error {
	switch c.Era {
	case "", Both, wire.Stateless, wire.Legacy:
	default:
		return fmt.Errorf("era %q is none of %s, %s and %s", c.Era, wire.Stateless, wire.Legacy, Both)
	}
	if c.Tools < 0 || c.Tools > MaxTools {
		return fmt.Errorf("%d tools: not a number from 0 to %d", c.Tools, MaxTools)
	}
	return nil
}

// Stats counts what a server has done and holds, as GET /stats says it.
type Stats struct {
	Calls        int64 `json:"calls"`        // tools/call answered to the end
	Connections  int64 `json:"connections"`  // open now
	Sessions     int64 `json:"sessions"`     // open now
	Streams      int64 `json:"streams"`      // open now: subscriptions and GET streams
	Delayed      int64 `json:"delayed"`      // calls that wait now, before their answer or between events
	Cancelled    int64 `json:"cancelled"`    // calls whose client left before the answer
	CancelNotice int64 `json:"cancelNotice"` // notifications/cancelled received
}

// counters are Stats as they are counted.
type counters struct {
	calls, connections, sessions, streams, delayed, cancelled, cancelNotice atomic.Int64
}

// Server is a null server. Make one with New.
type Server struct {
	// Set by New, never changed.
	stateless, legacy bool
	tools             map[string]bool
	lists             map[string][]byte // by era: an answer to tools/list from after its id, without the two braces at its end

	counters    counters
	nextSession atomic.Int64
	sessions    sync.Map // of session ids, as strings

	mu     sync.Mutex // guards below
	conns  map[net.Conn]bool
	closed bool
	served sync.WaitGroup
}

// New makes a server. It listens nowhere until Serve.
func New(c Config) (*Server, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	names := ToolNames(c.Prefix, c.Tools)
	s := &Server{
		stateless: c.Era != wire.Legacy,
		legacy:    c.Era != wire.Stateless,
		tools:     map[string]bool{},
		lists:     map[string][]byte{},
		conns:     map[net.Conn]bool{},
	}
	for _, name := range names {
		s.tools[name] = true
	}
	for _, era := range []string{wire.Stateless, wire.Legacy} {
		s.lists[era] = slices.Concat([]byte(`,"result":{"tools":`), Tools(names), []byte(cacheable(era)))
	}
	return s, nil
}

// Serve takes connections from l until it is closed, and returns why it stopped.
func (s *Server) Serve(l net.Listener) error {
	for {
		nc, err := l.Accept()
		if err != nil {
			return err
		}
		if !s.add(nc) {
			nc.Close()
			return net.ErrClosed
		}
		go func() {
			defer s.remove(nc)
			c := &conn{s: s, nc: nc, r: bufio.NewReaderSize(nc, readBuffer)}
			c.serve()
		}()
	}
}

// Close ends every connection and waits for their goroutines. Close the listener before it.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	for nc := range s.conns {
		nc.Close()
	}
	s.mu.Unlock()
	s.served.Wait()
}

// Stats is what the server has done and holds at this moment.
func (s *Server) Stats() Stats {
	c := &s.counters
	return Stats{
		Calls:        c.calls.Load(),
		Connections:  c.connections.Load(),
		Sessions:     c.sessions.Load(),
		Streams:      c.streams.Load(),
		Delayed:      c.delayed.Load(),
		Cancelled:    c.cancelled.Load(),
		CancelNotice: c.cancelNotice.Load(),
	}
}

// add takes a connection; false after Close.
func (s *Server) add(nc net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.conns[nc] = true
	s.served.Add(1)
	s.counters.connections.Add(1)
	return true
}

func (s *Server) remove(nc net.Conn) {
	nc.Close()
	s.mu.Lock()
	delete(s.conns, nc)
	s.mu.Unlock()
	s.counters.connections.Add(-1)
	s.served.Done()
}
