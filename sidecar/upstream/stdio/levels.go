package stdio

import (
	"encoding/json"
	"slices"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
)

// level is an index in mcp.LogLevels; noLevel is that of a session that never set one, whose server chooses.
type level int

const noLevel level = -1

// levelOf reads params.level; noLevel when it is none.
func levelOf(params []byte) level {
	var p struct {
		Level string `json:"level"`
	}
	if json.Unmarshal(params, &p) != nil {
		return noLevel
	}
	return level(slices.Index(mcp.LogLevels[:], p.Level))
}

// wants reports whether a session with level l wants a message of level m.
func (l level) wants(m level) bool { return l == noLevel || m == noLevel || m >= l }
