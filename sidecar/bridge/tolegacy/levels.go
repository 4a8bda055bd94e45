package tolegacy

import (
	"slices"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
)

// level is an index in mcp.LogLevels, or noLevel: a call that asked for no log messages gets none.
type level int

const noLevel level = -1

// levelOf reads a JSON string; noLevel when it names none.
func levelOf(token []byte) level {
	if !rawjson.IsString(token) {
		return noLevel
	}
	return level(slices.Index(mcp.LogLevels[:], string(rawjson.Decoded(token))))
}

// wants reports whether a call with level l wants a log message. One whose level nobody knows is wanted.
func (l level) wants(m *mcp.Message) bool {
	if l == noLevel {
		return false
	}
	of := levelOf(rawjson.Find(m.Raw, m.Params, "level").Of(m.Raw))
	return of == noLevel || of >= l
}
