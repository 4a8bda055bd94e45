package tolegacy

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	maxListens          = 1024 // of one session
	subscribingTogether = 16
	pinTime             = 500 * time.Millisecond
)

// hub feeds a session's listens: from the one stream that the server has for it, which is open while anyone listens, and
// from what comes on the streams of calls.
type hub struct {
	session *pooled
	turn    chan struct{} // held while subscriptions change, so that the server hears of them in one order

	mu      sync.Mutex // guards below; taken before a listen's
	listens map[*listen]struct{}
	refs    map[string]int // listens by the URI that was granted to them
	stream  *stream        // nil until the first listen, and while nobody listens
	pinned  bool           // the stream stays while nobody listens, since the server may ask on it
	ended   bool           // with the Server
}

// stream is the session's stream of messages that belong to no call.
type stream struct {
	stop  context.CancelFunc
	known chan struct{} // closed when err is set
	err   error         // why there is none
}

func newHub(p *pooled) *hub {
	return &hub{
		session: p, turn: make(chan struct{}, 1), listens: make(map[*listen]struct{}), refs: make(map[string]int),
	}
}

func (h *hub) server() *Server { return h.session.pool.server }

// join adds a listen and acknowledges what the server can be counted on for; that may be nothing.
func (h *hub) join(ctx context.Context, l *listen, wanted filter) error {
	st, err := h.add(l)
	if err != nil {
		return err
	}
	hears, err := h.hears(ctx, st)
	if err != nil {
		return err
	}
	about := h.session.about
	granted := filter{
		Tools:     hears && wanted.Tools && about.has("tools", "listChanged"),
		Prompts:   hears && wanted.Prompts && about.has("prompts", "listChanged"),
		Resources: hears && wanted.Resources && about.has("resources", "listChanged"),
	}
	subscribes := hears && len(wanted.URIs) > 0 && about.has("resources", "subscribe")
	l.mu.Lock()
	l.granted = granted // what comes from now on waits for the acknowledgement
	if subscribes {
		l.granted.URIs = wanted.URIs
	}
	l.mu.Unlock()
	if subscribes {
		if granted.URIs, err = h.subscribe(ctx, wanted.URIs); err != nil {
			return err
		}
	}
	l.acknowledge(granted)
	return nil
}

// add takes a listen in, and opens the stream for the first.
func (h *hub) add(l *listen) (*stream, error) {
	s := h.server()
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.ended:
		return nil, s.fault(upstream.Lost, "the upstream was removed", nil)
	case len(h.listens) >= maxListens:
		return nil, s.fault(upstream.Overloaded, "too many subscriptions of one caller are open", nil)
	}
	st := h.streamLocked()
	if st == nil {
		return nil, s.fault(upstream.Lost, "the upstream was removed", nil)
	}
	h.listens[l] = struct{}{}
	return st, nil
}

// streamLocked is the stream, opened if there is none; nil when it is too late for that.
func (h *hub) streamLocked() *stream {
	if h.stream != nil {
		return h.stream
	}
	st := &stream{known: make(chan struct{})}
	var ctx context.Context
	ctx, st.stop = context.WithCancel(h.server().tasks.ctx)
	if !h.server().tasks.run(func() { h.read(ctx, st) }) {
		st.stop()
		return nil
	}
	h.stream = st
	return st
}

// pin opens the stream for as long as the session lasts, and waits a moment for it: a server that asks before it is there
// may ask nobody. One without a stream goes on without. A process that is asked several things at once says on the stream
// what it says of none of them, so there it has to be open too.
func (h *hub) pin(ctx context.Context) {
	h.mu.Lock()
	h.pinned = true
	st := h.streamLocked()
	h.mu.Unlock()
	if st == nil {
		return
	}
	t := time.NewTimer(pinTime)
	defer t.Stop()
	select {
	case <-st.known:
	case <-t.C:
	case <-ctx.Done():
	}
}

// asksAside reports whether the server may ask outside of calls' streams: it has not said that it has no other.
func (h *hub) asksAside() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.pinned || h.stream == nil {
		return false
	}
	select {
	case <-h.stream.known:
		return h.stream.err == nil
	default:
		return true
	}
}

// close gives the stream up with the session.
func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pinned = false
	if h.stream != nil {
		h.stream.stop()
	}
}

// hears reports whether the server has a stream. One that does not say within a short time is taken at its word later.
func (h *hub) hears(ctx context.Context, st *stream) (bool, error) {
	t := time.NewTimer(streamVerdict)
	defer t.Stop()
	select {
	case <-st.known:
	case <-t.C:
		return true, nil
	case <-ctx.Done():
		return false, h.server().gaveUp(ctx)
	}
	var failed *upstream.Error
	switch {
	case st.err == nil:
		return true, nil
	case errors.As(st.err, &failed) && failed.Kind != upstream.BadAnswer:
		return false, st.err
	}
	return false, nil // it answers GET with 405, or with something that is no stream
}

// read is the task that reads the stream.
func (h *hub) read(ctx context.Context, st *stream) {
	defer st.stop()
	events, err := h.session.session.Listen(ctx)
	st.err = err
	close(st.known)
	if err == nil {
		defer events.Close()
		for err == nil {
			var e mcp.Event
			if e, err = events.Next(); err == nil {
				h.message(ctx, e.Data)
			}
		}
		h.lost(st, err)
		return
	}
	if errors.Is(err, upstream.ErrNoStream) {
		return // for as long as there are listens, which hear nothing
	}
	h.lost(st, err)
}

// lost ends the listens of a stream that broke off for good: their clients listen again and look at everything anew.
func (h *hub) lost(st *stream, err error) {
	var failed *upstream.Error
	if !errors.As(err, &failed) {
		err = h.server().fault(upstream.Lost, "the server ended the stream of its changes", err)
	}
	if isGone(err) {
		h.server().pool.forget(h.session)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stream != st {
		return
	}
	h.stream = nil
	if failed != nil && failed.Kind == upstream.BadAnswer {
		return // it never was one; the listens hear nothing
	}
	for l := range h.listens {
		l.end(err)
	}
}

// message takes in what the server says outside of calls' streams. A request there should belong to no call, but servers
// exist that send all of theirs there. While exactly one call of the session is in flight it can be no other's; else
// nobody can be asked.
func (h *hub) message(ctx context.Context, data []byte) {
	m, err := scan(data)
	if err != nil {
		return
	}
	switch {
	case m.Kind == mcp.Notification:
		h.publish(&m)
	case m.Kind == mcp.Request:
		result := noSuchThing
		if m.Method == mcp.MethodPing {
			result = pong
		} else if k := h.session.calls.only(); k != nil && isQuestion(m.Method) && k.declared.lacks(&m) == "" {
			k.questionAside(&m)
			return
		}
		ctx, stop := context.WithTimeout(ctx, h.server().settings.times.Handshake)
		defer stop()
		if err := h.session.reply(ctx, m.ID.Of(m.Raw), result); err != nil {
			h.server().log.Debug("a request of the server's could not be answered", "error", err)
		}
	}
}

// publish gives a notification to the listens that want it.
func (h *hub) publish(m *mcp.Message) {
	switch m.Method {
	case mcp.NotificationToolsChanged, mcp.NotificationPromptsChanged, mcp.NotificationResourcesChanged:
		h.server().discovery.forget()
	case mcp.NotificationResourceUpdated:
	default:
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for l := range h.listens {
		l.add(m)
	}
}

// leave takes a listen out, with the subscriptions that nobody else holds, and closes the stream after the last.
func (h *hub) leave(l *listen) {
	h.mu.Lock()
	delete(h.listens, l)
	if len(h.listens) == 0 && h.stream != nil && !h.pinned {
		h.stream.stop()
		h.stream = nil
	}
	h.mu.Unlock()
	l.mu.Lock()
	held := l.holds
	l.holds = nil
	l.mu.Unlock()
	h.release(held)
}

// release gives subscriptions up, and tells the server in the background of those that nobody holds any more.
func (h *hub) release(uris []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	unused := false
	for _, uri := range uris {
		h.refs[uri]--
		unused = unused || h.refs[uri] == 0
	}
	if unused {
		h.server().tasks.run(h.unsubscribe)
	}
}

// unsubscribe tells the server of every subscription that nobody holds.
func (h *hub) unsubscribe() {
	ctx, stop := h.server().brief()
	defer stop()
	if h.take(ctx) != nil {
		return
	}
	defer func() { <-h.turn }()
	h.mu.Lock()
	var unused []string
	for uri, refs := range h.refs {
		if refs == 0 {
			unused = append(unused, uri)
			delete(h.refs, uri)
		}
	}
	h.mu.Unlock()
	h.tell(ctx, mcp.MethodResourcesUnsubscribe, unused)
}

func (h *hub) take(ctx context.Context) error {
	select {
	case h.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return h.server().gaveUp(ctx)
	}
}

// subscribe makes the server send updates of resources, and returns those that it grants.
func (h *hub) subscribe(ctx context.Context, uris []string) ([]string, error) {
	if err := h.take(ctx); err != nil {
		return nil, err
	}
	defer func() { <-h.turn }()
	h.mu.Lock()
	var unknown []string
	for _, uri := range uris {
		if _, known := h.refs[uri]; !known && !slices.Contains(unknown, uri) && len(h.refs)+len(unknown) < maxURIs {
			unknown = append(unknown, uri)
		}
	}
	h.mu.Unlock()
	taken := h.tell(ctx, mcp.MethodResourcesSubscribe, unknown)
	h.mu.Lock()
	for _, uri := range taken {
		h.refs[uri] = 0
	}
	var granted []string
	for _, uri := range uris {
		if _, known := h.refs[uri]; known {
			h.refs[uri]++
			granted = append(granted, uri)
		}
	}
	h.mu.Unlock()
	if ctx.Err() != nil {
		h.release(granted)
		return nil, h.server().gaveUp(ctx)
	}
	return granted, nil
}

// tell makes a request for each URI, several at once, and returns those that the server answered with a result.
func (h *hub) tell(ctx context.Context, method string, uris []string) (taken []string) {
	var (
		g  errgroup.Group
		mu sync.Mutex
	)
	g.SetLimit(subscribingTogether)
	for _, uri := range uris {
		g.Go(func() error {
			m, err := h.session.ask(ctx, method, append(rawjson.AppendString([]byte(`{"uri":`), uri), '}'))
			if err == nil && m.Result.Present() {
				mu.Lock()
				defer mu.Unlock()
				taken = append(taken, uri)
			}
			return nil
		})
	}
	_ = g.Wait() // no member fails
	return taken
}

// endAll ends every listen in good order.
func (h *hub) endAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	for l := range h.listens {
		l.finish()
	}
}
