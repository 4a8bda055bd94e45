package streamable

import (
	"encoding/json"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
)

// ownMessages are what the sidecar itself asks a server, for probes and checks.
type ownMessages struct {
	discover, initialize, initialized, ping *mcp.Message
}

// object is a JSON object that is written here.
type object map[string]any

func newOwnMessages(client ClientInfo) ownMessages {
	return ownMessages{
		discover: newMessage(object{"id": "outrigger-discover", "method": mcp.MethodDiscover, "params": object{
			"_meta": object{
				mcp.MetaKeyVersion:            mcp.Version20260728,
				mcp.MetaKeyClientInfo:         client,
				mcp.MetaKeyClientCapabilities: object{},
			},
		}}),
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

// cancelledMessage tells that nobody waits for the request with that id any more (basic/patterns/cancellation).
func cancelledMessage(id []byte) []byte {
	const reason = `,"reason":"the client cancelled it, or its time was over"}}`
	b := append([]byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`), id...)
	return append(b, reason...)
}
