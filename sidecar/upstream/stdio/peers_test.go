package stdio

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"
)

// peerEnv makes the test binary be a server instead; the value says which.
const peerEnv = "STDIO_TEST_PEER"

func TestMain(m *testing.M) {
	if !supported {
		fmt.Println("nothing is tested here, since New refuses")
		return
	}
	switch peer := os.Getenv(peerEnv); peer {
	case "":
		goleak.VerifyTestMain(m)
	case "sdk-legacy":
		serveSDK(sdk.SupportedProtocolVersions()[1:])
	case "sdk-stateless":
		serveSDK(sdk.SupportedProtocolVersions()[:1])
	case "sdk-both":
		serveSDK(nil)
	default:
		(&script{mode: peer, out: os.Stdout}).serve(os.Stdin)
	}
}

type progressArgs struct {
	Text  string `json:"text"`
	Steps int    `json:"steps"`
}

// serveSDK is a real server, of the versions given.
func serveSDK(versions []string) {
	server := sdk.NewServer(&sdk.Implementation{Name: "peer", Version: "1"}, &sdk.ServerOptions{
		SupportedProtocolVersions: versions,
		SubscribeHandler:          func(context.Context, *sdk.SubscribeRequest) error { return nil },
		UnsubscribeHandler:        func(context.Context, *sdk.UnsubscribeRequest) error { return nil },
	})
	sdk.AddTool(server, &sdk.Tool{Name: "progress"}, sdkProgress)
	sdk.AddTool(server, &sdk.Tool{Name: "elicit"}, sdkElicit)
	sdk.AddTool(server, &sdk.Tool{Name: "grow"}, func(ctx context.Context, r *sdk.CallToolRequest, _ struct{}) (*sdk.CallToolResult, any, error) {
		sdk.AddTool(server, &sdk.Tool{Name: "grown"}, sdkProgress)
		return nil, nil, nil
	})
	sdk.AddTool(server, &sdk.Tool{Name: "log"}, func(ctx context.Context, r *sdk.CallToolRequest, _ struct{}) (*sdk.CallToolResult, any, error) {
		//lint:ignore SA1019 it is deprecated, and what is tested
		return nil, nil, r.Session.Log(ctx, &sdk.LoggingMessageParams{Level: "error", Data: "hello"})
	})
	// hold reports through progress that it runs, and through standard error that it was cancelled.
	sdk.AddTool(server, &sdk.Tool{Name: "hold"}, func(ctx context.Context, r *sdk.CallToolRequest, _ struct{}) (*sdk.CallToolResult, any, error) {
		sdkNotify(ctx, r, 1)
		<-ctx.Done()
		fmt.Fprintln(os.Stderr, "hold was cancelled")
		return nil, nil, ctx.Err()
	})
	if err := server.Run(context.Background(), &sdk.StdioTransport{}); err != nil {
		fmt.Fprintln(os.Stderr, "server:", err)
	}
}

func sdkNotify(ctx context.Context, r *sdk.CallToolRequest, n int) {
	if token := r.Params.GetProgressToken(); token != nil {
		r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: token, Progress: float64(n)})
	}
}

func sdkProgress(ctx context.Context, r *sdk.CallToolRequest, in progressArgs) (*sdk.CallToolResult, any, error) {
	for i := range in.Steps {
		sdkNotify(ctx, r, i+1)
	}
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: in.Text}}}, nil, nil
}

func sdkElicit(ctx context.Context, r *sdk.CallToolRequest, _ struct{}) (*sdk.CallToolResult, any, error) {
	res, err := r.Session.Elicit(ctx, &sdk.ElicitParams{Message: "name?", RequestedSchema: json.RawMessage(
		`{"type":"object","properties":{"name":{"type":"string"}}}`)})
	if err != nil {
		return nil, nil, err
	}
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: fmt.Sprint(res.Action, " ", res.Content["name"])}}}, nil, nil
}

// script is a server written for its faults. mode adds one:
//
//	strict   ends when anything comes before initialize, or a second initialize
//	silent   does not answer what comes before initialize
//	hang     answers nothing at all
//	mute     answers initialize, and after that nothing
//	stubborn ignores the end of its input, and SIGTERM
//	modern   speaks the stateless wire
//	refusing answers initialize with an error
//	deaf     reads nothing after initialize
//	aloof    does not answer resources/subscribe
type script struct {
	mode string

	mu          sync.Mutex
	out         io.Writer
	initialized int
	cancelled   []string // requestId tokens
	seen        []string // methods
}

type peerMessage struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Name      string          `json:"name"`
		URI       string          `json:"uri"`
		Level     string          `json:"level"`
		RequestID json.RawMessage `json:"requestId"`
		Arguments json.RawMessage `json:"arguments"`
		Meta      struct {
			ProgressToken json.RawMessage `json:"progressToken"`
		} `json:"_meta"`
	} `json:"params"`
}

func (s *script) serve(in io.Reader) {
	if s.mode == "stubborn" {
		signal.Ignore(syscall.SIGTERM)
	}
	for r := bufio.NewReader(in); ; {
		text, err := r.ReadBytes('\n')
		if err != nil {
			break
		}
		var m peerMessage
		if err := json.Unmarshal(text, &m); err != nil {
			fmt.Fprintln(os.Stderr, "not JSON:", err)
			os.Exit(9)
		}
		s.handle(&m)
	}
	if s.mode == "stubborn" {
		select {}
	}
}

func (s *script) handle(m *peerMessage) {
	s.seen = append(s.seen, strings.TrimSuffix(m.Method+" "+m.Params.URI+m.Params.Level, " "))
	early := s.initialized == 0 && m.Method != "initialize"
	switch {
	case s.mode == "hang", s.mode == "aloof" && m.Method == "resources/subscribe", s.mode == "mute" && s.initialized > 0, s.mode == "silent" && early:
		return
	case s.mode == "deaf" && s.initialized > 0:
		select {}
	case s.mode == "strict" && (early || s.initialized > 0 && m.Method == "initialize"):
		fmt.Fprintln(os.Stderr, "protocol violation:", m.Method)
		os.Exit(7)
	}
	switch m.Method {
	case "server/discover":
		if s.mode == "modern" {
			s.result(m, `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{}}`)
			return
		}
		s.line(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"what?"}}`, m.ID)
	case "subscriptions/listen":
		s.line(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":{},"_meta":{"io.modelcontextprotocol/subscriptionId":%s}}}`, m.ID)
	case "initialize":
		s.initialized++
		if s.mode == "refusing" {
			s.line(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"go away"}}`, m.ID)
			return
		}
		s.result(m, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"logging":{},"resources":{"subscribe":true}},`+
			`"serverInfo":{"name":"script","version":"1","x-big":9007199254740993},"instructions":"be kind"}`)
	case "ping", "resources/subscribe", "resources/unsubscribe", "logging/setLevel":
		s.result(m, "{}")
	case "notifications/cancelled":
		s.cancelled = append(s.cancelled, string(m.Params.RequestID))
	case "tools/call":
		s.tool(m)
	default:
		if m.ID != nil {
			s.line(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"what?"}}`, m.ID)
		}
	}
}

func (s *script) tool(m *peerMessage) {
	switch m.Params.Name {
	case "echo":
		s.result(m, `{"content":[],"structuredContent":`+string(m.Params.Arguments)+`}`)
	case "hold": // answered by nothing, so that the call stays in flight
		s.line(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1}}`, m.Params.Meta.ProgressToken)
	case "exit":
		os.Exit(3)
	case "seen":
		seen, _ := json.Marshal(s.seen)
		s.result(m, string(seen))
	case "cancelled":
		s.result(m, fmt.Sprintf(`{"ids":[%s],"me":%s}`, strings.Join(s.cancelled, ","), m.ID))
	case "env":
		env, _ := json.Marshal(os.Environ())
		s.result(m, string(env))
	case "pid":
		s.result(m, fmt.Sprint(os.Getpid()))
	case "grandchild":
		child := exec.Command("sleep", "600")
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		if err := child.Start(); err != nil {
			panic(err)
		}
		s.result(m, fmt.Sprint(child.Process.Pid))
	case "say": // writes arguments.lines as they are
		var a struct{ Lines []string }
		if err := json.Unmarshal(m.Params.Arguments, &a); err != nil {
			panic(err)
		}
		for _, l := range a.Lines {
			s.line("%s", strings.ReplaceAll(l, "$ID", string(m.ID)))
		}
	case "big":
		var a struct {
			Bytes   int
			IDFirst bool
		}
		if err := json.Unmarshal(m.Params.Arguments, &a); err != nil {
			panic(err)
		}
		text := bytes.Repeat([]byte("x"), a.Bytes)
		if a.IDFirst {
			s.line(`{"jsonrpc":"2.0","id":%s,"result":{"text":"%s"}}`, m.ID, text)
		} else {
			s.line(`{"result":{"text":"%s"},"jsonrpc":"2.0","id":%s}`, text, m.ID)
		}
	case "flood":
		for i := range 5000 {
			fmt.Fprintf(os.Stderr, "line %d %s\n", i, strings.Repeat("y", 100))
		}
		fmt.Fprintln(os.Stderr, strings.Repeat("z", 1<<20))
		s.result(m, "{}")
	}
}

func (s *script) result(m *peerMessage, result string) {
	s.line(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
}

func (s *script) line(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, format+"\n", args...)
}

// eventually polls what another process does, which no channel tells.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10s: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
