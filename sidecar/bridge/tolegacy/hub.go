package tolegacy

import (
	"context"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
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
	again   *time.Timer    // opens it once more; nil until it was lost
	ended   bool           // with the Server
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
	st := h.streamLocked(0)
	if st == nil {
		return nil, s.fault(upstream.Lost, "the upstream was removed", nil)
	}
	h.listens[l] = struct{}{}
	return st, nil
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

// endAll ends every listen in good order.
func (h *hub) endAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	for l := range h.listens {
		l.finish()
	}
}
