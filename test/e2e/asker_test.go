package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// asker is a stateless client by hand that is asked things. It may be used by several goroutines.
type asker struct {
	http  *http.Client
	url   string
	token string // its credential; empty for none
	level string // of logs that it wants; empty for none
	able  string // its capabilities, in JSON; empty for askable
}

// askable is a client that can be asked for everything but a visit to a URL.
const askable = `{"elicitation":{"form":{}},"sampling":{},"roots":{}}`

func newAsker(t testing.TB, url, token string) *asker {
	return &asker{http: httpClient(t, token), url: url, token: token}
}

// at is the same client at another endpoint.
func (a *asker) at(url string) *asker {
	other := *a
	other.url = url
	return &other
}

// declaring is the same client with other capabilities.
func (a *asker) declaring(able string) *asker {
	other := *a
	other.able = able
	return &other
}

// answered is a response, and what came before it.
type answered struct {
	Status int      `json:"-"`
	Before []string `json:"-"` // notifications, as they came
	Took   time.Duration
	Result struct {
		ResultType    string
		InputRequests map[string]struct {
			Method string
			Params struct{ Message string }
		}
		RequestState string
		Content      []struct{ Text string }
		IsError      bool
		Tools        []struct{ Name, Title string }
		Meta         json.RawMessage `json:"_meta"`
	}
	Error *struct {
		Code    int
		Message string
		Data    struct{ Source, Reason string }
	}
	raw string
}

// text is a tool's.
func (a *answered) text() string {
	if len(a.Result.Content) == 0 || a.Result.IsError {
		return ""
	}
	return a.Result.Content[0].Text
}

// String is for failures.
func (a *answered) String() string {
	if a == nil {
		return "nothing"
	}
	return fmt.Sprintf("%d %.600s after %v", a.Status, a.raw, a.Took)
}

// send makes a request. params are JSON without braces and _meta.
func (a *asker) send(ctx context.Context, id, method, name, params string) (*answered, error) {
	begun := time.Now()
	res, err := a.post(ctx, id, method, name, params)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	r := &answered{Status: res.StatusCode}
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		err = events(res.Body, func(data string) {
			if r.raw != "" {
				r.Before = append(r.Before, r.raw)
			}
			r.raw = data
		})
	} else {
		var b []byte
		b, err = io.ReadAll(res.Body)
		r.raw = string(b)
	}
	var got struct{ ID json.RawMessage }
	if err == nil {
		err = json.Unmarshal([]byte(r.raw), r)
	}
	if err == nil {
		err = json.Unmarshal([]byte(r.raw), &got)
	}
	if err == nil && string(got.ID) != id {
		err = fmt.Errorf("the answer is to request %s, want %s", got.ID, id)
	}
	r.Took = time.Since(begun)
	if err != nil {
		return r, fmt.Errorf("%s %s: %w: %v", method, name, err, r)
	}
	return r, nil
}

func (a *asker) post(ctx context.Context, id, method, name, params string) (*http.Response, error) {
	if params != "" {
		params += ","
	}
	level := ""
	if a.level != "" {
		level = fmt.Sprintf(`"io.modelcontextprotocol/logLevel":%q,`, a.level)
	}
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":{%s"_meta":{%s"io.modelcontextprotocol/protocolVersion":%q,`+
		`"io.modelcontextprotocol/clientInfo":{"name":"asker","version":"1"},"progressToken":%s,`+
		`"io.modelcontextprotocol/clientCapabilities":%s}}}`,
		id, method, params, level, versionStateless, id, cmp.Or(a.able, askable))
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, a.url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("Mcp-Protocol-Version", versionStateless)
	r.Header.Set("Mcp-Method", method)
	if name != "" {
		r.Header.Set("Mcp-Name", name)
	}
	return a.http.Do(r)
}

// call calls a tool. state and answers, if any, make it a retry: answers are JSON, by the key of the question.
func (a *asker) call(ctx context.Context, id, tool, text, state, answers string) (*answered, error) {
	params := fmt.Sprintf(`"name":%q,"arguments":{"text":%q}`, tool, text)
	if state != "" {
		params += fmt.Sprintf(`,"requestState":%q,"inputResponses":{%s}`, state, answers)
	}
	return a.send(ctx, id, "tools/call", tool, params)
}

// accept answers every question of a result with an owner.
func (a *answered) accept(owner string) (answers string) {
	var all []string
	for key := range a.Result.InputRequests {
		all = append(all, fmt.Sprintf(`%q:{"action":"accept","content":{"owner":%q}}`, key, owner))
	}
	return strings.Join(all, ",")
}

// asked calls a tool that has to ask.
func (a *asker) asked(t testing.TB, tool, text string) *answered {
	t.Helper()
	r, err := a.call(within(t), `"ask"`, tool, text, "", "")
	if err != nil || r.Result.ResultType != "input_required" || len(r.Result.InputRequests) == 0 || r.Result.RequestState == "" {
		t.Fatalf("%s %q answered %v (%v), want a question", tool, text, r, err)
	}
	for _, q := range r.Result.InputRequests {
		if q.Params.Message != "who owns "+text {
			t.Fatalf("%s %q asked %q, want who owns it", tool, text, q.Params.Message)
		}
	}
	return r
}

// retry brings the answers to what was asked.
func (a *asker) retry(t testing.TB, tool, text string, asked *answered, owner string) *answered {
	t.Helper()
	r, err := a.call(within(t), `"retry"`, tool, text, asked.Result.RequestState, asked.accept(owner))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// goesOn makes a retry that has to give the call's result.
func (a *asker) goesOn(t testing.TB, tool, text string, asked *answered, want string) {
	t.Helper()
	if r := a.retry(t, tool, text, asked, "ann"); r.text() != want {
		t.Errorf("the retry of %s %q answered %v, want %q", tool, text, r, want)
	}
}

// isRefused makes a retry that has to be refused, with words that say why.
func (a *asker) isRefused(t testing.TB, tool, text string, asked *answered, words ...string) {
	t.Helper()
	r := a.retry(t, tool, text, asked, "ann")
	if r.Error == nil || r.Error.Code != -32602 || !containsAll(r.Error.Message, words) {
		t.Errorf("the retry of %s %q answered %v, want -32602 with %q", tool, text, r, words)
	}
	if r.Took > soon {
		t.Errorf("the retry of %s %q was refused after %v, want less than %v", tool, text, r.Took, soon)
	}
}
