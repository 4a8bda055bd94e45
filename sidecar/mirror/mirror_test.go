package mirror

import (
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
)

func scan(t *testing.T, text string) *mcp.Message {
	t.Helper()
	m, err := mcp.Scan([]byte(text), mcp.Limits{})
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return &m
}

func list(t *testing.T, schema string) *mcp.Message {
	return scan(t, `{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"a\u0062","inputSchema":`+schema+`},{"name":7},{"name":"plain"}]}}`)
}

func call(t *testing.T, arguments string) *mcp.Message {
	return scan(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ab","arguments":`+arguments+`}}`)
}

const mirrored = `{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"}}}`

func TestHeadersAreHeldToWhatAListTold(t *testing.T) {
	var tools Tools
	if e := tools.Check("me", nil, call(t, `{"region":"eu"}`)); e != nil {
		t.Errorf("before any list: %v", e)
	}
	if names := tools.Learn("me", list(t, mirrored)); !slices.Equal(names, []string{"ab", "plain"}) {
		t.Errorf("names %q", names)
	}
	eu := http.Header{"Mcp-Param-Region": {"eu"}}
	for _, r := range []struct {
		principal string
		h         http.Header
		arguments string
		ok        bool
	}{
		{"me", eu, `{"region":"eu"}`, true},
		{"me", eu, `{"region":"us"}`, false},
		{"me", nil, `{"region":"eu"}`, false},
		{"me", nil, `{}`, true},
		{"other", nil, `{"region":"eu"}`, true}, // who was told nothing
	} {
		if e := tools.Check(r.principal, r.h, call(t, r.arguments)); (e == nil) != r.ok {
			t.Errorf("%s with %v and %s: %v, want accepted %v", r.principal, r.h, r.arguments, e, r.ok)
		}
	}
}

func TestALaterListReplacesAnEarlier(t *testing.T) {
	var tools Tools
	for _, schema := range []string{`{"type":"object"}`, `{"properties":{"x":{"type":"number","x-mcp-header":"X"}}}`} { // plain, and invalid
		tools.Learn("", list(t, mirrored))
		tools.Learn("", list(t, schema))
		if ps := tools.Of("", []byte("ab")); len(ps) != 0 {
			t.Errorf("after %s: %v", schema, ps)
		}
	}
}

func TestWhatIsRememberedIsBounded(t *testing.T) {
	var tools Tools
	for i := range maxTools + 10 {
		tools.Learn(fmt.Sprint(i), list(t, mirrored))
	}
	if n := len(tools.by); n > maxTools {
		t.Errorf("%d tools, want at most %d", n, maxTools)
	}
}
