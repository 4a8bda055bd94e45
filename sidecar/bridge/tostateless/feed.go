package tostateless

import (
	"context"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/background"
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
	// handOver is how much longer a listen is read than it counts: what the server sent before it acknowledged the next one
	// may still be on its way. maxLeaving is how many are at a time; then the oldest goes early.
	handOver   = time.Second
	maxLeaving = 8
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
	turn    chan struct{} // capacity 1: held while a listen is opened to take another's place
	wake    chan struct{} // capacity 1: there is something for Next

	work sync.WaitGroup // the goroutine of each listen; none begins after close

	mu      sync.Mutex // guards below
	closed  bool
	uris    []string  // subscribed; what it holds is never changed
	current *listen   // nil while there is none, and nobody tries to have one
	leaving []*listen // replaced, and read for a little longer; the oldest first
	missed  bool      // nobody listened for a while, and the client was not told
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
	for _, l := range f.leaving {
		l.late.Stop()
	}
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
	tried := make(chan struct{})
	f.mu.Lock()
	closed := f.closed
	idle := f.current != nil || !f.session.offered.listsChange() && len(f.uris) == 0
	if !closed && !idle {
		l := &listen{}
		f.current = l
		f.work.Go(func() { f.follow(l, sync.OnceFunc(func() { close(tried) })) })
	}
	f.mu.Unlock()
	switch {
	case closed:
		return f.ended()
	case !idle:
		background.Await(ctx, tried, acknowledgeWithin)
	}
	return nil
}

func (f *feed) ended() error {
	return f.session.server.fault(upstream.Lost, "the session has ended", context.Canceled)
}

// lock takes the turn.
func (f *feed) lock(ctx context.Context) error {
	select {
	case f.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return upstream.GaveUp(ctx, f.session.server.o.Upstream)
	case <-f.ctx.Done():
		return f.ended()
	}
}

func (f *feed) unlock() { <-f.turn }

// replace makes l the listen that counts, with more URIs, and runs its goroutine. The one before is read for a while yet,
// unless there is none after it: what it had received is not lost, and what both bring comes once or twice. If something
// may have been missed before l, the client is told. It is not ok once the feed was closed.
func (f *feed) replace(l *listen, run func(), more ...string) (ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	old := f.current
	f.current = l
	f.uris = append(slices.Clip(f.uris), more...)
	switch {
	case l == nil:
		f.missed = false
	case f.missed:
		f.catchUpLocked()
	}
	switch {
	case old == nil || old.events == nil:
	case l == nil:
		old.close()
	default:
		f.leaveLocked(old)
	}
	if run != nil {
		f.work.Go(run)
	}
	return true
}

// leaveLocked reads a listen that counts no more for handOver yet.
func (f *feed) leaveLocked(l *listen) {
	if len(f.leaving) == maxLeaving {
		f.leaving[0].leave()
		f.leaving = slices.Clone(f.leaving[1:])
	}
	l.late = time.AfterFunc(handOver, l.leave)
	f.leaving = append(f.leaving, l)
}

// subscribe widens the listen by a resource, and answers once the server has agreed (basic/patterns/subscriptions): a
// client that was told yes hears of every change from then on. A handshake's time bounds all of the wait.
func (c *session) subscribe(ctx context.Context, m *mcp.Message) (*upstream.Answer, error) {
	switch {
	case !c.offered.subscribe:
		return notHere(m), nil
	case m.Name == nil:
		return refusal(m, mcp.CodeInvalidParams, "params.uri is not there, or not a string"), nil
	}
	within, cancel := context.WithTimeout(ctx, c.server.o.Handshake)
	defer cancel()
	a, err := c.feed.widen(within, m)
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		return nil, c.server.unacknowledged(within.Err())
	}
	return a, err
}

// widen is subscribe within ctx.
func (f *feed) widen(ctx context.Context, m *mcp.Message) (*upstream.Answer, error) {
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
	l, refused, err := f.open(ctx, append(slices.Clip(uris), uri))
	switch {
	case err != nil:
		return nil, err
	case refused != nil:
		return upstream.Whole(200, legacyError(refused, m.ID.Of(m.Raw))), nil
	case !slices.Contains(l.granted.uris, uri):
		l.close()
		return refusal(m, mcp.CodeInvalidParams, "the server does not tell of changes of this resource"), nil
	case !f.replace(l, func() { f.follow(l, func() {}) }, uri):
		l.close()
		return nil, f.ended()
	}
	return resultAnswer(m, []byte("{}")), nil
}

// unsubscribe forgets a resource, and what waits to be told of it, at once. The listen is narrowed then, if the server
// takes part in that soon; what a wider one says is dropped.
func (c *session) unsubscribe(ctx context.Context, m *mcp.Message) (*upstream.Answer, error) {
	switch {
	case !c.offered.subscribe:
		return notHere(m), nil
	case m.Name == nil:
		return refusal(m, mcp.CodeInvalidParams, "params.uri is not there, or not a string"), nil
	}
	if c.feed.forget(string(m.Name)) {
		within, cancel := context.WithTimeout(ctx, acknowledgeWithin)
		defer cancel()
		c.feed.narrow(within)
	}
	return resultAnswer(m, []byte("{}")), nil
}

// forget reports whether the client was subscribed to a resource, which it is no more.
func (f *feed) forget(uri string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.uris
	at := slices.Index(before, uri)
	if at < 0 {
		return false
	}
	f.uris = slices.Concat(before[:at], before[at+1:])
	f.queue = slices.DeleteFunc(f.queue, func(q note) bool { return hasLeft(q.key, before, f.uris) })
	return true
}

// narrow replaces the listen by one for what the client is subscribed to now. If that does not work out, the wider one
// goes on.
func (f *feed) narrow(ctx context.Context) {
	if f.lock(ctx) != nil {
		return
	}
	defer f.unlock()
	uris := f.subscribed()
	if len(uris) == 0 && !f.session.offered.listsChange() {
		f.replace(nil, nil)
		return
	}
	l, _, err := f.open(ctx, uris)
	if err != nil || l == nil {
		return
	}
	if !f.replace(l, func() { f.follow(l, func() {}) }) {
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
			if !f.over(l) {
				return
			}
			if time.Since(began) > mostRedial {
				failures = 0
			}
		}
		if l.events != nil || failures > 0 {
			background.Await(f.ctx, nil, pauseAfter(failures))
		}
		next, again := f.reopen(l)
		tried()
		if open = next != nil; open {
			l = next
		} else if !again {
			return
		}
	}
}

// over notes that a listen has ended, and reports whether it is the one that counts. What happened since may have been
// missed, unless it was closed for the sake of another: of one that ended before, nobody knows since when.
func (f *feed) over(l *listen) (counts bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at := slices.Index(f.leaving, l); at >= 0 {
		l.late.Stop()
		f.leaving = slices.Concat(f.leaving[:at], f.leaving[at+1:])
	}
	counts = f.current == l
	switch {
	case f.current == nil || l.left.Load():
	case counts:
		f.missed = true
	default:
		f.catchUpLocked()
	}
	return counts
}

// pauseAfter is how long to wait after that many failures in a row.
func pauseAfter(failures int) time.Duration {
	d := min(mostRedial, leastRedial<<min(failures, 10))
	return d/2 + rand.N(d/2)
}

// reopen opens another listen in place of l, which has ended or is yet to be opened. It is not to be tried again when
// another listen counts now, or when the server has no listen or grants nothing; any other error may pass.
func (f *feed) reopen(l *listen) (next *listen, again bool) {
	if f.lock(f.ctx) != nil {
		return nil, false
	}
	defer f.unlock()
	if !f.counts(l) {
		return nil, false
	}
	uris := f.subscribed()
	next, refused, err := f.open(f.ctx, uris)
	if err == nil && refused != nil && len(uris) > 0 && upstream.ErrorCode(refused) == mcp.CodeInvalidParams {
		// A resource is no more. What the client hears of the others is not worth the changed lists.
		f.session.server.o.Log.Warn("the server took none of a client's subscriptions back", "subscriptions", len(uris))
		next, refused, err = f.open(f.ctx, nil)
	}
	if err != nil || refused != nil && upstream.ErrorCode(refused) != mcp.CodeMethodNotFound {
		f.session.server.o.Log.Debug("could not listen for changes", "error", err, "refused", refused != nil)
		return nil, f.stillMissing(l)
	}
	if refused != nil || next.granted.isEmpty() {
		if next != nil {
			next.close()
		}
		f.replace(nil, nil)
		return nil, false
	}
	if !f.replace(next, nil) {
		next.close()
		return nil, false
	}
	return next, true
}

// stillMissing notes that l could not be opened, and reports whether to try again.
func (f *feed) stillMissing(l *listen) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || f.current != l {
		return false
	}
	f.missed = true
	return true
}

// catchUpLocked tells of all that the listen which counts is for, since it may have changed unseen. While that is yet to
// be opened it waits for it.
func (f *feed) catchUpLocked() {
	l := f.current
	if f.missed = l.events == nil; f.missed {
		return
	}
	for i, yes := range l.granted.lists {
		if yes {
			f.putLocked(l, note{listKinds[i].notification, []byte(`{"jsonrpc":"2.0","method":"` + listKinds[i].notification + `"}`)})
		}
	}
	for _, uri := range l.granted.uris {
		data := rawjson.AppendString([]byte(`{"jsonrpc":"2.0","method":"`+mcp.NotificationResourceUpdated+`","params":{"uri":`), uri)
		f.putLocked(l, note{mcp.NotificationResourceUpdated + " " + uri, append(data, `}}`...)})
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
		m, err := mcp.ScanAnswer(ev.Data)
		if err != nil || m.Kind == mcp.Response {
			return
		}
		if key, ok := l.wants(&m); ok {
			f.put(l, note{key, withoutSubscription(&m)})
		}
	}
}

// put queues a notification of a listen that counts, or did a moment ago.
func (f *feed) put(l *listen, n note) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current == l || slices.Contains(f.leaving, l) {
		f.putLocked(l, n)
	}
}

// putLocked is put, unless the client has unsubscribed meanwhile.
func (f *feed) putLocked(l *listen, n note) {
	if hasLeft(n.key, l.granted.uris, f.uris) {
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
