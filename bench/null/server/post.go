package server

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/outrigger-mesh/outrigger/bench/drive/wire"
)

// JSON-RPC's error codes, and MCP's (2026-07-28, basic, Error Codes).
const (
	codeInvalidRequest = -32600
	codeUnknownMethod  = -32601
	codeInvalidParams  = -32602
	codeVersion        = -32022
)

// post answers a POST: one message of either era.
func (c *conn) post() error {
	r, ok := parse(c.body)
	switch {
	case !ok:
		c.refuse(wire.Stateless, []byte("null"), codeInvalidRequest, "not a JSON object")
		return nil
	case r.id == nil:
		if string(r.method) == "notifications/cancelled" {
			c.s.counters.cancelNotice.Add(1)
		}
		c.plain("202 Accepted", "", nil)
		return nil
	case c.isStateless(&r):
		return c.postStateless(&r)
	}
	return c.postLegacy(&r)
}

// isStateless tells a request's era as the protocol does, by its metadata and its version header.
func (c *conn) isStateless(r *request) bool {
	if !c.s.legacy {
		return true
	}
	return c.s.stateless && (r.version != nil || string(c.head.Version) == wire.VersionStateless)
}

func (c *conn) postStateless(r *request) error {
	const era = wire.Stateless
	switch {
	case r.version == nil && string(r.method) != "initialize":
		c.refuse(era, r.id, codeInvalidParams, "no protocol version in _meta")
		return nil
	case r.version != nil && string(r.version) != wire.VersionStateless:
		c.refuse(era, r.id, codeVersion, "protocol version not served here")
		return nil
	}
	switch string(r.method) {
	case "server/discover":
		c.result(r.id, `"resultType":"complete","supportedVersions":[`+c.s.versions()+`],`+
			`"capabilities":`+capabilities+`,"ttlMs":60000,"cacheScope":"public",`+
			`"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"null","version":"1"}}`)
		return nil
	case "subscriptions/listen":
		return c.listen(r)
	}
	return c.common(era, r)
}

// versions are the protocol versions that are served, as JSON. One of the other era tells a proxy that it need not
// translate.
func (s *Server) versions() string {
	if s.legacy {
		return `"` + wire.VersionStateless + `","` + wire.VersionLegacy + `"`
	}
	return `"` + wire.VersionStateless + `"`
}

func (c *conn) postLegacy(r *request) error {
	const era = wire.Legacy
	switch string(r.method) {
	case "initialize":
		c.initialize(r)
		return nil
	case "ping":
		c.result(r.id, "")
		return nil
	case "server/discover":
		c.refuse(era, r.id, codeUnknownMethod, "method not found")
		return nil
	}
	if !c.inSession() {
		return nil
	}
	return c.common(era, r)
}

// common answers the methods that both eras have.
func (c *conn) common(era string, r *request) error {
	switch string(r.method) {
	case "tools/call":
		return c.call(era, r)
	case "tools/list":
		c.list(era, r.id)
	case "resources/list":
		c.result(r.id, `"resources":[]`+cacheable(era))
	case "resources/templates/list":
		c.result(r.id, `"resourceTemplates":[{"uriTemplate":"`+wire.NullURI+`{owner}/{n}/{pad}","name":"null"}]`+cacheable(era))
	case "prompts/list":
		c.result(r.id, `"prompts":[{"name":"`+wire.NullTool+`","arguments":[{"name":"owner"},{"name":"n"},{"name":"pad"}]}]`+
			cacheable(era))
	case "resources/read":
		k, ok := resource(r.uri)
		if !ok {
			c.refuse(era, r.id, codeInvalidParams, "no such resource")
			return nil
		}
		c.json(wire.ReadResult[era], r.id, &k)
	case "prompts/get":
		if string(r.name) != wire.NullTool {
			c.refuse(era, r.id, codeInvalidParams, "no such prompt")
			return nil
		}
		c.json(wire.PromptResult[era], r.id, &r.knobs)
	default:
		c.refuse(era, r.id, codeUnknownMethod, "method not found")
	}
	return nil
}

const capabilities = `{"tools":{"listChanged":true},"resources":{},"prompts":{}}`

// cacheable is what the stateless era must say of a list.
func cacheable(era string) string {
	if era == wire.Legacy {
		return ""
	}
	return `,"resultType":"complete","ttlMs":60000,"cacheScope":"public"`
}

// initialize opens a session (MCP 2025-11-25, Lifecycle).
func (c *conn) initialize(r *request) {
	session := fmt.Sprintf("null-%d", c.s.nextSession.Add(1))
	c.s.sessions.Store(session, true)
	c.s.counters.sessions.Add(1)
	c.plain("200 OK", wire.HeaderSession+": "+session+"\r\n", resultOf(r.id, `"protocolVersion":"`+wire.VersionLegacy+
		`","capabilities":`+capabilities+`,"serverInfo":{"name":"null","version":"1"}`))
}

// listen acknowledges a subscription and holds it (MCP 2026-07-28, Subscriptions).
func (c *conn) listen(r *request) error {
	granted := "{}"
	if bytes.Contains(r.wants, []byte(`"toolsListChanged":true`)) {
		granted = `{"toolsListChanged":true}`
	}
	return c.hold(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":`+
		`{"notifications":%s,"_meta":{"io.modelcontextprotocol/subscriptionId":%s}}}`, granted, r.id))
}

// list answers a tools/list. The list is long, and the same every time.
func (c *conn) list(era string, id []byte) {
	const before, after = `{"jsonrpc":"2.0","id":`, `}}`
	list := c.s.lists[era]
	c.out = append(c.out, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "...)
	c.out = strconv.AppendInt(c.out, int64(len(before)+len(id)+len(list)+len(after)), 10)
	c.out = append(append(append(c.out, "\r\n\r\n"+before...), id...), after...)
	c.insert(list, len(after))
}

// call answers a tools/call as its arguments say.
func (c *conn) call(era string, r *request) error {
	if !c.s.tools[string(r.name)] {
		c.refuse(era, r.id, codeInvalidParams, "no such tool")
		return nil
	}
	k := &r.knobs
	err := c.wait(k.delay)
	if err == nil && k.stream {
		err = c.stream(era, r)
	} else if err == nil {
		c.json(wire.CallResult[era], r.id, k)
	}
	if err != nil {
		c.s.counters.cancelled.Add(1)
		return err
	}
	c.s.counters.calls.Add(1)
	return nil
}

// stream answers with an event stream: events, each written by itself, and then the answer.
func (c *conn) stream(era string, r *request) error {
	c.out = append(c.out, streamHead...)
	k := &r.knobs
	for i := range k.events {
		if i > 0 || k.gap > 0 {
			if err := c.flush(); err != nil {
				return err
			}
		}
		if err := c.wait(k.gap); err != nil {
			return err
		}
		at := c.openChunk()
		c.out = wire.AppendProgress(c.out, r.token, k.owner, k.number, i+1, k.events)
		c.closeChunk(at)
	}
	if k.events > 0 {
		if err := c.flush(); err != nil {
			return err
		}
	}
	at := c.openChunk()
	c.answerText(wire.CallResult[era], r.id, k)
	c.closeChunk(at)
	c.out = append(c.out, "0\r\n\r\n"...)
	return nil
}

// chunkSize is room for a chunk's size, written when the chunk is whole.
const chunkSize = "00000000\r\n"

// openChunk begins a chunk with one event, and returns where.
func (c *conn) openChunk() int {
	at := len(c.out)
	c.out = append(c.out, chunkSize+"event: message\ndata: "...)
	return at
}

// closeChunk ends the event and the chunk that began at a place.
func (c *conn) closeChunk(at int) {
	c.out = append(c.out, "\n\n"...)
	const hex = "0123456789abcdef"
	n := len(c.out) + c.long - at - len(chunkSize)
	for i := len(chunkSize) - 3; i >= 0; i-- {
		c.out[at+i] = hex[n&15]
		n >>= 4
	}
	c.out = append(c.out, "\r\n"...)
}

// json appends an answer of the null server with a JSON body.
func (c *conn) json(r wire.Result, id []byte, k *knobs) {
	n := len(`{"jsonrpc":"2.0","id":`) + len(id) + len(r.Before) + len(k.owner) + len(k.number) + 2 + k.pad + len(r.After)
	c.out = append(c.out, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "...)
	c.out = append(strconv.AppendInt(c.out, int64(n), 10), "\r\n\r\n"...)
	c.answerText(r, id, k)
}

// result appends an answer whose result has these members.
func (c *conn) result(id []byte, fields string) {
	c.plain("200 OK", "", resultOf(id, fields))
}

func resultOf(id []byte, fields string) []byte {
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{%s}}`, id, fields)
}

// refuse appends an error in the status of its era (MCP 2026-07-28, basic, Error Codes).
func (c *conn) refuse(era string, id []byte, code int, message string) {
	status := "200 OK"
	switch {
	case era == wire.Legacy:
	case code == codeUnknownMethod:
		status = "404 Not Found"
	default:
		status = "400 Bad Request"
	}
	data := ""
	if code == codeVersion {
		data = `,"data":{"supported":["` + wire.VersionStateless + `"]}`
	}
	c.plain(status, "", fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%q%s}}`, id, code, message, data))
}
