package tolegacy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	// discoverTTL is how long an answer to server/discover is given again, here and by clients.
	discoverTTL = time.Minute
	// streamVerdict is how long a server may take to say that it has no stream outside of calls. Some answer a GET only
	// when they have something to say.
	streamVerdict = 2 * time.Second
)

// discovery is what server/discover is answered with.
type discovery struct {
	mu      sync.Mutex // guards below
	result  []byte     // the whole result; nil until the server was asked
	said    string     // what that was made of
	expires time.Time
	asking  *inquiry // nil when nobody asks
}

// inquiry is one attempt that many callers wait for.
type inquiry struct {
	done   chan struct{} // closed when the fields below are set
	result []byte
	err    error
}

// learn hears what another session's initialize said: something new ends what is known.
func (d *discovery) learn(a *about) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if said := string(encode(a)); d.said != "" && said != d.said {
		d.expires = time.Time{}
	}
}

// forget ends what is known after the server said that something of it changed.
func (d *discovery) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expires = time.Time{}
}

// discover answers server/discover from the server's initialize. What was known is said again when the server cannot be
// asked now.
func (s *Server) discover(ctx context.Context, m *mcp.Message) (*upstream.Answer, error) {
	d := &s.discovery
	d.mu.Lock()
	if d.result != nil && time.Now().Before(d.expires) {
		defer d.mu.Unlock()
		return discovered(m, d.result), nil
	}
	q := d.asking
	if q == nil {
		q = &inquiry{done: make(chan struct{})}
		if !s.tasks.Run(func() { s.inquire(q) }) {
			d.mu.Unlock()
			return nil, s.fault(upstream.Lost, "the upstream was removed", nil)
		}
		d.asking = q
	}
	d.mu.Unlock()
	select {
	case <-q.done:
	case <-ctx.Done():
		return nil, upstream.GaveUp(ctx, s.name)
	}
	if q.err != nil {
		return nil, q.err
	}
	return discovered(m, q.result), nil
}

func discovered(m *mcp.Message, result []byte) *upstream.Answer {
	return upstream.Whole(200, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID.Of(m.Raw), result))
}

// inquire opens a session without capabilities to hear what the server says of itself, and ends it.
func (s *Server) inquire(q *inquiry) {
	ctx, stop := context.WithTimeout(s.tasks.Context(), s.settings.times.Connect+s.settings.times.Handshake)
	defer stop()
	session, about, err := s.handshake(ctx, key{capabilities: "{}"}, upstream.Self, nil)
	var result []byte
	if err == nil {
		p := &pooled{pool: s.pool, session: session, opened: closedChannel()}
		result = discoverResult(about, hasStream(ctx, session))
		s.tasks.Run(p.end)
	}
	d := &s.discovery
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asking = nil
	switch {
	case err == nil:
		d.result, d.said, d.expires = result, string(encode(about)), time.Now().Add(discoverTTL)
	case d.result != nil:
		s.log.Warn("server/discover is answered with what the server said before", "error", err)
		result, err = d.result, nil
	}
	q.result, q.err = result, err
	close(q.done)
}

// hasStream reports whether a session has a stream of messages that belong to no call.
func hasStream(ctx context.Context, session upstream.Session) bool {
	ctx, stop := context.WithTimeout(ctx, streamVerdict)
	defer stop()
	stream, err := session.Listen(ctx)
	if err != nil {
		return errors.Is(ctx.Err(), context.DeadlineExceeded) // it did not say no
	}
	_ = stream.Close()
	return true
}

// discoverResult is a DiscoverResult (server/discover). Changes are promised only if they can be heard of.
func discoverResult(a *about, hears bool) []byte {
	result := map[string]any{
		"resultType":        "complete",
		"supportedVersions": mcp.SupportedVersions,
		"capabilities":      statelessCapabilities(a, hears),
		"ttlMs":             discoverTTL.Milliseconds(),
		"cacheScope":        "private",
	}
	if rawjson.IsObject(a.ServerInfo) {
		result["_meta"] = map[string]json.RawMessage{mcp.MetaKeyServerInfo: a.ServerInfo}
	}
	if rawjson.IsString(a.Instructions) {
		result["instructions"] = a.Instructions
	}
	return encode(result)
}

// statelessCapabilities leaves out what cannot be translated: tasks of either kind, and what is experimental, whose
// methods nobody here knows.
func statelessCapabilities(a *about, hears bool) map[string]json.RawMessage {
	all := make(map[string]json.RawMessage)
	for name, value := range a.Capabilities {
		switch name {
		case "tasks", "experimental":
			continue
		case "tools", "prompts", "resources":
			if !hears {
				value = without(value, "listChanged", "subscribe")
			}
		case "extensions":
			value = without(value, tasksExtension)
		}
		all[name] = value
	}
	return all
}

// without is an object without members of it; anything else as it is.
func without(value json.RawMessage, names ...string) json.RawMessage {
	f := fields(value)
	if f == nil {
		return value
	}
	for _, name := range names {
		delete(f, name)
	}
	return encode(f)
}
