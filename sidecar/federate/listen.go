package federate

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	// acknowledgeWithin is how long members may take to acknowledge before the client is answered without them.
	acknowledgeWithin = 3 * time.Second
	// ownersWithin is how much of that may go by until the owners of resources are known.
	ownersWithin = time.Second
	// maxUnsent is how many notifications wait for a slow client before its members' streams are read no further.
	maxUnsent = 64
)

// listening is one open listen: the stream that its client reads. That lists have changed comes from feeds, which many
// listens share; what concerns single resources and tasks from streams of its own, at the members that have them.
type listening struct {
	// Set by listen, never changed.
	s       *Server
	id      []byte // the client's request id, which tags every message
	asker   asker  // its caller is the one who listens
	asked   filter
	ctx     context.Context // done when the client has left, or the federation closes
	stop    context.CancelFunc
	detach  func() bool // from the federation's context
	feeds   []*feed
	own     []*subscription
	out     chan []byte
	wake    chan struct{} // capacity 1: there is something in what mu guards
	closing sync.Once

	mu      sync.Mutex // guards below; taken under a feed's
	granted filter
	first   []byte // the acknowledgement, until it was taken
	open    bool   // it was made: what is granted can not widen
	pending []bool // lists that have changed, by index in filters
	ended   bool   // the orderly end was taken
}

// subscription is the part of a listen that one member alone has.
type subscription struct {
	m        *member
	part     filter
	names    map[string]string // of tasks: what the client calls them, by the member's id
	answered chan struct{}     // closed when the member has granted, refused or failed for the first time
	once     sync.Once

	granted filter // guarded by the listening's mu
}

func (p *subscription) settle() { p.once.Do(func() { close(p.answered) }) }

// listen answers subscriptions/listen with one stream of what the members' streams bring (basic/patterns/subscriptions).
// What is granted is what any member granted in time; lists also if a member may yet, once it is there.
func (s *Server) listen(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	asked := readFilter(c.Message.Raw, c.Message.Params)
	switch {
	case len(asked.uris)+len(asked.tasks) > maxSubscriptions:
		return invalidParams(c, fmt.Sprintf("more than %d subscriptions in one listen", maxSubscriptions)), nil
	case len(asked.tasks) > 0 && !hasExtension(c, extensionTasks):
		return needTasks(c), nil
	}
	l := &listening{
		s: s, id: bytes.Clone(c.Message.ID.Of(c.Message.Raw)), asker: askerOf(c), asked: asked,
		out: make(chan []byte, maxUnsent), wake: make(chan struct{}, 1), pending: make([]bool, len(filters)),
	}
	l.ctx, l.stop = context.WithCancel(ctx)
	l.detach = context.AfterFunc(s.ctx, l.stop)
	within, cancel := context.WithTimeout(l.ctx, acknowledgeWithin)
	defer cancel()
	l.begin(within, c)
	l.await(within)
	if err := ctx.Err(); err != nil {
		l.Close()
		return nil, err
	}
	l.acknowledge()
	return &upstream.Answer{Status: http.StatusOK, Length: -1, Events: l}, nil
}

// begin opens what the listen is made of.
func (l *listening) begin(ctx context.Context, c *upstream.Call) {
	l.s.watching.Do(l.s.watch)
	if slices.Contains(l.asked.lists, true) {
		for _, m := range l.s.members {
			if f := l.s.join(m, l.asker, l); f != nil {
				l.feeds = append(l.feeds, f)
			}
		}
	}
	for _, p := range l.share(ctx, c) {
		if l.s.start(func() { l.follow(p) }) {
			l.own = append(l.own, p)
		}
	}
}

// await waits until every member has said what it grants, or ctx ends.
func (l *listening) await(ctx context.Context) {
	for _, f := range l.feeds {
		wait(ctx, f.answered)
	}
	for _, p := range l.own {
		wait(ctx, p.answered)
	}
}

func wait(ctx context.Context, done <-chan struct{}) {
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// share gives each member its part of what was asked for: the resources that it may have, and its own tasks.
func (l *listening) share(ctx context.Context, c *upstream.Call) (own []*subscription) {
	parts := make(map[*member]*subscription)
	of := func(m *member) *subscription {
		if parts[m] == nil {
			nothing := filter{lists: make([]bool, len(filters))}
			parts[m] = &subscription{m: m, part: nothing, granted: nothing, names: make(map[string]string), answered: make(chan struct{})}
			own = append(own, parts[m])
		}
		return parts[m]
	}
	ctx, cancel := context.WithTimeout(ctx, ownersWithin)
	defer cancel()
	for _, uri := range l.asked.uris {
		owner, _ := l.s.owner(ctx, c, uri) // whoever left or takes too long is found out by asking all
		for _, m := range l.s.members {
			if owner == nil || owner == m {
				p := of(m)
				p.part.uris = append(p.part.uris, uri)
			}
		}
	}
	for _, sealed := range l.asked.tasks {
		if t, ok := l.s.openTask(l.asker.principal, sealed); ok {
			p := of(t.member)
			p.part.tasks = append(p.part.tasks, t.name)
			p.names[t.name] = sealed
		}
	}
	return own
}

// acknowledge makes the first message: what was granted of what was asked.
func (l *listening) acknowledge() {
	granted := filter{lists: make([]bool, len(filters))}
	for _, f := range l.feeds {
		for i := range filters {
			granted.lists[i] = granted.lists[i] || f.grants(i)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.own {
		granted.uris = append(granted.uris, p.granted.uris...)
		for _, id := range p.granted.tasks {
			granted.tasks = append(granted.tasks, p.names[id])
		}
	}
	l.granted = granted.within(l.asked)
	b := append([]byte(`{"jsonrpc":"2.0","method":"`+mcp.NotificationAcknowledged+`","params":{"notifications":`), l.granted.append(nil)...)
	b = append(append(b, `,"_meta":{"`+mcp.MetaKeySubscriptionID+`":`...), l.id...)
	l.first, l.open = append(b, `}}}`...), true
}

func (l *listening) isOpen() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// changed notes that a list has changed. It does not wait: a client hears once of what happened many times.
func (l *listening) changed(i int) {
	l.mu.Lock()
	l.pending[i] = true
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// follow keeps a member's own part of the listen open for as long as the client's is.
func (l *listening) follow(p *subscription) {
	defer p.settle()
	again := false
	redial(l.ctx, func() error {
		err := l.s.subscribe(l.ctx, p.m, p.part, l.asker, func(msg *mcp.Message) { l.take(p, msg, again) })
		p.settle()
		again = true
		return err
	})
}

// take hands a member's message on under the client's own subscription id. What the client was not granted is dropped,
// and so is what comes before the acknowledgement: the client has read nothing yet that it could make old.
func (l *listening) take(p *subscription, msg *mcp.Message, again bool) {
	switch msg.Method {
	case mcp.NotificationAcknowledged:
		l.grant(p, readFilter(msg.Raw, msg.Params).within(p.part), again)
	case mcp.NotificationResourceUpdated:
		if l.sends(func() bool { return p.granted.covers(string(msg.Name)) && l.granted.covers(string(msg.Name)) }) {
			l.send(tagged(msg.Raw, l.id))
		}
	case mcp.NotificationTasks:
		id, _ := rawjson.Text(rawjson.Find(msg.Raw, msg.Params, "taskId").Of(msg.Raw))
		if l.sends(func() bool {
			return slices.Contains(p.granted.tasks, id) && slices.Contains(l.granted.tasks, p.names[id])
		}) {
			l.send(tagged(withTaskID(msg.Raw, msg.Params, func(id string) string { return p.names[id] }), l.id))
		}
	}
}

// grant notes what a member grants. Of one that comes back the client may have missed something.
func (l *listening) grant(p *subscription, f filter, again bool) {
	l.mu.Lock()
	p.granted = f
	var missed []string
	if l.open && again {
		missed = common(l.granted.uris, f.uris)
	}
	l.mu.Unlock()
	p.settle()
	for _, uri := range missed {
		l.send(resourceUpdated(uri, l.id))
	}
}

func (l *listening) sends(granted func() bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open && granted()
}

// send waits for room: a client that does not read holds up its own members' streams only.
func (l *listening) send(b []byte) {
	select {
	case l.out <- b:
	case <-l.ctx.Done():
	}
}

// Next implements upstream.EventStream.
func (l *listening) Next() (mcp.Event, error) {
	for {
		if b := l.noted(); b != nil {
			return mcp.Event{Data: b}, nil
		}
		select {
		case b := <-l.out:
			return mcp.Event{Data: b}, nil
		case <-l.wake:
		case <-l.ctx.Done():
			return l.end()
		}
	}
}

// noted is the next message that waits for no member: the acknowledgement, or that a list has changed.
func (l *listening) noted() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	if first := l.first; first != nil {
		l.first = nil
		return first
	}
	if i := l.nextLocked(); i >= 0 {
		l.pending[i] = false
		return listChanged(i, l.id)
	}
	return nil
}

// nextLocked is the index of a list of which the client is to hear that it has changed; negative when there is none.
func (l *listening) nextLocked() int {
	for i, yes := range l.pending {
		if yes && l.granted.lists[i] {
			return i
		}
	}
	return -1
}

// end is what comes last: the result when it is the federation that ends the listen (Closing), and nothing when the client
// has.
func (l *listening) end() (mcp.Event, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.s.ctx.Err() == nil {
		return mcp.Event{}, &upstream.Error{Kind: upstream.Lost, Upstream: l.s.o.Binding.GetName(), Detail: "the listen was given up", Cause: context.Canceled}
	}
	if l.ended {
		return mcp.Event{}, io.EOF
	}
	l.ended = true
	b := append([]byte(`{"jsonrpc":"2.0","id":`), l.id...)
	b = append(append(b, `,"result":{"resultType":"complete","_meta":{"`+mcp.MetaKeySubscriptionID+`":`...), l.id...)
	return mcp.Event{Data: append(b, `}}}`...)}, nil
}

// Ready implements upstream.EventStream.
func (l *listening) Ready() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first != nil || l.open && l.nextLocked() >= 0 || len(l.out) > 0
}

// Close implements upstream.EventStream. The members' streams end by themselves, soon.
func (l *listening) Close() error {
	l.closing.Do(func() {
		l.stop()
		l.detach()
		for _, f := range l.feeds {
			f.leave(l)
		}
	})
	return nil
}
