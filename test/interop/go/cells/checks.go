package cells

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

const big = "9007199254740993" // the first integer that a double cannot hold

// cell is a client at a server.
type cell struct {
	Client
	url       string
	name      string // the client's
	stateless bool
	heard     *Heard
	tap       *Tap
}

// check is one; cells/checks.mjs has the same ones for clients in JavaScript.
type check struct {
	name string
	run  func(c *cell, ctx context.Context) error
}

var checks = []check{
	{"connect", (*cell).connect},
	{"tools-list", (*cell).toolsList},
	{"call", (*cell).call},
	{"big-integers", (*cell).bigIntegers},
	{"tool-error", (*cell).toolError},
	{"protocol-error", (*cell).protocolError},
	{"error-code", (*cell).errorCode},
	{"unknown-tool", (*cell).unknownTool},
	{"progress", (*cell).progress},
	{"parallel", (*cell).parallel},
	{"elicitation", asks("ask", map[string]any{}, "elicitation/create", "accept "+Owner)},
	{"elicitation-declined", asks("ask", map[string]any{"how": "decline"}, "elicitation/create", "decline")},
	{"elicitation-url", (*cell).visits},
	{"sampling", asks("sample", map[string]any{}, "sampling/createMessage", Sampled)},
	{"roots", asks("roots", map[string]any{}, "roots/list", RootURI+" "+RootName)},
	{"two-rounds", asks("interview", map[string]any{}, "sampling/createMessage", "accept "+Owner+" / "+Sampled)},
	{"resources", (*cell).resources},
	{"templates", (*cell).templates},
	{"resource-missing", (*cell).resourceMissing},
	{"subscribe", (*cell).subscribe},
	{"prompts", (*cell).prompts},
	{"completion", (*cell).completion},
	{"logging", (*cell).logging},
	{"tools-changed", hears("tools")},
	{"prompts-changed", hears("prompts")},
	{"resources-changed", hears("resources")},
	{"cancel", (*cell).cancel}, // late, since what a server asks aside of a call soon after another was given up is nobody's
	{"ping", func(c *cell, ctx context.Context) error { return c.Ping(ctx) }},
	{"close", func(c *cell, _ context.Context) error { return c.Close() }},
}

func same(what string, got, want any) error {
	if reflect.DeepEqual(got, want) {
		return nil
	}
	return fmt.Errorf("%s: got %+v, want %+v", what, got, want)
}

// eventually runs again, now and then, until is returns nil: what is to be heard may be said before a stream is open.
func eventually(ctx context.Context, is, again func() error) error {
	for i := 0; ; i++ {
		err := is()
		if err == nil {
			return nil
		}
		if i%20 == 0 {
			if err := again(); err != nil {
				return err
			}
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// does is a call of a tool of which only the error matters.
func (c *cell) does(ctx context.Context, tool string, arguments any) func() error {
	return func() error {
		_, err := c.Call(ctx, tool, arguments)
		return err
	}
}

func (c *cell) connect(ctx context.Context) error {
	about, err := c.Open(ctx, c.url)
	if err != nil {
		return err
	}
	version := "2025-11-25"
	if c.stateless {
		version = "2026-07-28"
	}
	has := map[string]struct{ ListChanged bool }{}
	if err := json.Unmarshal(about.Capabilities, &has); err != nil {
		return err
	}
	for _, name := range []string{"tools", "prompts", "resources", "completions", "logging"} {
		if _, ok := has[name]; !ok {
			return fmt.Errorf("capabilities are %s, without %s", about.Capabilities, name)
		}
	}
	changes := has["tools"].ListChanged && has["prompts"].ListChanged && has["resources"].ListChanged
	return errors.Join(
		same("introduction", []string{about.Version, about.Name, about.Instructions}, []string{version, TheOffer.Name, TheOffer.Instructions}),
		same("listChanged", changes, true))
}

func (c *cell) allTools(ctx context.Context) (all []Tool, pages int, err error) {
	for cursor := ""; pages == 0 || cursor != ""; pages++ {
		var page []Tool
		if page, cursor, err = c.Tools(ctx, cursor); err != nil {
			return nil, 0, err
		}
		all = append(all, page...)
	}
	return all, pages, nil
}

func toolNames(tools []Tool) (names []string) {
	for _, t := range tools {
		names = append(names, t.Name)
	}
	slices.Sort(names)
	return names
}

func (c *cell) toolsList(ctx context.Context) error {
	tools, pages, err := c.allTools(ctx)
	if err != nil {
		return err
	}
	if err := same("names", toolNames(tools), toolNames(TheOffer.Tools)); err != nil {
		return err
	}
	got, want := tools[slices.IndexFunc(tools, func(t Tool) bool { return t.Name == "echo" })], TheOffer.Tools[0]
	var schemas [2]struct {
		Properties map[string]any
		Required   []string
	}
	if err := errors.Join(json.Unmarshal(got.InputSchema, &schemas[0]), json.Unmarshal(want.InputSchema, &schemas[1])); err != nil {
		return err
	}
	if pages < 2 {
		return fmt.Errorf("%d page, want more", pages)
	}
	return errors.Join(same("title", got.Title, want.Title), same("description", got.Description, want.Description),
		same("_meta", got.Meta, want.Meta), same("inputSchema", schemas[0], schemas[1]))
}

func (c *cell) call(ctx context.Context) error {
	const text = "héllo ✓ \"quoted\" \\ \u2028 🗝"
	r, err := c.Call(ctx, "echo", map[string]any{"text": text})
	if err != nil {
		return err
	}
	var structured struct{ Text string }
	if err := json.Unmarshal(r.Structured, &structured); err != nil {
		return err
	}
	return same("answer", []string{r.Text, structured.Text}, []string{text, text})
}

func (c *cell) bigIntegers(ctx context.Context) error {
	c.tap.Clear()
	r, err := c.Call(ctx, "digits", map[string]any{"n": json.RawMessage(big)})
	if err != nil {
		return err
	}
	if got := c.tap.Got(); !regexp.MustCompile(`"structuredContent":\s*{"n":\s*` + big + `}`).MatchString(got) {
		return fmt.Errorf("got %s, want %s", got, big)
	}
	return same("digits at the server", r.Text, big)
}

func (c *cell) toolError(ctx context.Context) error {
	r, err := c.Call(ctx, "fail", map[string]any{})
	if err != nil {
		return err
	}
	return errors.Join(same("isError", r.IsError, true), same("text", r.Text, TheOffer.Texts.Failure))
}

func (c *cell) protocolError(ctx context.Context) error {
	_, err := c.Call(ctx, "refuse", map[string]any{})
	if err == nil || !strings.Contains(err.Error(), TheOffer.Texts.Refusal) {
		return fmt.Errorf("got %v, want %s", err, TheOffer.Texts.Refusal)
	}
	return nil
}

// errorCode looks at the wire, since not every SDK shows codes that it does not know, or data.
func (c *cell) errorCode(ctx context.Context) error {
	c.tap.Clear()
	if _, err := c.Call(ctx, "refuse", map[string]any{}); err == nil {
		return errors.New("refuse succeeded")
	}
	got := c.tap.Got()
	if !strings.Contains(got, fmt.Sprintf(`"code":%d`, TheOffer.Refusal.Code)) || !strings.Contains(got, `{"why":"closed"}`) {
		return fmt.Errorf("got %s, want code %d and data", got, TheOffer.Refusal.Code)
	}
	return nil
}

func (c *cell) unknownTool(ctx context.Context) error {
	_, err := c.Call(ctx, "nothing", map[string]any{})
	if err == nil {
		return errors.New("it was called")
	}
	return same("code", c.Code(err), -32602)
}

var messageText = regexp.MustCompile(`"message":"([^"]+)"`)

// progress looks at the wire, since an SDK may drop what it reads together with the call's result, and more than once,
// since a server may do so with what it says just before it.
func (c *cell) progress(ctx context.Context) error {
	want := []string{"step 1 ✓", "step 2 ✓", "step 3 ✓", "step 4 ✓"}
	var got []string
	return eventually(ctx, func() error { return same("reports", got, want) }, func() error {
		c.tap.Clear()
		r, err := c.Call(ctx, "steps", map[string]any{})
		if err != nil {
			return err
		}
		token := regexp.MustCompile(`"progressToken":[^,}]+`).FindString(c.tap.Sent())
		got = nil
		for line := range strings.Lines(c.tap.Got()) {
			m := messageText.FindStringSubmatch(line)
			if m != nil && token != "" && strings.Contains(line, `"notifications/progress"`) && strings.Contains(line, token) {
				got = append(got, m[1])
			}
		}
		return same("answer", r.Text, "done")
	})
}

func (c *cell) parallel(ctx context.Context) error {
	errs := make([]error, 20)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			text := fmt.Sprint("call ", i)
			r, err := c.Call(ctx, "echo", map[string]any{"text": text})
			errs[i] = errors.Join(err, same("answer", r.Text, text))
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// asks checks what a call says, and that it asked on the way as clients of this wire are asked.
func asks(tool string, arguments map[string]any, method, want string) func(*cell, context.Context) error {
	return func(c *cell, ctx context.Context) error {
		c.tap.Clear()
		r, err := c.Call(ctx, tool, arguments)
		if err != nil {
			return err
		}
		how := `"method":"` + method + `"`
		if c.stateless {
			how = `"resultType":"input_required"`
		}
		if got := c.tap.Got(); !strings.Contains(got, how) || !strings.Contains(got, method) {
			return fmt.Errorf("it was not asked by %s: %s", how, got)
		}
		return same("answer", r.Text, want)
	}
}

func (c *cell) visits(ctx context.Context) error {
	if err := asks("visit", map[string]any{}, "elicitation/create", "accept")(c, ctx); err != nil {
		return err
	}
	var visited string
	c.heard.note(func() { visited = c.heard.visited })
	return same("URL", visited, TheOffer.Texts.URL)
}

func (c *cell) resources(ctx context.Context) error {
	uris, err := c.Resources(ctx)
	if err != nil {
		return err
	}
	slices.Sort(uris)
	text, err1 := c.Read(ctx, NoteURI)
	blob, err2 := c.Read(ctx, BytesURI)
	return errors.Join(err1, err2, same("URIs", uris, []string{BytesURI, NoteURI}),
		same("text", text, TheOffer.Texts.Note), same("blob", blob, TheOffer.Texts.Bytes))
}

func (c *cell) templates(ctx context.Context) error {
	uris, err1 := c.Templates(ctx)
	text, err2 := c.Read(ctx, "bazaar://stall/7")
	return errors.Join(err1, err2, same("templates", uris, []string{TheOffer.Template.URITemplate}), same("text", text, "stall 7"))
}

func (c *cell) resourceMissing(ctx context.Context) error {
	_, err := c.Read(ctx, "bazaar://nothing")
	if err == nil {
		return errors.New("it was read")
	}
	if code := c.Code(err); code != -32602 && (c.stateless || code != -32002) {
		return fmt.Errorf("code %d: %w", code, err)
	}
	return nil
}

func (c *cell) subscribe(ctx context.Context) error {
	if err := c.Subscribe(ctx, NoteURI); err != nil {
		return err
	}
	before := c.heard.updates()
	err := eventually(ctx, func() error {
		if c.heard.updates() == before {
			return errors.New("no update came")
		}
		return nil
	}, c.does(ctx, "touch", map[string]any{}))
	return errors.Join(err, c.Unsubscribe(ctx, NoteURI))
}

func (c *cell) prompts(ctx context.Context) error {
	names, err1 := c.Prompts(ctx)
	text, err2 := c.Prompt(ctx, "greet", map[string]string{"who": "Žofie 鍵"})
	return errors.Join(err1, err2, same("names", names, []string{TheOffer.Prompt.Name}), same("message", text, "hello Žofie 鍵"))
}

func (c *cell) completion(ctx context.Context) error {
	prompt, err1 := c.Complete(ctx, Reference{Prompt: "greet"}, "who", "wor")
	template, err2 := c.Complete(ctx, Reference{Template: TheOffer.Template.URITemplate}, "id", "7")
	return errors.Join(err1, err2, same("values", [][]string{prompt, template}, [][]string{{"wor!"}, {"7!"}}))
}

func (c *cell) logging(ctx context.Context) error {
	if err := c.SetLevel(ctx, "warning"); err != nil {
		return err
	}
	return eventually(ctx, func() error {
		return same("messages", c.heard.allLogs(), []string{TheOffer.Texts.Loud})
	}, c.does(ctx, "log", map[string]any{}))
}

// lists is what a list has now: the names of tools and prompts, the URIs of resources.
func (c *cell) lists(ctx context.Context, list string) ([]string, error) {
	switch list {
	case "prompts":
		return c.Prompts(ctx)
	case "resources":
		return c.Resources(ctx)
	}
	tools, _, err := c.allTools(ctx)
	return toolNames(tools), err
}

// hears checks that the client is told of a list that changes, and gets what is new in it.
func hears(list string) func(*cell, context.Context) error {
	return func(c *cell, ctx context.Context) error {
		change := c.does(ctx, "change", map[string]any{"what": list})
		grown := func() error {
			entries, err := c.lists(ctx, list)
			if err == nil && !slices.Contains(entries, TheOffer.Grown) && !slices.Contains(entries, GrownURI) {
				err = fmt.Errorf("%s are %q, without the new entry", list, entries)
			}
			return err
		}
		before := c.heard.changes(list)
		err := eventually(ctx, func() error {
			if c.heard.changes(list) == before {
				return errors.New("not told")
			}
			return nil
		}, change)
		if err != nil {
			return err
		}
		if grown() != nil {
			if err := errors.Join(change(), grown()); err != nil {
				return err
			}
		}
		return change()
	}
}

func (c *cell) cancel(ctx context.Context) error {
	key := fmt.Sprint(c.name, " ", time.Now().UnixNano())
	giveUp, stop := context.WithCancel(ctx)
	defer stop()
	c.tap.Clear()
	ended := make(chan error, 1)
	go func() { ended <- c.does(giveUp, "wait", map[string]any{"key": key})() }()
	nothing := func() error { return nil }
	begun := func() error {
		if !strings.Contains(c.tap.Got(), "step 1 ✓") {
			return errors.New("the call did not begin")
		}
		return nil
	}
	if err := eventually(ctx, begun, nothing); err != nil {
		return err
	}
	stop()
	if <-ended == nil {
		return errors.New("the cancelled call succeeded")
	}
	var was Result
	return eventually(ctx, func() error { return same("cancelled at the server", was.Text, "true") }, func() (err error) {
		was, err = c.Call(ctx, "cancelled", map[string]any{"key": key})
		return err
	})
}
