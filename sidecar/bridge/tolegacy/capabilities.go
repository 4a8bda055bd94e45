package tolegacy

import (
	"encoding/json"
	"sync"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
)

const (
	maxCapabilities   = 16 << 10 // bytes of what one client declares
	cachedDeclaration = 256      // declarations whose reading is remembered
	tasksExtension    = "io.modelcontextprotocol/tasks"
)

// capabilities are what a client declares with a request.
type capabilities struct {
	// canonical is what a session's initialize declares for it: sorted keys, and neither kind of tasks, for the two
	// wires have them in forms that cannot be translated.
	canonical string

	elicitForm, elicitURL, sampling, samplingTools, roots bool
}

// readCapabilities reads an object; nil when it is larger than a client has reason to send.
func readCapabilities(object []byte) *capabilities {
	text := rawjson.Canonical(object)
	var all map[string]json.RawMessage
	if len(text) > maxCapabilities || json.Unmarshal(text, &all) != nil {
		return nil
	}
	delete(all, "tasks")
	if extensions := fields(all["extensions"]); extensions[tasksExtension] != nil {
		delete(extensions, tasksExtension)
		all["extensions"] = encode(extensions)
	}
	elicitation, sampling := fields(all["elicitation"]), fields(all["sampling"])
	return &capabilities{
		canonical: string(encode(all)),
		// An empty object stands for forms alone (client/elicitation, "Capabilities").
		elicitForm:    elicitation != nil && (elicitation["form"] != nil || elicitation["url"] == nil),
		elicitURL:     elicitation["url"] != nil,
		sampling:      sampling != nil,
		samplingTools: sampling["tools"] != nil,
		roots:         all["roots"] != nil,
	}
}

// fields are an object's; nil when value is none.
func fields(value []byte) (f map[string]json.RawMessage) {
	if json.Unmarshal(value, &f) != nil {
		return nil
	}
	return f
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // what is encoded was read from JSON
	}
	return b
}

// mayBeAsked reports whether a server may ask the client anything.
func (c *capabilities) mayBeAsked() bool {
	return c.elicitForm || c.elicitURL || c.sampling || c.roots
}

// lacks is what a client would have to declare before a server may ask it m, as a ClientCapabilities object; empty when
// it does.
func (c *capabilities) lacks(m *mcp.Message) string {
	switch m.Method {
	case mcp.MethodElicit:
		return c.lacksElicitation(m)
	case mcp.MethodCreateMessage:
		tools := rawjson.Find(m.Raw, m.Params, "tools").Present()
		switch {
		case tools && !c.samplingTools:
			return `{"sampling":{"tools":{}}}`
		case !c.sampling:
			return `{"sampling":{}}`
		}
	case mcp.MethodRootsList:
		if !c.roots {
			return `{"roots":{}}`
		}
	}
	return ""
}

func (c *capabilities) lacksElicitation(m *mcp.Message) string {
	mode := rawjson.Find(m.Raw, m.Params, "mode").Of(m.Raw)
	url := rawjson.IsString(mode) && string(rawjson.Decoded(mode)) == "url"
	switch {
	case url && !c.elicitURL:
		return needsURL
	case !url && !c.elicitForm:
		return `{"elicitation":{"form":{}}}`
	}
	return ""
}

const needsURL = `{"elicitation":{"url":{}}}`

// capabilityCache remembers what was read from the same bytes: a client declares the same with every request.
type capabilityCache struct {
	mu     sync.Mutex // guards below
	byText map[string]*capabilities
}

func newCapabilityCache() *capabilityCache {
	return &capabilityCache{byText: make(map[string]*capabilities)}
}

// read is readCapabilities.
func (c *capabilityCache) read(object []byte) *capabilities {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.byText[string(object)]; known != nil {
		return known
	}
	read := readCapabilities(object)
	if read == nil || len(object) > maxCapabilities {
		return read
	}
	if len(c.byText) >= cachedDeclaration {
		clear(c.byText)
	}
	c.byText[string(object)] = read
	return read
}
