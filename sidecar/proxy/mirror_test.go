package proxy

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// exchangeOf is a request with this body and these headers, as far as serveStateless has it.
func exchangeOf(t *testing.T, body string, h http.Header) *exchange {
	t.Helper()
	m, err := mcp.Scan([]byte(body), mcp.Limits{})
	if err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	r := httptest.NewRequest(http.MethodPost, "/mcp", nil)
	r.Header = h
	return &exchange{r: r, msg: m}
}

func listed(t *testing.T, m *mirrors, answer string) {
	t.Helper()
	a := &upstream.Answer{Length: int64(len(answer)), Body: io.NopCloser(strings.NewReader(answer))}
	x := exchangeOf(t, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, nil)
	if err := m.learn(x, a); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(a.Body); err != nil || string(got) != answer {
		t.Fatalf("the answer became %q, %v; want it unchanged", got, err)
	}
}

func TestMirroredArgumentsAreHeldToTheirHeadersWhereTheSidecarIsTheHTTPServer(t *testing.T) {
	m := new(mirrors)
	listed(t, m, `{"jsonrpc":"2.0","id":1,"result":{"tools":[
		{"name":"post","inputSchema":{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"}}}},
		{"name":"plain","inputSchema":{"type":"object"}}]}}`)
	for _, c := range []struct {
		name, tool, arguments, header string
		refused                       bool
	}{
		{"agrees", "post", `{"region":"eu"}`, "eu", false},
		{"differs", "post", `{"region":"eu"}`, "us", true},
		{"missing", "post", `{"region":"eu"}`, "", true},
		{"null needs none", "post", `{"region":null}`, "", false},
		{"another tool", "plain", `{"region":"eu"}`, "", false},
		{"a tool never listed", "other", `{"region":"eu"}`, "us", false},
	} {
		h := http.Header{}
		if c.header != "" {
			h["Mcp-Param-Region"] = []string{c.header}
		}
		x := exchangeOf(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"`+c.tool+`","arguments":`+c.arguments+`}}`, h)
		err := m.check(x)
		var e *mcp.Error
		if refused := errors.As(err, &e) && e.Code == mcp.CodeHeaderMismatch; refused != c.refused {
			t.Errorf("%s: %v, want refused: %v", c.name, err, c.refused)
		}
	}
	listed(t, m, `{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"post","inputSchema":{"type":"object"}}]}}`)
	x := exchangeOf(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"post","arguments":{"region":"eu"}}}`, http.Header{})
	if err := m.check(x); err != nil {
		t.Errorf("after the annotation was taken away: %v", err)
	}
	listed(t, m, `{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"no"}}`)
	listed(t, m, `not JSON`)
}

// endless is a page of tools that has no end. It counts what was read of it.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) { e.read += len(p); return len(p), nil }
func (e *endless) Close() error               { return nil }

func TestAPageOfToolsThatIsTooLongIsNotHeld(t *testing.T) {
	body := new(endless)
	a := &upstream.Answer{Length: -1, Body: body}
	x := exchangeOf(t, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, nil)
	if err := new(mirrors).learn(x, a); err != nil {
		t.Fatal(err)
	}
	if body.read > 2*maxToolsPage {
		t.Errorf("%d bytes were read ahead, want about %d", body.read, maxToolsPage)
	}
	if n, err := io.CopyN(io.Discard, a.Body, 2*maxToolsPage); err != nil {
		t.Errorf("after %d bytes: %v; want the page to go on", n, err)
	}
}
