package tolegacy

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// sessionLevels is the log level of a session: the most verbose that a call in flight wants. It is told to the server
// when a call begins that changes it, so calls that all want the same cost one logging/setLevel together, and calls that
// want none cost nothing.
type sessionLevels struct {
	turn chan struct{} // held while the server is told, so that it hears of levels in one order

	mu     sync.Mutex              // guards below
	wanted [len(mcp.LogLevels)]int // calls in flight, by level
	told   level
}

func newSessionLevels() sessionLevels {
	return sessionLevels{turn: make(chan struct{}, 1), told: noLevel}
}

// want makes the server send what a call wants; unwant must follow. A server that does not is no reason to refuse the
// call, which may then go without log messages.
func (p *pooled) want(ctx context.Context, l level) {
	if l == noLevel {
		return
	}
	v := &p.levels
	v.mu.Lock()
	v.wanted[l]++
	_, changes := v.nextLocked()
	v.mu.Unlock()
	if !changes || !p.about.has("logging", "") {
		return
	}
	select {
	case v.turn <- struct{}{}:
		defer func() { <-v.turn }()
	case <-ctx.Done():
		return
	}
	v.mu.Lock()
	next, changes := v.nextLocked()
	v.mu.Unlock()
	if changes && p.tell(ctx, next) {
		v.mu.Lock()
		v.told = next
		v.mu.Unlock()
	}
}

// unwant says that a call is over.
func (p *pooled) unwant(l level) {
	if l == noLevel {
		return
	}
	p.levels.mu.Lock()
	defer p.levels.mu.Unlock()
	p.levels.wanted[l]--
}

// nextLocked is the level that the session should have, and whether the server has to be told.
func (v *sessionLevels) nextLocked() (next level, changes bool) {
	for l, calls := range v.wanted {
		if calls > 0 {
			return level(l), level(l) != v.told
		}
	}
	return v.told, false
}

// tell sends logging/setLevel and reports whether the server took it.
func (p *pooled) tell(ctx context.Context, l level) bool {
	if err := p.ask(ctx, mcp.MethodSetLevel, fmt.Appendf(nil, `{"level":%q}`, mcp.LogLevels[l])); err != nil {
		p.pool.server.log.Debug("the server did not take a log level", "level", mcp.LogLevels[l], "error", err)
		return false
	}
	return true
}

var errRefused = errors.New("answered with an error")

// ask makes a request of the sidecar's own. An answer without a result is an error.
func (p *pooled) ask(ctx context.Context, method string, params []byte) error {
	s := p.pool.server
	ctx, stop := context.WithTimeout(ctx, s.settings.times.Handshake)
	defer stop()
	request := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`, s.nextID(), method, params)
	a, err := p.session.Call(ctx, &upstream.Call{Message: message(request), Principal: p.key.principal})
	if err != nil {
		return err
	}
	refused := errRefused
	err = s.readResponse(a, func(m *mcp.Message) {
		if m.Result.Present() {
			refused = nil
		}
	})
	return errors.Join(err, refused)
}
