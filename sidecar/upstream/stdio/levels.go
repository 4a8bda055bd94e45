package stdio

import (
	"encoding/json"
	"slices"
)

// levels are the severities of log messages, most verbose first (server/utilities/logging, "Log Levels").
var levels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// level is an index in levels; noLevel is that of a session that never set one, whose server chooses.
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
	return level(slices.Index(levels, p.Level))
}

// wants reports whether a session with level l wants a message of level m.
func (l level) wants(m level) bool { return l == noLevel || m == noLevel || m >= l }
