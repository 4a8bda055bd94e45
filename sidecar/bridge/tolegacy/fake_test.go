package tolegacy

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// fake is a legacy server in memory, for what real ones do not do. What is nil is done as simply as it can be.
type fake struct {
	welcome string // the response to initialize, with %s for its id; default: a server with everything
	eras    mcp.Eras
	open    func(ctx context.Context) error
	listen  func(ctx context.Context) (upstream.EventStream, error)
	call    func(ctx context.Context, s *fakeSession, m *mcp.Message) (*upstream.Answer, error) // requests

	mu       sync.Mutex
	sessions []*fakeSession
	said     []string // every message that sessions were sent, but for initialize
	closed   int      // sessions
}

const fakeWelcome = `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-06-18","capabilities":{"logging":{},` +
	`"tools":{"listChanged":true},"resources":{"subscribe":true,"listChanged":true},"tasks":{"list":{}}},` +
	`"serverInfo":{"name":"fake","version":"1"}}}`

type fakeSession struct {
	*fake
	number int
}

func (f *fake) Eras(context.Context) (mcp.Eras, error) {
	if f.eras != 0 {
		return f.eras, nil
	}
	return mcp.EraSet(mcp.Legacy), nil
}

// Call is the stateless wire's.
func (f *fake) Call(_ context.Context, c *upstream.Call) (*upstream.Answer, error) {
	return upstream.Whole(200, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":"as it came"}`, c.Message.ID.Of(c.Message.Raw))), nil
}

func (f *fake) Open(ctx context.Context, c *upstream.Call) (upstream.Session, *upstream.Answer, error) {
	if f.open != nil {
		if err := f.open(ctx); err != nil {
			return nil, nil, err
		}
	}
	welcome := f.welcome
	if welcome == "" {
		welcome = fakeWelcome
	}
	answer := upstream.Whole(200, fmt.Appendf(nil, welcome, c.Message.ID.Of(c.Message.Raw)))
	if strings.Contains(welcome, `"error"`) {
		return nil, answer, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s := &fakeSession{fake: f, number: len(f.sessions)}
	f.sessions = append(f.sessions, s)
	return s, answer, nil
}

func (f *fake) Check(context.Context) error { return nil }
func (f *fake) Close(context.Context) error { return nil }

func (s *fakeSession) Call(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	s.mu.Lock()
	s.said = append(s.said, string(c.Message.Raw))
	s.mu.Unlock()
	switch {
	case c.Message.Kind != mcp.Request:
		return nil, nil
	case s.call != nil:
		return s.call(ctx, s, c.Message)
	}
	return simple(c.Message), nil
}

// simple answers a request with an empty result.
func simple(m *mcp.Message) *upstream.Answer {
	return upstream.Whole(200, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID.Of(m.Raw)))
}

func (s *fakeSession) Listen(ctx context.Context) (upstream.EventStream, error) {
	if s.listen != nil {
		return s.listen(ctx)
	}
	return nil, upstream.ErrNoStream
}

func (s *fakeSession) Close(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed++
	return nil
}

// count is how many messages with a text the sessions were sent.
func (f *fake) count(text string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.said {
		if strings.Contains(m, text) {
			n++
		}
	}
	return n
}

func (f *fake) opened() (sessions, closed int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.sessions), f.closed
}

// script is a stream that a test feeds. Like a transport's it ends with its context.
type script struct {
	feed chan string // closed: the orderly end
	ctx  context.Context
	gone chan struct{}
	once sync.Once
	lost *upstream.Error // what it ends with when it is closed; default: Lost
}

func newScript(ctx context.Context, messages ...string) *script {
	e := &script{feed: make(chan string, 1024), ctx: ctx, gone: make(chan struct{})}
	for _, m := range messages {
		e.feed <- m
	}
	return e
}

func (e *script) Ready() bool { return len(e.feed) > 0 }

func (e *script) Next() (mcp.Event, error) {
	lost := e.lost
	if lost == nil {
		lost = &upstream.Error{Kind: upstream.Lost, Upstream: "old", Detail: "the stream is lost"}
	}
	select {
	case data, ok := <-e.feed:
		if !ok {
			return mcp.Event{}, io.EOF
		}
		return mcp.Event{Data: []byte(data)}, nil
	case <-e.ctx.Done():
		lost.Cause = e.ctx.Err()
		return mcp.Event{}, lost
	case <-e.gone:
		return mcp.Event{}, lost
	}
}

func (e *script) Close() error { e.once.Do(func() { close(e.gone) }); return nil }

func (e *script) answer() *upstream.Answer {
	return &upstream.Answer{Status: 200, Length: -1, Events: e}
}

// elicit is a question of the server's.
func elicit(id, message string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"elicitation/create","params":{"message":%q,"requestedSchema":{}}}`, id, message)
}

// asking is a server whose tools ask: each call's stream begins with the messages, and then is the test's to feed.
func asking(messages ...string) (*fake, <-chan *askedCall) {
	calls := make(chan *askedCall, 1024)
	f := &fake{}
	f.call = func(ctx context.Context, s *fakeSession, m *mcp.Message) (*upstream.Answer, error) {
		if m.Method != mcp.MethodToolsCall {
			return simple(m), nil
		}
		e := newScript(ctx, messages...)
		calls <- &askedCall{script: e, id: string(m.ID.Of(m.Raw)), request: string(m.Raw)}
		return e.answer(), nil
	}
	return f, calls
}

// askedCall is a call as the fake server sees it.
type askedCall struct {
	*script
	id, request string
}

// result ends the call.
func (c *askedCall) result(text string) {
	c.feed <- fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":%q}]}}`, c.id, text)
}

// ended reports whether the call was cancelled.
func (c *askedCall) ended() bool { return c.ctx.Err() != nil }
