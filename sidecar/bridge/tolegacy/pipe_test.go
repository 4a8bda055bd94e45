package tolegacy

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"google.golang.org/protobuf/types/known/durationpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream/stdio"
)

// asProcess makes the test's binary a server on its standard input and output.
const asProcess = "OUTRIGGER_TEST_SERVER"

// serveProcess runs the server: ask asks at once; pair asks when two of it run, and so in no order.
func serveProcess() {
	s := sdk.NewServer(&sdk.Implementation{Name: "process", Version: "1"}, nil)
	var both sync.WaitGroup
	both.Add(2)
	for _, name := range []string{"ask", "pair"} {
		sdk.AddTool(s, &sdk.Tool{Name: name}, func(
			ctx context.Context, q *sdk.CallToolRequest, in textInput,
		) (*sdk.CallToolResult, any, error) {
			if name == "pair" {
				both.Done()
				both.Wait()
			}
			a, err := q.Session.Elicit(ctx, &sdk.ElicitParams{Message: "question of " + in.Text})
			if err != nil {
				return nil, nil, err
			}
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: a.Action + " of " + in.Text}}}, nil, nil
		})
	}
	_ = s.Run(context.Background(), &sdk.StdioTransport{})
}

func TestAProcessThatAsksIsNeverMisunderstood(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	spec := &outriggerv1.Upstream{
		Name: "old", Era: outriggerv1.Era_ERA_LEGACY,
		Transport: &outriggerv1.Upstream_Stdio{Stdio: &outriggerv1.StdioTransport{
			Command: []string{program}, Env: map[string]string{asProcess: "1"},
			Isolation: outriggerv1.Isolation_ISOLATION_SESSION, StopGrace: durationpb.New(patience),
		}},
	}
	inner, err := stdio.New("old", spec, stdio.Options{Log: slog.New(slog.DiscardHandler), ClientName: "test", ClientVersion: "1"})
	if err != nil {
		t.Fatal(err)
	}
	s := newBridge(t, inner, func(o *Options) { o.Upstream = spec })
	c := newClient(t, s, "ann", everything)
	q := questions(t, c.do(c.tool("1", "ask", "x", "")))
	c.do(c.tool("2", "ask", "x", q.retry(accepted))).want(t, 200, "accept of x")

	// Which of two calls a question on the pipe belongs to nobody can know, so at least the first is not asked.
	var all sync.WaitGroup
	refused := make(chan string, 2)
	for _, name := range []string{"one", "two"} {
		all.Go(func() {
			r := c.do(c.tool("1", "pair", name, ""))
			if strings.Contains(r.last, `"isError":true`) {
				refused <- name
				return
			}
			q := questions(t, r)
			if asked := string(q.Result.InputRequests["q1"].Params); !strings.Contains(asked, "question of "+name) {
				t.Errorf("%s was asked %s", name, asked)
			}
			c.do(c.tool("2", "pair", name, q.retry(accepted))).want(t, 200, "accept of "+name)
		})
	}
	all.Wait()
	if len(refused) == 0 {
		t.Error("both calls were asked")
	}
	nothingInUse(t, s)
}
