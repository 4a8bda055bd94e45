package federate

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// asking answers a method with a question until it is answered, and remembers the params of what it got.
func asking(method, state string, got *[]string) func(*peer) *peer {
	return func(p *peer) *peer {
		return p.on(method, func(_ context.Context, c *upstream.Call) (*upstream.Answer, error) {
			*got = append(*got, string(c.Message.Params.Of(c.Message.Raw)))
			if rawjson.Find(c.Message.Raw, c.Message.Params, "inputResponses").Present() {
				return result(c, `{"resultType":"complete","content":[],"contents":[]}`), nil
			}
			return result(c, `{"resultType":"input_required","inputRequests":{"k":{"method":"roots/list","params":{}}}`+state+`}`), nil
		})
	}
}

// sealedState is the state of a question, as a token.
func sealedState(t *testing.T, question string) string {
	t.Helper()
	raw := []byte(question)
	state := rawjson.Find(raw, rawjson.Whole(raw), "requestState").Of(raw)
	if !rawjson.IsString(state) || strings.Contains(string(state), "mine") {
		t.Fatalf("question %s, want one with a state that is sealed", question)
	}
	return string(state)
}

func TestWhatAClientAnswersGoesToTheMemberThatAskedAlone(t *testing.T) {
	for name, row := range map[string]struct{ method, params, state, mode string }{
		"a tool":               {mcp.MethodToolsCall, `"name":"pay"`, `,"requestState":"mine"`, "names: {prefix: never}"},
		"a prompt, no state":   {mcp.MethodPromptsGet, `"name":"pay"`, ``, "names: {prefix: on_conflict}"},
		"a resource":           {mcp.MethodResourcesRead, `"uri":"db://secret"`, `,"requestState":"mine"`, ""},
		"a prefixed tool":      {mcp.MethodToolsCall, `"name":"m1_pay"`, ``, ""},
		"a state that is null": {mcp.MethodToolsCall, `"name":"m1_pay"`, `,"requestState":null`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var evilGot, honestGot []string
				evil := asking(row.method, "", &evilGot)(newPeer())
				honest := asking(row.method, row.state, &honestGot)(tooled("m1", "pay").lists(prompts, "m1", "pay").lists(resources, "m1", "db://secret"))
				s := federation(t, row.mode, evil, honest)
				ann := newClient(t, s).as("ann").declaring(`{"roots":{}}`)
				state := sealedState(t, ann.do(row.method, row.params))
				retry := row.params + `,"inputResponses":{"k":{"roots":[]}},"requestState":` + state
				for who, c := range map[string]*client{"another principal": ann.as("bob"), "an altered state": nil} {
					params := retry
					if c == nil {
						c, params = ann, strings.Replace(retry, state, state[:len(state)-3]+`xx"`, 1)
					}
					if got := c.do(row.method, params); !strings.Contains(got, "-32602") {
						t.Errorf("%s: %s", who, got)
					}
				}
				before := len(evilGot)
				evil.lists(tools, "m0", "pay").lists(prompts, "m0", "pay").lists(resources, "m0", "db://secret") // which come first now
				s.invalidate(s.members[0], true, scope{}, tools, prompts, resources, templates)
				ann.list(tools, "")
				got := ann.do(row.method, retry)
				if len(evilGot) != before {
					t.Errorf("a server that did not ask got %s", evilGot[before:])
				}
				if !strings.Contains(got, `"complete"`) && !strings.Contains(got, "-32602") {
					t.Errorf("the retry: %s", got)
				}
				if last := honestGot[len(honestGot)-1]; len(honestGot) == 2 && strings.Contains(last, "requestState") != (row.state != "") {
					t.Errorf("the server that asked got %s, having given %q", last, row.state)
				}
				if got := ann.do(row.method, row.params+`,"inputResponses":{}`); !strings.Contains(got, "-32602") {
					t.Errorf("answers without a state: %s", got)
				}
				shut(t, s)
			})
		})
	}
}

// hop is the way to another federation, as two sidecars have it between them.
type hop struct {
	upstream.Server
	to       **Server
	from, at string
}

func (h *hop) Call(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
	via := append(c.Header["Via"][:len(c.Header["Via"]):len(c.Header["Via"])], "1.1 "+h.from)
	if strings.Contains(fmt.Sprint(via), "1.1 "+h.at) {
		return refuse(c, 508, mcp.CodeInternalError, "loop"), nil
	}
	return (*h.to).Call(ctx, &upstream.Call{Message: c.Message, Header: map[string][]string{"Via": via}})
}

func TestTwoFederationsThatNameEachOtherSettleAfterAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a, b *Server
		changing := tooled("m0", "x").notifies(nil)
		a = federation(t, "", changing, &hop{to: &b, from: "A", at: "B"})
		b = federation(t, "", tooled("m0", "y").notifies(nil), &hop{to: &a, from: "B", at: "A"})
		newClient(t, a).list(tools, "")
		newClient(t, b).list(tools, "")
		synctest.Wait()
		beforeA, beforeB := a.epoch.Load(), b.epoch.Load()
		changing.tell(mcp.NotificationToolsChanged, "")
		synctest.Wait()
		if n, m := a.epoch.Load()-beforeA, b.epoch.Load()-beforeB; n == 0 || n > 10 || m > 10 {
			t.Errorf("one change was noted %d and %d times, want it noted and the end of it", n, m)
		}
		shut(t, a)
		shut(t, b)
	})
}
