package mcp

import (
	"net/http"
	"strings"
	"testing"
)

func TestPeekOutcome(t *testing.T) {
	for _, row := range []struct {
		prefix string
		want   Outcome
	}{
		{`{"jsonrpc":"2.0","id":1,"result":{"content":[{"te`, OutcomeResult},
		{`{"jsonrpc":"2.0","id":"error","error":{"code":-32`, OutcomeError},
		{` {"result"  :`, OutcomeResult},
		{`{"x":{"error":{"result":[1,{}]}},"res\u0075lt":1`, OutcomeResult},
		{`{"jsonrpc":"2.0","method":"result","params":{"error":1}}`, OutcomeUnknown},
		{`{"jsonrpc":"2.0","id":1,"result"`, OutcomeUnknown},
		{`{"x":{"result":1`, OutcomeUnknown},
		{`{"Result":1}`, OutcomeUnknown},
		{`[{"result":1}]`, OutcomeUnknown},
		{`data: {"result":1}`, OutcomeUnknown},
		{`{}`, OutcomeUnknown},
		{``, OutcomeUnknown},
	} {
		if got := PeekOutcome([]byte(row.prefix)); got != row.want {
			t.Errorf("PeekOutcome(%s): got %v, want %v", row.prefix, got, row.want)
		}
	}
}

// basic/versioning, "Backward Compatibility": what each answer to a probe says.
func TestVerdict(t *testing.T) {
	result := func(r string) string { return `{"jsonrpc":"2.0","id":"d1","result":` + r + `}` }
	rpcError := func(e string) string { return `{"jsonrpc":"2.0","id":"d1","error":` + e + `}` }
	for _, row := range []struct {
		name   string
		status int
		body   string
		want   Eras
		known  bool
	}{
		{"discover, modern", 200, result(`{"supportedVersions":["2026-07-28"]}`), EraSet(Stateless), true},
		{"discover, both", 200, result(`{"supportedVersions":["2026-07-28","2025-11-25"]}`), EraSet(Stateless, Legacy), true},
		{"discover, legacy only", 200, result(`{"supportedVersions":["2025-11-25","2024-11-05"]}`), EraSet(Legacy), true},
		{"discover, a version to come", 200, result(`{"supportedVersions":["2027-01-15"]}`), 0, true},
		{"discover, none", 200, result(`{"supportedVersions":[]}`), 0, true},
		{"a result that is none of discover's", 200, result(`{}`), EraSet(Legacy), true},
		{"a null result", 200, result(`null`), EraSet(Legacy), true},
		{"unsupported version, modern", 400, rpcError(`{"code":-32022,"message":"","data":{"supported":["2026-07-28"],"requested":"x"}}`), EraSet(Stateless), true},
		{"unsupported version, legacy only", 400, rpcError(`{"code":-32022,"message":"","data":{"supported":["2025-11-25"]}}`), EraSet(Legacy), true},
		{"unsupported version, both, on stdio", 200, rpcError(`{"code":-32022,"message":"","data":{"supported":["2025-11-25","2026-07-28"]}}`), EraSet(Stateless, Legacy), true},
		{"unsupported version without data", 400, rpcError(`{"code":-32022,"message":""}`), EraSet(Stateless), true},
		{"header mismatch", 400, rpcError(`{"code":-32020,"message":""}`), EraSet(Stateless), true},
		{"header mismatch without id", 400, `{"jsonrpc":"2.0","error":{"code":-32020,"message":""}}`, EraSet(Stateless), true},
		{"missing capability", 400, rpcError(`{"code":-32021,"message":"","data":{}}`), EraSet(Stateless), true},
		{"method not found", 404, rpcError(`{"code":-32601,"message":""}`), EraSet(Legacy), true},
		{"method not found with 200", 200, rpcError(`{"code":-32601,"message":""}`), EraSet(Legacy), true},
		{"invalid params", 400, rpcError(`{"code":-32602,"message":""}`), EraSet(Legacy), true},
		{"session required", 400, rpcError(`{"code":-32000,"message":"Bad Request: no session"}`), EraSet(Legacy), true},
		{"a code that is no number", 400, rpcError(`{"code":"x"}`), EraSet(Legacy), true},
		{"an empty body", 400, "", EraSet(Legacy), true},
		{"HTML", 404, "<html>", EraSet(Legacy), true},
		{"wrong verb", 405, "", EraSet(Legacy), true},
		{"unauthorized", 401, rpcError(`{"code":-32020,"message":""}`), 0, false},
		{"forbidden", 403, "", 0, false},
		{"too many requests", 429, "", 0, false},
		{"bad gateway", 502, "", 0, false},
		{"internal error", 500, rpcError(`{"code":-32603,"message":""}`), 0, false},
	} {
		eras, known := Verdict(row.status, []byte(row.body))
		if eras != row.want || known != row.known {
			t.Errorf("%s: Verdict(%d, %s): got %b, %v; want %b, %v", row.name, row.status, row.body, eras, known, row.want, row.known)
		}
	}
}

func TestAnAnswerMayBeNestedDeeperThanACall(t *testing.T) {
	deep := strings.Repeat("[", 1000) + strings.Repeat("]", 1000)
	discovered := `{"jsonrpc":"2.0","id":1,"x":` + deep + `,"result":{"supportedVersions":["2026-07-28"],"x":` + deep + `}}`
	if eras, known := Verdict(http.StatusOK, []byte(discovered)); !known || eras != EraSet(Stateless) {
		t.Errorf("a discovery nested 1000 deep: eras %v, known %v; want stateless", eras, known)
	}
	if o := PeekOutcome([]byte(discovered)); o != OutcomeResult {
		t.Errorf("a result after a member nested 1000 deep: outcome %v, want a result", o)
	}
	if _, err := Scan([]byte(discovered), Limits{}); err == nil {
		t.Error("a stranger's message nested 1000 deep was taken")
	}
	tooDeep := `{"jsonrpc":"2.0","id":1,"result":` + strings.Repeat("[", AnswerDepth) + strings.Repeat("]", AnswerDepth) + `}`
	if _, err := Scan([]byte(tooDeep), Limits{MaxDepth: AnswerDepth}); err == nil {
		t.Errorf("an answer nested deeper than %d was taken", AnswerDepth)
	}
}
