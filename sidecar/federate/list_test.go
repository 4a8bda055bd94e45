package federate

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/budget"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/seal"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// numbered are n names.
func numbered(prefix string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("%s%d", prefix, i))
	}
	return names
}

// paged makes a member give its tools in pages of a size. The cursor of page n is cursor(n); more goes into each page.
func (p *peer) paged(owner string, names []string, size int, cursor func(page int) string, more string) *peer {
	return p.on(mcp.MethodToolsList, func(_ context.Context, c *upstream.Call) (*upstream.Answer, error) {
		at := 0
		if token := c.Message.Cursor; token.Present() {
			text, _ := rawjson.Text(token.Of(c.Message.Raw))
			for at = 1; cursor(at) != text; at++ {
				if at > len(names) {
					return refusal(c, mcp.CodeInvalidParams), nil
				}
			}
		}
		end, next := min((at+1)*size, len(names)), ""
		if end < len(names) {
			next = fmt.Sprintf(`,"nextCursor":%q`, cursor(at+1))
		}
		return result(c, page(tools, named(tools, owner, names[at*size:end]...), next+more)), nil
	})
}

// L1
func TestAllPagesOfAMemberAreListed(t *testing.T) {
	for name, cursor := range map[string]func(int) string{
		"numbers":                  func(n int) string { return fmt.Sprint(n) },
		"the empty cursor for one": func(n int) string { return strings.Repeat("x", n-1) },
		"odd characters":           func(n int) string { return fmt.Sprintf("\"\\ü%d", n) },
	} {
		t.Run(name, func(t *testing.T) {
			s := federation(t, "lists: {pageSize: 7}", newPeer().paged("m0", numbered("t", 25), 10, cursor, forAll).echo("m0"), tooled("m1", "one"))
			got, pages := newClient(t, s).all(tools)
			wantList(t, "names", got, append(numbered("m0_t", 25), "m1_one")...)
			if pages != 4 {
				t.Errorf("%d pages of 7 for 26 tools, want 4", pages)
			}
			for _, name := range got {
				if owner, _ := newClient(t, s).calls(name); owner != name[:2] {
					t.Errorf("%s reached %q", name, owner)
				}
			}
		})
	}
}

func TestAMemberWithoutEndIsCutAndSaysSo(t *testing.T) {
	for _, c := range []struct {
		name, reason string
		cursor       func(int) string
		more         string
		tools        int
	}{
		{"many pages", "too_many_pages", func(n int) string { return fmt.Sprint(n) }, "", 30},
		{"one cursor again and again", "cursor_repeated", func(int) string { return "again" }, "", 20},
		{"long pages", "too_long", func(n int) string { return fmt.Sprint(n) }, `,"x":"` + strings.Repeat("x", 9<<20) + `"`, 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // so that a slow machine is not a slow member
				p := newPeer().paged("m0", numbered("t", 100), 10, c.cursor, c.more+forAll)
				l := newClient(t, federation(t, "lists: {maxPages: 3}", p, tooled("m1", "one"))).list(tools, "")
				if len(l.keys) != c.tools+1 || fmt.Sprint(l.faults) != "[{m0 "+c.reason+" false}]" {
					t.Errorf("got %d tools and %v, want %d and %s", len(l.keys), l.faults, c.tools+1, c.reason)
				}
			})
		})
	}
}

func TestTheShortestTimeAndTheNarrowestScopeCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			zero, one, scope string
			ttl              int64
		}{
			{forAll, `,"ttlMs":5000,"cacheScope":"public"`, "public", 5000},
			{forAll, `,"ttlMs":90000,"cacheScope":"private"`, "private", 60000},
			{forAll, "", "private", 30000}, // which says nothing
			{forAll, `,"ttlMs":-5,"cacheScope":"public"`, "public", 30000},
			{forAll, `,"ttlMs":0,"cacheScope":"public"`, "public", 30000},
			{`,"ttlMs":99999999999999,"cacheScope":"public"`, `,"ttlMs":99999999999999,"cacheScope":"public"`, "public", 3600_000},
		} {
			zero, one := newPeer().on(mcp.MethodToolsList, always(page(tools, "", c.zero))), newPeer().on(mcp.MethodToolsList, always(page(tools, "", c.one)))
			s := federation(t, "lists: {ttl: 30s}", zero, one)
			l := newClient(t, s).list(tools, "")
			if l.ttl != c.ttl || l.scope != c.scope || !strings.Contains(l.raw, `{"resultType":"complete","tools":[]`) {
				t.Errorf("of %s and %s: got %s, want ttl %d and %s", c.zero, c.one, l.raw, c.ttl, c.scope)
			}
			shut(t, s)
		}
	})
}

func TestAListIsAskedForAgainWhenItsTimeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := tooled("m0", "a")
		s := federation(t, "", p)
		c := newClient(t, s)
		for range 5 {
			c.list(tools, "")
			time.Sleep(10 * time.Second)
		}
		if n := p.count(mcp.MethodToolsList); n != 1 {
			t.Errorf("asked %d times within 50 s of 60 s, want once", n)
		}
		p.lists(tools, "m0", "b")
		time.Sleep(11 * time.Second)
		wantList(t, "names", c.list(tools, "").keys, "b")
		shut(t, s)
	})
}

// What a cursor leads to is decided by what its client saw, or it leads nowhere.
func TestCursorsLeadToTheirOwnListOnly(t *testing.T) {
	sealer := seal.New()
	spec := "lists: {pageSize: 2}"
	s := sealedFederation(t, sealer, spec, tooled("m0", numbered("t", 5)...).lists(prompts, "m0", numbered("t", 5)...))
	c := newClient(t, s).as("ann")
	cursor := c.list(tools, "").cursor
	wantList(t, "second page", c.list(tools, cursor).keys, "t2", "t3")
	wantList(t, "third page", c.list(tools, c.list(tools, cursor).cursor).keys, "t4")

	same := sealedFederation(t, sealer, spec, tooled("m0", numbered("t", 5)...))
	other := sealedFederation(t, sealer, spec, tooled("m0", numbered("u", 5)...))
	smaller := sealedFederation(t, sealer, "lists: {pageSize: 3}", tooled("m0", numbered("t", 5)...))
	stranger := federation(t, spec, tooled("m0", numbered("t", 5)...))
	at := func(s *Server) *client { return newClient(t, s).as("ann") }
	wantList(t, "at another sidecar with the same list", at(same).list(tools, cursor).keys, "t2", "t3")

	changed := []byte(cursor)
	changed[len(changed)-2] ^= 1
	for _, bad := range []struct {
		name, cursor string
		c            *client
		k            kind
	}{
		{"another principal's", cursor, newClient(t, s).as("bob"), tools},
		{"nobody's", cursor, newClient(t, s), tools},
		{"another kind's", cursor, c, prompts},
		{"an altered one", string(changed), c, tools},
		{"a made up one", "2", c, tools},
		{"at a sidecar with another list", cursor, at(other), tools},
		{"at a sidecar with other pages", cursor, at(smaller), tools},
		{"at a sidecar with other keys", cursor, at(stranger), tools},
	} {
		if l := bad.c.list(bad.k, bad.cursor); !strings.Contains(l.raw, "-32602") {
			t.Errorf("%s: got %s, want -32602", bad.name, l.raw)
		}
	}
	for _, token := range []string{`""`, `7`, `null`, `{}`} {
		if got := c.do(mcp.MethodToolsList, `"cursor":`+token); !strings.Contains(got, "-32602") {
			t.Errorf("cursor %s: got %s, want -32602", token, got)
		}
	}
}

func TestAClientPagesOnThroughAListThatChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := tooled("m0", numbered("t", 4)...).notifies(nil)
		s := federation(t, "lists: {pageSize: 2}", p)
		c := newClient(t, s)
		old := c.list(tools, "").cursor
		synctest.Wait()
		p.lists(tools, "m0", numbered("u", 4)...)
		p.tell(mcp.NotificationToolsChanged, "")
		synctest.Wait()
		wantList(t, "the new list", c.list(tools, "").keys, "u0", "u1")
		wantList(t, "the old one's second page", c.list(tools, old).keys, "t2", "t3")
		time.Sleep(keptForCursors + time.Second)
		p.lists(tools, "m0", numbered("v", 4)...)
		p.tell(mcp.NotificationToolsChanged, "")
		synctest.Wait()
		c.list(tools, "")
		if l := c.list(tools, old); !strings.Contains(l.raw, "-32602") {
			t.Errorf("a cursor of a minute ago: got %s, want -32602", l.raw)
		}
		shut(t, s)
	})
}

func TestEntriesPassAsTheyCame(t *testing.T) {
	odd := ` { "title":"ä", "x" : 9007199254740993 , "name":"n\u0061me","nothing":null,"dup":1,"dup":2,"outputSchema":{"z":1,"a":[ ]}}`
	s := federation(t, "names: {prefix: always}", newPeer().on(mcp.MethodToolsList, always(page(tools, odd, forAll))))
	got := newClient(t, s).do(mcp.MethodToolsList, "")
	if want := strings.Replace(strings.TrimSpace(odd), `"n\u0061me"`, `"m0_name"`, 1); !strings.Contains(got, want) {
		t.Errorf("got %s, want in it %s", got, want)
	}
}

func TestCachesHaveBounds(t *testing.T) {
	long := strings.Repeat("x", 150<<10)
	p := newPeer().on(mcp.MethodToolsList, always(page(tools, fmt.Sprintf(`{"name":"a","description":%q}`, long), forOne)))
	s := federation(t, "", p)
	for i := range 2 * maxCached / (150 << 10) {
		newClient(t, s).as(fmt.Sprint(i)).do(mcp.MethodToolsList, "")
	}
	m := s.members[0]
	if n := len(m.lists.kept); n > maxScopes || m.lists.size > maxCached+(1<<20) || n < 10 {
		t.Errorf("lists of %d scopes with %d bytes are kept, want at most %d and %d", n, m.lists.size, maxScopes, maxCached)
	}
	if n := len(s.snapshots.byKey) + len(s.snapshots.older); n > maxSnapshots || n < 10 {
		t.Errorf("%d snapshots are kept, want at most %d", n, maxSnapshots)
	}
	got := newClient(t, s).declaring(`{"x":"`+strings.Repeat("x", maxCapabilities)+`"}`).do(mcp.MethodToolsList, "")
	if !strings.Contains(got, "-32602") {
		t.Errorf("capabilities of %d bytes: got %.200s, want -32602", maxCapabilities, got)
	}
	p.on(mcp.MethodResourcesRead, always(`{"contents":[]}`))
	for i := range maxFound + 10 {
		newClient(t, s).do(mcp.MethodResourcesRead, fmt.Sprintf(`"uri":"ui://%d"`, i))
	}
	newClient(t, s).do(mcp.MethodResourcesRead, `"uri":"ui://`+strings.Repeat("x", maxFoundURI)+`"`)
	if n := len(s.found); n > maxFound {
		t.Errorf("the owners of %d resources are remembered, want at most %d", n, maxFound)
	}
	for at := range s.found {
		if len(at.uri) > maxFoundURI {
			t.Errorf("a URI of %d bytes is remembered, want at most %d", len(at.uri), maxFoundURI)
		}
	}
}

func TestLargeSnapshotsGiveWay(t *testing.T) {
	var kept snapshots
	kept.init(nil)
	for i := range 100 {
		sc := scope{principal: fmt.Sprint(i % 60)} // some take the place of others, which are kept for cursors
		kept.put(tools, sc, &snapshot{id: snapshotID{byte(i)}, pages: make([][]byte, 2), size: maxSnapshotBytes / 10})
		if kept.size > maxSnapshotBytes || len(kept.byKey)+len(kept.older) > 10 {
			t.Fatalf("%d bytes in %d snapshots and %d older ones", kept.size, len(kept.byKey), len(kept.older))
		}
		if n := kept.at(tools, sc); n == nil || n.id[0] != byte(i) {
			t.Fatalf("the snapshot put last is not kept: %v", n)
		}
	}
}

func TestAFailClosedListIsWholeOrFails(t *testing.T) {
	down := newPeer().on(mcp.MethodToolsList, refuseConnection)
	c := newClient(t, federation(t, "partialFailure: refuse", tooled("m0", "a"), down))
	if got := c.do(mcp.MethodToolsList, ""); !strings.HasPrefix(got, `failed: upstream "m1": did not give`) {
		t.Errorf("got %s, want a failure that names m1", got)
	}
	if owner, got := c.calls("m0_a"); owner != "m0" {
		t.Errorf("a call of the other member: %s", got)
	}
}

// Callers who are many, or one who has many names, do not fill the process with lists that are their own.
func TestListsOfManyCallersAreWithinTheProcesssBudget(t *testing.T) {
	const size = 100 << 10
	p := newPeer().on(mcp.MethodToolsList, always(page(tools, fmt.Sprintf(`{"name":"a","description":%q}`, strings.Repeat("x", size)), forOne))).
		on(mcp.MethodPromptsList, always(page(prompts, `{"name":"p"}`, forOne)))
	s := federation(t, "", p)
	lists := budget.New(10 * size)
	s.members[0].lists.budget, s.snapshots.budget = lists, lists
	newClient(t, s).as("first").do(mcp.MethodPromptsList, "")
	for i := range 40 {
		c := newClient(t, s).as(fmt.Sprint(i))
		if l := c.list(tools, ""); len(l.keys) != 1 {
			t.Fatalf("caller %d got %.300s, want a list", i, l.raw)
		}
		if used := lists.Used(); used > 13*size {
			t.Fatalf("after %d callers %d bytes are kept, want at most %d and two lists", i, used, 10*size)
		}
	}
	newClient(t, s).as("first").do(mcp.MethodPromptsList, "")
	if n := p.count(mcp.MethodPromptsList); n != 1 {
		t.Errorf("prompts were listed %d times, want once: lists of another kind stay", n)
	}
	if shut(t, s); lists.Used() != 0 {
		t.Errorf("%d bytes are still taken after Close", lists.Used())
	}
}

// A list for which there is no memory is missing, and the answer says why.
func TestAListThatThereIsNoMemoryForIsMissing(t *testing.T) {
	long := fmt.Sprintf(`{"name":"a","description":%q}`, strings.Repeat("x", 100<<10))
	s := federation(t, "", newPeer().on(mcp.MethodToolsList, always(page(tools, long, forAll))), tooled("m1", "b"))
	s.o.Answers = budget.New(50 << 10)
	l := newClient(t, s).list(tools, "")
	wantList(t, "names", l.keys, "m1_b")
	if want := (fault{Upstream: "m0", Reason: upstream.Overloaded.Reason()}); len(l.faults) != 1 || l.faults[0] != want {
		t.Errorf("missing are %v, want %v", l.faults, want)
	}
	if n := s.o.Answers.Used(); n != 0 {
		t.Errorf("%d bytes are still taken", n)
	}
}
