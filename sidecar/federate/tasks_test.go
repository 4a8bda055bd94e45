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
			var made struct{ TaskID, Status string }
			raw := ann.do(mcp.MethodToolsCall, fmt.Sprintf(`"name":"%s_a"`, owner))
			if err := json.Unmarshal([]byte(raw), &made); err != nil || made.TaskID == "t/1" || made.TaskID == "" || !strings.Contains(raw, "9007199254740993") {
				t.Fatalf("made: %s, %v", raw, err)
			}
			named := fmt.Sprintf(`"taskId":%q`, made.TaskID)
			want := fmt.Sprintf(`{"resultType":"complete","taskId":%q,"status":"completed","result":{"taskId":"t/1","owner":%q}}`, made.TaskID, owner)
			if got := ann.do(mcp.MethodTasksGet, named); got != want {
				t.Errorf("get: got %s, want %s", got, want)
			}
			elsewhere := *ann
			elsewhere.s = two()
			if got := elsewhere.do(mcp.MethodTasksGet, named); got != want {
				t.Errorf("get at another sidecar: got %s, want %s", got, want)
			}
			for _, method := range []string{mcp.MethodTasksUpdate, mcp.MethodTasksCancel} {
				if got := ann.do(method, named+`,"inputResponses":{}`); got != `{"resultType":"complete"}` {
					t.Errorf("%s: %s", method, got)
				}
				for name, c := range map[string]*client{"bob": ann.as("bob"), "nobody": ann.as("")} {
					if got := c.do(method, named); !strings.Contains(got, `"code":-32602`) || !strings.Contains(got, "unknown task") {
						t.Errorf("%s by %s: %s, want unknown task", method, name, got)
					}
				}
			}
			if got := ann.declaring("{}").do(mcp.MethodTasksGet, named); !strings.Contains(got, "-32021") {
				t.Errorf("without the extension: %s, want -32021", got)
			}
		}
		for _, id := range []string{`"t/1"`, `"m0\u0000t/1"`, `""`, `7`} {
			if got := ann.do(mcp.MethodTasksGet, `"taskId":`+id); !strings.Contains(got, "-32602") {
				t.Errorf("task %s: %s, want -32602", id, got)
			}
		}
	}
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
