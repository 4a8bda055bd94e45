package federate

import (
	"context"
	"errors"
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

// timed is a list and how long it took.
func (c *client) timed(k kind) (listed, time.Duration) {
	began := time.Now()
	l := c.list(k, "")
	return l, time.Since(began)
}

// L10, L11: one refuses connections, one sleeps for 20 s, and the rest is there.
func TestTheRestIsServedAndSaysWhatIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sleeps := newPeer().on(mcp.MethodToolsList, func(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
			select {
			case <-time.After(20 * time.Second):
				return result(c, page(tools, "", forAll)), nil
			case <-ctx.Done():
				return hang(ctx, c)
			}
		}).on(mcp.MethodDiscover, hang).on(mcp.MethodPromptsList, hang)
		down := newPeer().on(mcp.MethodToolsList, refuseConnection).on(mcp.MethodDiscover, refuseConnection).on(mcp.MethodPromptsList, refuseConnection)
		good := tooled("m2", "a").on(mcp.MethodDiscover, always(`{"capabilities":{"tools":{}},"ttlMs":60000,"cacheScope":"public"}`))
		s := federation(t, "lists: {timeout: 2s}", sleeps, down, good)
		c := newClient(t, s)
		l, took := c.timed(tools)
		wantList(t, "names", l.keys, "m2_a")
		if want := "[{m0 upstream_timeout false} {m1 upstream_unreachable false}]"; fmt.Sprint(l.faults) != want || l.scope != "private" {
			t.Errorf("missing: got %v in a %s list, want %s in a private one", l.faults, l.scope, want)
		}
		if took > 2*time.Second {
			t.Errorf("the first list took %v, want the 2 s that a member may take", took)
		}
		began := time.Now()
		if l := c.list(prompts, ""); len(l.faults) != 2 || time.Since(began) > patience {
			t.Errorf("another list took %v, want at most %v for a member that has just failed; missing %v", time.Since(began), patience, l.faults)
		}
		for range 100 { // while the member fails on and on, nobody waits long for it
			time.Sleep(500 * time.Millisecond)
			if l, took := c.timed(tools); took > patience || len(l.keys) != 1 {
				t.Errorf("a list took %v and has %q", took, l.keys)
			}
		}
		if n := down.count(mcp.MethodToolsList); n > 12 {
			t.Errorf("a member that is down was asked %d times in 50 s, want growing pauses", n)
		}
		d := c.do(mcp.MethodDiscover, "")
		if !strings.Contains(d, `"reason":"upstream_unreachable"`) || !strings.Contains(d, `"tools":{"listChanged":true}`) {
			t.Errorf("discover: %s", d)
		}
		if owner, got := c.calls("m2_a"); owner != "m2" {
			t.Errorf("a call: %s", got)
		}
		shut(t, s)
	})
}

// L19
func TestAWedgedMemberIsStoodInForByItsLastList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wedged := tooled("m0", "a")
		s := federation(t, "lists: {stale: 5m}", wedged, tooled("m1", "b"))
		c := newClient(t, s)
		c.list(tools, "")
		wedged.on(mcp.MethodToolsList, hang)
		time.Sleep(61 * time.Second)
		waited := 0
		for range 100 {
			l, took := c.timed(tools)
			wantList(t, "names", l.keys, "m0_a", "m1_b")
			if want := "[{m0 upstream_timeout true}]"; fmt.Sprint(l.faults) != want {
				t.Fatalf("missing: got %v, want %s", l.faults, want)
			}
			if took > 400*time.Millisecond {
				t.Fatalf("a list took %v, want less than 500 ms", took)
			}
			if took > 0 {
				waited++
			}
			time.Sleep(100 * time.Millisecond)
		}
		if waited > 5 {
			t.Errorf("%d lists of 100 waited for the member, want one for each attempt at it", waited)
		}
		time.Sleep(5 * time.Minute)
		l, _ := c.timed(tools)
		wantList(t, "names when it is too old", l.keys, "m1_b")
		wedged.lists(tools, "m0", "c")
		time.Sleep(mostPause + s.timeout())
		c.list(tools, "")
		l, _ = c.timed(tools)
		wantList(t, "names when it is back", l.keys, "m0_c", "m1_b")
		if l.faults != nil {
			t.Errorf("it is back, but still missing: %v", l.faults)
		}
		shut(t, s)
	})
}

func TestAMemberThatAnswersGarbageIsMissingAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, h := range map[string]handler{
			"not JSON": func(_ context.Context, c *upstream.Call) (*upstream.Answer, error) {
				return bodyOf(200, []byte("<html>")), nil
			},
			"nothing": func(context.Context, *upstream.Call) (*upstream.Answer, error) {
				return &upstream.Answer{Status: 202}, nil
			},
			"no list":      always(`{"resultType":"complete"}`),
			"a number":     always(`5`),
			"a wrong list": always(`{"tools":{"name":"a"}}`),
			"a question":   always(`{"resultType":"input_required","tools":[]}`),
			"an error":     func(_ context.Context, c *upstream.Call) (*upstream.Answer, error) { return refusal(c, -32603), nil },
			"a notification": func(_ context.Context, c *upstream.Call) (*upstream.Answer, error) {
				return bodyOf(200, []byte(`{"jsonrpc":"2.0","method":"x"}`)), nil
			},
			"a stream that breaks off": func(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
				s := &peerStream{events: make(chan []byte), ctx: ctx, gone: make(chan struct{})}
				close(s.events)
				return &upstream.Answer{Status: 200, Length: -1, Events: s}, nil
			},
		} {
			s := federation(t, "", newPeer().on(mcp.MethodToolsList, h), tooled("m1", "b"))
			l := newClient(t, s).list(tools, "")
			if fmt.Sprintf("%q", l.keys) != `["m1_b"]` || len(l.faults) != 1 || l.faults[0].Upstream != "m0" {
				t.Errorf("%s: got %s", name, l.raw)
			}
			shut(t, s)
		}
		for name, entries := range map[string]string{"an empty list": page(tools, "", forAll), "null": `{"tools":null}`} {
			s := federation(t, "", newPeer().on(mcp.MethodToolsList, always(entries)), tooled("m1", "b"))
			if l := newClient(t, s).list(tools, ""); l.faults != nil || len(l.keys) != 1 {
				t.Errorf("%s: got %s", name, l.raw)
			}
			shut(t, s)
		}
	})
}

func TestAMemberThatDiesInTheMiddleOfItsListKeepsTheLastOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer().paged("m0", numbered("t", 25), 10, func(n int) string { return fmt.Sprint(n) }, forAll)
		s := federation(t, "", p, tooled("m1", "one"))
		c := newClient(t, s)
		c.list(tools, "")
		for name, second := range map[string]handler{
			"unreachable": refuseConnection,
			"unknown": func(_ context.Context, c *upstream.Call) (*upstream.Answer, error) {
				return refusal(c, mcp.CodeMethodNotFound), nil
			},
		} {
			first := p.handle[mcp.MethodToolsList]
			p.on(mcp.MethodToolsList, func(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
				if c.Message.Cursor.Present() {
					return second(ctx, c)
				}
				return first(ctx, c)
			})
			time.Sleep(61 * time.Second)
			if l := c.list(tools, ""); len(l.keys) != 26 || len(l.faults) != 1 || !l.faults[0].Stale {
				t.Errorf("%s: %d tools, missing %v; want all 26, some of them old", name, len(l.keys), l.faults)
			}
			p.on(mcp.MethodToolsList, first)
		}
		shut(t, s)
	})
}

// A client that leaves while a member is asked takes nothing away from those who stay, and is no fault of the member's.
func TestACallerThatLeavesSpoilsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := newPeer().on(mcp.MethodToolsList, func(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
			select {
			case <-time.After(time.Second):
				return result(c, page(tools, named(tools, "m0", "a"), forAll)), nil
			case <-ctx.Done():
				return hang(ctx, c)
			}
		})
		s := federation(t, "", slow, tooled("m1", "b"))
		c := newClient(t, s)
		ctx, leave := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer leave()
		if got := c.doCtx(ctx, mcp.MethodToolsList, ""); !strings.Contains(got, "no answer in time") {
			t.Errorf("the one that left got %s", got)
		}
		l, took := c.timed(tools)
		wantList(t, "names", l.keys, "m0_a", "m1_b")
		if l.faults != nil || took != 900*time.Millisecond || slow.count(mcp.MethodToolsList) != 1 {
			t.Errorf("missing %v after %v and %d requests, want nothing after the 900 ms that were left of one", l.faults, took, slow.count(mcp.MethodToolsList))
		}
		shut(t, s)
	})
}

func TestManyClientsAtOnceAskAMemberOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer().on(mcp.MethodToolsList, func(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
			time.Sleep(time.Second)
			return result(c, page(tools, named(tools, "m0", "a"), forAll)), nil
		})
		s := federation(t, "", p, tooled("m1", "b"))
		var wait sync.WaitGroup
		for i := range 200 {
			wait.Go(func() {
				if l := newClient(t, s).as(fmt.Sprint(i%7)).list(tools, ""); len(l.keys) != 2 {
					t.Errorf("got %s", l.raw)
				}
			})
		}
		wait.Wait()
		if n := p.count(mcp.MethodToolsList); n != 1 {
			t.Errorf("200 clients of 7 principals: asked %d times, want once", n)
		}
		shut(t, s)
	})
}

// L7
func TestAChangedListIsFetchedAtOnceAndAgainAfterTheMemberCameBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := tooled("m0", "a").notifies(nil)
		s := federation(t, "", p, tooled("m1", "b"))
		c := newClient(t, s)
		c.list(tools, "")
		synctest.Wait()
		p.lists(tools, "m0", "c")
		p.tell(mcp.NotificationToolsChanged, "")
		synctest.Wait()
		wantList(t, "after a notification", c.list(tools, "").keys, "m0_c", "m1_b")

		p.on(mcp.MethodToolsList, refuseConnection).on(mcp.MethodListen, refuseConnection)
		p.cut()
		time.Sleep(2 * time.Second)
		l := c.list(tools, "")
		wantList(t, "while it is away", l.keys, "m0_c", "m1_b")
		if l.faults != nil {
			t.Errorf("its list is fresh for a minute, but missing: %v", l.faults)
		}
		p.lists(tools, "m0", "d").notifies(nil)
		time.Sleep(mostRedial)
		wantList(t, "when it is back", c.list(tools, "").keys, "m0_d", "m1_b")
		shut(t, s)
	})
}

func TestAListThatChangesWhileItIsFetchedIsFetchedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer().notifies(nil)
		names := []string{"old", "new"}
		p.on(mcp.MethodToolsList, func(_ context.Context, c *upstream.Call) (*upstream.Answer, error) {
			a := result(c, page(tools, named(tools, "m0", names[min(1, p.count(mcp.MethodToolsList)-1)]), forAll))
			time.Sleep(time.Second)
			return a, nil
		})
		s := federation(t, "", p)
		go func() {
			time.Sleep(500 * time.Millisecond)
			p.tell(mcp.NotificationToolsChanged, "")
		}()
		l := newClient(t, s).list(tools, "")
		wantList(t, "names", l.keys, "new")
		if l.faults != nil {
			t.Errorf("missing: %v", l.faults)
		}
		shut(t, s)
	})
}

// A list that changes without end is served all the same, and asked for once at a time.
func TestAListThatChangesWithoutEndIsServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, under := newPeer().notifies(nil), 0
		p.on(mcp.MethodToolsList, func(_ context.Context, c *upstream.Call) (*upstream.Answer, error) {
			if under++; under > 1 {
				t.Error("asked again before it answered")
			}
			time.Sleep(50 * time.Millisecond)
			under--
			return result(c, page(tools, named(tools, "m0", "a"), forAll)), nil
		})
		s := federation(t, "", p)
		c := newClient(t, s)
		for range 300 {
			p.tell(mcp.NotificationToolsChanged, "")
			if l := c.list(tools, ""); len(l.keys) != 1 {
				t.Fatalf("got %s", l.raw)
			}
			time.Sleep(10 * time.Millisecond)
		}
		shut(t, s)
	})
}

func TestTheFederationIsReadyAsSoonAsAMemberIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sick := newPeer()
		sick.ready = io.ErrUnexpectedEOF
		s := federation(t, "", wedgedCheck{}, sick, newPeer())
		began := time.Now()
		if err := s.Check(t.Context()); err != nil || time.Since(began) > 0 {
			t.Errorf("one of three is ready: %v after %v", err, time.Since(began))
		}
		shut(t, s)
		down := newPeer()
		down.ready = &upstream.Error{Kind: upstream.Unreachable, Upstream: "m2", Detail: "could not be reached", Cause: errors.New("connection refused")}
		s = federation(t, "", wedgedCheck{}, sick, down)
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		want := `binding "b": none of its upstreams is ready: upstream "m0": context deadline exceeded; upstream "m1": unexpected EOF; ` +
			`upstream "m2": could not be reached: connection refused`
		if err := s.Check(ctx); err == nil || err.Error() != want {
			t.Errorf("none is ready: got %v\nwant %s", err, want)
		}
		shut(t, s)
	})
}

type wedgedCheck struct{ upstream.Server }

func (wedgedCheck) Check(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
