package proxy

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
)

const (
	initialize  = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"old","version":"1"}}}`
	initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
	meta        = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
)

// modern are the headers that go with a stateless request.
func modern(method, name string, more ...string) head {
	h := head{mcp.HeaderVersion: mcp.Version20260728, mcp.HeaderMethod: method}
	if name != "" {
		h[mcp.HeaderName] = name
	}
	for i := 0; i < len(more); i += 2 {
		h[more[i]] = more[i+1]
	}
	return h
}

// with is h with one more header.
func (h head) with(name, value string) head {
	h = maps.Clone(h)
	h[name] = value
	return h
}

func (h head) without(name string) head {
	h = maps.Clone(h)
	delete(h, name)
	return h
}

// modernCall is a stateless tools/call, and toolCall a legacy one. arguments is an object.
func modernCall(id, tool, arguments string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":%s,%s}}`, id, tool, arguments, meta)
}

func toolCall(id, tool, arguments string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, id, tool, arguments)
}

// callModern calls a tool on the stateless wire.
func (r *rig) callModern(id, tool, arguments string) reply {
	r.t.Helper()
	return r.do(http.MethodPost, modern("tools/call", tool), modernCall(id, tool, arguments))
}

// initialize opens a legacy session and returns the headers that go with it.
func (r *rig) initialize() head { r.t.Helper(); return r.initializeAs(mcp.Version20251125) }

func (r *rig) initializeAs(version string) head {
	r.t.Helper()
	p := r.do(http.MethodPost, nil, strings.Replace(initialize, mcp.Version20251125, version, 1))
	id := p.header.Get(mcp.HeaderSessionID)
	if p.status != http.StatusOK || id == "" {
		r.t.Fatalf("initialize: %d %s, want 200 and a session", p.status, p.body)
	}
	h := head{mcp.HeaderSessionID: id, mcp.HeaderVersion: version}
	if n := r.do(http.MethodPost, h, initialized); n.status != http.StatusAccepted {
		r.t.Fatalf("initialized: %d %s, want 202", n.status, n.body)
	}
	return h
}

// wantText checks that an answer is a tool's result with this text.
func wantText(t testing.TB, p reply, id, text string) {
	t.Helper()
	m := p.rpc(t)
	if p.status != http.StatusOK || string(m.ID) != id || !strings.Contains(string(m.Result), fmt.Sprintf("%q", text)) {
		t.Errorf("got %d %s; want id %s and text %q", p.status, p.body, id, text)
	}
}
