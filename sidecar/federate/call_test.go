package federate

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

func TestACallKeepsItsBytesButForTheName(t *testing.T) {
	var got *upstream.Call
	p := tooled("m0", "a").on(mcp.MethodToolsCall, func(_ context.Context, c *upstream.Call) (*upstream.Answer, error) {
		got = c
		return result(c, `{"content":[]}`), nil
	})
	s := federation(t, "", p, tooled("m1", "a"))
	text := `{ "jsonrpc":"2.0", "id" : "x" ,"method":"tools/call","params":{"arguments":{"name":"m0_a","n":9007199254740993,"z":null,"a":1,"a":2}, "name" : "m0_\u0061","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"progressToken":7,"traceparent":"00-1"}} }`
	m, err := mcp.Scan([]byte(text), mcp.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	header := http.Header{"Mcp-Param-Region": {"eu"}, "Mcp-Name": {"m0_a"}}
	a, err := s.Call(t.Context(), &upstream.Call{Message: &m, Header: header, Principal: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
	if want := strings.Replace(text, `"m0_\u0061"`, `"a"`, 1); string(got.Message.Raw) != want {
		t.Errorf("got  %s\nwant %s", got.Message.Raw, want)
	}
	if string(got.Message.Name) != "a" || got.Header.Get("Mcp-Param-Region") != "eu" || got.Principal != "ann" {
		t.Errorf("name %q, headers %v, principal %q", got.Message.Name, got.Header, got.Principal)
	}
}

func TestAnAnswerIsTheMembers(t *testing.T) {
	big := `{"content":[],"structuredContent":{"n":9007199254740993,"x":"` + strings.Repeat("y", 5<<20) + `"}}`
	for _, c := range []struct {
		name string
		h    handler
		want string
	}{
		{"a result of 5 MiB", always(big), big},
		{"an error", func(_ context.Context, c *upstream.Call) (*upstream.Answer, error) {
			return bodyOf(400, []byte(`{"jsonrpc":"2.0","id":"c1","error":{"code":-32020,"message":"m","data":{"n":9007199254740993}}}`)), nil
		}, `{"code":-32020,"message":"m","data":{"n":9007199254740993}}`},
		{"a failed tool", always(`{"content":[],"isError":true,"structuredContent":null}`), `{"content":[],"isError":true,"structuredContent":null}`},
		{"a failure", refuseConnection, `failed: upstream "gone": refused the connection`},
		{"a result with an id of a task that is none", always(`{"content":[],"taskId":"mine"}`), `{"content":[],"taskId":"mine"}`},
	} {
		for _, capabilities := range []string{"{}", declaresTasks} {
			s := federation(t, "", tooled("m0", "a").on(mcp.MethodToolsCall, c.h), tooled("m1", "a"))
			if got := newClient(t, s).declaring(capabilities).do(mcp.MethodToolsCall, `"name":"m0_a"`); got != c.want {
				t.Errorf("%s, declaring %s: got %.200s, want %.200s", c.name, capabilities, got, c.want)
			}
		}
	}
}

func TestAnErrorKeepsItsStatus(t *testing.T) {
	p := tooled("m0", "a").on(mcp.MethodToolsCall, func(_ context.Context, c *upstream.Call) (*upstream.Answer, error) {
		return bodyOf(418, []byte(`{"jsonrpc":"2.0","id":"c1","error":{"code":7,"message":"m"}}`)), nil
	})
	s := federation(t, "", p, tooled("m1", "a"))
	for _, capabilities := range []string{"{}", declaresTasks} {
		a, err := s.Call(t.Context(), newClient(t, s).declaring(capabilities).message(mcp.MethodToolsCall, `"name":"m0_a"`))
		if err != nil || a.Status != 418 {
			t.Errorf("declaring %s: got %v, %v, want status 418", capabilities, a, err)
		}
		a.Close()
	}
}

func TestEventsOfACallComeAsTheyAreSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stream *peerStream
		p := tooled("m0", "a").on(mcp.MethodToolsCall, func(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
			stream = &peerStream{events: make(chan []byte), ctx: ctx, gone: make(chan struct{})}
			return &upstream.Answer{Status: 200, Length: -1, Events: stream}, nil
		})
		s := federation(t, "", p, tooled("m1", "a"))
		for _, capabilities := range []string{"{}", declaresTasks} {
			a, err := s.Call(t.Context(), newClient(t, s).declaring(capabilities).message(mcp.MethodToolsCall, `"name":"m0_a"`))
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1}}`, `{"jsonrpc":"2.0","id":"c1","result":{"n":9007199254740993}}`} {
				go func() { stream.events <- []byte(want) }()
				if ev, err := a.Events.Next(); err != nil || string(ev.Data) != want {
					t.Errorf("got %s, %v, want %s", ev.Data, err, want)
				}
			}
			a.Close()
			if _, err := a.Events.Next(); err != io.EOF {
				t.Errorf("closed, but Next says %v", err)
			}
		}
		shut(t, s)
	})
}

func TestOtherMethodsAreNotFound(t *testing.T) {
	s := newClient(t, federation(t, "", tooled("m0", "a")))
	for _, method := range []string{"tasks/list", "ping", "initialize", "resources/subscribe", "acme/x"} {
		a, err := s.s.Call(t.Context(), s.message(method, ""))
		if err != nil || a.Status != 404 {
			t.Fatalf("%s: %v, %v", method, a, err)
		}
		var b bytes.Buffer
		_, _ = b.ReadFrom(a.Body)
		if !strings.Contains(b.String(), "-32601") || !json.Valid(b.Bytes()) {
			t.Errorf("%s: %s", method, b.String())
		}
	}
}

// A wedged member holds up no call of another, not even the first.
func TestAWedgedMemberHoldsUpNoCallOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wedged := newPeer().on(mcp.MethodToolsList, hang)
		s := federation(t, "names: {prefix: always}", wedged, tooled("m1", "a"))
		began := time.Now()
		if owner, got := newClient(t, s).calls("m1_a"); owner != "m1" || time.Since(began) > 0 {
			t.Errorf("got %s after %v", got, time.Since(began))
		}
		shut(t, s)
	})
}

// Without prefixes a tool that moved is found where it is now.
func TestATooLThatMovedIsFoundWhereItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := tooled("m0", "a").notifies(nil), tooled("m1", "b").notifies(nil)
		s := federation(t, "names: {prefix: never}", one, two)
		c := newClient(t, s)
		c.list(tools, "")
		synctest.Wait()
		one.lists(tools, "m0", "b")
		two.lists(tools, "m1", "a")
		one.tell(mcp.NotificationToolsChanged, "")
		two.tell(mcp.NotificationToolsChanged, "")
		synctest.Wait()
		for name, want := range map[string]string{"a": "m1", "b": "m0"} {
			if owner, got := c.calls(name); owner != want {
				t.Errorf("%s reached %q (%s), want %s", name, owner, got, want)
			}
		}
		shut(t, s)
	})
}

func TestDiscoveryIsWhatMembersCanDoTogether(t *testing.T) {
	one := newPeer().on(mcp.MethodDiscover, always(`{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true},"logging":{},"experimental":{"x":{}},"extensions":{"io.modelcontextprotocol/ui":{"a":1},"com.acme/x":{}}},"instructions":"Use \"one\".","ttlMs":60000,"cacheScope":"public"}`))
	two := newPeer().on(mcp.MethodDiscover, always(`{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{},"resources":{"subscribe":true,"listChanged":false},"extensions":{"io.modelcontextprotocol/tasks":{}}},"instructions":"Use two.","ttlMs":5000,"cacheScope":"private"}`))
	var got struct {
		ResultType        string
		SupportedVersions []string
		Capabilities      json.RawMessage
		Instructions      string
		CacheScope        string
		TTL               int64                      `json:"ttlMs"`
		Meta              map[string]json.RawMessage `json:"_meta"`
	}
	raw := newClient(t, federation(t, "", one, two)).do(mcp.MethodDiscover, "")
	if err := json.Unmarshal([]byte(raw), &got); err != nil {
		t.Fatal(err, raw)
	}
	const want = `{"extensions":{"io.modelcontextprotocol/tasks":{},"io.modelcontextprotocol/ui":{"a":1}},"logging":{},"resources":{"subscribe":true},"tools":{"listChanged":true}}`
	if string(got.Capabilities) != want {
		t.Errorf("capabilities: got %s, want %s", got.Capabilities, want)
	}
	if got.Instructions != "m0: Use \"one\".\n\nm1: Use two." || got.CacheScope != "private" || got.TTL > 5000 || got.ResultType != "complete" || got.SupportedVersions[0] != mcp.Version20260728 {
		t.Errorf("got %s", raw)
	}
	if info := string(got.Meta[mcp.MetaKeyServerInfo]); info != `{"name":"outrigger","version":"1"}` || len(got.Meta) != 1 {
		t.Errorf("_meta: %s", raw)
	}
}
