package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// federation exposes several servers as one. more is further fields in YAML's flow form.
func federation(name, path, more string, upstreams ...string) string {
	return fmt.Sprintf("kind: Binding\nname: %s\nspec: {path: %s, selector: {}, upstreams: [{name: %s}]%s}\n",
		name, path, strings.Join(upstreams, "}, {name: "), more)
}

// pipeUpstream is a workshop behind a pipe.
func pipeUpstream(name string) string {
	return upstream(name, fmt.Sprintf("stdio: {command: [%q], env: {%s: yes, GORACE: atexit_sleep_ms=0}}", os.Args[0], stdioEnv))
}

// partial is what a merged list says that it lacks.
type partial []struct {
	Upstream, Reason string
	Stale            bool
}

func (a *answered) partial(t testing.TB) (p partial) {
	t.Helper()
	var meta struct {
		Partial partial `json:"dev.outrigger/partialFailure"`
	}
	if len(a.Result.Meta) > 0 {
		if err := json.Unmarshal(a.Result.Meta, &meta); err != nil {
			t.Fatal(err)
		}
	}
	return meta.Partial
}

// lists asks for the tools, and checks that the answer is there in time.
func (a *asker) lists(t testing.TB) (names []string, missing partial) {
	t.Helper()
	r, err := a.send(within(t), `"list"`, "tools/list", "", "")
	if err != nil || r.Error != nil {
		t.Fatalf("tools/list answered %v (%v)", r, err)
	}
	if r.Took > 2*soon {
		t.Errorf("tools/list took %v, want less than %v", r.Took, 2*soon)
	}
	for _, tool := range r.Result.Tools {
		names = append(names, tool.Name)
	}
	return names, r.partial(t)
}

func TestOneEndpointOffersServersOfEveryKind(t *testing.T) {
	t.Parallel()
	old, modern := newWorkshop("old", versionLegacy).serve(t), newWorkshop("modern", versionStateless).serve(t)
	s, _ := fileSidecar(t, nil, httpUpstream("old", old.url), httpUpstream("modern", modern.url), pipeUpstream("pipe"),
		federation("all", "/all", ", lists: {pageSize: 7}", "old", "modern", "pipe"))
	s.serves()
	for _, era := range eras {
		t.Run(era.name+" client", func(t *testing.T) {
			h := new(heard)
			c := connectSDK(t, s.url+"/all", era.version, h.options())
			names := allTools(t, c)
			for _, u := range []string{"old", "modern", "pipe"} {
				if !slices.Contains(names, u+"_roots") {
					t.Errorf("tools are %q, want all of %s's", names, u)
				}
				wantText(t, c, u+"_echo", input{"hello " + u}, "hello "+u)
				p, err := c.GetPrompt(within(t), &sdk.GetPromptParams{Name: u + "_greet", Arguments: map[string]string{"who": u}})
				if err != nil || p.Messages[0].Content.(*sdk.TextContent).Text != "hello "+u {
					t.Errorf("%s's prompt is %+v (%v)", u, p, err)
				}
			}
			for _, u := range []string{"old", "modern"} { // what is shared on a pipe cannot ask
				wantText(t, c, u+"_ask", input{u}, u+":accept:asked who owns "+u)
			}
			for range 3 { // all three have it: the first named serves it, always
				r, err := c.ReadResource(within(t), &sdk.ReadResourceParams{URI: workshopNote})
				if err != nil || r.Contents[0].Text != "old about "+workshopNote {
					t.Errorf("the note is %+v (%v), want old's", r, err)
				}
			}
			hearsOfEach(t, c, h, old, modern)
		})
	}
}

// hearsOfEach checks that a client of a federation hears of its members' changes.
func hearsOfEach(t *testing.T, c *sdk.ClientSession, h *heard, members ...*workshop) {
	t.Helper()
	for _, w := range members {
		begun := 0
		h.note(func() { begun = h.tools })
		n, name := 0, ""
		eventually(t, "the client hears of a new tool of "+w.name, func() (err error) {
			n++
			name = fmt.Sprint("grown", n) // its stream may not be open at first
			w.tool(name, func(context.Context, *sdk.CallToolRequest, string) (*sdk.CallToolResult, error) {
				return said(name), nil
			})
			time.Sleep(20 * time.Millisecond) // so that there are not too many
			h.note(func() {
				if h.tools == begun {
					err = errors.New("it has not")
				}
			})
			return err
		})
		eventually(t, "the list has it", func() error {
			if names := allTools(t, c); !slices.Contains(names, w.name+"_"+name) {
				return fmt.Errorf("tools are %q", names)
			}
			return nil
		})
		for i := range n {
			w.RemoveTools(fmt.Sprint("grown", i+1))
		}
	}
	if err := c.Subscribe(within(t), &sdk.SubscribeParams{URI: workshopNote}); err != nil {
		t.Fatalf("subscribe: %v", err)
	}
	eventually(t, "an update arrives", func() (err error) {
		_ = members[0].ResourceUpdated(within(t), &sdk.ResourceUpdatedNotificationParams{URI: workshopNote})
		h.note(func() {
			if len(h.updates) == 0 {
				err = errors.New("none")
			}
		})
		return err
	})
}

// A name that two servers have (L2), and names that are too long together (L3).
func TestNamesThatClashOrAreTooLong(t *testing.T) {
	t.Parallel()
	long := "a-tool-whose-name-is-forty-characters-so"
	first, second := newWorkshop("first", versionLegacy), newWorkshop("second", versionStateless)
	for _, w := range []*workshop{first.serve(t), second.serve(t)} {
		sdk.AddTool(w.Server, &sdk.Tool{Name: long, Title: "long"}, func(context.Context, *sdk.CallToolRequest, input) (*sdk.CallToolResult, any, error) {
			return said(w.name), nil, nil
		})
	}
	upstreams := []string{"the-name-of-a-server-of-forty-characters", "another-name-of-a-server-of-forty-charac"}
	s, _ := fileSidecar(t, nil, httpUpstream(upstreams[0], first.url), httpUpstream(upstreams[1], second.url),
		federation("always", "/always", "", upstreams...),
		federation("never", "/never", ", names: {prefix: never}", upstreams...),
		federation("conflict", "/conflict", ", names: {prefix: on_conflict}", upstreams...))
	s.serves()
	good := regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	for path, both := range map[string]bool{"/always": true, "/never": false, "/conflict": true} {
		a := newAsker(t, s.url+path, "")
		names, missing := a.lists(t)
		if len(missing) > 0 {
			t.Errorf("%s lacks %+v", path, missing)
		}
		for _, name := range names {
			if !good.MatchString(name) {
				t.Errorf("%s has the tool %q, which clients refuse", path, name)
			}
		}
		r, err := a.send(within(t), "1", "tools/list", "", "")
		if err != nil {
			t.Fatal(err)
		}
		served := map[string]bool{}
		for _, tool := range r.Result.Tools {
			if tool.Title != "long" {
				continue
			}
			r, err := a.call(within(t), "2", tool.Name, "", "", "")
			if err != nil {
				t.Error(err)
			}
			served[r.text()] = true
		}
		told := containsAll(string(r.Result.Meta), []string{"dev.outrigger/leftOut", upstreams[1], long})
		if !served["first"] || served["second"] != both || told == both {
			t.Errorf("%s: the tool that both have leads to %v, and what was left out is told: %v", path, served, told)
		}
		if again, _ := newAsker(t, s.url+path, "other").lists(t); !slices.Equal(names, again) {
			t.Errorf("%s: another client gets %q, want as the first: %q", path, again, names)
		}
	}
}

// One bad server does not take the others with it (L10), and one that is slow does not hold them up (L11).
func TestBadServersTakeNoOthersWithThem(t *testing.T) {
	t.Parallel()
	good := newWorkshop("good", versionLegacy).serve(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // which nobody accepts from
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	s, _ := fileSidecar(t, nil, httpUpstream("good", good.url), httpUpstream("refuses", "http://"+freeAddress(t)),
		upstream("missing", "stdio: {command: [/nowhere/server]}"), httpUpstream("silent", "http://"+silent.Addr().String()),
		federation("all", "/all", ", lists: {timeout: 1s}", "silent", "refuses", "missing", "good"))
	for _, era := range eras {
		begun := time.Now()
		c := connectSDK(t, s.url+"/all", era.version, nil)
		names := allTools(t, c)
		if took := time.Since(begun); took > 3*soon {
			t.Errorf("%s: a client had its tools after %v, want less than %v", era.name, took, 3*soon)
		}
		if !slices.Contains(names, "good_echo") {
			t.Errorf("%s: tools are %q, want good's", era.name, names)
		}
		wantText(t, c, "good_echo", input{"hello"}, "hello")
	}
	_, missing := newAsker(t, s.url+"/all", "").lists(t)
	var who []string
	for _, m := range missing {
		who = append(who, m.Upstream)
		if m.Reason == "" || m.Stale {
			t.Errorf("%+v, want why it is missing, and that nothing of it is there", m)
		}
	}
	if slices.Sort(who); fmt.Sprint(who) != "[missing refuses silent]" {
		t.Errorf("the list says that %v are missing", missing)
	}
	for _, tool := range []string{"refuses_echo", "missing_echo"} {
		r, err := newAsker(t, s.url+"/all", "").call(within(t), "1", tool, "", "", "")
		if err != nil || r.Error == nil || r.Error.Data.Source != "outrigger" || r.Took > 2*soon {
			t.Errorf("%s answered %v (%v), want whose failure it is, in time", tool, r, err)
		}
	}
}

// A server that is frozen (L19), killed and restarted (L17) beside one that is well.
func TestAServerOfAFederationGoesAndComesBack(t *testing.T) {
	t.Parallel()
	const clients = 8
	well := newWorkshop("well", versionStateless).serve(t)
	server, at := startPeer(t, "127.0.0.1:0")
	s, _ := fileSidecar(t, nil, httpUpstream("well", well.url), httpUpstream("old", "http://"+at+workshopPath+legacyPath),
		httpUpstream("modern", "http://"+at+workshopPath+statelessPath),
		federation("all", "/all", ", lists: {timeout: 1s, ttl: 100ms}", "old", "modern", "well"))
	s.serves()
	a := newAsker(t, s.url+"/all", "")
	all, missing := a.lists(t)
	if len(missing) > 0 || !slices.Contains(all, "old_echo") || !slices.Contains(all, "modern_echo") {
		t.Fatalf("at first it offers %q and lacks %+v", all, missing)
	}

	server.freeze()
	frozen := time.Now()
	eventually(t, "the list says that servers do not answer", func() error {
		names, missing := a.lists(t)
		if !slices.Equal(names, all) {
			t.Fatalf("of frozen servers the list has %q, want as before", names)
		}
		if len(missing) != 2 || !missing[0].Stale || !missing[1].Stale {
			return fmt.Errorf("it says %+v, want that two parts are stale", missing)
		}
		return nil
	})
	t.Logf("told %v after the servers were frozen", time.Since(frozen))
	if r, err := a.call(within(t), "1", "well_echo", "fine", "", ""); err != nil || r.text() != "fine" || r.Took > soon {
		t.Errorf("the one that is well answered %v (%v)", r, err)
	}
	server.signal(syscall.SIGCONT)
	isWhole(t, a, all)

	var sessions []*sdk.ClientSession
	for i := range clients {
		c := connectSDK(t, s.url+"/all", eras[i%2].version, nil)
		sessions = append(sessions, c)
		wantText(t, c, "old_echo", input{"before"}, "before")
		wantText(t, c, "modern_echo", input{"before"}, "before")
	}
	server.kill()
	var wait sync.WaitGroup
	up := make(chan struct{})
	var failed sync.WaitGroup
	failed.Add(clients)
	for i, c := range sessions {
		wait.Go(func() {
			for begun := time.Now(); time.Since(begun) < time.Second; time.Sleep(200 * time.Millisecond) {
				for _, tool := range []string{"old_echo", "modern_echo"} {
					if text, err := callSDK(t, c, tool, input{"down"}); err == nil {
						t.Errorf("client %d: %s of a server that is gone said %q", i, tool, text)
					}
				}
			}
			failed.Done()
			<-up
			recovers(t, i, c)
		})
	}
	failed.Wait()
	startPeer(t, at)
	close(up)
	wait.Wait()
	isWhole(t, a, all)
}

// recovers checks that a client is served again soon, by both servers.
func recovers(t *testing.T, client int, c *sdk.ClientSession) {
	begun := time.Now()
	for _, tool := range []string{"old_echo", "modern_echo"} {
		for {
			text, err := callSDK(t, c, tool, input{"up"})
			if err == nil && text == "up" {
				break
			}
			if time.Since(begun) > 2*soon {
				t.Errorf("client %d: %s fails %v after its server is back: %q %v", client, tool, time.Since(begun), text, err)
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
}

// isWhole waits until a list has everything again, and says so.
func isWhole(t *testing.T, a *asker, all []string) {
	t.Helper()
	eventually(t, "the list is whole", func() error {
		if names, missing := a.lists(t); len(missing) > 0 || !slices.Equal(names, all) {
			return fmt.Errorf("it has %d of %d, and lacks %+v", len(names), len(all), missing)
		}
		return nil
	})
}
