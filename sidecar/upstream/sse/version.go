package sse

import (
	"encoding/json"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
)

// version20241105 is what servers of this transport answer initialize with as a rule. Clients of the sidecar are told
// presentedVersion instead, the oldest version that they can be served with.
//
// Beside transports and authorization, which are the sidecar's here, 2025-03-26 added to 2024-11-05 (its "Key Changes"):
// batches, which the sidecar takes apart before they come here; tool annotations, audio content and a message in
// progress, all optional, so a server without them is one of 2025-03-26 too, and one that does not know a client's
// audio or message has been sent an open object with one thing more; and the completions capability. A server of
// 2024-11-05 that completes without saying so is not asked to by clients that look there first. Nothing was taken away.
const (
	version20241105  = "2024-11-05"
	presentedVersion = mcp.Version20250326
)

// present is the client's form of a response to initialize, m, and the version that the server named; "" for none.
func present(m *mcp.Message) (response []byte, version string) {
	var result struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	if json.Unmarshal(m.Result.Of(m.Raw), &result) != nil {
		return m.Raw, ""
	}
	span := rawjson.Find(m.Raw, m.Result, "protocolVersion")
	if result.ProtocolVersion != version20241105 || !span.Present() {
		return m.Raw, result.ProtocolVersion
	}
	return mcp.Splice(nil, m.Raw, mcp.Edit{Span: span, With: []byte(`"` + presentedVersion + `"`)}), version20241105
}
