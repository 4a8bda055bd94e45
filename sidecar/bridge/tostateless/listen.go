package tostateless

import (
	"context"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// listKinds are the lists whose changes a server may tell of: the capability that has listChanged, the filter's member
// that asks for it, and what is then told.
var listKinds = [...]struct{ capability, filter, notification string }{
	{"tools", "toolsListChanged", mcp.NotificationToolsChanged},
	{"prompts", "promptsListChanged", mcp.NotificationPromptsChanged},
	{"resources", "resourcesListChanged", mcp.NotificationResourcesChanged},
}

// granted is what a server agreed to tell of.
type granted struct {
	lists [len(listKinds)]bool
	uris  []string
}

func grantedBy(m *mcp.Message) (g granted) {
	at := rawjson.Find(m.Raw, m.Params, "notifications")
	for i, k := range listKinds {
		g.lists[i] = string(rawjson.Find(m.Raw, at, k.filter).Of(m.Raw)) == "true"
	}
	for e := range elementsOf(m.Raw, rawjson.Find(m.Raw, at, "resourceSubscriptions")) {
		if uri, ok := rawjson.Text(e.Of(m.Raw)); ok {
			g.uris = append(g.uris, uri)
		}
	}
	return g
}

func (g *granted) isEmpty() bool { return g.lists == [len(listKinds)]bool{} && len(g.uris) == 0 }

// listen is one subscriptions/listen at the server. One without events is yet to be opened.
type listen struct {
	// Set before others see it, never changed.
	events  upstream.EventStream
	cancel  context.CancelFunc
	granted granted

	left atomic.Bool // it was given up since another had taken its place
	late *time.Timer // calls leave; set when the listen is one of feed.leaving
}

// close gives the listen up. It may be called by any goroutine, more than once.
func (l *listen) close() {
	if l.events != nil {
		l.cancel()
		_ = l.events.Close() // there is nothing to lose
	}
}

// leave is close for a listen whose place another has taken.
func (l *listen) leave() {
	l.left.Store(true)
	l.close()
}

// wants says whether a notification is one that was asked for, and under which key it is queued.
func (l *listen) wants(m *mcp.Message) (key string, ok bool) {
	if m.Method == mcp.NotificationResourceUpdated {
		return m.Method + " " + string(m.Name), m.Name != nil
	}
	for i, k := range listKinds {
		if m.Method == k.notification {
			return k.notification, l.granted.lists[i]
		}
	}
	return "", false
}

// hasLeft reports whether a note is of a resource that was asked for and is not wanted any more, or of a part of one. What
// else a server names is part of something in a way that only it knows.
func hasLeft(key string, asked, wanted []string) bool {
	uri, ok := strings.CutPrefix(key, mcp.NotificationResourceUpdated+" ")
	if !ok {
		return false
	}
	owner := ""
	for _, a := range asked {
		if len(a) > len(owner) && (uri == a || strings.HasPrefix(uri, strings.TrimSuffix(a, "/")+"/")) {
			owner = a
		}
	}
	return owner != "" && !slices.Contains(wanted, owner)
}

// filterOf is a listen's params: the lists that the server has changes of, and these resources.
func (c *session) filterOf(uris []string) []byte {
	b := []byte(`"notifications":{`)
	comma := func() {
		if b[len(b)-1] != '{' {
			b = append(b, ',')
		}
	}
	for i, yes := range c.offered.lists {
		if yes {
			comma()
			b = append(b, `"`+listKinds[i].filter+`":true`...)
		}
	}
	if len(uris) > 0 {
		comma()
		b = append(b, `"resourceSubscriptions":[`...)
		for i, uri := range uris {
			if i > 0 {
				b = append(b, ',')
			}
			b = rawjson.AppendString(b, uri)
		}
		b = append(b, ']')
	}
	return append(b, "},"...)
}

// open opens a listen, which lives until it is closed or the session ends, and waits until the server has acknowledged
// it. It returns the error that the server gave instead, if it gave one. ctx and a handshake's time bound the wait.
func (f *feed) open(ctx context.Context, uris []string) (l *listen, refused *mcp.Message, err error) {
	c := f.session
	m, err := c.server.request(mcp.MethodListen, c.filterOf(uris), c.meta)
	if err != nil {
		return nil, nil, err
	}
	life, cancel := context.WithCancel(f.ctx)
	unwatch := context.AfterFunc(ctx, cancel)
	timer := time.AfterFunc(c.server.o.Handshake, cancel)
	l = &listen{cancel: cancel}
	refused, err = l.acknowledged(life, c, &m)
	inTime, here := timer.Stop(), unwatch()
	switch { // what was begun ends the listen, if it is not over already
	case !here:
		err = upstream.GaveUp(ctx, c.server.o.Upstream)
	case !inTime:
		err = c.server.unacknowledged(context.DeadlineExceeded)
	}
	if err != nil || refused != nil {
		cancel()
		l.close()
		return nil, refused, err
	}
	return l, nil, nil
}

// acknowledged sends a listen and reads up to its acknowledgement, which comes first (basic/patterns/subscriptions).
func (l *listen) acknowledged(ctx context.Context, c *session, m *mcp.Message) (refused *mcp.Message, err error) {
	s := c.server
	a, err := s.inner.Call(ctx, &upstream.Call{Message: m, Header: headerFor(m, nil), Principal: c.principal, Caller: c.caller.Load()})
	if err != nil {
		return nil, forLegacy(err)
	}
	if a.Events == nil {
		r, err := s.readResponse(a)
		if err == nil && !r.Error.Present() {
			err = s.fault(upstream.BadAnswer, "ended a listen before it began", nil)
		}
		return &r, err
	}
	l.events = a.Events
	for {
		ev, err := a.Events.Next()
		switch {
		case err == io.EOF:
			return nil, s.fault(upstream.Lost, "ended a listen before it was acknowledged", nil)
		case err != nil:
			return nil, forLegacy(err)
		}
		got, err := mcp.ScanAnswer(slices.Clone(ev.Data))
		switch {
		case err != nil:
			return nil, s.fault(upstream.BadAnswer, "sent an event that is not a JSON-RPC message", err)
		case got.Kind == mcp.Response && got.Error.Present():
			return &got, nil
		case got.Kind == mcp.Response:
			return nil, s.fault(upstream.BadAnswer, "ended a listen before it was acknowledged", nil)
		case got.Method == mcp.NotificationAcknowledged:
			l.granted = grantedBy(&got)
			return nil, nil
		}
	}
}

func (s *Server) unacknowledged(cause error) error {
	return s.fault(upstream.TimedOut, "it did not acknowledge a listen in time", cause)
}
