package sse

import (
	"encoding/json"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream/streamable"
)

// ownMessages are what the sidecar itself asks a server, for checks.
type ownMessages struct {
	initialize, initialized, ping *mcp.Message
}

// object is a JSON object that is written here.
type object map[string]any

func newOwnMessages(client streamable.ClientInfo) ownMessages {
	return ownMessages{
		initialize: newMessage(object{"id": "outrigger-initialize", "method": mcp.MethodInitialize, "params": object{
			"protocolVersion": mcp.NewestLegacy,
			"clientInfo":      client,
			"capabilities":    object{},
		}}),
		initialized: newMessage(object{"method": mcp.NotificationInitialized}),
		ping:        newMessage(object{"id": "outrigger-ping", "method": mcp.MethodPing}),
	}
}

func newMessage(o object) *mcp.Message {
	o["jsonrpc"] = "2.0"
	raw, err := json.Marshal(o)
	if err != nil {
		panic(err) // strings and maps of them always have a form
	}
	m, err := mcp.Scan(raw, mcp.Limits{})
	if err != nil {
		panic(err) // newOwnMessages writes the messages of the specification
	}
	return &m
}

// cancelledMessage tells that nobody waits for the request with that id any more (2024-11-05, basic/utilities,
// "Cancellation").
func cancelledMessage(id []byte) []byte {
	const reason = `,"reason":"the client cancelled it, or its time was over"}}`
	b := append([]byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`), id...)
	return append(b, reason...)
}

// pong is the response to a ping.
func pong(id []byte) []byte {
	b := append([]byte(`{"jsonrpc":"2.0","id":`), id...)
	return append(b, `,"result":{}}`...)
}

// refusal is an answer of the sidecar's own to a request.
func refusal(m *mcp.Message, text string) *upstream.Answer {
	return upstream.Whole(200, mcp.AppendError(nil, m.ID.Of(m.Raw), &mcp.Error{Code: mcp.CodeInvalidRequest, Message: text}))
}

// keyOf is an id or a progress token, however its sender wrote it.
func keyOf(token []byte) string { return string(rawjson.Canonical(token)) }
