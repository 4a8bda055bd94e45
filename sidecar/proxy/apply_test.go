package proxy

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/config"
	"github.com/outrigger-mesh/outrigger/sidecar/credential"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// yard makes a fake for every Upstream that is dialled.
type yard struct {
	mu    sync.Mutex
	made  []*fake
	fails map[string]error // by name
	setUp func(*fake)
}

func (y *yard) dial(u *outriggerv1.Upstream, _ credential.Secrets) (upstream.Server, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if err := y.fails[u.GetName()]; err != nil {
		return nil, err
	}
	f := &fake{}
	if y.setUp != nil {
		y.setUp(f)
	}
	y.made = append(y.made, f)
	return f, nil
}

func (y *yard) all() []*fake {
	y.mu.Lock()
	defer y.mu.Unlock()
	return append([]*fake(nil), y.made...)
}

// open counts the servers made and not closed, and fails on one closed twice.
func (y *yard) open(t testing.TB) (n int) {
	for i, f := range y.all() {
		switch c := f.closed.Load(); c {
		case 0:
			n++
		case 1:
		default:
			t.Errorf("server %d was closed %d times", i, c)
		}
	}
	return n
}

func newYard(t testing.TB, change ...func(*bindingSpec)) (*rig, *yard) {
	t.Helper()
	y := &yard{fails: map[string]error{}}
	r := newRig(t, y.dial, change...)
	t.Cleanup(func() {
		r.stop()
		if n := y.open(t); n > 0 {
			t.Errorf("%d of %d servers are open after Close", n, len(y.all()))
		}
	})
	return r, y
}

func (r *rig) wantApplied(change func(*config.Config)) {
	r.t.Helper()
	if refused := r.apply(change); len(refused) > 0 {
		r.t.Fatalf("refused %v", refused)
	}
}

func TestWhatDidNotChangeKeepsItsSessionsAndServers(t *testing.T) {
	r, y := newYard(t)
	h := r.initialize()
	for range 3 {
		r.wantApplied(func(*config.Config) {})
	}
	if p := r.do("POST", h, toolCall("1", "echo", "{}")); p.status != 200 {
		t.Errorf("%d %s, want the session to go on", p.status, p.body)
	}
	if len(y.all()) != 1 || y.open(t) != 1 {
		t.Errorf("%d servers made, %d open; want the one", len(y.all()), y.open(t))
	}
}

func TestAChangedBindingKeepsItsSessions(t *testing.T) {
	r, y := newYard(t)
	h := r.initialize()
	r.wantApplied(func(c *config.Config) { c.Bindings[0].Hosts = []string{"app.example"} })
	if p := r.do("POST", h.with("Host", "app.example"), toolCall("1", "echo", "{}")); p.status != 200 {
		t.Errorf("%d %s, want the session to go on", p.status, p.body)
	}
	if y.all()[0].ended.Load() != 0 || y.open(t) != 1 {
		t.Error("its session or server was closed")
	}
}

func TestAChangedUpstreamEndsSessionsWhenTheirCallsHaveEnded(t *testing.T) {
	calls := make(chan *events, 1)
	r, y := newYard(t)
	old := y.all()[0]
	h := r.initialize()
	old.call = func(ctx ctx, c *upstream.Call) (*upstream.Answer, error) {
		e := newEvents(ctx)
		calls <- e
		return e.answer(), nil
	}
	s := r.open("POST", h, toolCall("1", "echo", "{}"))
	running := <-calls
	r.wantApplied(func(c *config.Config) {
		c.Upstreams[0] = &outriggerv1.Upstream{Name: "up", Era: outriggerv1.Era_ERA_LEGACY}
	})
	r.do("POST", h, toolCall("2", "echo", "{}")).wantError(t, 404, -32600, "2")
	if old.ended.Load() != 0 || old.closed.Load() != 0 || running.ctx.Err() != nil {
		t.Fatal("the call in flight was cut")
	}
	running.feed <- response("1", "done")
	close(running.feed)
	left, err := s.end()
	if err != nil || len(left) != 2 || left[1].data != response("1", "done") {
		t.Errorf("the call in flight: %v, %v; want its answer", left, err)
	}
	eventually(t, "the old session and server are closed", func() bool { return old.ended.Load() == 1 && old.closed.Load() == 1 })
	if p := r.do("POST", r.initialize(), toolCall("1", "echo", "{}")); p.status != 200 {
		t.Errorf("a new session: %d %s", p.status, p.body)
	}
}

func TestAPushDuringACallDoesNotCutIt(t *testing.T) {
	calls := make(chan *events, 2)
	r, y := newYard(t)
	old := y.all()[0]
	h := r.initialize()
	old.call = func(ctx ctx, c *upstream.Call) (*upstream.Answer, error) {
		e := newEvents(ctx)
		calls <- e
		return e.answer(), nil
	}
	streams := []*stream{
		r.open("POST", modern("tools/call", "echo"), modernCall("1", "echo", "{}")),
		r.open("POST", h, toolCall("1", "echo", "{}")),
	}
	for i := range 3 { // pushes that keep the server and the sessions, and then one that keeps nothing
		r.wantApplied(func(c *config.Config) { c.Bindings[0].Origins = []string{fmt.Sprintf("https://a%d.example", i)} })
	}
	r.wantApplied(func(c *config.Config) { c.Bindings, c.Upstreams = nil, nil })
	for _, s := range streams {
		running := <-calls
		if old.ended.Load() != 0 || old.closed.Load() != 0 || running.ctx.Err() != nil {
			t.Error("session or server was closed under a call")
		}
		running.feed <- response("1", "done")
		close(running.feed)
		left, err := s.end()
		if err != nil || len(left) == 0 || left[len(left)-1].data != response("1", "done") {
			t.Errorf("got %v, %v; want the answer", left, err)
		}
	}
	eventually(t, "session and server are closed", func() bool { return old.ended.Load() == 1 && old.closed.Load() == 1 })
}

func TestARemovedBindingIs404(t *testing.T) {
	r, y := newYard(t)
	h := r.initialize()
	r.callModern("1", "echo", "{}")
	r.wantApplied(func(c *config.Config) { c.Bindings, c.Upstreams = nil, nil })
	r.do("POST", h, toolCall("2", "echo", "{}")).wantError(t, 404, -32600, "")
	eventually(t, "session and server are closed", func() bool { return y.all()[0].ended.Load() == 1 && y.open(t) == 0 })
	if n := r.metric("outrigger_call_duration_seconds", "binding", "main"); n != 0 {
		t.Errorf("%v calls of a binding that is gone are still shown", n)
	}
	r.wantApplied(func(c *config.Config) {
		c.Bindings, c.Upstreams = []*bindingSpec{binding()}, []*outriggerv1.Upstream{{Name: "up"}}
	})
	if p := r.callModern("1", "echo", "{}"); p.status != 200 {
		t.Errorf("back again: %d %s", p.status, p.body)
	}
}

// L41
func TestARefusedResourceKeepsItsLastGoodFormAndStopsNothingElse(t *testing.T) {
	r, y := newYard(t)
	h := r.initialize()
	y.fails["up"] = errors.New("spec.credential: env: X is not set")
	many := func(c *config.Config) {
		c.Upstreams[0] = &outriggerv1.Upstream{Name: "up", Era: outriggerv1.Era_ERA_LEGACY}
		for i := range 99 {
			name := fmt.Sprint("u", i)
			c.Upstreams = append(c.Upstreams, &outriggerv1.Upstream{Name: name})
			c.Bindings = append(c.Bindings, binding(func(b *bindingSpec) {
				b.Name, b.Path = name, "/"+name
				b.Upstreams[0].Name = name
			}))
		}
	}
	refused := r.apply(many)
	if len(refused) != 1 || refused[0].Kind != "Upstream" || refused[0].Name != "up" || !strings.Contains(refused[0].Reason, "X is not set") {
		t.Fatalf("refused %v, want up alone and why", refused)
	}
	if p := r.do("POST", h, toolCall("1", "echo", "{}")); p.status != 200 {
		t.Errorf("the last good form: %d %s", p.status, p.body)
	}
	base := r.url
	r.url = "http://" + r.addr + "/u57"
	if p := r.callModern("1", "echo", "{}"); p.status != 200 {
		t.Errorf("another binding: %d %s", p.status, p.body)
	}
	r.url = base
	if got := r.Running(); len(got.Upstreams) != 100 || got.Upstreams[99].GetEra() != outriggerv1.Era_ERA_UNSPECIFIED {
		t.Errorf("%d upstreams run, up as %v; want 100, up as it was", len(got.Upstreams), got.Upstreams[99])
	}
}

// L41, L42
func TestABadBindingIsRefusedWithItsReason(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*config.Config)
		reason string
		status int
	}{
		"no upstream": {func(c *config.Config) { c.Bindings[0].Upstreams = nil }, "names no upstream", 200},
		"two upstreams": {func(c *config.Config) {
			c.Bindings[0].Upstreams = append(c.Bindings[0].Upstreams, c.Bindings[0].Upstreams...)
		}, "cannot offer several upstreams as one", 200},
		"unknown upstream": {func(c *config.Config) { c.Bindings[0].Upstreams[0].Name = "no" }, `upstream "no" is not here`, 200},
		"taken path": {func(c *config.Config) {
			c.Bindings = append(c.Bindings, binding(func(b *bindingSpec) { b.Name = "other" }))
		}, `path /mcp is served by binding "main" already`, 200},
		"its upstream is gone": {func(c *config.Config) { c.Upstreams = nil }, `upstream "up" is not here`, 200},
	} {
		t.Run(name, func(t *testing.T) {
			r, y := newYard(t)
			refused := r.apply(tt.change)
			if len(refused) != 1 || refused[0].Kind != "Binding" || !strings.Contains(refused[0].Reason, tt.reason) {
				t.Errorf("refused %v, want one: %s", refused, tt.reason)
			}
			if p := r.callModern("1", "echo", "{}"); p.status != tt.status {
				t.Errorf("the last good form: %d %s", p.status, p.body)
			}
			if y.open(t) != 1 {
				t.Errorf("%d servers open, want one", y.open(t))
			}
		})
	}
}

// L42
func TestABadBindingThatNeverRanIsADefinite404(t *testing.T) {
	r, _ := newYard(t)
	r.apply(func(c *config.Config) {
		c.Bindings = append(c.Bindings, binding(func(b *bindingSpec) { b.Name, b.Path, b.Upstreams = "empty", "/empty", nil }))
	})
	r.url = "http://" + r.addr + "/empty"
	r.do("POST", nil, initialize).wantError(t, 404, -32600, "")
}

func TestABadBindingGoesOnWithItsChangedUpstream(t *testing.T) {
	r, y := newYard(t)
	refused := r.apply(func(c *config.Config) {
		c.Upstreams[0] = &outriggerv1.Upstream{Name: "up", Era: outriggerv1.Era_ERA_LEGACY}
		c.Bindings[0].Upstreams = nil
	})
	if len(refused) != 1 {
		t.Errorf("refused %v, want the binding", refused)
	}
	if p := r.callModern("1", "echo", "{}"); p.status != 200 {
		t.Errorf("%d %s", p.status, p.body)
	}
	eventually(t, "the old server is closed and the new one runs", func() bool {
		return len(y.all()) == 2 && y.all()[0].closed.Load() == 1 && y.open(t) == 1
	})
	r.wantApplied(func(c *config.Config) { c.Bindings[0].Upstreams = binding().Upstreams })
	if y.open(t) != 1 {
		t.Errorf("%d servers open, want one", y.open(t))
	}
}

func TestCheckLeavesNothingBehind(t *testing.T) {
	r, y := newYard(t)
	for range 10 {
		if err := r.Check(&outriggerv1.Upstream{Name: "x"}); err != nil {
			t.Error(err)
		}
	}
	if err := r.Check(binding()); err != nil {
		t.Error(err)
	}
	y.fails["x"] = errors.New("it lacks something")
	if err := r.Check(&outriggerv1.Upstream{Name: "x"}); err == nil {
		t.Error("no error, want what is lacking")
	}
	if y.open(t) != 1 {
		t.Errorf("%d servers open, want the running one", y.open(t))
	}
	real := New(Options{Log: r.Log, Metrics: r.Metrics, Dial: Dialer{Log: r.Log}.Dial})
	for _, u := range []*outriggerv1.Upstream{overStdio(t, "legacy"), atURL("http://127.0.0.1:1/mcp")} {
		if err := real.Check(u); err != nil {
			t.Errorf("%v: %v", u, err)
		}
	}
}

func TestPushesUnderLoadLoseNoCall(t *testing.T) {
	r, y := newYard(t)
	var (
		wait  sync.WaitGroup
		calls atomic.Int64
		stop  = make(chan struct{})
	)
	for range 4 {
		wait.Go(func() {
			h := head{}
			for {
				select {
				case <-stop:
					return
				default:
				}
				calls.Add(1)
				if p := r.callModern("1", "echo", `{"n":1}`); p.status != 200 || !strings.Contains(p.body, `{"n":1}`) {
					t.Errorf("stateless: %d %s", p.status, p.body)
				}
				p := r.do("POST", h, toolCall("1", "echo", "{}"))
				switch p.status {
				case http.StatusOK:
				case http.StatusNotFound, http.StatusBadRequest: // the session went with a replaced upstream, or is yet to come
					p := r.do("POST", nil, initialize)
					h = head{mcp.HeaderSessionID: p.header.Get(mcp.HeaderSessionID)}
					if p.status != http.StatusOK && p.status != http.StatusServiceUnavailable {
						t.Errorf("initialize: %d %s", p.status, p.body)
					}
				default:
					t.Errorf("legacy: %d %s", p.status, p.body)
				}
			}
		})
	}
	base := r.config
	for i := range 100 {
		next := &config.Config{Generation: fmt.Sprint(i), Upstreams: base.Upstreams, Bindings: base.Bindings}
		switch rand.N(3) {
		case 0:
			next.Upstreams = []*outriggerv1.Upstream{{Name: "up", Timeouts: &outriggerv1.Timeouts{}, Era: outriggerv1.Era(rand.N(3))}}
		case 1:
			next.Bindings = []*bindingSpec{binding(func(b *bindingSpec) { b.Origins = []string{fmt.Sprintf("https://a%d.example", i)} })}
		}
		wait.Go(func() { r.Apply(next) })
		for n := calls.Load(); calls.Load() < n+2; time.Sleep(100 * time.Microsecond) {
		}
	}
	close(stop)
	wait.Wait()
	eventually(t, "one server is open", func() bool { return y.open(t) == 1 })
}

// The drain.

func TestADrainEndsStreamsInGoodOrderAndLetsCallsFinish(t *testing.T) {
	f := &fake{}
	calls := streaming(f)
	f.listen = func(ctx ctx) (upstream.EventStream, error) { return newEvents(ctx), nil }
	r := newRig(t, f)
	h := r.initialize()
	get := r.open("GET", h, "")
	listenBody := `{"jsonrpc":"2.0","id":"L","method":"subscriptions/listen","params":{"notifications":{},` + meta + `}}`
	listen := r.open("POST", modern("subscriptions/listen", ""), listenBody)
	(<-calls).feed <- `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged"}`
	listen.event()
	call := r.open("POST", h, toolCall("1", "echo", "{}"))
	running := <-calls
	stateless := r.open("POST", modern("tools/call", "echo"), modernCall("2", "echo", "{}"))
	alsoRunning := <-calls

	r.Drain()
	if left, err := get.end(); err != nil || len(left) != 1 {
		t.Errorf("GET: %v, %v; want its priming event and a clean end", left, err)
	}
	left, err := listen.end()
	want := `{"jsonrpc":"2.0","id":"L","result":{"resultType":"complete","_meta":{"io.modelcontextprotocol/subscriptionId":"L"}}}`
	if err != nil || len(left) != 1 || left[0].data != want {
		t.Errorf("listen: %v, %v; want its result", left, err)
	}
	if p := r.do("POST", nil, initialize); p.status != 503 || p.header.Get("Retry-After") == "" {
		t.Errorf("a new session: %d %s, want 503 with Retry-After", p.status, p.body)
	}
	if problems := r.Ready(testContext(t)); len(problems) == 0 {
		t.Error("ready while draining")
	}
	done := make(chan error, 1)
	go func() { done <- r.server.Shutdown(testContext(t)) }()
	for _, e := range []*events{running, alsoRunning} {
		e.feed <- response("1", "done")
		close(e.feed)
	}
	for _, s := range []*stream{call, stateless} {
		if left, err := s.end(); err != nil || len(left) == 0 || left[len(left)-1].data != response("1", "done") {
			t.Errorf("a call in flight: %v, %v; want its answer", left, err)
		}
	}
	if err := <-done; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

func TestAPushDuringADrainDoesNotBringStreamsBack(t *testing.T) {
	f := &fake{}
	f.listen = func(ctx ctx) (upstream.EventStream, error) { return newEvents(ctx), nil }
	r := newRig(t, f)
	h := r.initialize()
	r.Drain()
	r.wantApplied(func(c *config.Config) { c.Bindings[0].Hosts = []string{"localhost"} })
	if left, err := r.open("GET", h, "").end(); err != nil || len(left) > 1 {
		t.Errorf("GET: %v, %v; want it to end at once", left, err)
	}
}

func TestCloseDoesNotWaitForCallsOfReplacedEndpoints(t *testing.T) {
	calls := make(chan *events, 1)
	r, y := newYard(t)
	h := r.initialize()
	y.all()[0].call = func(ctx ctx, c *upstream.Call) (*upstream.Answer, error) {
		e := newEvents(ctx)
		calls <- e
		return e.answer(), nil
	}
	s := r.open("POST", h, toolCall("1", "echo", "{}"))
	<-calls
	s.leave()
	r.wantApplied(func(c *config.Config) { c.Bindings, c.Upstreams = nil, nil })
	begun := time.Now()
	r.stop()
	if took := time.Since(begun); took > patience {
		t.Errorf("Close took %v", took)
	}
}

func TestCloseTellsTheServersOfAllBindingsInTime(t *testing.T) {
	late := make(chan error, 2)
	f := &fake{end: func(ctx ctx) { late <- ctx.Err(); <-ctx.Done() }} // it takes all the time there is
	r := newRig(t, f)
	r.wantApplied(func(c *config.Config) {
		c.Bindings = append(c.Bindings, binding(func(b *bindingSpec) { b.Name, b.Path = "other", "/other" }))
	})
	r.initialize()
	r.url = "http://" + r.addr + "/other"
	r.initialize()
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	r.stopWithin(ctx)
	for range 2 {
		if err := <-late; err != nil {
			t.Errorf("a server was told when the time was over: %v", err)
		}
	}
}
