package stdio

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
	"google.golang.org/protobuf/types/known/durationpb"
)

// logBuffer collects log lines.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// harness is a Server whose process is this test binary as a peer.
type harness struct {
	*Server
	t   *testing.T
	log *logBuffer
}

func newHarness(t *testing.T, peer string, change ...func(*outriggerv1.Upstream)) *harness {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	spec := specFor(self, peer)
	for _, f := range change {
		f(spec)
	}
	logs := &logBuffer{}
	s, err := New("peer", spec, Options{Log: slog.New(slog.NewTextHandler(logs, nil)).With("upstream", "peer"), ClientName: "sidecar", ClientVersion: "test"})
	if err != nil {
		t.Fatal(err)
	}
	h := &harness{Server: s, t: t, log: logs}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		s.Close(ctx)
		if t.Failed() {
			text := logs.String()
			t.Logf("log:\n%s", text[max(0, len(text)-3000):])
		}
	})
	return h
}

func specFor(self, peer string) *outriggerv1.Upstream {
	return &outriggerv1.Upstream{Transport: &outriggerv1.Upstream_Stdio{Stdio: &outriggerv1.StdioTransport{
		Command: []string{self, "-test.run=^$"},
		Env: map[string]string{
			peerEnv: peer, "GORACE": "atexit_sleep_ms=0", // else a peer of -race takes a second to end
		},
	}}}
}

func legacyOnly(u *outriggerv1.Upstream) { u.Era = outriggerv1.Era_ERA_LEGACY }

func perSession(u *outriggerv1.Upstream) {
	u.GetStdio().Isolation = outriggerv1.Isolation_ISOLATION_SESSION
}

func timeouts(connect, handshake, call time.Duration) func(*outriggerv1.Upstream) {
	return func(u *outriggerv1.Upstream) {
		u.Timeouts = &outriggerv1.Timeouts{
			Connect: durationpb.New(connect), Handshake: durationpb.New(handshake), Call: durationpb.New(call),
		}
	}
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func scan(t testing.TB, text string) *mcp.Message {
	t.Helper()
	m, err := mcp.Scan([]byte(text), mcp.Limits{})
	if err != nil {
		t.Fatalf("Scan(%.200s): %v", text, err)
	}
	return &m
}

func message(t testing.TB, text string) *upstream.Call {
	t.Helper()
	return &upstream.Call{Message: scan(t, text)}
}

const initialize = `{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"c","version":"1"}}}`

func (h *harness) open() upstream.Session {
	h.t.Helper()
	s, a, err := h.Open(within(h.t), message(h.t, initialize))
	if err != nil {
		h.t.Fatalf("Open: %v", err)
	}
	if got := body(h.t, a); !strings.Contains(got, `"id":"init"`) || s == nil {
		h.t.Fatalf("Open answered %s", got)
	}
	if _, err := s.Call(within(h.t), message(h.t, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)); err != nil {
		h.t.Fatalf("initialized: %v", err)
	}
	return s
}

func body(t testing.TB, a *upstream.Answer) string {
	t.Helper()
	if a.Body == nil {
		t.Fatal("the answer has no body")
	}
	b, err := io.ReadAll(a.Body)
	if err != nil || int64(len(b)) != a.Length {
		t.Fatalf("body of %d bytes, Length %d, error %v", len(b), a.Length, err)
	}
	return string(b)
}

// messages reads an answer to its end, whichever form it has.
func messages(t testing.TB, a *upstream.Answer) (all []string) {
	t.Helper()
	if a.Events == nil {
		return []string{body(t, a)}
	}
	for {
		e, err := a.Events.Next()
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatalf("after %q: %v", all, err)
		}
		all = append(all, string(e.Data))
	}
}

type caller func(context.Context, *upstream.Call) (*upstream.Answer, error)

// ask makes a call and returns its messages.
func ask(t testing.TB, call caller, text string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	a, err := call(ctx, message(t, text))
	if err != nil {
		t.Fatalf("%.200s: %v", text, err)
	}
	defer a.Close()
	return messages(t, a)
}

// tool calls a tool with id 1 and returns the last message's result.
func tool(t testing.TB, call caller, name, arguments string) string {
	t.Helper()
	all := ask(t, call, toolCall("1", name, arguments))
	m := scan(t, all[len(all)-1])
	if !m.Result.Present() {
		t.Fatalf("tool %s: %s", name, all)
	}
	return string(m.Result.Of(m.Raw))
}

func toolCall(id, name, arguments string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":{"progressToken":%s}}}`,
		id, name, arguments, id)
}

func wantKind(t testing.TB, err error, kind upstream.Kind) *upstream.Error {
	t.Helper()
	e, ok := err.(*upstream.Error)
	if !ok || e.Kind != kind {
		t.Fatalf("error %v (%T), want kind %s", err, err, kind.Reason())
	}
	return e
}

func next(t testing.TB, s upstream.EventStream) string {
	t.Helper()
	watchdog := time.AfterFunc(20*time.Second, func() { s.Close() })
	defer watchdog.Stop()
	e, err := s.Next()
	if err != nil {
		t.Fatalf("Next: %v", err)
	}
	return string(e.Data)
}

func quote(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && bytes.Contains(stat, []byte(") Z "))
}
