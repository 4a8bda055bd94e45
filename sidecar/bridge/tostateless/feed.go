package tostateless

import (
	"context"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	// maxSubscriptions is how many resources one session may be subscribed to.
	maxSubscriptions = 1024
	// maxUnsent is how many notifications wait for a client that reads none; the oldest is dropped then. Equal ones are
	// one, so only a server that names resources which nobody subscribed to gets there.
	maxUnsent = maxSubscriptions + 16
	// acknowledgeWithin is how long the opening of a client's stream waits for the server's; it is opened regardless then.
	acknowledgeWithin = 3 * time.Second
	// leastRedial and mostRedial are between attempts to listen again.
	leastRedial = 500 * time.Millisecond
	mostRedial  = 30 * time.Second
)

// feed is what a session's client is told outside of calls: it keeps one listen open at the server from the first time
// that the client opens its stream or subscribes, and queues what comes until the client takes it.
type feed struct {
	// Set by newFeed, never changed.
	session *session
	ctx     context.Context // done when the session has ended
	stop    context.CancelFunc
	turn    chan struct{} // capacity 1: held while a listen is opened or replaced
	wake    chan struct{} // capacity 1: there is something for Next

	work sync.WaitGroup // the goroutine of each listen; none begins after close

	mu      sync.Mutex // guards below
	closed  bool
	uris    []string // subscribed
	current *listen  // whose messages count; nil while there is none, and nobody tries to have one
	queue   []note
}

// note is a notification for the client. Of two with the same key one is enough.
type note struct {
	key  string
	data []byte
}

func newFeed(c *session) *feed {
	f := &feed{session: c, turn: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
	f.ctx, f.stop = context.WithCancel(context.Background())
	return f
}

// close ends the feed's waits.
func (f *feed) close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.stop()
}

// wait waits for the feed's goroutines, which close has ended.
func (f *feed) wait(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		f.work.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Listen implements upstream.Session. A server that never says anything outside of calls has no stream.
func (c *session) Listen(ctx context.Context) (upstream.EventStream, error) {
	if !c.offered.pushes() {
		return nil, upstream.ErrNoStream
	}
	f := c.feed
	if err := f.begin(ctx); err != nil {
		return nil, err
	}
	if !c.offered.subscribe && f.counts(nil) {
		return nil, upstream.ErrNoStream // it grants nothing of what it declares
	}
	s := &feedStream{feed: f}
	s.ctx, s.stop = context.WithCancel(ctx)
	return s, nil
}

// begin makes sure that somebody listens, if there is anything to listen to, and waits a little until that works.
func (f *feed) begin(ctx context.Context) error {
	if err := f.lock(ctx); err != nil {
		return err
	}
	f.mu.Lock()
	idle := f.closed || f.current == nil && (f.session.offered.listsChange() || len(f.uris) > 0)
	f.mu.Unlock()
	if !idle {
		f.unlock()
		return nil
	}
	tried := make(chan struct{})
	l := &listen{}
	if !f.replace(l, nil, func() { f.follow(l, sync.OnceFunc(func() { close(tried) })) }) {
		f.unlock()
		return f.session.server.fault(upstream.Lost, "the session has ended", context.Canceled)
	}
	f.unlock()
	await(ctx, tried, acknowledgeWithin)
	return nil
}

// lock takes the turn.
func (f *feed) lock(ctx context.Context) error {
	select {
	case f.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return f.session.server.gaveUp(ctx)
	case <-f.ctx.Done():
		return f.session.server.fault(upstream.Lost, "the session has ended", context.Canceled)
	}
}

func (f *feed) unlock() { <-f.turn }

// replace makes l the listen that counts, with the URIs if they are not nil, and runs its goroutine. The one before is
// closed. It is not ok once the feed was closed.
func (f *feed) replace(l *listen, uris []string, run func()) (ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	if f.current != nil {
		f.current.close()
	}
	f.current = l
	if uris != nil {
		f.uris = uris
	}
	if run != nil {
		f.work.Go(run)
	}
	return true
}

// subscribe widens the listen by a resource, and answers once the server has agreed (basic/patterns/subscriptions).
func (c *session) subscribe(ctx context.Context, m *mcp.Message) (*upstream.Answer, error) {
	f := c.feed
	switch {
	case !c.offered.subscribe:
		return notHere(m), nil
	case m.Name == nil:
		return refusal(m, mcp.CodeInvalidParams, "params.uri is not there, or not a string"), nil
	}
	if err := f.lock(ctx); err != nil {
		return nil, err
	}
	defer f.unlock()
	uri, uris := string(m.Name), f.subscribed()
	switch {
	case slices.Contains(uris, uri):
		return resultAnswer(m, []byte("{}")), nil
	case len(uris) >= maxSubscriptions:
		return refusal(m, mcp.CodeInternalError, "this session is subscribed to too many resources"), nil
	}
	uris = append(slices.Clip(uris), uri)
	l, refused, err := f.open(ctx, uris)
	switch {
	case err != nil:
		return nil, err
	case refused != nil:
		return bodyAnswer(legacyError(refused, m.ID.Of(m.Raw))), nil
	case !slices.Contains(l.granted.uris, uri):
		l.close()
		return refusal(m, mcp.CodeInvalidParams, "the server does not tell of changes of this resource"), nil
	case !f.replace(l, uris, func() { f.follow(l, func() {}) }):
		l.close()
		return nil, c.server.fault(upstream.Lost, "the session has ended", context.Canceled)
	}
	return resultAnswer(m, []byte("{}")), nil
}

// unsubscribe narrows the listen. When that does not work out, what the old one says of the resource is dropped.
func (c *session) unsubscribe(ctx context.Context, m *mcp.Message) (*upstream.Answer, error) {
	f := c.feed
	switch {
	case !c.offered.subscribe:
		return notHere(m), nil
	case m.Name == nil:
		return refusal(m, mcp.CodeInvalidParams, "params.uri is not there, or not a string"), nil
	}
	if err := f.lock(ctx); err != nil {
		return nil, err
	}
	defer f.unlock()
	uris := f.subscribed()
	at := slices.Index(uris, string(m.Name))
	if at < 0 {
		return resultAnswer(m, []byte("{}")), nil
	}
	uris = append(append([]string{}, uris[:at]...), uris[at+1:]...)
	f.narrow(ctx, uris)
	return resultAnswer(m, []byte("{}")), nil
}

func (f *feed) narrow(ctx context.Context, uris []string) {
	f.mu.Lock()
	f.uris = uris
	f.mu.Unlock()
	if len(uris) == 0 && !f.session.offered.listsChange() {
		f.replace(nil, uris, nil)
		return
	}
	l, _, err := f.open(ctx, uris)
	if err != nil || l == nil {
		return
	}
	if !f.replace(l, uris, func() { f.follow(l, func() {}) }) {
		l.close()
	}
}

func (f *feed) subscribed() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.uris
}

// follow reads a listen, and opens it again when it ends, for as long as it is the one that counts. tried is called when
// the server has answered, or failed to, for the first time.
func (f *feed) follow(l *listen, tried func()) {
	defer tried()
	open := l.events != nil
	for failures := 0; ; failures++ {
		if open {
			began := time.Now()
			f.read(l)
			l.close()
			if !f.counts(l) {
				return
			}
			if time.Since(began) > mostRedial {
				failures = 0
			}
		}
		missed := l.events != nil || failures > 0
		if missed {
			await(f.ctx, nil, pauseAfter(failures))
		}
		next, again := f.reopen(l, missed)
		tried()
		if open = next != nil; open {
			l = next
		} else if !again {
			return
		}
	}
}

// pauseAfter is how long to wait after that many failures in a row.
func pauseAfter(failures int) time.Duration {
	d := min(mostRedial, leastRedial<<min(failures, 10))
	return d/2 + rand.N(d/2)
}

// reopen opens another listen in place of l, which has ended or is yet to be opened. If something may have been missed
// meanwhile, the client is told. It is not to be tried again when another listen counts now, or when the server grants
// nothing.
func (f *feed) reopen(l *listen, missed bool) (next *listen, again bool) {
	if f.lock(f.ctx) != nil {
		return nil, false
	}
	defer f.unlock()
	if !f.counts(l) {
		return nil, false
	}
	uris := f.subscribed()
	next, refused, err := f.open(f.ctx, uris)
	if err == nil && refused != nil && len(uris) > 0 && errorCode(refused) == mcp.CodeInvalidParams {
		// A resource is no more. What the client hears of the others is not worth the changed lists.
		f.session.server.o.Log.Warn("the server took none of a client's subscriptions back", "subscriptions", len(uris))
		next, refused, err = f.open(f.ctx, nil)
	}
	if err != nil || refused != nil && errorCode(refused) != mcp.CodeMethodNotFound {
		f.session.server.o.Log.Debug("could not listen for changes", "error", err, "refused", refused != nil)
		return nil, f.ctx.Err() == nil
	}
	if refused != nil || next.granted.isEmpty() {
		if next != nil {
			next.close()
		}
		f.replace(nil, nil, nil)
		return nil, false
	}
	if !f.replace(next, nil, nil) {
		next.close()
		return nil, false
	}
	if missed {
		f.catchUp(next)
	}
	return next, true
}

// catchUp tells of all that a listen is for: without it, it may have changed unseen.
func (f *feed) catchUp(l *listen) {
	for i, yes := range l.granted.lists {
		if yes {
			f.put(l, note{listKinds[i].notification, []byte(`{"jsonrpc":"2.0","method":"` + listKinds[i].notification + `"}`)})
		}
	}
	for _, uri := range l.granted.uris {
		data := rawjson.AppendString([]byte(`{"jsonrpc":"2.0","method":"`+mcp.NotificationResourceUpdated+`","params":{"uri":`), uri)
		f.put(l, note{mcp.NotificationResourceUpdated + " " + uri, append(data, `}}`...)})
	}
}

func (f *feed) counts(l *listen) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current == l
}

// read queues a listen's messages until it ends.
func (f *feed) read(l *listen) {
	for {
		ev, err := l.events.Next()
		if err != nil {
			return
		}
		m, err := scan(ev.Data)
		if err != nil || m.Kind == mcp.Response {
			return
		}
		if key, ok := l.wants(&m); ok {
			f.put(l, note{key, withoutSubscription(&m)})
		}
	}
}

// put queues a notification of the listen that counts, unless the client has unsubscribed meanwhile.
func (f *feed) put(l *listen, n note) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current != l || l.hasLeft(n.key, f.uris) {
		return
	}
	if slices.ContainsFunc(f.queue, func(q note) bool { return q.key == n.key }) {
		return
	}
	if len(f.queue) >= maxUnsent {
		f.session.server.o.Log.Debug("dropped a notification that its client did not take", "notification", f.queue[0].key)
		f.queue = f.queue[1:]
	}
	f.queue = append(f.queue, n)
	f.signal()
}

// signal wakes whoever waits for a notification.
func (f *feed) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// feedStream is a client's stream of what belongs to no call.
type feedStream struct {
	feed *feed
	ctx  context.Context
	stop context.CancelFunc
}

// Next implements upstream.EventStream.
func (s *feedStream) Next() (mcp.Event, error) {
	for {
		if s.ctx.Err() != nil || s.feed.ctx.Err() != nil {
			s.feed.signal() // this wake may have been for the stream after
			return mcp.Event{}, io.EOF
		}
		if data := s.feed.pop(); data != nil {
			return mcp.Event{Data: data}, nil
		}
		select {
		case <-s.feed.wake:
		case <-s.ctx.Done():
		case <-s.feed.ctx.Done():
		}
	}
}

func (f *feed) pop() (data []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.queue) > 0 {
		data = f.queue[0].data
		f.queue = f.queue[1:]
	}
	return data
}

// Ready implements upstream.EventStream.
func (s *feedStream) Ready() bool {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	return len(s.feed.queue) > 0 || s.ctx.Err() != nil
}

// Close implements upstream.EventStream. What comes from now on waits for the next stream.
func (s *feedStream) Close() error {
	s.stop()
	return nil
}

// await waits for a channel to be closed, within a time and ctx.
func await(ctx context.Context, done <-chan struct{}, d time.Duration) {
	late := time.NewTimer(d)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
	case <-ctx.Done():
	}
}
