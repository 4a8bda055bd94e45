// Package settings is what a client asked of its legacy session for as long as that lasts.
//
// A transport that opens a session again behind its client's back tells the server the same once more.
package settings

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
)

const (
	// MaxSubscriptions is how many are kept of one session; of one that had more, nothing is.
	MaxSubscriptions = 1000
	// Together is how many settings are told at once to a session that was opened again.
	Together = 16

	// MaxParams is the longest params of one that are kept, in bytes; of a session with longer ones, nothing is.
	MaxParams = 2 << 10
)

// ErrNotRestored is the cause when a session cannot be opened again as it was.
var ErrNotRestored = errors.New("a log level or a subscription of the session could not be restored")

// Kept is what a client asked of its session for as long as that lasts, and the server granted: the log level and
// subscriptions. A session that is opened again is told them again.
type Kept struct {
	mu            sync.Mutex        // guards below
	level         []byte            // params of the last logging/setLevel; nil for none
	subscriptions map[string][]byte // params of resources/subscribe, by URI
	lost          bool              // there were more than are kept; nothing is, from then on
}

// Is reports whether m is a request that Kept remembers.
func Is(m *mcp.Message) bool {
	switch m.Method {
	case mcp.MethodSetLevel, mcp.MethodResourcesSubscribe, mcp.MethodResourcesUnsubscribe:
		return m.Kind == mcp.Request
	}
	return false
}

// Setting is a request as Kept needs it after its Message is gone.
type Setting struct {
	method, uri string
	params      []byte // nil when there are more bytes than are kept
}

// New makes a Setting of a request that Is one.
func New(m *mcp.Message) Setting {
	s := Setting{method: m.Method, uri: string(m.Name)}
	if params := m.Params.Of(m.Raw); len(params) <= MaxParams {
		s.params = slices.Clone(params)
	}
	return s
}

// Remember takes note of what the server granted.
func (k *Kept) Remember(s Setting) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.lost:
	case s.method == mcp.MethodResourcesUnsubscribe:
		delete(k.subscriptions, s.uri)
	case s.params == nil:
		k.giveUpLocked()
	case s.method == mcp.MethodSetLevel:
		k.level = s.params
	default:
		k.subscribeLocked(s)
	}
}

func (k *Kept) subscribeLocked(s Setting) {
	if k.subscriptions == nil {
		k.subscriptions = make(map[string][]byte)
	}
	if k.subscriptions[s.uri] = s.params; len(k.subscriptions) > MaxSubscriptions {
		k.giveUpLocked()
	}
}

func (k *Kept) giveUpLocked() { k.level, k.subscriptions, k.lost = nil, nil, true }

// Requests are what sets them again, with ids of the sidecar's own. ok is false when they are not known any more.
func (k *Kept) Requests() (requests [][]byte, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	add := func(method string, params []byte) {
		const form = `{"jsonrpc":"2.0","id":"outrigger-again-%d","method":"%s","params":%s}`
		requests = append(requests, fmt.Appendf(nil, form, len(requests)+1, method, params))
	}
	if k.level != nil {
		add(mcp.MethodSetLevel, k.level)
	}
	for _, params := range k.subscriptions {
		add(mcp.MethodResourcesSubscribe, params)
	}
	return requests, !k.lost
}
