package federate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// personal makes a member list one tool that is named for who asks. scope says what a list claims, by principal.
func (p *peer) personal(owner string, scope func(principal string) string) *peer {
	return p.on(mcp.MethodToolsList, func(_ context.Context, c *upstream.Call) (*upstream.Answer, error) {
		time.Sleep(100 * time.Millisecond)
		claim := scope(c.Principal)
		name := "of-" + c.Principal + "-" + strings.Map(allowed, string(c.Message.ClientCapabilities.Of(c.Message.Raw)))
		if claim == forAll {
			name = "common"
		}
		return result(c, page(tools, named(tools, owner, name), claim)), nil
	}).echo(owner)
}

func privately(string) string { return forOne }

func TestPrivateListsStayWithWhoAskedForThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := federation(t, "", newPeer().personal("m0", privately), tooled("m1", "b"))
		var wait sync.WaitGroup
		for range 3 { // at once: the first that asks is not the one that the others get
			for _, principal := range []string{"", "ann", "bob"} {
				for _, capabilities := range []string{"{}", `{"elicitation":{}}`} {
					wait.Go(func() {
						c := newClient(t, s).as(principal).declaring(capabilities)
						for range 3 {
							l := c.list(tools, "")
							wantList(t, principal+capabilities, l.keys, "m0_of-"+principal+"-"+strings.Map(allowed, capabilities), "m1_b")
							if l.scope != "private" {
								t.Errorf("cacheScope %s, want private", l.scope)
							}
						}
					})
				}
			}
		}
		wait.Wait()
		shut(t, s)
	})
}

func TestAMemberThatTurnsPrivateIsAskedByEachFromThenOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claim := forAll
		p := newPeer().personal("m0", func(string) string { return claim })
		s := federation(t, "", p)
		ann, bob := newClient(t, s).as("ann"), newClient(t, s).as("bob")
		wantList(t, "ann", ann.list(tools, "").keys, "common")
		if l := bob.list(tools, ""); l.scope != "public" || p.count(mcp.MethodToolsList) != 1 {
			t.Errorf("a public list is %s, and was asked for %d times", l.scope, p.count(mcp.MethodToolsList))
		}
		claim = forOne
		time.Sleep(61 * time.Second)
		var wait sync.WaitGroup
		for _, c := range []*client{ann, bob, newClient(t, s)} {
			wait.Go(func() { wantList(t, c.principal, c.list(tools, "").keys, "of-"+c.principal+"---") })
		}
		wait.Wait()
		claim = forAll // which is believed of each one's own list only
		time.Sleep(61 * time.Second)
		wantList(t, "bob", bob.list(tools, "").keys, "common")
		shut(t, s)
	})
}

// That a member turned private counts at once, also for lists that are still fresh.
func TestOneWhoLearnsThatListsArePrivateLearnsItForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		claim := forAll
		s := federation(t, "", newPeer().personal("m0", func(string) string { return claim }))
		ann, bob := newClient(t, s).as("ann"), newClient(t, s).as("bob")
		ann.list(tools, "")
		claim = forOne
		other := ann.declaring(`{"roots":{}}`)
		wantList(t, "ann with other capabilities", other.list(tools, "").keys, "of-ann---roots-----")
		wantList(t, "bob", bob.list(tools, "").keys, "of-bob---")
		shut(t, s)
	})
}

// A refusal is for who was refused. Others ask for themselves.
func TestAMemberThatRefusesOneCallerServesTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer().on(mcp.MethodToolsList, func(_ context.Context, c *upstream.Call) (*upstream.Answer, error) {
			if c.Principal == "" {
				return refusal(c, -32603), nil
			}
			return result(c, page(tools, named(tools, "m0", "a"), forOne)), nil
		})
		s := federation(t, "", p)
		for range 3 {
			if l := newClient(t, s).list(tools, ""); len(l.faults) != 1 {
				t.Errorf("nobody: got %s, want nothing", l.raw)
			}
			if l := newClient(t, s).as("ann").list(tools, ""); len(l.keys) != 1 || l.faults != nil {
				t.Errorf("ann: got %s, want the list", l.raw)
			}
		}
		shut(t, s)
	})
}

// No client ever sees an entry of a scope that is not its own, and what it sees leads where it says, whatever members do
// meanwhile.
func TestScopesAndNamesHoldThroughRandomDays(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { randomDay(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func randomDay(t *testing.T, r *rand.Rand) {
	var members []upstream.Server
	var peers []*peer
	mood := make([]int, 3) // of each member: 0 public, 1 private, 2 refusing, 3 hanging; guarded by mu
	var mu sync.Mutex
	for i := range mood {
		p := newPeer().notifies(nil).echo(fmt.Sprintf("m%d", i))
		pause := time.Duration(r.IntN(1000)) * time.Millisecond
		p.on(mcp.MethodToolsList, func(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
			mu.Lock()
			now := mood[i]
			mu.Unlock()
			time.Sleep(pause)
			owner := fmt.Sprintf("m%d", i)
			switch now {
			case 0:
				return result(c, page(tools, named(tools, owner, "common", "long-"+strings.Repeat("x", 60)), `,"ttlMs":3000,"cacheScope":"public"`)), nil
			case 1:
				return result(c, page(tools, named(tools, owner, "of-"+c.Principal, "common"), `,"ttlMs":3000,"cacheScope":"private"`)), nil
			case 2:
				return refusal(c, -32603), nil
			}
			return hang(ctx, c)
		})
		peers, members = append(peers, p), append(members, p)
	}
	s := federation(t, "names: {prefix: always}, lists: {pageSize: 2, timeout: 2s, stale: 30s}", members...)
	pauses := func() time.Duration { return time.Duration(r.IntN(2000)) * time.Millisecond }
	var wait sync.WaitGroup
	for i, principal := range []string{"", "ann", "bob", "ann"} {
		steps := make([]time.Duration, 20)
		for j := range steps {
			steps[j] = pauses()
		}
		wait.Go(func() { randomClient(t, newClient(t, s).as(principal), steps, i == 3) })
	}
	for range 20 {
		i := r.IntN(len(mood))
		mu.Lock()
		mood[i] = r.IntN(4)
		mu.Unlock()
		switch r.IntN(4) {
		case 0:
			peers[i].tell(mcp.NotificationToolsChanged, "")
		case 1:
			peers[i].cut()
		}
		time.Sleep(pauses())
	}
	wait.Wait()
	shut(t, s)
}

// randomClient lists and calls what it saw. An impatient one leaves early.
func randomClient(t *testing.T, c *client, steps []time.Duration, impatient bool) {
	for _, pause := range steps {
		time.Sleep(pause)
		if impatient {
			ctx, leave := context.WithTimeout(t.Context(), pause/4+1)
			c.doCtx(ctx, mcp.MethodToolsList, "")
			leave()
			continue
		}
		for cursor := ""; ; {
			l := c.list(tools, cursor)
			for i, name := range l.keys {
				if strings.Contains(name, "_of-") && !strings.HasSuffix(name, "_of-"+c.principal) {
					t.Errorf("%q sees %s", c.principal, name)
				}
				owner, called := c.calls(name)
				if want := strings.TrimPrefix(name, l.owners[i]+"_"); owner != l.owners[i] || called != want && !strings.HasPrefix(called, "long-") {
					t.Errorf("%s of %s reached %s as %s", name, l.owners[i], owner, called)
				}
			}
			if cursor = l.cursor; cursor == "" {
				break
			}
		}
	}
}

// Who has no credential for a member keeps nobody else's list old, however often it asks.
func TestACallerWithoutACredentialKeepsNoListFromOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := "one"
		p := newPeer().on(mcp.MethodToolsList, func(_ context.Context, c *upstream.Call) (*upstream.Answer, error) {
			if c.Principal == "nobody" {
				return nil, &upstream.Error{Kind: upstream.NoCredential, Upstream: "m0", Detail: "has nothing to present"}
			}
			return result(c, page(tools, named(tools, "m0", release), forAll)), nil
		})
		s := federation(t, "", p)
		nobody, ann := newClient(t, s).as("nobody"), newClient(t, s).as("ann")
		wantList(t, "ann", ann.list(tools, "").keys, "one")
		release = "two"
		time.Sleep(61 * time.Second) // the list is old
		for range 10 {
			wantList(t, "nobody", nobody.list(tools, "").keys, "one")
		}
		time.Sleep(patience) // for which an old list counts as one that is looked for
		wantList(t, "ann", ann.list(tools, "").keys, "two")
		shut(t, s)
	})
}
