package care

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream/streamable"
)

// peer is an MCP server of both wires over HTTP that can be stopped, started again at its address, and frozen.
type peer struct {
	address string
	handle  http.HandlerFunc // of tools/call; nil: an empty result

	calls  atomic.Int64
	thawed atomic.Pointer[chan struct{}] // nothing is answered until it is closed; nil: at once

	mu       sync.Mutex // guards below
	server   *http.Server
	done     chan struct{}
	sessions map[string]bool // die with the process
}

// start listens, at the address of before if there was one.
func (p *peer) start(t testing.TB) {
	t.Helper()
	if p.address == "" {
		p.address = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", p.address)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.address, p.server, p.done = l.Addr().String(), &http.Server{Handler: p}, make(chan struct{})
	p.sessions = make(map[string]bool)
	go func(s *http.Server, done chan struct{}) { defer close(done); _ = s.Serve(l) }(p.server, p.done)
}

// stop ends it as a process ends: every connection breaks.
func (p *peer) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server != nil {
		_ = p.server.Close()
		<-p.done
		p.server = nil
	}
}

func (p *peer) freeze() (thaw func()) {
	c := make(chan struct{})
	p.thawed.Store(&c)
	return sync.OnceFunc(func() { p.thawed.Store(nil); close(c) })
}

func (p *peer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if c := p.thawed.Load(); c != nil {
		select {
		case <-*c:
		case <-r.Context().Done():
			return
		}
	}
	body, _ := io.ReadAll(r.Body)
	m, err := mcp.Scan(body, mcp.Limits{})
	if err != nil {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	id := r.Header.Get("Mcp-Session-Id")
	switch p.mu.Lock(); {
	case m.Method == mcp.MethodInitialize:
		id = fmt.Sprintf("session-%x", rand.Uint64())
		p.sessions[id] = true
		w.Header().Set("Mcp-Session-Id", id)
	case id != "" && !p.sessions[id]:
		p.mu.Unlock()
		w.WriteHeader(http.StatusNotFound)
		return
	}
	p.mu.Unlock()
	if m.Kind != mcp.Request {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	p.answer(w, r, &m)
}

func (p *peer) answer(w http.ResponseWriter, r *http.Request, m *mcp.Message) {
	result := `{}`
	switch m.Method {
	case mcp.MethodInitialize:
		result = `{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"s","version":"1"}}`
	case mcp.MethodDiscover:
		result = `{"resultType":"complete","supportedVersions":["2026-07-28","2025-11-25"],"capabilities":{},"ttlMs":0,"cacheScope":"private"}`
	case mcp.MethodToolsCall:
		p.calls.Add(1)
		if p.handle != nil {
			p.handle(w, r)
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID.Of(m.Raw), result)
}

// over makes a Server around transports to peers, and ends all with the test.
func over(t testing.TB, spec *outriggerv1.Upstream, peers ...*peer) *Server {
	t.Helper()
	var endpoints []upstream.Server
	for _, p := range peers {
		p.start(t)
		t.Cleanup(p.stop)
		spec.GetHttp().Url = "http://" + p.address + "/mcp"
		e, err := streamable.New("weather", spec, streamable.Options{})
		if err != nil {
			t.Fatal(err)
		}
		endpoints = append(endpoints, e)
	}
	s := New(endpoints, spec, Options{})
	t.Cleanup(func() { closeReal(t, s) })
	return s
}

// closeReal is closeServer for transports whose peers may be gone.
func closeReal(t testing.TB, s *Server) {
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	_ = s.Close(ctx)
	if f, w := s.gate.load(); f != 0 || w != 0 {
		t.Errorf("closed with %d calls in flight and %d waiting, want none", f, w)
	}
}

// until waits for what must come soon.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for late := time.Now().Add(10 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("not within 10s: %s", what)
		}
	}
}

const (
	initializeRaw = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`
	legacyCallRaw = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{}}}`
)

// client makes one call after another on one wire, and holds when they began and ended and which failed.
type client struct {
	call func() error
	log  []attempt
	well atomic.Int64 // when the last one that went well began, in Unix nanoseconds
}

type attempt struct {
	at   time.Time
	took time.Duration
	err  error
}

// TestARestartOfASecondIsOverWithIt has eight clients call every 200 ms: each recovers with its first call after it. On a
// busy machine that call may have waited in vain, for all the time that it waits for a check; none is refused sooner.
func TestARestartOfASecondIsOverWithIt(t *testing.T) {
	for _, wire := range []string{"stateless", "legacy"} {
		t.Run(wire, func(t *testing.T) {
			t.Parallel()
			p := new(peer)
			s := over(t, specOf(), p)
			clients := make([]*client, 8)
			for i := range clients {
				clients[i] = newClient(t, s, wire)
			}
			end := make(chan struct{})
			var wg sync.WaitGroup
			for i, c := range clients {
				wg.Go(func() { c.run(time.Duration(i)*25*time.Millisecond, end) })
			}
			time.Sleep(300 * time.Millisecond)
			p.stop()
			time.Sleep(time.Second)
			p.start(t)
			back := time.Now()
			time.Sleep(600 * time.Millisecond)
			until(t, "every client is served again", func() bool {
				return !slices.ContainsFunc(clients, func(c *client) bool { return c.well.Load() < back.UnixNano() })
			})
			close(end)
			wg.Wait()
			during := 0
			for i, c := range clients {
				for _, a := range c.log {
					if a.err != nil && a.at.After(back) && a.took < soon {
						t.Errorf("client %d failed %v after the server was back, in %v: %v", i, a.at.Sub(back), a.took, a.err)
					} else if a.err != nil {
						during++
					}
				}
			}
			if during < 8 {
				t.Errorf("%d calls failed while it was away, want at least one of each client", during)
			}
		})
	}
}

func newClient(t *testing.T, s *Server, wire string) *client {
	ctx, stop := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(stop)
	if _, err := s.Eras(ctx); err != nil { // which the proxy asks for before an initialize, too
		t.Fatal(err)
	}
	if wire == "stateless" {
		c := request(t, "call x")
		return &client{call: func() error {
			if _, err := s.Eras(ctx); err != nil {
				return err
			}
			return call(ctx, s, c)
		}}
	}
	session, a, err := s.Open(ctx, message(t, initializeRaw))
	if err := finish(a, err); err != nil {
		t.Fatal(err)
	}
	c := message(t, legacyCallRaw)
	return &client{call: func() error { return finish(session.Call(ctx, c)) }}
}

func (c *client) run(offset time.Duration, end <-chan struct{}) {
	time.Sleep(offset)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		a := attempt{at: time.Now()}
		a.err = c.call()
		a.took = time.Since(a.at)
		c.log = append(c.log, a)
		if a.err == nil {
			c.well.Store(a.at.UnixNano())
		}
		select {
		case <-tick.C:
		case <-end:
			return
		}
	}
}

func TestAFrozenServerIsFoundOutAndFoundWellAgain(t *testing.T) { // as after SIGSTOP: it accepts and never answers
	p := new(peer)
	spec := specOf(func(u *outriggerv1.Upstream) {
		u.Health = &outriggerv1.Health{Failures: 2, RetryAfter: durationpb.New(time.Second), Interval: durationpb.New(50 * time.Millisecond)}
		u.Timeouts = &outriggerv1.Timeouts{Handshake: durationpb.New(200 * time.Millisecond)}
	})
	s := over(t, spec, p)
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	if err := call(ctx, s, request(t, "call x")); err != nil {
		t.Fatal(err)
	}
	thaw := p.freeze()
	defer thaw()
	held := make(chan error, 1)
	go func() { held <- call(ctx, s, request(t, "call x")) }()
	until(t, "checks find that it hangs", func() bool { return !s.Healthy() })
	begun := time.Now()
	wantKind(t, call(ctx, s, request(t, "tools/list")), upstream.Unreachable, "left alone")
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("refused after %v, want at once", took)
	}
	thaw()
	until(t, "checks find that it is well", s.Healthy)
	if err := <-held; err != nil {
		t.Errorf("the call that it had when it froze: %v, want its answer", err)
	}
}

func TestClientsThatLeaveARealServerDoNotCloseItForOthers(t *testing.T) {
	p := &peer{handle: func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Mcp-Name") == "slow" {
			<-r.Context().Done()
		}
	}}
	s := over(t, specOf(), p)
	for n := range int64(10) {
		ctx, leave := context.WithCancel(context.Background())
		go func() { until(t, "the call is there", func() bool { return p.calls.Load() > n }); leave() }()
		wantKind(t, call(ctx, s, request(t, "call slow")), upstream.Lost, "cancelled")
	}
	if err := call(t.Context(), s, request(t, "call x")); err != nil || !s.Healthy() {
		t.Errorf("another client: %v, want an answer", err)
	}
}

func TestFiveHundredAtOnceAtARealServerThatDoesOneAtATime(t *testing.T) {
	var inFlight, most atomic.Int64
	p := &peer{handle: func(http.ResponseWriter, *http.Request) {
		if n := inFlight.Add(1); n > most.Load() {
			most.Store(n)
		}
		time.Sleep(time.Millisecond)
		inFlight.Add(-1)
	}}
	s := over(t, specOf(places(1, 200)), p)
	var served, refused atomic.Int64
	all(500, func(int) {
		err := call(t.Context(), s, request(t, "call x"))
		switch e, _ := err.(*upstream.Error); {
		case err == nil:
			served.Add(1)
		case e != nil && e.Kind == upstream.Overloaded:
			refused.Add(1)
		default:
			t.Errorf("%v, want an answer or the advice to come later", err)
		}
	})
	if served.Load()+refused.Load() != 500 || served.Load() < 201 || refused.Load() == 0 || most.Load() != 1 {
		t.Errorf("%d served, %d refused, %d at once; want at least 201 served, some refused and one at a time",
			served.Load(), refused.Load(), most.Load())
	}
}

func TestOneOfThreeRealEndpointsDiesAndComesBack(t *testing.T) {
	peers := []*peer{new(peer), new(peer), new(peer)}
	s := over(t, specOf(func(u *outriggerv1.Upstream) {
		u.Health = &outriggerv1.Health{RetryAfter: durationpb.New(50 * time.Millisecond), Interval: durationpb.New(100 * time.Millisecond)}
	}), peers...)
	if _, err := s.Eras(t.Context()); err != nil {
		t.Fatal(err)
	}
	calls := func(n int) (failed int) {
		for range n {
			if err := call(t.Context(), s, request(t, "call x")); err != nil {
				failed++
			}
		}
		return failed
	}
	if n := calls(60); n != 0 {
		t.Fatalf("%d of 60 failed with all endpoints well", n)
	}
	peers[1].stop()
	if n := calls(200); n != 0 {
		t.Errorf("%d of 200 failed, want none: what was not reached goes to another endpoint", n)
	}
	until(t, "it is ejected", func() bool { return !s.Snapshot().Endpoints[1].Up })
	peers[1].start(t)
	until(t, "it returns", func() bool { return s.Snapshot().Endpoints[1].Up })
	before := peers[1].calls.Load()
	if n := calls(90); n != 0 || peers[1].calls.Load() < before+10 {
		t.Errorf("%d of 90 failed, and it had %d of them; want none, and its share", n, peers[1].calls.Load()-before)
	}
}

func TestAnEndpointThatIsNoMCPServerIsEjected(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			wg.Go(func() {
				defer c.Close()
				_, _ = http.ReadRequest(bufio.NewReader(c))
				_, _ = io.WriteString(c, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			})
		}
	})
	defer wg.Wait()
	defer l.Close()
	spec := specOf(unchecked)
	spec.Era = outriggerv1.Era_ERA_STATELESS
	spec.GetHttp().Url = "http://" + l.Addr().String() + "/mcp"
	e, err := streamable.New("weather", spec, streamable.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := New([]upstream.Server{e}, spec, Options{})
	defer closeReal(t, s)
	for range 5 {
		wantKind(t, call(t.Context(), s, request(t, "call x")), upstream.BadAnswer, "answered 503")
	}
	wantKind(t, call(t.Context(), s, request(t, "call x")), upstream.Unreachable, "left alone after 5 faults in a row")
}
