package care

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// specOf is a resource with its defaults, tuned before these are filled in.
func specOf(tune ...func(*outriggerv1.Upstream)) *outriggerv1.Upstream {
	u := &outriggerv1.Upstream{
		Name: "weather", Concurrency: &outriggerv1.Concurrency{}, Health: &outriggerv1.Health{}, Retry: &outriggerv1.Retry{},
		Transport: &outriggerv1.Upstream_Http{Http: &outriggerv1.HTTPTransport{Url: "http://user:pw@a.example/mcp?key=1"}},
	}
	for _, f := range tune {
		f(u)
	}
	return resource.WithDefaults(u)
}

// unchecked has no active checks.
func unchecked(u *outriggerv1.Upstream) { u.Health.Interval = durationpb.New(-1) }

func attempts(n uint32) func(*outriggerv1.Upstream) {
	return func(u *outriggerv1.Upstream) { u.Retry.Attempts = n }
}

func places(calls, waiting uint32) func(*outriggerv1.Upstream) {
	return func(u *outriggerv1.Upstream) { u.Concurrency.MaxCalls, u.Concurrency.MaxWaiting = calls, waiting }
}

// around makes a Server around endpoints, for a resource. The test closes it.
func around(spec *outriggerv1.Upstream, fakes ...*fake) *Server {
	var inner []upstream.Server
	for _, f := range fakes {
		inner = append(inner, f)
	}
	return New(inner, spec, Options{})
}

func closeServer(t testing.TB, s *Server) {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	if err := s.Close(ctx); err != nil {
		t.Error(err)
	}
	if f, w := s.gate.load(); f != 0 || w != 0 {
		t.Errorf("closed with %d calls in flight and %d waiting, want none", f, w)
	}
	for _, e := range s.endpoints {
		if n := e.calls.Load(); n != 0 {
			t.Errorf("closed with %d calls at endpoint %s, want none", n, e.name)
		}
	}
}

// fake is an endpoint for its faults. What it does is changed while it runs.
type fake struct {
	fail   atomic.Pointer[upstream.Error]                                                  // of everything; nil: none
	answer atomic.Pointer[func(context.Context, *upstream.Call) (*upstream.Answer, error)] // nil: with an empty result
	eras   atomic.Uint32                                                                   // 0: stateless

	calls, opens, checks, listens, questions, closes atomic.Int64
}

func newFake(fail *upstream.Error) *fake {
	f := new(fake)
	f.fail.Store(fail)
	return f
}

func (f *fake) answers(g func(context.Context, *upstream.Call) (*upstream.Answer, error)) {
	f.answer.Store(&g)
}

func (f *fake) failure() error {
	if e := f.fail.Load(); e != nil {
		return e
	}
	return nil
}

func (f *fake) Eras(context.Context) (mcp.Eras, error) {
	f.questions.Add(1)
	if err := f.failure(); err != nil {
		return 0, err
	}
	if e := f.eras.Load(); e != 0 {
		return mcp.Eras(e), nil
	}
	return mcp.EraSet(mcp.Stateless), nil
}

func (f *fake) Call(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	f.calls.Add(1)
	if err := f.failure(); err != nil {
		return nil, err
	}
	if g := f.answer.Load(); g != nil {
		return (*g)(ctx, c)
	}
	if c.Message.Kind != mcp.Request {
		return &upstream.Answer{Status: http.StatusAccepted}, nil
	}
	return answerOf(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, c.Message.ID.Of(c.Message.Raw))), nil
}

func (f *fake) Open(ctx context.Context, c *upstream.Call) (upstream.Session, *upstream.Answer, error) {
	f.opens.Add(1)
	if err := f.failure(); err != nil {
		return nil, nil, err
	}
	return fakeSession{f}, answerOf(`{"jsonrpc":"2.0","id":0,"result":{}}`), nil
}

func (f *fake) Check(ctx context.Context) error {
	f.checks.Add(1)
	if e := f.fail.Load(); e != nil && e.Kind == upstream.TimedOut {
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Second): // as transports bound it
		}
	}
	return f.failure()
}

func (f *fake) Close(context.Context) error { f.closes.Add(1); return nil }

type fakeSession struct{ f *fake }

func (s fakeSession) Call(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	return s.f.Call(ctx, c)
}

func (s fakeSession) Listen(context.Context) (upstream.EventStream, error) {
	s.f.listens.Add(1)
	if err := s.f.failure(); err != nil {
		return nil, err
	}
	return nil, upstream.ErrNoStream
}

func (s fakeSession) Close(context.Context) error { return nil }

func answerOf(body string) *upstream.Answer {
	return &upstream.Answer{Status: 200, Length: int64(len(body)), Body: io.NopCloser(strings.NewReader(body))}
}

// held is a body that ends when it is let go.
type held struct{ let chan struct{} }

func (h held) Read([]byte) (int, error) { <-h.let; return 0, io.EOF }
func (h held) Close() error             { return nil }

func fault(kind upstream.Kind) *upstream.Error {
	return &upstream.Error{Kind: kind, Upstream: "weather", Detail: "as the test has it"}
}

func status(code int) *upstream.Error {
	return &upstream.Error{Kind: upstream.BadAnswer, Upstream: "weather", Detail: "answered badly", Status: code}
}

// message makes a Call of a message's text.
func message(t testing.TB, raw string) *upstream.Call {
	t.Helper()
	m, err := mcp.Scan([]byte(raw), mcp.Limits{})
	if err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return &upstream.Call{Message: &m, Header: http.Header{}}
}

// request makes a request of a method, or of a tool when it is called "call NAME".
func request(t testing.TB, method string) *upstream.Call {
	t.Helper()
	params := `{`
	if tool, ok := strings.CutPrefix(method, "call "); ok {
		method, params = mcp.MethodToolsCall, fmt.Sprintf(`{"name":%q,`, tool)
	}
	c := message(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":%s"_meta":{`+
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`, method, params))
	c.Header.Set(mcp.HeaderVersion, mcp.Version20260728)
	c.Header.Set(mcp.HeaderMethod, method)
	if c.Message.Name != nil {
		c.Header.Set(mcp.HeaderName, string(c.Message.Name))
	}
	return c
}

// finish reads an answer to its end.
func finish(a *upstream.Answer, err error) error {
	if err != nil {
		return err
	}
	defer a.Close()
	switch {
	case a.Body != nil:
		_, err = io.Copy(io.Discard, a.Body)
	case a.Events != nil:
		for err == nil {
			_, err = a.Events.Next()
		}
		if err == io.EOF {
			err = nil
		}
	}
	return err
}

// call makes a call and reads its answer.
func call(ctx context.Context, s *Server, c *upstream.Call) error { return finish(s.Call(ctx, c)) }

// wantKind holds that err is an *upstream.Error of that kind with that text in it.
func wantKind(t testing.TB, err error, want upstream.Kind, text string) {
	t.Helper()
	e, ok := err.(*upstream.Error)
	if !ok || e.Kind != want || e.Upstream != "weather" || !strings.Contains(e.Detail, text) {
		t.Errorf("error %v (%T), want one of kind %s with %q", err, err, want.Reason(), text)
	}
}

// all runs f n times at once and waits.
func all(n int, f func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f(i) })
	}
	wg.Wait()
}
