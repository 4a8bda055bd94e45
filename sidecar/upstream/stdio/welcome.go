package stdio

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
)

// welcome is a process's answer to initialize, kept to answer every later client's.
type welcome struct {
	raw         []byte
	id, version mcp.Span // tokens in raw
	negotiated  string
	changes     []string // the list_changed notifications that its capabilities promise
}

type capability struct {
	ListChanged bool `json:"listChanged"`
}

// readWelcome reads a response to initialize.
func readWelcome(response []byte) (*welcome, error) {
	m, err := mcp.ScanAnswer(response)
	if err != nil {
		return nil, err
	}
	var result struct {
		ProtocolVersion string `json:"protocolVersion"`
		Capabilities    struct {
			Tools, Prompts, Resources capability
		} `json:"capabilities"`
	}
	switch {
	case m.Error.Present():
		return nil, fmt.Errorf("error %s", m.Error.Of(m.Raw))
	case json.Unmarshal(m.Result.Of(m.Raw), &result) != nil || result.ProtocolVersion == "":
		return nil, errors.New("its result names no protocol version")
	}
	w := &welcome{raw: m.Raw, id: m.ID, negotiated: result.ProtocolVersion}
	version, ok := memberSpan(m.Result.Of(m.Raw), "protocolVersion")
	if !ok {
		return nil, errors.New("its result names no protocol version")
	}
	w.version = mcp.Span{Start: m.Result.Start + version.Start, End: m.Result.Start + version.End}
	for _, c := range []struct {
		has          capability
		notification string
	}{
		{result.Capabilities.Tools, mcp.NotificationToolsChanged},
		{result.Capabilities.Prompts, mcp.NotificationPromptsChanged},
		{result.Capabilities.Resources, mcp.NotificationResourcesChanged},
	} {
		if c.has.ListChanged {
			w.changes = append(w.changes, c.notification)
		}
	}
	return w, nil
}

// memberSpan finds the value of an object's member. It is for handshakes, not for the path of a call.
func memberSpan(object []byte, name string) (mcp.Span, bool) {
	d := json.NewDecoder(bytes.NewReader(object))
	if _, err := d.Token(); err != nil {
		return mcp.Span{}, false
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			break
		}
		var value json.RawMessage
		if d.Decode(&value) != nil {
			break
		}
		if end := int(d.InputOffset()); key == name {
			return mcp.Span{Start: end - len(value), End: end}, true
		}
	}
	return mcp.Span{}, false
}

// answer is the response to a client's initialize. Results of the legacy versions are open objects, so a client that
// asks for an older version than the process negotiated gets the one it asked for.
func (w *welcome) answer(m *mcp.Message) []byte {
	edits := []mcp.Edit{{Span: w.id, With: m.ID.Of(m.Raw)}}
	if asked := string(m.Version); asked < w.negotiated && isLegacy(asked) {
		edits = append(edits, mcp.Edit{Span: w.version, With: []byte(`"` + asked + `"`)})
	}
	return splice(w.raw, edits...)
}

func isLegacy(version string) bool {
	return version != mcp.Version20260728 && slices.Contains(mcp.SupportedVersions, version)
}
