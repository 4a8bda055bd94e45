// Package mcp is the protocol's words and bytes: JSON-RPC envelopes scanned without decoding, eras and versions,
// header rules, error codes, and server-sent events. It does no I/O of its own and keeps no state.
//
// A message is scanned once, in place; what it holds is named by Spans of the bytes as they came, so that whatever the
// sidecar has no business with leaves as it arrived. Everything here is safe for concurrent use.
//
// Sections cited are of MCP 2026-07-28 unless a date is given.
package mcp

// Protocol versions, newest first.
const (
	Version20260728 = "2026-07-28"
	Version20251125 = "2025-11-25"
	Version20250618 = "2025-06-18"
	Version20250326 = "2025-03-26"

	// NewestLegacy is what an initialize is offered that asks for a version which is not served with sessions.
	NewestLegacy = Version20251125
)

// SupportedVersions is what server/discover and -32022 list, newest first.
var SupportedVersions = []string{Version20260728, Version20251125, Version20250618, Version20250326}

// versionsWithSessions are those of them that the legacy wire has.
var versionsWithSessions = SupportedVersions[1:]

// LogLevels are the severities of log messages, the most verbose first (server/utilities/logging, "Log Levels").
var LogLevels = [...]string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// Era is a family of wires.
type Era uint8

const (
	Legacy    Era = 1 << iota // 2025-11-25 and before: initialize, sessions, requests both ways
	Stateless                 // 2026-07-28: every request carries its version and capabilities
)

func (e Era) String() string {
	switch e {
	case Legacy:
		return "legacy"
	case Stateless:
		return "stateless"
	}
	return "none"
}

// Eras is a set of Era values.
type Eras uint8

// EraSet makes a set.
func EraSet(eras ...Era) (s Eras) {
	for _, e := range eras {
		s |= Eras(e)
	}
	return s
}

// Has reports whether the set holds e.
func (s Eras) Has(e Era) bool { return s&Eras(e) != 0 }
