package federate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"

	"go.uber.org/goleak"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/seal"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scripted is a member that answers as answer says; a nil answer is -32601.
type scripted struct {
	upstream.Server
	answer func(ctx context.Context, c *upstream.Call) (result string, err error)
}

func (s scripted) Call(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	id := c.Message.ID.Of(c.Message.Raw)
	result, err := s.answer(ctx, c)
	switch {
	case err != nil:
		return nil, err
	case result == "":
		return bodyOf(404, mcp.AppendError(nil, id, &mcp.Error{Code: mcp.CodeMethodNotFound, Message: "no"})), nil
	}
	return bodyOf(200, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)), nil
}

// listing is a member with these tools, whose calls answer with the name that they came with.
func listing(names ...string) scripted {
	return scripted{answer: func(_ context.Context, c *upstream.Call) (string, error) {
		switch c.Message.Method {
		case mcp.MethodToolsList:
			var tools []string
			for _, n := range names {
				tools = append(tools, fmt.Sprintf(`{"title":"a","name":%q,"inputSchema":{"type":"object","x":9007199254740993}}`, n))
			}
			return `{"tools":[` + strings.Join(tools, ",") + `],"ttlMs":60000,"cacheScope":"public"}`, nil
		case mcp.MethodToolsCall:
			return fmt.Sprintf(`{"content":[],"called":%q}`, c.Message.Name), nil
		}
		return "", nil
	}}
}

// federation offers members under their names as prefixes; spec is the binding's, in YAML.
func federation(t testing.TB, spec string, members ...upstream.Server) *Server {
	t.Helper()
	objs, errs := resource.Load("test", []byte("kind: Upstream\nname: m0\nspec: {http: {url: 'http://h'}}\n---\nkind: Binding\nname: b\nspec: {selector: {}, upstreams: [{name: m0}], "+spec+"}"))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	b := objs[1].(*outriggerv1.Binding)
	var ms []Member
	for i, m := range members {
		name := fmt.Sprintf("m%d", i)
		if i > 0 {
			b.Upstreams = append(b.Upstreams, &outriggerv1.UpstreamReference{Name: name})
		}
		ms = append(ms, Member{Name: name, Prefix: name, Server: m})
	}
	s := New(ms, Options{Binding: resource.WithDefaults(b), Log: slog.New(slog.DiscardHandler), Sealer: seal.New(), Name: "outrigger", Version: "1"})
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func request(t testing.TB, method, params string) *upstream.Call {
	t.Helper()
	if params != "" {
		params += ","
	}
	m, err := mcp.Scan(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":"c1","method":%q,"params":{%s"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`, method, params), mcp.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return &upstream.Call{Message: &m}
}

// do makes a request and returns its result, or its error, as JSON.
func do(t testing.TB, s *Server, method, params string) string {
	t.Helper()
	a, err := s.Call(t.Context(), request(t, method, params))
	if err != nil {
		return err.Error()
	}
	defer a.Close()
	body, err := io.ReadAll(a.Body)
	if err != nil || int64(len(body)) != a.Length || !json.Valid(body) {
		t.Fatalf("%s: %q (length %d), %v", method, body, a.Length, err)
	}
	m, err := mcp.Scan(body, mcp.Limits{})
	if err != nil || string(m.ID.Of(m.Raw)) != `"c1"` {
		t.Fatalf("%s: %q, %v", method, body, err)
	}
	if m.Error.Present() {
		return string(m.Error.Of(m.Raw))
	}
	return string(m.Result.Of(m.Raw))
}

// toolNames are those of a list's result.
func toolNames(t testing.TB, result string) (names []string) {
	t.Helper()
	var r struct {
		Tools []struct{ Name string }
	}
	if err := json.Unmarshal([]byte(result), &r); err != nil {
		t.Fatalf("%v in %s", err, result)
	}
	for _, tool := range r.Tools {
		names = append(names, tool.Name)
	}
	return names
}

func TestToolsOfSeveralServersAreListedAndCalledUnderTheirPrefixes(t *testing.T) {
	s := federation(t, "", listing("search", "a.b"), listing("search"))
	list := do(t, s, mcp.MethodToolsList, "")
	names := toolNames(t, list)
	if len(names) != 3 || names[0] != "m0_search" || !strings.HasPrefix(names[1], "m0_a-b-") || names[2] != "m1_search" {
		t.Fatalf("names %q", names)
	}
	if !strings.Contains(list, "9007199254740993") {
		t.Errorf("the schema lost digits: %s", list)
	}
	for i, want := range []string{"search", "a.b", "search"} {
		if got := do(t, s, mcp.MethodToolsCall, fmt.Sprintf(`"name":%q`, names[i])); !strings.Contains(got, fmt.Sprintf(`"called":%q`, want)) {
			t.Errorf("call of %s: %s", names[i], got)
		}
	}
	if got := do(t, s, mcp.MethodToolsCall, `"name":"search"`); !strings.Contains(got, "-32602") {
		t.Errorf("a name without prefix: %s", got)
	}
}

// BenchmarkWarmList is what a merged tools/list costs once it is there, before it is written out.
func BenchmarkWarmList(b *testing.B) {
	for _, size := range []struct{ members, tools int }{{1, 10}, {5, 20}, {20, 50}, {20, 1000}} {
		b.Run(fmt.Sprintf("%dx%d", size.members, size.tools), func(b *testing.B) {
			var members []upstream.Server
			for range size.members {
				var names []string
				for i := range size.tools {
					names = append(names, fmt.Sprintf("tool-%d", i))
				}
				members = append(members, listing(names...))
			}
			s := federation(b, "lists: {pageSize: 100000}", members...)
			c := request(b, mcp.MethodToolsList, "")
			first, err := s.Call(b.Context(), c)
			if err != nil {
				b.Fatal(err)
			}
			var sum bytes.Buffer
			first.Body.(io.WriterTo).WriteTo(&sum)
			b.ReportAllocs()
			b.SetBytes(int64(sum.Len()))
			for b.Loop() {
				if _, err := s.Call(b.Context(), c); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
