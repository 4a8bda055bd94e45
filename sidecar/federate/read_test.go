package federate

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// library is a member that has resources, some of which it lists.
func library(owner string, listed []string, unlisted ...string) *peer {
	has := make(map[string]bool)
	for _, uri := range append(unlisted, listed...) {
		has[uri] = true
	}
	return newPeer().lists(resources, owner, listed...).on(mcp.MethodResourcesRead, func(_ context.Context, c *upstream.Call) (*upstream.Answer, error) {
		if !has[string(c.Message.Name)] {
			return refusal(c, mcp.CodeInvalidParams), nil
		}
		return result(c, fmt.Sprintf(`{"contents":[],"owner":%q}`, owner)), nil
	})
}

// reads says who answered a read.
func (c *client) reads(uri string) string {
	c.t.Helper()
	var r struct{ Owner string }
	raw := c.do(mcp.MethodResourcesRead, fmt.Sprintf(`"uri":%q`, uri))
	if err := json.Unmarshal([]byte(raw), &r); err != nil || r.Owner == "" {
		return raw
	}
	return r.Owner
}

// after makes a method of a member take a while.
func (p *peer) after(d time.Duration, method string) *peer {
	h := p.handle[method]
	return p.on(method, func(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
		time.Sleep(d)
		return h(ctx, c)
	})
}

// L20
func TestTheOwnerOfAResourceIsTheOneDeclaredFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for slow := range 2 {
			zero, one := library("m0", []string{"file:///a"}), library("m1", []string{"file:///a", "file:///b"})
			[]*peer{zero, one}[slow].after(time.Second, mcp.MethodResourcesList)
			s := federation(t, "", zero, one)
			c := newClient(t, s)
			for range 3 {
				l := c.list(resources, "")
				wantList(t, "URIs", l.keys, "file:///a", "file:///b")
				wantList(t, "owners", l.owners, "m0", "m1")
				if want := []leftOut{{"m1", "file:///a"}}; fmt.Sprint(l.leftOut) != fmt.Sprint(want) {
					t.Errorf("left out: got %v, want %v", l.leftOut, want)
				}
				if got := c.reads("file:///a"); got != "m0" {
					t.Errorf("read by %s, want m0", got)
				}
				time.Sleep(time.Minute)
			}
			shut(t, s)
		}
	})
}

func TestAnUnlistedResourceIsFoundByReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zero, one := library("m0", nil), library("m1", nil, "ui://page")
		s := federation(t, "", zero, one, library("m2", nil, "ui://page"))
		c := newClient(t, s)
		for range 3 {
			if got := c.reads("ui://page"); got != "m1" {
				t.Errorf("read by %s, want m1", got)
			}
		}
		if n := zero.count(mcp.MethodResourcesRead); n != 1 {
			t.Errorf("m0 was asked %d times for what m1 has, want once", n)
		}
		if got := c.reads("ui://nothing"); !strings.Contains(got, "-32602") || !strings.Contains(got, "ui://nothing") {
			t.Errorf("what nobody has: %s", got)
		}
		// What one member asked of a client is not told to another.
		c.do(mcp.MethodResourcesRead, `"uri":"ui://page","requestState":"s","inputResponses":{}`)
		before := zero.count(mcp.MethodResourcesRead)
		if got := c.do(mcp.MethodResourcesRead, `"uri":"ui://other","inputResponses":{"a":{}}`); !strings.Contains(got, "-32602") || zero.count(mcp.MethodResourcesRead) != before {
			t.Errorf("an answer to nobody knows whom: %s, and m0 was asked: %v", got, zero.count(mcp.MethodResourcesRead) != before)
		}
		shut(t, s)
	})
}

// Servers that answer in event streams say so there when they do not have a resource.
func TestAMissingResourceInAnEventStreamIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inEvents := func(p *peer) *peer {
			h := p.handle[mcp.MethodResourcesRead]
			return p.on(mcp.MethodResourcesRead, func(ctx context.Context, c *upstream.Call) (*upstream.Answer, error) {
				a, _ := h(ctx, c)
				m, _, err := upstream.ReadResponse("m", a, nil, maxPage)
				if err != nil {
					return nil, err
				}
				s := &peerStream{events: make(chan []byte, 1), ctx: ctx, gone: make(chan struct{})}
				s.events <- m.Raw
				return &upstream.Answer{Status: 200, Length: -1, Events: s}, nil
			})
		}
		s := federation(t, "", inEvents(library("m0", nil)), inEvents(library("m1", nil, "ui://page")))
		if got := newClient(t, s).reads("ui://page"); got != "m1" {
			t.Errorf("read by %s, want m1", got)
		}
		shut(t, s)
	})
}

func TestAMemberThatIsAwayIsNotForgottenAsAnOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zero := library("m0", nil, "ui://page")
		read := zero.handle[mcp.MethodResourcesRead]
		zero.on(mcp.MethodResourcesRead, hang)
		s := federation(t, "lists: {timeout: 2s}", zero, library("m1", nil, "ui://page"))
		c := newClient(t, s)
		began := time.Now()
		if got := c.reads("ui://page"); got != "m1" || time.Since(began) > 2*time.Second {
			t.Errorf("while m0 hangs: read by %s after %v, want m1 within 2 s", got, time.Since(began))
		}
		if got := c.reads("ui://other"); !strings.HasPrefix(got, "failed:") {
			t.Errorf("what m0 may have: %s, want a failure", got)
		}
		zero.on(mcp.MethodResourcesRead, read)
		if got := c.reads("ui://page"); got != "m0" {
			t.Errorf("once m0 is back: read by %s, want m0", got)
		}
		shut(t, s)
	})
}

func TestAToolTellsWhoHasItsPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zero := library("m0", nil, "ui://page", "ui://old")
		one := library("m1", nil, "ui://page", "ui://old").on(mcp.MethodToolsList, always(page(tools,
			`{"name":"a","_meta":{"ui":{"resourceUri":"ui://page"}}},{"name":"b","_meta":{"ui/resourceUri":"ui://old"}}`, forAll)))
		s := federation(t, "", zero, one)
		c := newClient(t, s)
		c.list(tools, "")
		for _, uri := range []string{"ui://page", "ui://old"} {
			if got := c.reads(uri); got != "m1" {
				t.Errorf("%s: read by %s, want m1, whose tool shows it", uri, got)
			}
		}
		shut(t, s)
	})
}

func TestTemplatesLeadToTheirMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zero := newPeer().lists(templates, "m0", "db://{table}/rows", "{broken").echo("m0")
		one := newPeer().lists(templates, "m1", "db://{table}/rows", "log://{+path}").echo("m1").lists(prompts, "m1", "p").
			on(mcp.MethodComplete, func(_ context.Context, c *upstream.Call) (*upstream.Answer, error) {
				name, _ := rawjson.Text(rawjson.Find(c.Message.Raw, c.Message.Params, "ref", "name").Of(c.Message.Raw))
				return result(c, fmt.Sprintf(`{"completion":{"values":[%q]}}`, name)), nil
			})
		s := federation(t, "", zero, one)
		c := newClient(t, s)
		wantList(t, "templates", c.list(templates, "").keys, "db://{table}/rows", "{broken", "log://{+path}")
		for uri, want := range map[string]string{"db://users/rows": "m0", "log://a/b": "m1"} {
			if got := c.reads(uri); got != want {
				t.Errorf("%s: read by %s, want %s", uri, got, want)
			}
		}
		for ref, want := range map[string]string{
			`{"type":"ref/prompt","name":"m1_p"}`:                 `{"completion":{"values":["p"]}}`,
			`{"type":"ref/prompt","name":"p"}`:                    "-32602",
			`{"type":"ref/resource","uri":"log://{+path}"}`:       `{"completion":{"values":[""]}}`,
			`{"type":"ref/resource","uri":"log://a"}`:             `{"completion":{"values":[""]}}`,
			`{"type":"ref/resource","uri":"db://{table}/rows"}`:   "-32601", // m0 has no completions
			`{"type":"ref/resource","uri":"nothing"}`:             "-32602",
			`{"type":"acme","uri":"log://{+path}","name":"m1_p"}`: "-32602",
			`7`: "-32602",
		} {
			if got := c.do(mcp.MethodComplete, `"ref":`+ref+`,"argument":{"name":"a","value":"v"}`); !strings.Contains(got, want) {
				t.Errorf("complete %s: got %s, want %s", ref, got, want)
			}
		}
		if got := c.do(mcp.MethodPromptsGet, `"name":"m1_p"`); !strings.Contains(got, `"called":"p"`) {
			t.Errorf("prompts/get: %s", got)
		}
		if got := c.do(mcp.MethodPromptsGet, `"name":"p"`); !strings.Contains(got, "-32602") {
			t.Errorf("prompts/get of a name without prefix: %s", got)
		}
		shut(t, s)
	})
}
