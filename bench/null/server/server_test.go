package server

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/outrigger-mesh/outrigger/bench/drive/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start serves c until the test ends and returns the server and its endpoint.
func start(t *testing.T, c Config) (*Server, string) {
	t.Helper()
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		l.Close()
		<-done
		s.Close()
	})
	return s, "http://" + l.Addr().String() + "/mcp"
}

// client is an HTTP client whose connections end with the test.
func client(t *testing.T) *http.Client {
	c := &http.Client{Transport: &http.Transport{}, Timeout: 10 * time.Second}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// send makes a request with some headers and returns the answer with its body.
func send(t *testing.T, verb, url, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), verb, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := client(t).Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", verb, body, err)
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(got)
}

// eventually waits until a server's counters are as wanted.
func eventually(t *testing.T, s *Server, what string, is func(Stats) bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !is(s.Stats()); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("no %s within 10 s: %+v", what, s.Stats())
		}
	}
}

// message is a request of an era with params after its metadata.
func message(era, method, params string) string {
	meta := ""
	if era == wire.Stateless {
		meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
		if params != "" {
			meta += ","
		}
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s%s}}`, method, meta, params)
}

func TestDiscoveryNamesEveryVersionThatIsServed(t *testing.T) {
	for era, want := range map[string]string{
		Both:           `"supportedVersions":["2026-07-28","2025-11-25"]`,
		wire.Stateless: `"supportedVersions":["2026-07-28"]`,
	} {
		_, url := start(t, Config{Era: era})
		if _, body := send(t, "POST", url, message(wire.Stateless, "server/discover", "")); !strings.Contains(body, want) {
			t.Errorf("of era %s, server/discover is answered with %s, want %s in it", era, body, want)
		}
	}
}

func TestEveryErrorHasItsErasForm(t *testing.T) {
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"`
	for name, tc := range map[string]struct {
		era, body string
		status    int
		code      int
	}{
		"not an object":           {Both, `[1]`, 400, -32600},
		"no version":              {wire.Stateless, `{"id":1,"method":"tools/list","params":{}}`, 400, -32602},
		"another version":         {Both, `{"id":1,"method":"tools/list","params":{` + meta + `2027-01-01"}}}`, 400, -32022},
		"unknown method":          {Both, message(wire.Stateless, "what", ""), 404, -32601},
		"initialize, stateless":   {wire.Stateless, message(wire.Legacy, "initialize", ""), 404, -32601},
		"ping, stateless":         {Both, message(wire.Stateless, "ping", ""), 404, -32601},
		"unknown tool":            {Both, message(wire.Stateless, "tools/call", `"name":"nil"`), 400, -32602},
		"unknown resource":        {Both, message(wire.Stateless, "resources/read", `"uri":"file:///x"`), 400, -32602},
		"unknown prompt":          {Both, message(wire.Stateless, "prompts/get", `"name":"x"`), 400, -32602},
		"discover, legacy":        {wire.Legacy, message(wire.Legacy, "server/discover", ""), 200, -32601},
		"legacy without session":  {Both, message(wire.Legacy, "tools/list", ""), 400, 0},
		"stateless, legacy alone": {wire.Legacy, message(wire.Stateless, "tools/list", ""), 400, 0},
	} {
		t.Run(name, func(t *testing.T) {
			_, url := start(t, Config{Era: tc.era})
			res, body := send(t, "POST", url, tc.body)
			var m struct{ Error struct{ Code int } }
			if tc.code != 0 {
				if err := json.Unmarshal([]byte(body), &m); err != nil {
					t.Errorf("body %q: %v", body, err)
				}
			}
			if res.StatusCode != tc.status || m.Error.Code != tc.code {
				t.Errorf("%s: %d %s, want %d and code %d", tc.body, res.StatusCode, body, tc.status, tc.code)
			}
		})
	}
}

func TestASessionLivesFromInitializeToDelete(t *testing.T) {
	s, url := start(t, Config{})
	res, _ := send(t, "POST", url, message(wire.Legacy, "initialize", `"protocolVersion":"2025-11-25"`))
	id := res.Header.Get(wire.HeaderSession)
	if got := s.Stats().Sessions; id == "" || got != 1 {
		t.Fatalf("after initialize: session %q, %d open, want 1", id, got)
	}
	for _, step := range []struct {
		verb, body, session string
		status              int
	}{
		{"POST", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, id, 202},
		{"POST", message(wire.Legacy, "tools/list", ""), id, 200},
		{"POST", message(wire.Legacy, "ping", ""), "", 200},
		{"POST", message(wire.Legacy, "tools/list", ""), id + "0", 404},
		{"GET", "", id + "0", 404},
		{"GET", "", "", 400},
		{"PUT", "", id, 405},
		{"DELETE", "", id, 204},
		{"POST", message(wire.Legacy, "tools/list", ""), id, 404},
		{"DELETE", "", id, 404},
	} {
		headers := []string{"X", "y"}
		if step.session != "" {
			headers = []string{wire.HeaderSession, step.session}
		}
		if res, body := send(t, step.verb, url, step.body, headers...); res.StatusCode != step.status {
			t.Errorf("%s %s in session %q: %d %s, want %d", step.verb, step.body, step.session, res.StatusCode, body, step.status)
		}
	}
	if got := s.Stats().Sessions; got != 0 {
		t.Errorf("after DELETE %d sessions are open", got)
	}
	_, stateless := start(t, Config{Era: wire.Stateless})
	if res, _ := send(t, "GET", stateless, ""); res.StatusCode != 405 || res.Header.Get("Allow") != "POST" {
		t.Errorf("GET of the stateless era: %d, Allow %q", res.StatusCode, res.Header.Get("Allow"))
	}
}

func TestAClientThatLeavesIsNoticedDuringTheDelayAndBetweenEvents(t *testing.T) {
	for name, arguments := range map[string]string{
		"before the answer": `"delayUs":60000000`,
		"between events":    `"stream":1,"events":2,"gapUs":60000000`,
	} {
		t.Run(name, func(t *testing.T) {
			s, url := start(t, Config{})
			ctx, leave := context.WithCancel(t.Context())
			left := make(chan struct{})
			go func() {
				defer close(left)
				body := message(wire.Stateless, "tools/call", `"name":"null","arguments":{"owner":"a","n":1,`+arguments+`}`)
				req, err := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(body))
				if err != nil {
					return
				}
				if res, err := client(t).Do(req); err == nil {
					io.Copy(io.Discard, res.Body)
					res.Body.Close()
				}
			}()
			eventually(t, s, "call that waits", func(s Stats) bool { return s.Delayed == 1 })
			if res, body := send(t, "POST", url, message(wire.Stateless, "tools/call", `"name":"null","arguments":{}`)); res.StatusCode != 200 {
				t.Errorf("a call beside the one that waits: %d %s", res.StatusCode, body)
			}
			leave()
			<-left
			eventually(t, s, "cancelled call", func(s Stats) bool { return s.Cancelled == 1 && s.Delayed == 0 && s.Calls == 1 })
		})
	}
}

func TestANoticeOfCancellationIsCounted(t *testing.T) {
	s, url := start(t, Config{})
	send(t, "POST", url, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	_, body := send(t, "GET", strings.TrimSuffix(url, "/mcp")+"/stats", "")
	var got Stats
	if err := json.Unmarshal([]byte(body), &got); err != nil || got.CancelNotice != 1 || s.Stats().CancelNotice != 1 {
		t.Errorf("stats are %s, %v; want one notice", body, err)
	}
}

func TestAStreamIsHeldUntilItsClientLeaves(t *testing.T) {
	s, url := start(t, Config{})
	res, _ := send(t, "POST", url, message(wire.Legacy, "initialize", ""))
	id := res.Header.Get(wire.HeaderSession)
	for name, tc := range map[string]struct{ verb, body, first string }{
		"a subscription": {"POST", message(wire.Stateless, "subscriptions/listen", `"notifications":{"toolsListChanged":true}`),
			`data: {"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":` +
				`{"toolsListChanged":true},"_meta":{"io.modelcontextprotocol/subscriptionId":1}}}`},
		"a GET stream": {"GET", "", ": open"},
	} {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), tc.verb, url, strings.NewReader(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set(wire.HeaderSession, id)
			res, err := client(t).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(res.Body)
			for lines.Scan() && lines.Text() != tc.first {
			}
			if lines.Text() != tc.first {
				t.Errorf("the stream does not begin with %s", tc.first)
			}
			if n := s.Stats().Streams; n != 1 {
				t.Errorf("%d streams are open, want 1", n)
			}
			res.Body.Close()
			eventually(t, s, "end of the stream", func(s Stats) bool { return s.Streams == 0 })
		})
	}
}

// TestARealClientIsServed holds that what the official client needs is there, in both eras.
func TestARealClientIsServed(t *testing.T) {
	for _, era := range []string{wire.Stateless, wire.Legacy, Both} {
		t.Run(era, func(t *testing.T) {
			s, url := start(t, Config{Era: era, Tools: 3, Prefix: "p_"})
			c := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil)
			session, err := c.Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: url, HTTPClient: client(t)}, nil)
			if err != nil {
				t.Fatal(err)
			}
			list, err := session.ListTools(t.Context(), nil)
			if err != nil || len(list.Tools) != 3 || list.Tools[2].Name != "p_tool_0002" {
				t.Fatalf("tools are %+v, %v; want 3", list, err)
			}
			size, err := json.Marshal(list.Tools[1])
			if err != nil || len(size) < 900 || len(size) > 1500 {
				t.Errorf("a tool has %d bytes, want about 1,200", len(size))
			}
			for _, tool := range []string{"p_null", "p_tool_0002"} {
				res, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: tool,
					Arguments: map[string]any{"owner": "me", "n": 7, "pad": 2, "stream": 1}})
				if err != nil || res.Content[0].(*sdk.TextContent).Text != "me 7 bb" {
					t.Errorf("%s answers %+v, %v", tool, res, err)
				}
			}
			read, err := session.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "null://me/8/1"})
			if err != nil || read.Contents[0].Text != "me 8 b" {
				t.Errorf("the resource is %+v, %v", read, err)
			}
			prompt, err := session.GetPrompt(t.Context(), &sdk.GetPromptParams{Name: "null",
				Arguments: map[string]string{"owner": "me", "n": "9", "pad": "0"}})
			if err != nil || prompt.Messages[0].Content.(*sdk.TextContent).Text != "me 9 " {
				t.Errorf("the prompt is %+v, %v", prompt, err)
			}
			if err := session.Close(); err != nil {
				t.Error(err)
			}
			if n := s.Stats().Sessions; n != 0 {
				t.Errorf("%d sessions are left", n)
			}
		})
	}
}

func TestAConfigurationSaysWhatIsWrongWithIt(t *testing.T) {
	for _, c := range []Config{{Era: "old"}, {Tools: -1}, {Tools: MaxTools + 1}} {
		if _, err := New(c); err == nil {
			t.Errorf("New(%+v) returned no error", c)
		}
	}
}
