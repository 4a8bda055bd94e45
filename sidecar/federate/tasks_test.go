package federate

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/seal"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const declaresTasks = `{"extensions":{"io.modelcontextprotocol\/tasks":{}}}`

// tasking is a member whose tool makes a task, whose id is the same at every member.
func tasking(owner string, inEvents bool) *peer {
	p := tooled(owner, "a")
	answer := func(ctx context.Context, c *upstream.Call, text string) (*upstream.Answer, error) {
		if !inEvents {
			return result(c, text), nil
		}
		s := &peerStream{events: make(chan []byte, 1), ctx: ctx, gone: make(chan struct{})}
		s.events <- fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":%s}`, c.Message.ID.Of(c.Message.Raw), text)
		return &upstream.Answer{Status: 200, Length: -1, Events: s}, nil
	}
	p.on(mcp.MethodToolsCall, func(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
		return answer(ctx, c, `{"resultType":"task", "taskId" : "t/1","status":"working","ttlMs":9007199254740993}`)
	})
	about := func(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
		if string(c.Message.Name) != "t/1" {
			return refusal(c, mcp.CodeInvalidParams), nil
		}
		if c.Message.Method != mcp.MethodTasksGet {
			return answer(ctx, c, `{"resultType":"complete"}`)
		}
		return answer(ctx, c, fmt.Sprintf(`{"resultType":"complete","taskId":"t/1","status":"completed","result":{"taskId":"t/1","owner":%q}}`, owner))
	}
	return p.on(mcp.MethodTasksGet, about).on(mcp.MethodTasksUpdate, about).on(mcp.MethodTasksCancel, about)
}

func TestTasksBelongToTheirMemberAndTheirPrincipal(t *testing.T) {
	for _, inEvents := range []bool{false, true} {
		sealer := seal.New()
		two := func() *Server {
			return sealedFederation(t, sealer, "", tasking("m0", inEvents), tasking("m1", inEvents))
		}
		s := two()
		ann := newClient(t, s).as("ann").declaring(declaresTasks)
		for _, owner := range []string{"m0", "m1"} {
			ann.ownsItsTask(owner, owner+"_a", two())
		}
		for _, id := range noTasks {
			if got := ann.do(mcp.MethodTasksGet, `"taskId":`+id); !strings.Contains(got, "-32602") {
				t.Errorf("task %s: %s, want -32602", id, got)
			}
		}
	}
}

// noTasks are ids, as tokens, that nobody was given: the server's own among them.
var noTasks = []string{`"t/1"`, `"m0\u0000t/1"`, `""`, `7`}

// ownsItsTask makes a task with a tool of a tasking server's, and checks that nobody else has it. elsewhere is another
// sidecar with the same keys.
func (c *client) ownsItsTask(owner, tool string, elsewhere upstream.Server) (id string) {
	c.t.Helper()
	id = c.makes(tool)
	named := fmt.Sprintf(`"taskId":%q`, id)
	want := fmt.Sprintf(`{"resultType":"complete","taskId":%q,"status":"completed","result":{"taskId":"t/1","owner":%q}}`, id, owner)
	there := *c
	there.s = elsewhere
	for where, c := range map[string]*client{"here": c, "at another sidecar": &there} {
		if got := c.do(mcp.MethodTasksGet, named); got != want {
			c.t.Errorf("get %s: got %s, want %s", where, got, want)
		}
	}
	for _, method := range []string{mcp.MethodTasksGet, mcp.MethodTasksUpdate, mcp.MethodTasksCancel} {
		for name, other := range map[string]*client{"bob": c.as("bob"), "nobody": c.as("")} {
			if got := other.do(method, named); !strings.Contains(got, `"code":-32602`) || !strings.Contains(got, "unknown task") {
				c.t.Errorf("%s by %s: %s, want unknown task", method, name, got)
			}
		}
		if got := c.declaring("{}").do(method, named); !strings.Contains(got, "-32021") {
			c.t.Errorf("%s without the extension: %s, want -32021", method, got)
		}
		if got := c.do(method, named+`,"inputResponses":{}`); method != mcp.MethodTasksGet && got != `{"resultType":"complete"}` {
			c.t.Errorf("%s: %s", method, got)
		}
	}
	return id
}

// makes makes a task with a tool, and returns its id.
func (c *client) makes(tool string) string {
	c.t.Helper()
	var made struct{ TaskID, Status string }
	raw := c.do(mcp.MethodToolsCall, fmt.Sprintf(`"name":%q`, tool))
	if err := json.Unmarshal([]byte(raw), &made); err != nil || made.TaskID == "t/1" || made.TaskID == "" || !strings.Contains(raw, "9007199254740993") {
		c.t.Fatalf("%s made %s (%v), want a task under another id than its server's", tool, raw, err)
	}
	return made.TaskID
}

func TestALongAnswerOfAToolIsNotHeldForATask(t *testing.T) {
	text := `{"resultType":"complete","content":["` + strings.Repeat("x", 3*maxQuestion) + `"]}`
	for _, length := range []bool{true, false} {
		p := tooled("m0", "a").on(mcp.MethodToolsCall, func(_ context.Context, c *upstream.Call) (*upstream.Answer, error) {
			a := result(c, text)
			if !length {
				a.Length = -1
			}
			return a, nil
		})
		c := newClient(t, federation(t, "", p, tooled("m1"))).declaring(declaresTasks)
		if got := c.do(mcp.MethodToolsCall, `"name":"m0_a"`); got != text {
			t.Errorf("got %d bytes, want the %d that were sent", len(got), len(text))
		}
	}
}
