package mcp

import (
	"encoding/json"
	"net/http"
)

// Outcome is how a response ended, as far as JSON-RPC sees it.
type Outcome uint8

const (
	OutcomeUnknown Outcome = iota // the prefix does not tell
	OutcomeResult
	OutcomeError
)

// PeekOutcome looks for the first top-level result or error key in the first bytes of a response and reads no further.
// It trusts the sender's order: a response with both keys is invalid, and only Scan finds that.
func PeekOutcome(prefix []byte) Outcome { return PeekResponse(prefix).Outcome }

// Verdict tells what the answer to a server/discover probe says about a server: the eras it speaks, or that the answer
// says nothing (basic/versioning, "Backward Compatibility"). body is one JSON-RPC response, taken out of an event if it
// came in one; on stdio status is 200. An empty set with known true is a server of versions that are not spoken here.
func Verdict(status int, body []byte) (eras Eras, known bool) {
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return 0, false // first the sidecar must be let in
	case status == http.StatusRequestTimeout, status == http.StatusTooManyRequests, status >= 500:
		return 0, false // it is not well now
	}
	m, err := ScanAnswer(body)
	switch {
	case err != nil || m.Kind != Response:
		return EraSet(Legacy), true // a foreign body, or none
	case m.Result.Present():
		return erasOfResult(m.Result.Of(m.Raw)), true
	}
	return erasOfError(m.Error.Of(m.Raw)), true
}

// erasOfResult reads a DiscoverResult. Any other result is a legacy server's, which answers what it does not know.
func erasOfResult(result []byte) Eras {
	var discover struct {
		SupportedVersions []string `json:"supportedVersions"`
	}
	if json.Unmarshal(result, &discover) != nil || discover.SupportedVersions == nil {
		return EraSet(Legacy)
	}
	return erasOf(discover.SupportedVersions)
}

// erasOfError reads an error. Only the codes that the stateless wire has to itself tell of it; -32601 and -32602 are
// common on both.
func erasOfError(rpcError []byte) Eras {
	var e struct {
		Code int             `json:"code"`
		Data json.RawMessage `json:"data"`
	}
	if json.Unmarshal(rpcError, &e) != nil {
		return EraSet(Legacy)
	}
	switch e.Code {
	case CodeHeaderMismatch, CodeMissingCapability:
		return EraSet(Stateless)
	case CodeUnsupportedVersion:
		var data struct {
			Supported []string `json:"supported"`
		}
		if json.Unmarshal(e.Data, &data) != nil || data.Supported == nil {
			return EraSet(Stateless)
		}
		return erasOf(data.Supported)
	}
	return EraSet(Legacy)
}

func erasOf(versions []string) (eras Eras) {
	for _, v := range versions {
		switch {
		case v == Version20260728:
			eras |= EraSet(Stateless)
		case IsLegacyVersion(v):
			eras |= EraSet(Legacy)
		}
	}
	return eras
}
