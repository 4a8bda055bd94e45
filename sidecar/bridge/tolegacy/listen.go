package tolegacy

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"sync"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	queuedChanges = 256  // that a listening client has not taken yet; see listen.add
	maxURIs       = 1000 // that one listen may name, and that one session may be subscribed to
)

// filter is what a listen asks for, and what of it is granted (basic/patterns/subscriptions, SubscriptionFilter).
type filter struct {
	Tools     bool     `json:"toolsListChanged,omitempty"`
	Prompts   bool     `json:"promptsListChanged,omitempty"`
	Resources bool     `json:"resourcesListChanged,omitempty"`
	URIs      []string `json:"resourceSubscriptions,omitempty"`
}

// wants reports whether a notification is one that was granted. A resource's update is also one of what it is part of.
func (f *filter) wants(m *mcp.Message) bool {
	switch m.Method {
	case mcp.NotificationToolsChanged:
		return f.Tools
	case mcp.NotificationPromptsChanged:
		return f.Prompts
	case mcp.NotificationResourcesChanged:
		return f.Resources
	case mcp.NotificationResourceUpdated:
		for _, uri := range f.URIs {
			if isWithin(string(m.Name), uri) {
				return true
			}
		}
	}
	return false
}

// isWithin reports whether uri is another, or names a part of it.
func isWithin(uri, of string) bool {
	rest, ok := strings.CutPrefix(uri, of)
	return ok && (rest == "" || strings.ContainsRune("/?#", rune(rest[0])) || strings.HasSuffix(of, "/"))
}

// listen is one subscriptions/listen. It is an upstream.EventStream: the acknowledgement, then what changes, and at an
// orderly end the result.
type listen struct {
	// Set before the hub knows it, never changed.
	hub     *hub
	id      []byte // of the request, as its token
	unwatch func() bool
	wake    chan struct{} // capacity 1

	mu      sync.Mutex // guards below
	granted filter     // what is passed on
	holds   []string   // the URIs that it is counted among the subscribers of
	first   []byte     // the acknowledgement, until it was taken; nothing else goes before it
	queue   [][]byte
	size    int // bytes in queue
	ended   bool
	err     error // what comes after the queue; nil: the orderly end
	closed  sync.Once
}

// listen answers subscriptions/listen.
func (s *Server) listen(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	o, refused := s.read(c)
	if refused != nil {
		return refusal(c.Message, refused), nil
	}
	wanted, refused := readFilter(o.m)
	if refused != nil {
		return refusal(c.Message, refused), nil
	}
	l, err := s.subscribe(ctx, o, wanted)
	if isGone(err) {
		l, err = s.subscribe(ctx, o, wanted) // on another session
	}
	if err != nil {
		return nil, err
	}
	l.unwatch = context.AfterFunc(ctx, func() { l.end(upstream.GaveUp(ctx, s.name)) })
	return &upstream.Answer{Status: 200, Length: -1, Events: l}, nil
}

// subscribe adds a listen to its session's.
func (s *Server) subscribe(ctx context.Context, o *order, wanted filter) (*listen, error) {
	p, err := s.pool.acquire(ctx, o)
	if err != nil {
		return nil, err
	}
	l := &listen{hub: p.listen, id: bytes.Clone(o.m.ID.Of(o.m.Raw)), wake: make(chan struct{}, 1)}
	if err := p.listen.join(ctx, l, wanted); err != nil {
		if isGone(err) {
			s.pool.forget(p)
		}
		p.listen.leave(l)
		s.pool.release(p)
		return nil, err
	}
	return l, nil
}

// readFilter reads params.notifications. Kinds that nobody knows here are not granted.
func readFilter(m *mcp.Message) (filter, *mcp.Error) {
	var f filter
	notifications := rawjson.Find(m.Raw, m.Params, "notifications")
	if !rawjson.IsObject(notifications.Of(m.Raw)) {
		return f, badMeta("params.notifications is not an object")
	}
	for n := range rawjson.Members(m.Raw, notifications) {
		var err error
		switch value := n.Value.Of(m.Raw); string(n.Name) {
		case "toolsListChanged":
			err = json.Unmarshal(value, &f.Tools)
		case "promptsListChanged":
			err = json.Unmarshal(value, &f.Prompts)
		case "resourcesListChanged":
			err = json.Unmarshal(value, &f.Resources)
		case "resourceSubscriptions":
			err = json.Unmarshal(value, &f.URIs)
		}
		if err != nil || len(f.URIs) > maxURIs {
			return f, badMeta("params.notifications." + string(n.Name) + " is not what it should be, or too much")
		}
	}
	return f, nil
}

// acknowledge makes the first message: what was granted.
func (l *listen) acknowledge(granted filter) {
	b := []byte(`{"jsonrpc":"2.0","method":"` + mcp.NotificationAcknowledged + `","params":{"notifications":`)
	b = append(append(b, encode(granted)...), `,"_meta":`...)
	b = append(append(b, l.meta()...), "}}"...)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.granted, l.holds, l.first = granted, granted.URIs, b
}

// meta is what every message of the listen carries.
func (l *listen) meta() []byte {
	return append(append([]byte(`{"`+mcp.MetaKeySubscriptionID+`":`), l.id...), '}')
}

// tagged is a notification as one of this listen's.
func (l *listen) tagged(m *mcp.Message) []byte {
	tag := `"` + mcp.MetaKeySubscriptionID + `":` + string(l.id)
	switch {
	case m.SubscriptionID.Present(): // a server that knows what it should not
		return rawjson.Splice(m.Raw, mcp.Edit{Span: m.SubscriptionID, With: l.id})
	case m.Meta.Present():
		return rawjson.Insert(m.Raw, m.Meta, tag)
	case m.Params.Present():
		return rawjson.Insert(m.Raw, m.Params, `"_meta":{`+tag+`}`)
	}
	return rawjson.Insert(m.Raw, rawjson.Whole(m.Raw), `"params":{"_meta":{`+tag+`}}`)
}

// add queues a notification if it was granted. One that waits already is not queued twice: it says that something
// changed, not how often. A client that leaves more than fit loses its listen, and looks at everything anew.
func (l *listen) add(m *mcp.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || !l.granted.wants(m) {
		return
	}
	data := l.tagged(m)
	for _, waiting := range l.queue {
		if bytes.Equal(waiting, data) {
			return
		}
	}
	if len(l.queue) >= queuedChanges || l.size+len(data) > queuedBytes {
		l.queue = nil
		l.endLocked(l.hub.server().fault(upstream.Overloaded, "the client takes changes too slowly", nil))
		return
	}
	l.queue, l.size = append(l.queue, data), l.size+len(data)
	signal(l.wake)
}

// finish ends the listen in good order (basic/patterns/subscriptions, Closing).
func (l *listen) finish() {
	result := append([]byte(`{"jsonrpc":"2.0","id":`), l.id...)
	result = append(append(result, `,"result":{"resultType":"complete","_meta":`...), l.meta()...)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.queue = append(l.queue, append(result, "}}"...))
		l.endLocked(nil)
	}
}

// end ends it without a result.
func (l *listen) end(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.endLocked(err)
	}
}

func (l *listen) endLocked(err error) {
	l.ended, l.err = true, err
	signal(l.wake)
}

// Next implements upstream.EventStream.
func (l *listen) Next() (mcp.Event, error) {
	for {
		if data, err := l.take(); data != nil || err != nil {
			return mcp.Event{Data: data}, err
		}
		<-l.wake
	}
}

func (l *listen) take() ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.first != nil:
		data := l.first
		l.first = nil
		return data, nil
	case len(l.queue) > 0:
		data := l.queue[0]
		l.queue, l.size = l.queue[1:], l.size-len(data)
		return data, nil
	case l.ended && l.err != nil:
		return nil, l.err
	case l.ended:
		return nil, io.EOF
	}
	return nil, nil
}

// Ready implements upstream.EventStream.
func (l *listen) Ready() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first != nil || len(l.queue) > 0 || l.ended
}

// Close implements upstream.EventStream.
func (l *listen) Close() error {
	l.closed.Do(func() {
		l.unwatch()
		l.end(l.hub.server().fault(upstream.Lost, "the listen was given up", context.Canceled))
		l.hub.leave(l)
		l.hub.server().pool.release(l.hub.session)
	})
	return nil
}
