package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/outrigger-mesh/outrigger/bench/drive/wire"
)

// MaxTools is the most tools a server lists.
const MaxTools = 100_000

// ToolNames are the server's tools: NAME "null" first, then tool_0001 and so on, each after the prefix.
func ToolNames(prefix string, n int) []string {
	names := []string{prefix + wire.NullTool}
	for i := 1; i < n; i++ {
		names = append(names, fmt.Sprintf("%stool_%04d", prefix, i))
	}
	return names
}

// Tools is the array of a list's tools. A tool has the size that tools in use have: a description of a few
// sentences and a schema of six properties, about 1.2 KB together.
func Tools(names []string) []byte {
	var b bytes.Buffer
	b.WriteByte('[')
	for i, name := range names {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"name":%q,"description":%q,"inputSchema":%s}`, name, description(i), inputSchema)
	}
	b.WriteByte(']')
	return b.Bytes()
}

// description is a tool's, of about 240 bytes, and not two the same.
func description(i int) string {
	return fmt.Sprintf("Answers with its caller's own words, number %d of its kind. ", i) +
		"Use it to see how long a call takes on its way. It reads nothing and changes nothing, so it may be called as " +
		"often as you like; ask for a longer answer or a later one with its arguments."
}

var inputSchema = func() json.RawMessage {
	property := func(name, kind, about string) string {
		return fmt.Sprintf(`%q:{"type":%q,"description":%q}`, name, kind, about)
	}
	return json.RawMessage(`{"type":"object","properties":{` + strings.Join([]string{
		property("owner", "string", "Who calls. The answer begins with it, so that one that went astray is recognised."),
		property("n", "integer", "The caller's number for this call, repeated in the answer after the owner."),
		property("pad", "integer", "How many bytes the answer's text shall have after that."),
		property("delayUs", "integer", "How long to wait before the answer, in microseconds. The connection waits alone."),
		property("stream", "integer", "1: answer with an event stream; 0: with a JSON body."),
		property("events", "integer", "How many progress events come before a streamed answer."),
		property("gapUs", "integer", "How long to wait before each of these, in microseconds."),
		property("fill", "string", "Not read. It makes the request as long as wanted."),
	}, ",") + `},"required":["owner","n"]}`)
}()
