package proxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/durationpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/config"
	"github.com/outrigger-mesh/outrigger/sidecar/credential"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/telemetry"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// pipes is a listener whose connections are in memory, so that a bubble's clock moves past their waits.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// inBubble runs test against a proxy whose time does not take any, over HTTP/1.1 and over HTTP/2.
func inBubble(t *testing.T, f func() *fake, change func(*bindingSpec), test func(t *testing.T, r *rig, f *fake)) {
	for _, name := range []string{"HTTP/1.1", "HTTP/2"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := f()
				r := &rig{t: t, reg: prometheus.NewRegistry(), url: "http://localhost/mcp"}
				log := slog.New(slog.DiscardHandler)
				r.Proxy = New(Options{Log: log, Metrics: telemetry.NewMetrics(r.reg, "test"), Dial: func(*outriggerv1.Upstream, credential.Secrets) (upstream.Server, error) {
					return server, nil
				}})
				r.Apply(&config.Config{Generation: "1", Upstreams: []*outriggerv1.Upstream{{Name: "up"}}, Bindings: []*bindingSpec{binding(change)}})
				l := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
				protocols := new(http.Protocols)
				protocols.SetHTTP1(name == "HTTP/1.1")
				protocols.SetUnencryptedHTTP2(name == "HTTP/2")
				r.client = &http.Client{Transport: &http.Transport{DialContext: l.dial, Protocols: protocols}}
				r.server = NewServer(r.Proxy, nil, log)
				go r.server.Serve(l)
				test(t, r, server)
				r.stop()
			})
		})
	}
}

// openFor opens a stream for as long as a test of a bubble wants.
func (r *rig) openFor(t *testing.T, h head, body string) (*stream, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	method := "POST"
	if body == "" {
		method = "GET"
	}
	res, err := r.client.Do(r.request(ctx, method, h, body))
	if err != nil {
		t.Fatal(err)
	}
	return &stream{t: t, res: res, r: bufio.NewReader(res.Body), cancel: cancel}, func() { cancel(); res.Body.Close() }
}

// L32
func TestALongCallAndASilentStreamAreNotCut(t *testing.T) {
	for _, quiet := range []time.Duration{45 * time.Second, 10 * time.Minute, 10 * time.Hour} {
		for name, keepAlive := range map[string]time.Duration{"with comments": 15 * time.Second, "without": 24 * time.Hour} {
			t.Run(quiet.String()+" "+name, func(t *testing.T) {
				calls := make(chan *events, 1)
				newFake := func() *fake {
					f := &fake{}
					f.call = func(ctx ctx, c *upstream.Call) (*upstream.Answer, error) {
						e := newEvents(ctx)
						calls <- e
						return e.answer(), nil
					}
					return f
				}
				inBubble(t, newFake, keepAliveOf(keepAlive), func(t *testing.T, r *rig, f *fake) {
					for _, first := range []bool{false, true} {
						calls = make(chan *events, 1)
						s, leave := r.openFor(t, modern("tools/call", "echo"), modernCall("1", "echo", "{}"))
						e := <-calls
						if first {
							e.feed <- progressNote
							s.event()
						}
						go func() {
							time.Sleep(quiet)
							e.feed <- response("1", "done")
							time.Sleep(quiet)
							close(e.feed)
						}()
						if got := s.event(); got.data != response("1", "done") {
							t.Errorf("got %+v", got)
						}
						if left, err := s.end(); err != nil || len(left) > 0 {
							t.Errorf("then %v, %v; want the end", left, err)
						}
						leave()
					}
				})
			})
		}
	}
}

// slowly is a body that comes in pieces.
type slowly struct {
	pieces []string
	wait   time.Duration
}

func (s *slowly) Read(p []byte) (int, error) {
	time.Sleep(s.wait)
	if len(s.pieces) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.pieces[0])
	s.pieces = s.pieces[1:]
	return n, nil
}

func (s *slowly) Close() error { return nil }

// L32
func TestASlowBodyOfTheServersIsNotCut(t *testing.T) {
	body := response("1", strings.Repeat("x", 40_000))
	newFake := func() *fake {
		f := &fake{}
		f.call = func(_ ctx, c *upstream.Call) (*upstream.Answer, error) {
			return &upstream.Answer{Status: 200, Length: -1, Body: &slowly{
				pieces: []string{body[:20_000], body[20_000:30_000], body[30_000:]}, wait: 10 * time.Minute,
			}}, nil
		}
		return f
	}
	inBubble(t, newFake, keepAliveOf(0), func(t *testing.T, r *rig, f *fake) {
		s, leave := r.openFor(t, modern("tools/call", "echo"), modernCall("1", "echo", "{}"))
		defer leave()
		if got, err := io.ReadAll(s.res.Body); err != nil || string(got) != body {
			t.Errorf("%d bytes, %v; want all %d", len(got), err, len(body))
		}
	})
}

// A connection that lay idle after a call must not have an old deadline on it.
func TestAConnectionThatWasIdleServesTheNextCall(t *testing.T) {
	inBubble(t, func() *fake { return &fake{} }, keepAliveOf(0), func(t *testing.T, r *rig, f *fake) {
		for range 3 {
			s, leave := r.openFor(t, modern("tools/call", "echo"), modernCall("1", "echo", "{}"))
			if _, err := io.ReadAll(s.res.Body); err != nil || s.res.StatusCode != 200 {
				t.Errorf("%d, %v", s.res.StatusCode, err)
			}
			leave()
			time.Sleep(100 * time.Second)
		}
	})
}

// A client that does not read is given up: it holds a call and a connection for a stated time at most.
func TestAClientThatDoesNotReadIsGivenUp(t *testing.T) {
	calls := make(chan *events, 1)
	newFake := func() *fake {
		f := &fake{}
		f.call = func(ctx ctx, c *upstream.Call) (*upstream.Answer, error) {
			e := newEvents(ctx)
			calls <- e
			return e.answer(), nil
		}
		return f
	}
	// A comment would wait for a mutex, which stops a bubble's clock.
	inBubble(t, newFake, keepAliveOf(time.Hour), func(t *testing.T, r *rig, f *fake) {
		calls = make(chan *events, 1)
		_, leave := r.openFor(t, modern("tools/call", "echo"), modernCall("1", "echo", "{}"))
		defer leave()
		e := <-calls
		begun := time.Now()
		e.feed <- response("1", strings.Repeat("x", 16<<20))
		<-e.ctx.Done()
		if took := time.Since(begun); took > 2*writeTimeout {
			t.Errorf("given up after %v, want about %v", took, writeTimeout)
		}
	})
}

// L29
func TestSessionsThatNobodyEndsAreBoundedAndEnd(t *testing.T) {
	inBubble(t, func() *fake { return &fake{} }, func(b *bindingSpec) {
		b.Session = &outriggerv1.SessionSettings{MaxSessions: 1000}
	}, func(t *testing.T, r *rig, f *fake) {
		refused := 0
		for range 10_000 {
			res, err := r.client.Do(r.request(context.Background(), "POST", nil, initialize))
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, res.Body)
			res.Body.Close()
			if res.StatusCode == http.StatusServiceUnavailable {
				refused++
			}
			time.Sleep(time.Millisecond)
		}
		r.CountSessions()
		if n := r.metric("outrigger_sessions"); n != 1000 || refused != 9000 {
			t.Errorf("%v sessions live and %d refused; want 1000 and 9000", n, refused)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		r.CountSessions()
		if n := r.metric("outrigger_sessions"); n != 0 || f.ended.Load() != 1000 {
			t.Errorf("%v sessions live, the server was told of %d ends; want 0 and 1000", n, f.ended.Load())
		}
	})
}

// L29
func TestASessionEndsThoughItsGETStreamWasLeft(t *testing.T) {
	for name, timeout := range map[string]time.Duration{"unused": 10 * time.Minute, "given way": 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			upstreams := make(chan *events, 1)
			newFake := func() *fake {
				return &fake{listen: func(ctx ctx) (upstream.EventStream, error) {
					e := newEvents(ctx)
					upstreams <- e
					return e, nil
				}}
			}
			inBubble(t, newFake, func(b *bindingSpec) {
				b.Session = &outriggerv1.SessionSettings{MaxSessions: 1, IdleTimeout: durationpb.New(timeout)}
				b.KeepAlive = durationpb.New(24 * time.Hour) // a comment that nobody reads ends the stream
			}, func(t *testing.T, r *rig, f *fake) {
				upstreams = make(chan *events, 1)
				s, leave := r.openFor(t, r.initialize(), "")
				open := <-upstreams
				if s.event().id == "" {
					t.Error("no priming event")
				}
				time.Sleep(time.Hour)
				if f.ended.Load() != 0 {
					t.Error("a session whose stream is read was ended")
				}
				leave()
				time.Sleep(time.Minute)
				synctest.Wait()
				if n := r.metric("outrigger_open_streams"); n != 0 {
					t.Errorf("%v streams open after the client left, want none", n)
				}
				time.Sleep(time.Hour)
				if name == "given way" {
					r.initialize()
				}
				synctest.Wait()
				if open.ctx.Err() == nil || f.ended.Load() != 1 {
					t.Errorf("the server's stream goes on: %v, it was told of %d ends; want its end, and one",
						open.ctx.Err() == nil, f.ended.Load())
				}
			})
		})
	}
}

func TestALegacyCallThatItsClientCancelledIsNoFailure(t *testing.T) {
	newFake := func() *fake {
		return &fake{call: func(ctx ctx, c *upstream.Call) (*upstream.Answer, error) {
			if c.Message.Kind != mcp.Request {
				return nil, nil
			}
			<-ctx.Done()
			return nil, &upstream.Error{Kind: upstream.Lost, Upstream: "up", Detail: "the call was cancelled", Cause: ctx.Err()}
		}}
	}
	inBubble(t, newFake, keepAliveOf(0), func(t *testing.T, r *rig, f *fake) {
		h := r.initialize()
		answered := make(chan reply, 1)
		go func() { answered <- r.do("POST", h, toolCall("5", "echo", "{}")) }()
		synctest.Wait()
		r.do("POST", h, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}`)
		wantOurs(t, (<-answered).wantError(t, 200, -32603, "5"), "cancelled")
		synctest.Wait()
		cancelled := r.metric("outrigger_call_duration_seconds", "method", "tools/call", "outcome", "cancelled")
		if n := r.metric("outrigger_refusals_total"); cancelled != 1 || n != 0 {
			t.Errorf("%v counted as cancelled, and %v failures; want 1 and none", cancelled, n)
		}
	})
}

func TestADELETEReachesTheServerThoughItsClientLeaves(t *testing.T) {
	for _, name := range []string{"in time", "too late"} {
		t.Run(name, func(t *testing.T) {
			begun, told := make(chan ctx, 1), make(chan error, 1)
			newFake := func() *fake {
				return &fake{end: func(ctx ctx) {
					begun <- ctx
					if name == "in time" {
						time.Sleep(time.Second)
					} else {
						<-ctx.Done()
					}
					told <- ctx.Err()
				}}
			}
			inBubble(t, newFake, keepAliveOf(0), func(t *testing.T, r *rig, f *fake) {
				begun, told = make(chan ctx, 1), make(chan error, 1)
				ctx, leave := context.WithCancel(context.Background())
				req := r.request(ctx, "DELETE", r.initialize(), "")
				go r.client.Do(req)
				<-begun
				at := time.Now()
				leave()
				err := <-told
				if took := time.Since(at); name == "in time" && err != nil || name == "too late" && took != deleteTimeout {
					t.Errorf("the server was told with %v after %v", err, took)
				}
			})
		})
	}
}

// L12
func TestReadinessHasADeadline(t *testing.T) {
	newFake := func() *fake {
		return &fake{check: func(ctx ctx) error { <-ctx.Done(); return errors.New("it never answers") }}
	}
	inBubble(t, newFake, keepAliveOf(0), func(t *testing.T, r *rig, f *fake) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		begun := time.Now()
		if problems := r.Ready(ctx); len(problems) != 1 || time.Since(begun) != 5*time.Second {
			t.Errorf("%v after %v; want one problem after 5s", problems, time.Since(begun))
		}
	})
}

// Slowloris: a head that does not come is given up.
func TestASlowHeadIsGivenUp(t *testing.T) {
	inBubble(t, func() *fake { return &fake{} }, keepAliveOf(0), func(t *testing.T, r *rig, f *fake) {
		c, err := r.client.Transport.(*http.Transport).DialContext(context.Background(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		var wait sync.WaitGroup
		defer wait.Wait()
		wait.Go(func() {
			for _, err := io.WriteString(c, "POST /mcp HTTP/1.1\r\n"); err == nil; _, err = io.WriteString(c, "X: y\r\n") {
				time.Sleep(time.Second)
			}
		})
		io.Copy(io.Discard, c)
		if took := time.Since(begun); took > 2*headTimeout {
			t.Errorf("given up after %v, want about %v", took, headTimeout)
		}
	})
}

func keepAliveOf(d time.Duration) func(*bindingSpec) {
	return func(b *bindingSpec) {
		if d > 0 {
			b.KeepAlive = durationpb.New(d)
		}
	}
}
