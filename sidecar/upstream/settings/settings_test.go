package settings

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
)

func request(method, params string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":%s}`, method, params)
}

func subscribe(uri string) string {
	return request(mcp.MethodResourcesSubscribe, fmt.Sprintf(`{"uri":%q}`, uri))
}

func unsubscribe(uri string) string {
	return request(mcp.MethodResourcesUnsubscribe, fmt.Sprintf(`{"uri":%q}`, uri))
}

func setLevel(level string) string {
	return request(mcp.MethodSetLevel, fmt.Sprintf(`{"level":%q}`, level))
}

// kept is what is kept of requests that a server granted, sorted and without the ids.
func kept(t *testing.T, granted []string) (out []string, ok bool) {
	t.Helper()
	var k Kept
	for _, text := range granted {
		m, err := mcp.Scan([]byte(text), mcp.Limits{MaxDepth: 8})
		if err != nil || !Is(&m) {
			t.Fatalf("%s: %v, a setting: %v", text, err, Is(&m))
		}
		k.Remember(New(&m))
	}
	requests, ok := k.Requests()
	for _, r := range requests {
		m, err := mcp.Scan(r, mcp.Limits{MaxDepth: 8})
		if err != nil {
			t.Fatalf("%s: %v", r, err)
		}
		out = append(out, m.Method+" "+string(m.Params.Of(m.Raw)))
	}
	slices.Sort(out)
	return out, ok
}

func TestTheLastLevelAndWhatIsSubscribedAreKept(t *testing.T) {
	got, ok := kept(t, []string{setLevel("info"), subscribe("a"), subscribe("b"), setLevel("error"), unsubscribe("a"), unsubscribe("c")})
	want := []string{`logging/setLevel {"level":"error"}`, `resources/subscribe {"uri":"b"}`}
	if !ok || !slices.Equal(got, want) {
		t.Errorf("%q, ok %v; want %q", got, ok, want)
	}
}

func TestBeyondItsBoundsNothingIsKept(t *testing.T) {
	var many []string
	for i := range MaxSubscriptions {
		many = append(many, subscribe(fmt.Sprint("file:///", i)))
	}
	for name, tt := range map[string]struct {
		granted []string
		lost    bool
	}{
		"as many as are kept":          {many, false},
		"one of them again":            {append(slices.Clone(many), many[0]), false},
		"one more":                     {append(slices.Clone(many), subscribe("more")), true},
		"one more, and one taken back": {append(slices.Clone(many), subscribe("x"), unsubscribe("x")), true},
		"a long URI":                   {[]string{subscribe(strings.Repeat("u", MaxParams))}, true},
		"a long level":                 {[]string{setLevel(strings.Repeat("u", MaxParams))}, true},
	} {
		got, ok := kept(t, tt.granted)
		if ok == tt.lost || tt.lost && len(got) > 0 || !tt.lost && len(got) != MaxSubscriptions {
			t.Errorf("%s: %d requests, ok %v; want ok %v, and all or none", name, len(got), ok, !tt.lost)
		}
	}
}

func TestOtherRequestsAreNoSettings(t *testing.T) {
	for _, text := range []string{
		request("tools/call", `{"name":"a"}`),
		`{"jsonrpc":"2.0","method":"logging/setLevel","params":{"level":"info"}}`,
	} {
		if m, err := mcp.Scan([]byte(text), mcp.Limits{MaxDepth: 8}); err != nil || Is(&m) {
			t.Errorf("%s: %v, a setting: %v, want none", text, err, Is(&m))
		}
	}
}
