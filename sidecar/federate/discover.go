package federate

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// maxInstructions is the longest text that discovery gives for all members together, in bytes.
const maxInstructions = 64 << 10

// Extensions that work through a federation; others have methods that lead to no member.
const (
	extensionTasks = "io.modelcontextprotocol/tasks"
	extensionApps  = "io.modelcontextprotocol/ui"
)

// unknown is what a member may have that does not say what it has. It may be back before its clients ask again.
var unknown = []byte(`{"capabilities":{"tools":{"listChanged":true},"prompts":{"listChanged":true},"resources":{"listChanged":true}}}`)

// discover answers server/discover with what the members can do together (server/discover).
func (s *Server) discover(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	gathering, cancel := ctx, func() {}
	if askerOf(c).way != "" { // another sidecar asks, perhaps because this one has asked it: one of them must answer first
		gathering, cancel = context.WithTimeout(ctx, patience)
	}
	parts := s.gather(gathering, discovery, askerOf(c))
	cancel()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	m := merger{s: s, snapshot: new(snapshot)}
	all, text, public := make(map[string]any), new(strings.Builder), true
	for i, p := range parts {
		if p.fault != "" {
			m.fault(s.members[i], p)
		}
		if p.list == nil || p.list.result == nil {
			public = false
			unite(all, unknown)
			continue
		}
		public = public && p.shared && p.list.public
		unite(all, p.list.result)
		instruct(text, s.members[i].Name, p.list.result)
	}
	return s.answerDiscovery(c, all, text.String(), public, soonest(parts), m.faults)
}

func (s *Server) answerDiscovery(c *upstream.Call, capabilities map[string]any, instructions string, public bool, until time.Time, faults []byte) (*upstream.Answer, error) {
	meta := map[string]any{mcp.MetaKeyServerInfo: map[string]string{"name": s.o.Name, "version": s.o.Version}}
	if len(faults) > 0 {
		meta[MetaPartialFailure] = json.RawMessage("[" + string(faults) + "]")
	}
	cacheScope := "private"
	if public {
		cacheScope = "public"
	}
	result, err := json.Marshal(struct {
		ResultType        string         `json:"resultType"`
		SupportedVersions []string       `json:"supportedVersions"`
		Capabilities      map[string]any `json:"capabilities"`
		Instructions      string         `json:"instructions,omitempty"`
		TTL               int64          `json:"ttlMs"`
		CacheScope        string         `json:"cacheScope"`
		Meta              map[string]any `json:"_meta"`
	}{"complete", mcp.SupportedVersions, capabilities, instructions, max(0, time.Until(until).Milliseconds()), cacheScope, meta})
	if err != nil {
		return nil, err
	}
	return resultOf(c, result), nil
}

// resultOf is a result as the answer to a call.
func resultOf(c *upstream.Call, result []byte) *upstream.Answer {
	head := append([]byte(`{"jsonrpc":"2.0","id":`), c.Message.ID.Of(c.Message.Raw)...)
	return bodyOf(http.StatusOK, append(head, `,"result":`...), result, []byte{'}'})
}

// families are the capabilities that a federation has when a member has them, each with what it may add.
var families = map[string][]string{
	"tools": {"listChanged"}, "prompts": {"listChanged"}, "resources": {"listChanged", "subscribe"}, "completions": nil, "logging": nil,
}

// unite adds a member's capabilities to those of all.
func unite(all map[string]any, result []byte) {
	capabilities := rawjson.Find(result, rawjson.Whole(result), "capabilities")
	for name, more := range families {
		has := rawjson.Find(result, capabilities, name)
		if !rawjson.IsObject(has.Of(result)) {
			continue
		}
		family, _ := all[name].(map[string]bool)
		if family == nil {
			family = make(map[string]bool)
			all[name] = family
		}
		for _, what := range more {
			if yes, _ := strconv.ParseBool(string(rawjson.Find(result, has, what).Of(result))); yes {
				family[what] = true
			}
		}
	}
	for _, name := range []string{extensionTasks, extensionApps} {
		has := rawjson.Find(result, capabilities, "extensions", name)
		if !rawjson.IsObject(has.Of(result)) {
			continue
		}
		extensions, _ := all["extensions"].(map[string]json.RawMessage)
		if extensions == nil {
			extensions = make(map[string]json.RawMessage)
			all["extensions"] = extensions
		}
		if extensions[name] == nil {
			extensions[name] = has.Of(result)
		}
	}
}

// instruct adds what a member says of its use, under its name, as long as there is room.
func instruct(b *strings.Builder, name string, result []byte) {
	text, ok := rawjson.Text(rawjson.Find(result, rawjson.Whole(result), "instructions").Of(result))
	if !ok || text == "" || b.Len()+len(name)+len(text)+4 > maxInstructions {
		return
	}
	if b.Len() > 0 {
		b.WriteString("\n\n")
	}
	b.WriteString(name + ": " + text)
}
