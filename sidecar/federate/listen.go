package federate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	// acknowledgeWithin is how long members may take to acknowledge before the client is answered without them.
	acknowledgeWithin = 3 * time.Second
	// maxUnsent is how many notifications wait for a slow client before its members' streams are read no further.
	maxUnsent = 64
	// leastRedial and mostRedial are between attempts to listen again at a member whose stream ended.
	leastRedial = 500 * time.Millisecond
	mostRedial  = 30 * time.Second
)

// The filter's members, with the notifications that they ask for and the kinds of list that those change.
var filters = []struct {
	name, notification string
	kinds              []kind
}{
	{"toolsListChanged", mcp.NotificationToolsChanged, []kind{tools}},
	{"promptsListChanged", mcp.NotificationPromptsChanged, []kind{prompts}},
	{"resourcesListChanged", mcp.NotificationResourcesChanged, []kind{resources, templates}},
}

// filter is what a listen asks for, or is granted.
type filter struct {
	lists []bool // by index in filters
	uris  []string
	tasks []string
}

// readFilter reads params.notifications, or what an acknowledgement grants.
func readFilter(raw []byte, params mcp.Span) filter {
	f, at := filter{lists: make([]bool, len(filters))}, rawjson.Find(raw, params, "notifications")
	for i := range filters {
		f.lists[i] = string(rawjson.Find(raw, at, filters[i].name).Of(raw)) == "true"
	}
	f.uris, f.tasks = texts(raw, rawjson.Find(raw, at, "resourceSubscriptions")), texts(raw, rawjson.Find(raw, at, "taskIds"))
	return f
}

// texts are the strings of an array.
func texts(raw []byte, array mcp.Span) (out []string) {
	if !rawjson.IsArray(array.Of(raw)) {
		return nil
	}
	for e := range rawjson.Elements(raw, array) {
		if text, ok := rawjson.Text(e.Of(raw)); ok {
			out = append(out, text)
		}
	}
	return out
}

// append appends the filter as an object.
func (f filter) append(b []byte) []byte {
	b = append(b, '{')
	comma := func() {
		if b[len(b)-1] != '{' {
			b = append(b, ',')
		}
	}
	for i, yes := range f.lists {
		if yes {
			comma()
			b = append(b, `"`+filters[i].name+`":true`...)
		}
	}
	for _, part := range []struct {
		name string
		of   []string
	}{{"resourceSubscriptions", f.uris}, {"taskIds", f.tasks}} {
		if len(part.of) == 0 {
			continue
		}
		comma()
		b = append(b, `"`+part.name+`":[`...)
		for i, text := range part.of {
			if i > 0 {
				b = append(b, ',')
			}
			b = rawjson.AppendString(b, text)
		}
		b = append(b, ']')
	}
	return append(b, '}')
}

func (f filter) empty() bool {
	for _, yes := range f.lists {
		if yes {
			return false
		}
	}
	return len(f.uris) == 0 && len(f.tasks) == 0
}

// listen answers subscriptions/listen with one stream of what the members' streams bring (basic/patterns/subscriptions).
// What is granted is what any member granted in time; a member that comes later, or comes back, is let in for that.
func (s *Server) listen(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	l := &listening{
		s: s, id: append([]byte(nil), c.Message.ID.Of(c.Message.Raw)...), principal: c.Principal, scope: scopeOf(c),
		out: make(chan []byte, maxUnsent), granted: filter{lists: make([]bool, len(filters))},
	}
	l.ctx, l.stop = context.WithCancel(ctx)
	context.AfterFunc(s.ctx, l.stop)
	asked := readFilter(c.Message.Raw, c.Message.Params)
	var first sync.WaitGroup
	for m, part := range l.share(ctx, c, asked) {
		first.Add(1)
		once := sync.OnceFunc(first.Done)
		if !s.start(func() { l.follow(m, part, once) }) {
			once()
		}
	}
	answered := make(chan struct{})
	s.start(func() {
		first.Wait()
		close(answered)
	})
	await(l.ctx, answered, acknowledgeWithin)
	l.acknowledge(asked)
	return &upstream.Answer{Status: 200, Length: -1, Events: l}, nil
}

// listening is one open listen: the stream that its client reads, fed by a goroutine for each member.
type listening struct {
	// Set by listen, never changed.
	s         *Server
	id        []byte // the client's request id, which tags every message
	principal string
	scope     scope
	ctx       context.Context // done when the client has left, or the federation closes
	stop      context.CancelFunc
	out       chan []byte

	mu      sync.Mutex // guards below
	granted filter
	open    bool // acknowledged: what is granted from now on can not widen
}

// share gives each member its part of a filter: all kinds of lists, the resources that it may have, its own tasks.
func (l *listening) share(ctx context.Context, c *upstream.Call, asked filter) map[*member]filter {
	parts := make(map[*member]filter)
	for _, m := range l.s.members {
		parts[m] = filter{lists: asked.lists}
	}
	for _, uri := range asked.uris {
		owner := l.s.owner(ctx, c, uri)
		for m, f := range parts {
			if owner == nil || owner == m {
				f.uris = append(f.uris, uri)
				parts[m] = f
			}
		}
	}
	for _, sealed := range asked.tasks {
		if t, ok := l.s.openTask(l.principal, sealed); ok {
			f := parts[t.member]
			f.tasks = append(f.tasks, t.name)
			parts[t.member] = f
		}
	}
	for m, f := range parts {
		if f.empty() {
			delete(parts, m)
		}
	}
	return parts
}

// acknowledge sends the first message: what was granted of what was asked.
func (l *listening) acknowledge(asked filter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = true
	granted := l.granted
	granted.tasks = nil
	for _, sealed := range asked.tasks {
		if t, ok := l.s.openTask(l.principal, sealed); ok && contains(l.granted.tasks, t.name) {
			granted.tasks = append(granted.tasks, sealed)
		}
	}
	b := append([]byte(`{"jsonrpc":"2.0","method":"`+mcp.NotificationAcknowledged+`","params":{"notifications":`), granted.append(nil)...)
	b = append(append(b, `,"_meta":{"`+mcp.MetaKeySubscriptionID+`":`...), l.id...)
	l.out <- append(b, `}}}`...) // which is empty until here
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// follow keeps a listen open at a member for as long as the client's is. first is called when the member has answered
// for the first time, whatever it said.
func (l *listening) follow(m *member, part filter, first func()) {
	defer first()
	for failures := 0; l.ctx.Err() == nil; failures++ {
		began := time.Now()
		err := l.s.subscribe(l.ctx, m, part, l.scope, func(msg *mcp.Message) { l.take(m, msg, first) })
		first()
		if errors.Is(err, errNothingGranted) {
			return
		}
		if time.Since(began) > mostRedial {
			failures = 0
		}
		await(l.ctx, nil, rand.N(min(mostRedial, leastRedial<<min(failures, 10))))
	}
}

var errNothingGranted = errors.New("the member grants nothing of this")

// subscribe opens a listen at a member and hands on its messages until it ends.
func (s *Server) subscribe(ctx context.Context, m *member, f filter, sc scope, take func(*mcp.Message)) error {
	b := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":"`+mcp.MethodListen+`","params":{"notifications":`, s.requests.Add(1))
	b = append(f.append(b), ',')
	msg, err := mcp.Scan(append(s.appendMeta(b, sc), `}}`...), mcp.Limits{MaxDepth: mcp.AnswerDepth})
	if err != nil {
		return err
	}
	a, err := m.Server.Call(ctx, &upstream.Call{Message: &msg, Principal: sc.principal})
	if err != nil {
		return err
	}
	defer a.Close()
	if a.Events == nil {
		return errNothingGranted // an error, as a rule that there is no such method
	}
	for acknowledged := false; ; {
		ev, err := a.Events.Next()
		if err != nil {
			return err
		}
		got, err := mcp.Scan(ev.Data, mcp.Limits{MaxDepth: mcp.AnswerDepth})
		switch {
		case err != nil:
			continue
		case got.Kind == mcp.Response:
			if got.Error.Present() && !acknowledged {
				return errNothingGranted
			}
			return io.EOF
		case got.Method == mcp.NotificationAcknowledged:
			acknowledged = true
			if readFilter(got.Raw, got.Params).empty() {
				return errNothingGranted
			}
		}
		take(&got)
	}
}

// take hands a member's message on under the client's own subscription id. What the client was not granted is dropped.
func (l *listening) take(m *member, msg *mcp.Message, first func()) {
	if msg.Method == mcp.NotificationAcknowledged {
		l.grant(m, readFilter(msg.Raw, msg.Params))
		first()
		return
	}
	for i := range filters {
		if msg.Method == filters[i].notification {
			l.s.invalidate(m, filters[i].kinds...)
		}
	}
	if !l.wants(msg) {
		return
	}
	raw := msg.Raw
	if msg.Method == mcp.NotificationTasks {
		raw = l.s.withSealedTask(raw, msg.Params, l.principal, m)
	}
	l.send(tagged(raw, l.id))
}

// grant adds to what is granted. A member that comes back has perhaps changed its lists: then the client is told.
func (l *listening) grant(m *member, f filter) {
	l.mu.Lock()
	open := l.open
	if !open {
		for i, yes := range f.lists {
			l.granted.lists[i] = l.granted.lists[i] || yes
		}
		l.granted.uris, l.granted.tasks = append(l.granted.uris, f.uris...), append(l.granted.tasks, f.tasks...)
	}
	l.mu.Unlock()
	if !open {
		return
	}
	for i, yes := range f.lists {
		if !yes {
			continue
		}
		l.s.invalidate(m, filters[i].kinds...)
		l.mu.Lock()
		told := l.granted.lists[i]
		l.mu.Unlock()
		if told {
			l.send(tagged([]byte(`{"jsonrpc":"2.0","method":"`+filters[i].notification+`"}`), l.id))
		}
	}
}

// wants reports whether a notification is of a kind that the client was granted. Subscribed resources and tasks are
// their members' to know: they were asked for by name.
func (l *listening) wants(msg *mcp.Message) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range filters {
		if msg.Method == filters[i].notification {
			return l.granted.lists[i]
		}
	}
	return msg.Method == mcp.NotificationResourceUpdated || msg.Method == mcp.NotificationTasks
}

// send waits for room: a client that does not read holds up its own members' streams only. What comes before the
// acknowledgement is dropped: its client has read nothing yet that it could make old.
func (l *listening) send(b []byte) {
	l.mu.Lock()
	open := l.open
	l.mu.Unlock()
	if !open {
		return
	}
	select {
	case l.out <- b:
	case <-l.ctx.Done():
	}
}

// tagged is a notification with a subscription id in its _meta, in place of the one it has.
func tagged(raw, id []byte) []byte {
	key := `"` + mcp.MetaKeySubscriptionID + `":`
	all := rawjson.Whole(raw)
	params := rawjson.Find(raw, all, "params")
	meta := rawjson.Find(raw, params, "_meta")
	switch at := rawjson.Find(raw, meta, mcp.MetaKeySubscriptionID); {
	case at.Present():
		return rawjson.Splice(raw, mcp.Edit{Span: at, With: id})
	case meta.Present():
		return insert(raw, meta, key+string(id))
	case params.Present():
		return insert(raw, params, `"_meta":{`+key+string(id)+`}`)
	}
	return insert(raw, all, `"params":{"_meta":{`+key+string(id)+`}}`)
}

// insert puts a member at the end of an object of raw.
func insert(raw []byte, object mcp.Span, member string) []byte {
	for range rawjson.Members(raw, object) {
		member = "," + member
		break
	}
	at := object.End - 1
	return rawjson.Splice(raw, mcp.Edit{Span: mcp.Span{Start: at, End: at}, With: []byte(member)})
}

// Next implements upstream.EventStream.
func (l *listening) Next() (mcp.Event, error) {
	select {
	case b := <-l.out:
		return mcp.Event{Data: b}, nil
	case <-l.ctx.Done():
		return mcp.Event{}, io.EOF
	}
}

// Ready implements upstream.EventStream.
func (l *listening) Ready() bool { return len(l.out) > 0 }

// Close implements upstream.EventStream. The members' streams end by themselves, soon.
func (l *listening) Close() error {
	l.stop()
	return nil
}

// watch follows the members' lists, so that what is kept of them is fresh though no client listens.
func (s *Server) watch() {
	all := filter{lists: make([]bool, len(filters))}
	for i := range all.lists {
		all.lists[i] = true
	}
	for _, m := range s.members {
		s.start(func() { s.watchMember(m, all) })
	}
}

// watchMember is one member's part of watch. When its stream ends, its lists may have changed unseen.
func (s *Server) watchMember(m *member, all filter) {
	for failures := 0; s.ctx.Err() == nil; failures++ {
		began := time.Now()
		err := s.subscribe(s.ctx, m, all, scope{}, func(msg *mcp.Message) {
			for i := range filters {
				if msg.Method == filters[i].notification {
					s.invalidate(m, filters[i].kinds...)
				}
			}
		})
		if errors.Is(err, errNothingGranted) {
			return // its lists are as old as their ttl says
		}
		if time.Since(began) > mostRedial {
			failures = 0
		}
		s.invalidate(m, tools, prompts, resources, templates)
		await(s.ctx, nil, rand.N(min(mostRedial, leastRedial<<min(failures, 10))))
	}
}
