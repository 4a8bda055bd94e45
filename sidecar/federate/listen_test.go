package federate

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// heard is a client's open listen, read by a goroutine.
type heard struct {
	t    testing.TB
	a    *upstream.Answer
	stop context.CancelFunc
	done chan struct{}

	mu       sync.Mutex
	messages []string
	err      error
}

// listens opens a listen and reads it until it ends.
func (c *client) listens(filter string) *heard {
	c.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	a, err := c.s.Call(ctx, c.message(mcp.MethodListen, `"notifications":`+filter))
	if err != nil || a.Events == nil {
		c.t.Fatalf("listen: %v, %v", a, err)
	}
	h := &heard{t: c.t, a: a, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(h.done)
		for {
			ev, err := a.Events.Next()
			h.mu.Lock()
			if err != nil {
				h.err = err
				h.mu.Unlock()
				return
			}
			h.messages = append(h.messages, string(ev.Data))
			h.mu.Unlock()
		}
	}()
	return h
}

// take waits until nothing happens any more, and is what came since the last time.
func (h *heard) take() []string {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	got := h.messages
	h.messages = nil
	return got
}

func (h *heard) close() {
	h.stop()
	h.a.Close()
	<-h.done
}

// want checks what came since the last time, as "method params" without the subscription id, which must be the client's.
func (h *heard) want(what string, want ...string) {
	h.t.Helper()
	var got []string
	for _, raw := range h.take() {
		var m struct {
			Method string
			Params map[string]json.RawMessage
		}
		if err := json.Unmarshal([]byte(raw), &m); err != nil {
			h.t.Errorf("%s: %s: %v", what, raw, err)
		}
		var meta map[string]json.RawMessage
		_ = json.Unmarshal(m.Params["_meta"], &meta)
		if id := string(meta[mcp.MetaKeySubscriptionID]); id != `"c1"` {
			h.t.Errorf("%s: subscription id %s in %s", what, id, raw)
		}
		delete(m.Params, "_meta")
		rest, _ := json.Marshal(m.Params)
		got = append(got, strings.TrimPrefix(m.Method, "notifications/")+" "+string(rest))
	}
	wantList(h.t, what, got, want...)
}

const everyList = `{"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true}`

func acknowledged(filter string) string {
	return `subscriptions/acknowledged {"notifications":` + filter + `}`
}

func TestAListenIsGrantedWhatMembersGrantAndNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer().notifies(func(f filter) filter { // it grants more than it is asked for, but nothing of prompts
			return filter{lists: []bool{true, false, true}, uris: append(f.uris, "file:///more")}
		}).lists(resources, "m0", "file:///a", "file:///dir")
		s := federation(t, "", p, newPeer())
		c := newClient(t, s)
		h := c.listens(`{"toolsListChanged":true,"promptsListChanged":true,"resourceSubscriptions":["file:///dir","file:///a","file:///a","file:///unknown"],"acme":true}`)
		h.want("first", acknowledged(`{"toolsListChanged":true,"resourceSubscriptions":["file:///dir","file:///a","file:///unknown"]}`))
		p.tell(mcp.NotificationToolsChanged, "")
		h.want("tools", "tools/list_changed {}")
		p.tell(mcp.NotificationPromptsChanged, "")
		p.tell(mcp.NotificationResourcesChanged, "")
		p.tell(mcp.NotificationResourceUpdated, `"uri":"file:///more"`)
		p.tell(mcp.NotificationResourceUpdated, `"uri":"file:///directory"`)
		p.tell(mcp.NotificationProgress, `"progressToken":1`)
		p.tell(mcp.NotificationMessage, `"data":1`)
		h.want("what was not granted")
		p.tell(mcp.NotificationResourceUpdated, `"uri":"file:///dir/x","n":9007199254740993`)
		if got := h.take(); len(got) != 1 || !strings.Contains(got[0], `"n":9007199254740993,"_meta":{"x":1,"io.modelcontextprotocol/subscriptionId":"c1"}`) {
			t.Errorf("a part of a resource: %q", got)
		}
		h.close()
		shut(t, s)
	})
}

func TestIdsOfListensKeepTheirType(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer().notifies(nil)
		s := federation(t, "", p)
		for _, id := range []string{`7`, `"7"`, `9007199254740993`} {
			c := newClient(t, s)
			c.id = id
			h := c.listens(everyList)
			h.take()
			p.tell(mcp.NotificationToolsChanged, "")
			if got := h.take(); len(got) != 1 || !strings.Contains(got[0], `"io.modelcontextprotocol/subscriptionId":`+id+`}`) {
				t.Errorf("id %s: %q", id, got)
			}
			h.close()
		}
		shut(t, s)
	})
}

// L22, and L19 for listens.
func TestAListenIsAcknowledgedThoughMembersHangOrHaveNoSuchThing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wedged := newPeer().on(mcp.MethodListen, hang).on(mcp.MethodResourcesList, hang).on(mcp.MethodResourceTemplatesList, hang)
		s := federation(t, "lists: {timeout: 30s}", wedged, newPeer().on(mcp.MethodListen, refuseConnection), newPeer().notifies(nil))
		began := time.Now()
		h := newClient(t, s).listens(`{"toolsListChanged":true,"resourceSubscriptions":["file:///a"]}`)
		if took := time.Since(began); took > acknowledgeWithin {
			t.Errorf("acknowledged after %v, want at most %v", took, acknowledgeWithin)
		}
		h.want("first", acknowledged(`{"toolsListChanged":true,"resourceSubscriptions":["file:///a"]}`))
		h.close()
		shut(t, s)
		s = federation(t, "", newPeer(), newPeer())
		h = newClient(t, s).listens(everyList)
		h.want("of members without notifications", acknowledged(`{}`))
		h.close()
		shut(t, s)
	})
}

// L7, for clients.
func TestAClientIsToldOnceThatAMemberCameBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, other := tooled("m0", "a").notifies(nil).lists(resources, "m0", "file:///a"), tooled("m1", "b").notifies(nil)
		s := federation(t, "", p, other)
		c := newClient(t, s)
		c.list(tools, "")
		h := c.listens(`{"toolsListChanged":true,"resourceSubscriptions":["file:///a"]}`)
		h.want("first", acknowledged(`{"toolsListChanged":true,"resourceSubscriptions":["file:///a"]}`))
		p.on(mcp.MethodListen, refuseConnection)
		p.cut()
		time.Sleep(5 * time.Second)
		h.want("while it is away")
		p.lists(tools, "m0", "c").notifies(nil)
		time.Sleep(2 * mostRedial)
		got := h.take()
		if len(got) != 2 || strings.Count(fmt.Sprint(got), "tools/list_changed") != 1 || strings.Count(fmt.Sprint(got), `resources/updated","params":{"uri":"file:///a"`) != 1 {
			t.Errorf("when it is back: %q, want one list_changed and one updated", got)
		}
		wantList(t, "names", c.list(tools, "").keys, "m0_c", "m1_b")
		p.tell(mcp.NotificationToolsChanged, "")
		h.want("then", "tools/list_changed {}")
		h.close()
		shut(t, s)
	})
}

func TestAClientIsToldOfAMemberThatComesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := tooled("m0", "a").on(mcp.MethodListen, refuseConnection).on(mcp.MethodToolsList, refuseConnection)
		s := federation(t, "names: {prefix: always}", p)
		c := newClient(t, s)
		h := c.listens(`{"toolsListChanged":true}`)
		h.want("first", acknowledged(`{"toolsListChanged":true}`))
		wantList(t, "names before", c.list(tools, "").keys)
		p.notifies(nil).lists(tools, "m0", "a")
		time.Sleep(mostRedial)
		h.want("when it is there", "tools/list_changed {}")
		wantList(t, "names", c.list(tools, "").keys, "m0_a")
		h.close()
		shut(t, s)
	})
}

func TestAClientIsToldOfAMemberThatAcknowledgesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer().notifies(nil).after(acknowledgeWithin+time.Second, mcp.MethodListen)
		s := federation(t, "", p)
		h := newClient(t, s).listens(`{"toolsListChanged":true}`)
		h.want("first", acknowledged(`{"toolsListChanged":true}`))
		time.Sleep(2 * time.Second)
		h.want("when it is there", "tools/list_changed {}")
		h.close()
		shut(t, s)
	})
}

func TestListensOfOneScopeShareAStreamAndEndIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer().notifies(nil)
		s := federation(t, "", p)
		var all []*heard
		for i := range 100 {
			all = append(all, newClient(t, s).as([]string{"ann", "bob"}[i%2]).listens(everyList))
		}
		synctest.Wait()
		if n := len(p.open()); n != 3 {
			t.Errorf("%d streams at the member for 100 listens of two principals, want two and our own", n)
		}
		for _, h := range all {
			h.take()
		}
		p.tell(mcp.NotificationToolsChanged, "")
		for _, h := range all {
			h.want("a change", "tools/list_changed {}")
			h.close()
			if h.a.Events.(*listening).detach() {
				t.Fatal("a listen that was closed is kept until the federation is")
			}
		}
		synctest.Wait()
		if n := len(p.open()); n != 1 || len(s.feeds) != 1 {
			t.Errorf("%d streams and %d feeds when all have left, want our own", n, len(s.feeds))
		}
		shut(t, s)
		if n := len(p.open()); n != 0 {
			t.Errorf("%d streams of a federation that was closed", n)
		}
	})
}

func TestAClientThatDoesNotReadHoldsUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer().notifies(nil).lists(resources, "m0", "file:///a")
		s := federation(t, "", p)
		c := newClient(t, s)
		const filter = `{"toolsListChanged":true,"resourceSubscriptions":["file:///a"]}`
		deaf, err := s.Call(t.Context(), c.message(mcp.MethodListen, `"notifications":`+filter))
		if err != nil {
			t.Fatal(err)
		}
		h := c.listens(filter)
		h.take()
		for range 10 {
			for range 50 {
				p.tell(mcp.NotificationToolsChanged, "")
				p.tell(mcp.NotificationResourceUpdated, `"uri":"file:///a"`)
				if got := h.take(); len(got) != 2 {
					t.Fatalf("got %q, want both", got)
				}
				for _, st := range p.open() { // what the deaf one's stream holds up is its own
					for len(st.events) > 90 {
						<-st.events
					}
				}
			}
		}
		tools := 0
		for range 2 * maxUnsent {
			if !deaf.Events.Ready() {
				break
			}
			ev, _ := deaf.Events.Next()
			tools += strings.Count(string(ev.Data), mcp.NotificationToolsChanged)
		}
		if tools != 1 {
			t.Errorf("the one that did not read hears %d times of changed lists, want once", tools)
		}
		deaf.Close()
		h.close()
		shut(t, s)
	})
}

func TestAClosedFederationEndsListensInGoodOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer().notifies(nil).lists(resources, "m0", "file:///a")
		s := federation(t, "", p)
		h := newClient(t, s).listens(`{"toolsListChanged":true,"resourceSubscriptions":["file:///a"]}`)
		h.take()
		shut(t, s)
		<-h.done
		want := `{"jsonrpc":"2.0","id":"c1","result":{"resultType":"complete","_meta":{"io.modelcontextprotocol/subscriptionId":"c1"}}}`
		if got := h.take(); len(got) != 1 || got[0] != want || h.err != io.EOF {
			t.Errorf("got %q, then %v; want %s, then the end", got, h.err, want)
		}
		h.close()
	})
}

func TestTasksAreToldToTheirOwnersUnderTheirNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zero, one := tasking("m0", false).notifies(nil), tasking("m1", false).notifies(nil)
		s := federation(t, "", zero, one)
		ann := newClient(t, s).as("ann").declaring(declaresTasks)
		var made struct{ TaskID string }
		_ = json.Unmarshal([]byte(ann.do(mcp.MethodToolsCall, `"name":"m1_a"`)), &made)
		filter := fmt.Sprintf(`{"taskIds":[%q,"t/1"]}`, made.TaskID)
		h, bobs := ann.listens(filter), ann.as("bob").listens(filter)
		h.want("first", acknowledged(fmt.Sprintf(`{"taskIds":[%q]}`, made.TaskID)))
		bobs.want("bob's first", acknowledged(`{}`))
		for _, p := range []*peer{zero, one} {
			p.tell(mcp.NotificationTasks, `"taskId":"t/1","status":"working"`)
			p.tell(mcp.NotificationTasks, `"taskId":"t/2","status":"working"`)
		}
		h.want("then", fmt.Sprintf(`tasks {"status":"working","taskId":%q}`, made.TaskID))
		bobs.want("bob's")
		if got := ann.declaring("{}").do(mcp.MethodListen, `"notifications":`+filter); !strings.Contains(got, "-32021") {
			t.Errorf("without the extension: %s, want -32021", got)
		}
		h.close()
		bobs.close()
		shut(t, s)
	})
}

func TestAListenHasABound(t *testing.T) {
	var uris []string
	for i := range maxSubscriptions + 1 {
		uris = append(uris, fmt.Sprintf(`"file:///%d"`, i))
	}
	got := newClient(t, federation(t, "", newPeer())).do(mcp.MethodListen, `"notifications":{"resourceSubscriptions":[`+strings.Join(uris, ",")+`]}`)
	if !strings.Contains(got, "-32602") {
		t.Errorf("%d subscriptions: got %.200s, want -32602", len(uris), got)
	}
}

// An error may pass, but for those that say that the member has no such thing.
func TestAListenThatFailsIsTriedAgainUnlessTheMemberHasNone(t *testing.T) {
	for _, r := range []struct {
		code, least, most int // listens at the member in a minute
	}{{mcp.CodeInternalError, 3, 40}, {-31999, 3, 40}, {mcp.CodeMethodNotFound, 1, 2}} {
		t.Run(fmt.Sprint(r.code), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := tooled("p", "a")
				p.on(mcp.MethodListen, func(_ context.Context, c *upstream.Call) (*upstream.Answer, error) {
					return refusal(c, r.code), nil
				})
				s := federation(t, "", p)
				h := newClient(t, s).listens(`{"toolsListChanged":true}`)
				h.take() // the acknowledgement
				time.Sleep(time.Minute)
				tries := p.count(mcp.MethodListen)
				if tries < r.least || tries > r.most {
					t.Errorf("%d listens in a minute, want %d to %d", tries, r.least, r.most)
				}
				p.notifies(nil)
				time.Sleep(mostRedial)
				if heard := len(h.take()) > 0; heard != (r.least > 1) {
					t.Errorf("it hears of the lists in the end: %v", heard)
				}
				h.close()
				shut(t, s)
			})
		})
	}
}

func TestAListenThatIsNeverAcknowledgedIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := tooled("p", "a")
		p.on(mcp.MethodListen, func(ctx context.Context, _ *upstream.Call) (*upstream.Answer, error) {
			silent := &peerStream{events: make(chan []byte), ctx: ctx, gone: make(chan struct{})}
			return &upstream.Answer{Status: 200, Length: -1, Events: silent}, nil
		})
		s := federation(t, "", p)
		h := newClient(t, s).listens(`{"toolsListChanged":true}`)
		h.take() // the acknowledgement
		time.Sleep(grantWithin)
		p.notifies(nil)
		time.Sleep(mostRedial)
		h.want("when it is there at last", "tools/list_changed {}")
		time.Sleep(10 * grantWithin)
		if n := p.count(mcp.MethodListen); n > 4 {
			t.Errorf("%d listens, want that the one which was acknowledged goes on", n)
		}
		h.close()
		shut(t, s)
	})
}
