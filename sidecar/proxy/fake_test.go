package proxy

import (
	"context"
	"io"
	"sync"
	"sync/atomic"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// fake is a server in memory. What is nil answers as simply as it can.
type fake struct {
	eras    mcp.Eras
	erasErr error
	call    func(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) // either wire
	listen  func(ctx context.Context) (upstream.EventStream, error)
	open    func(ctx context.Context, c *upstream.Call) (upstream.Session, *upstream.Answer, error)
	check   func(ctx context.Context) error
	end     func(ctx context.Context) // of a session

	opened, ended, closed atomic.Int32
}

var bothEras = mcp.EraSet(mcp.Legacy, mcp.Stateless)

func (f *fake) Eras(context.Context) (mcp.Eras, error) {
	if f.eras == 0 && f.erasErr == nil {
		return bothEras, nil
	}
	return f.eras, f.erasErr
}

func (f *fake) Call(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	if f.call != nil {
		return f.call(ctx, c)
	}
	return answerTo(c), nil
}

func (f *fake) Open(ctx context.Context, c *upstream.Call) (upstream.Session, *upstream.Answer, error) {
	if f.open != nil {
		return f.open(ctx, c)
	}
	f.opened.Add(1)
	id := c.Message.ID.Of(c.Message.Raw)
	return &fakeSession{f}, jsonAnswer(`{"jsonrpc":"2.0","id":` + string(id) + `,"result":{"protocolVersion":"` +
		string(c.Message.Version) + `","capabilities":{},"serverInfo":{"name":"fake","version":"1"}}}`), nil
}

func (f *fake) Check(ctx context.Context) error {
	if f.check != nil {
		return f.check(ctx)
	}
	return nil
}

func (f *fake) Close(context.Context) error { f.closed.Add(1); return nil }

type fakeSession struct{ *fake }

func (s *fakeSession) Call(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	if s.call != nil {
		return s.call(ctx, c)
	}
	if c.Message.Kind != mcp.Request {
		return nil, nil
	}
	return answerTo(c), nil
}

func (s *fakeSession) Listen(ctx context.Context) (upstream.EventStream, error) {
	if s.listen != nil {
		return s.listen(ctx)
	}
	return nil, upstream.ErrNoStream
}

func (s *fakeSession) Close(ctx context.Context) error {
	if s.end != nil {
		s.end(ctx)
	}
	s.ended.Add(1)
	return nil
}

// answerTo echoes the arguments, if there is somebody to answer.
func answerTo(c *upstream.Call) *upstream.Answer {
	m := c.Message
	if m.Kind != mcp.Request {
		return &upstream.Answer{Status: 202}
	}
	return jsonAnswer(responseTo(m))
}

// responseTo is a result for a request, with its arguments in it.
func responseTo(m *mcp.Message) string {
	arguments := "null"
	if m.Arguments.Present() {
		arguments = string(m.Arguments.Of(m.Raw))
	}
	return `{"jsonrpc":"2.0","id":` + string(m.ID.Of(m.Raw)) + `,"result":{"structuredContent":` + arguments + `}}`
}

func jsonAnswer(body string) *upstream.Answer {
	return upstream.Whole(200, []byte(body))
}

// events is a stream that a test feeds.
type events struct {
	feed chan string // closed: the orderly end
	fail chan error
	ctx  context.Context
	gone chan struct{}
	once sync.Once
}

func newEvents(ctx context.Context) *events {
	return &events{feed: make(chan string, 16), fail: make(chan error, 1), ctx: ctx, gone: make(chan struct{})}
}

// Ready is never known: every message is flushed.
func (e *events) Ready() bool { return false }

func (e *events) Next() (mcp.Event, error) {
	lost := &upstream.Error{Kind: upstream.Lost, Upstream: "up", Detail: "the call was cancelled"}
	select {
	case <-e.gone:
		return mcp.Event{}, lost
	default:
	}
	select {
	case data, ok := <-e.feed:
		if !ok {
			return mcp.Event{}, io.EOF
		}
		return mcp.Event{Data: []byte(data)}, nil
	case err := <-e.fail:
		return mcp.Event{}, err
	case <-e.ctx.Done():
		return mcp.Event{}, lost
	case <-e.gone:
		return mcp.Event{}, lost
	}
}

func (e *events) Close() error { e.once.Do(func() { close(e.gone) }); return nil }

func (e *events) answer() *upstream.Answer {
	return &upstream.Answer{Status: 200, Length: -1, Events: e}
}

const progressNote = `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`

// Short names for what tests' signatures repeat.
type (
	ctx         = context.Context
	bindingSpec = outriggerv1.Binding
)
