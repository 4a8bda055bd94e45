package drive

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/outrigger-mesh/outrigger/bench/drive/wire"
)

// template is bytes in which only a call's number changes, always nine digits.
type template struct {
	bytes   []byte
	numbers []int // where the number stands
}

func (t *template) text(s string) *template {
	t.bytes = append(t.bytes, s...)
	return t
}

func (t *template) number() *template {
	t.numbers = append(t.numbers, len(t.bytes))
	t.bytes = strconv.AppendInt(t.bytes, wire.FirstNumber, 10)
	return t
}

func (t *template) join(after template) *template {
	for _, at := range after.numbers {
		t.numbers = append(t.numbers, len(t.bytes)+at)
	}
	t.bytes = append(t.bytes, after.bytes...)
	return t
}

// set writes the number into all its places.
func (t *template) set(number int64) {
	if len(t.numbers) == 0 {
		return
	}
	first := t.bytes[t.numbers[0] : t.numbers[0]+wire.NumberDigits]
	strconv.AppendInt(first[:0], number, 10)
	for _, at := range t.numbers[1:] {
		copy(t.bytes[at:], first)
	}
}

// request is a call ready to be sent.
type request struct {
	template
	want answer // the null server's; empty for any other server
}

// answer is one of the null server: bytes, padding, and bytes. All connections share the padding.
type answer struct {
	template        // what stands before the padding
	text     int    // where the text begins in it
	pad      int    // bytes
	end      string // what stands after
}

// is reports whether got is the answer, byte for byte.
func (a *answer) is(got []byte) bool {
	return len(a.bytes) > 0 && len(got) == len(a.bytes)+a.pad+len(a.end) && bytes.HasPrefix(got, a.bytes) &&
		string(got[len(got)-len(a.end):]) == a.end && wire.IsPadding(got[len(a.bytes):len(got)-len(a.end)])
}

// says reports whether got is the answer's text.
func (a *answer) says(got string) bool {
	text := a.bytes[a.text:]
	return len(got) == len(text)+a.pad && got[:len(text)] == string(text) && wire.IsPadding([]byte(got[len(text):]))
}

// requests makes a connection's requests.
type requests struct {
	c     *Config
	url   *url.URL
	owner string
}

// methods are the protocol's names of what is done, by operation.
var methods = map[Op]string{
	Call: "tools/call", List: "tools/list", Read: "resources/read", Prompt: "prompts/get", Session: "tools/call",
	Stream: "subscriptions/listen",
}

// call makes the request of the configured operation. In the legacy era session names the connection's.
func (q *requests) call(session string, streamed bool) request {
	body, name := q.body(streamed)
	var r request
	r.template = *q.head("POST", methods[q.c.Op], name, session, len(body.bytes))
	r.join(body)
	if !q.c.ofNull() {
		return r
	}
	result := q.result()
	r.want.template.text(`{"jsonrpc":"2.0","id":`).number().text(result.Before)
	r.want.text = len(r.want.bytes)
	r.want.template.text(q.owner + " ").number().text(" ")
	r.want.pad, r.want.end = q.pad(), result.After
	return r
}

// result is the form of the null server's result.
func (q *requests) result() wire.Result {
	switch q.c.Op {
	case Read:
		return wire.ReadResult[q.c.Era]
	case Prompt:
		return wire.PromptResult[q.c.Era]
	}
	return wire.CallResult[q.c.Era]
}

// pad is how much text makes an answer as long as it shall be.
func (q *requests) pad() int {
	none := wire.AppendResult(nil, q.result(), make([]byte, wire.NumberDigits), []byte(q.owner), make([]byte, wire.NumberDigits), 0)
	return max(0, q.c.AnswerBytes-len(none))
}

// body is the message of the configured operation, and what names its tool, prompt or resource in a header.
func (q *requests) body(streamed bool) (body, name template) {
	body.text(`{"jsonrpc":"2.0","id":`).number().text(`,"method":"` + methods[q.c.Op] + `","params":{`)
	switch q.c.Op {
	case Read:
		name = q.uri()
		body.text(`"uri":`).join(q.quotedURI(name))
	case List:
	case Stream:
		body.text(`"notifications":{"toolsListChanged":true}`)
	default:
		name.text(q.c.Tool)
		body.text(`"name":` + quote(q.c.Tool) + `,"arguments":`).join(q.arguments(streamed))
	}
	separator := ","
	if q.c.Op == List {
		separator = ""
	}
	body.join(q.meta(separator, streamed)).text("}}")
	return q.fill(body), name
}

// uri is the resource to read.
func (q *requests) uri() (t template) {
	if q.c.URI != "" {
		return *t.text(q.c.URI)
	}
	return *t.text(wire.NullURI + q.owner + "/").number().text(fmt.Sprintf("/%d", q.pad()))
}

// quotedURI is it as JSON.
func (q *requests) quotedURI(uri template) (t template) {
	if q.c.URI != "" {
		return *t.text(quote(q.c.URI))
	}
	return *t.text(`"`).join(uri).text(`"`)
}

// fillKey is the argument that makes a request as long as it shall be.
const fillKey = `"fill":"`

// arguments are a tool's or a prompt's. A prompt's are strings (schema, GetPromptRequest).
func (q *requests) arguments(streamed bool) (t template) {
	if !q.c.ofNull() {
		t.text(string(q.c.Args))
		if q.c.Args == nil {
			t.text("{}")
		}
		return t
	}
	mark := ""
	if q.c.Op == Prompt {
		mark = `"`
	}
	t.text(`{"owner":"` + q.owner + `","n":` + mark).number()
	t.text(fmt.Sprintf(`%s,"pad":%s%d%s`, mark, mark, q.pad(), mark))
	if q.c.Op == Prompt {
		return *t.text(`}`)
	}
	if q.c.Delay > 0 {
		t.text(fmt.Sprintf(`,"delayUs":%d`, q.c.Delay.Microseconds()))
	}
	if streamed {
		t.text(fmt.Sprintf(`,"stream":1,"events":%d,"gapUs":%d`, q.c.Events, q.c.EventGap.Microseconds()))
	}
	return *t.text("," + fillKey + `"}`)
}

// meta is a request's metadata: the stateless era's, and a progress token when events are asked for.
func (q *requests) meta(separator string, streamed bool) (t template) {
	progress := streamed && q.c.Events > 0
	if q.c.Era == wire.Legacy && !progress {
		return t
	}
	t.text(separator + `"_meta":{`)
	if q.c.Era == wire.Stateless {
		t.text(`"io.modelcontextprotocol/protocolVersion":"` + wire.VersionStateless + `",` +
			`"io.modelcontextprotocol/clientCapabilities":{}`)
	}
	if progress && q.c.Era == wire.Stateless {
		t.text(",")
	}
	if progress {
		t.text(`"progressToken":`).number()
	}
	return *t.text("}")
}

// fill makes a body of the null tool's as long as it shall be.
func (q *requests) fill(body template) template {
	at := bytes.Index(body.bytes, []byte(fillKey))
	missing := q.c.RequestBytes - len(body.bytes)
	if !q.c.ofNull() || at < 0 || missing <= 0 {
		return body
	}
	at += len(fillKey)
	body.bytes = slices.Insert(body.bytes, at, bytes.Repeat([]byte("a"), missing)...)
	for i := range body.numbers {
		if body.numbers[i] >= at {
			body.numbers[i] += missing
		}
	}
	return body
}

// head is a request's head up to and including the empty line. A negative length is no body.
func (q *requests) head(verb, method string, name template, session string, length int) *template {
	t := &template{}
	t.text(verb + " " + q.url.RequestURI() + " HTTP/1.1\r\nHost: " + q.url.Host + "\r\n")
	t.text("Accept: application/json, text/event-stream\r\n")
	if length >= 0 {
		t.text(fmt.Sprintf("Content-Type: application/json\r\nContent-Length: %d\r\n", length))
	}
	if q.c.Era == wire.Stateless {
		t.text(wire.HeaderVersion + ": " + wire.VersionStateless + "\r\n" + wire.HeaderMethod + ": " + method + "\r\n")
		if len(name.bytes) > 0 {
			t.text(wire.HeaderName + ": ").join(headerValue(name)).text("\r\n")
		}
	} else if session != "" {
		t.text(wire.HeaderVersion + ": " + wire.VersionLegacy + "\r\n" + wire.HeaderSession + ": " + session + "\r\n")
	}
	var extra bytes.Buffer
	q.c.Header.Write(&extra) //nolint:errcheck // it cannot fail
	return t.text(extra.String() + "\r\n")
}

// headerValue is a name as a header shows it (MCP 2026-07-28, Value Encoding).
func headerValue(name template) (t template) {
	s := string(name.bytes)
	plain := strings.TrimSpace(s) == s && !strings.HasPrefix(s, "=?base64?") &&
		!strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r > '~' })
	if plain {
		return name
	}
	return *t.text("=?base64?" + base64.StdEncoding.EncodeToString(name.bytes) + "?=")
}

// Messages of a session's life.
const (
	initializeBody = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"` + wire.VersionLegacy +
		`","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`
	initializedBody = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
)

// post is a whole request with a body that never changes.
func (q *requests) post(session, body string) []byte {
	return q.head("POST", "", template{}, session, len(body)).text(body).bytes
}

// bodyless is a whole GET or DELETE.
func (q *requests) bodyless(verb, session string) []byte {
	return q.head(verb, "", template{}, session, -1).bytes
}

// quote is s as JSON.
func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string always marshals
	}
	return string(b)
}
