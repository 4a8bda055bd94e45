package stdio

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// Many clients with the same ids, and progress tokens that differ in type only, on one process (lessons L9 and L26).
func TestFiftyClientsGetTheirOwnAnswers(t *testing.T) {
	for _, wire := range []string{"sdk-legacy", "sdk-stateless"} {
		t.Run(wire, func(t *testing.T) {
			h := newHarness(t, wire)
			var all sync.WaitGroup
			for i := range 50 {
				call, meta := h.Call, statelessMeta
				if wire == "sdk-legacy" {
					call, meta = h.open().Call, ""
				}
				all.Go(func() {
					for _, token := range []string{"7", `"7"`} {
						all.Go(func() { oneClient(t, call, token, meta, fmt.Sprint(i, token)) })
					}
				})
			}
			all.Wait()
		})
	}
}

const statelessMeta = `,"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"}`

func oneClient(t *testing.T, call caller, token, meta, text string) {
	request := `{"jsonrpc":"2.0","id":` + token + `,"method":"tools/call","params":{"name":"progress","arguments":{"text":` +
		quote(text) + `,"steps":3},"_meta":{"progressToken":` + token + meta + `}}}`
	all := ask(t, call, request)
	if len(all) != 4 {
		t.Errorf("%d messages %q for %s, want 3 of progress and the response", len(all), all, request)
		return
	}
	for i, text := range all[:3] {
		m := scan(t, text)
		if got := string(m.ProgressToken.Of(m.Raw)); got != token || !strings.Contains(text, fmt.Sprintf(`"progress":%d`, i+1)) {
			t.Errorf("progress %d is %s, want token %s", i+1, text, token)
		}
	}
	m := scan(t, all[3])
	if got := string(m.ID.Of(m.Raw)); got != token || !strings.Contains(all[3], `"text":`+quote(text)) {
		t.Errorf("response %s, want id %s and text %q", all[3], token, text)
	}
}

func TestBytesPassAsTheyAre(t *testing.T) {
	h := newHarness(t, "strict", legacyOnly)
	for name, open := range map[string]*harness{"shared": h, "own": newHarness(t, "strict", legacyOnly, perSession)} {
		t.Run(name, func(t *testing.T) {
			call := open.open().Call
			for _, value := range []string{
				`{"n":9007199254740993,"f":1.0,"e":1E400}`, `null`, `{"b": 1,  "a":[ ] }`, `{"method":"initialize","id":3}`,
				`"server/discover"`, `{"a":1,"a":2}`, `"\u0000\ud83d\ude00 é"`,
			} {
				if got, want := tool(t, call, "echo", value), `{"content":[],"structuredContent":`+value+`}`; value[0] == '{' && got != want {
					t.Errorf("got %s, want %s", got, want)
				}
			}
			got := ask(t, call, `{"jsonrpc":"2.0","id":9007199254740993,"method":"tools/call","params":{"name":"echo","arguments":null}}`)
			if want := `{"jsonrpc":"2.0","id":9007199254740993,"result":{"content":[],"structuredContent":null}}`; got[0] != want {
				t.Errorf("got %s, want %s", got[0], want)
			}
		})
	}
}

func TestAPrettyPrintedRequestGoesOnOneLine(t *testing.T) {
	call := newHarness(t, "strict", legacyOnly).open().Call
	got := ask(t, call, "{\n \"jsonrpc\": \"2.0\",\r\n \"id\": \"x\",\n \"method\": \"tools/call\",\n \"params\": {\"name\": \"echo\", \"arguments\": {\"a\":\n1}}\n}")
	if want := `{"jsonrpc":"2.0","id":"x","result":{"content":[],"structuredContent":{"a":1}}}`; got[0] != want {
		t.Errorf("got %s, want %s", got[0], want)
	}
}

// Lesson L33.
func TestAFiveMegabyteLinePassesBothWays(t *testing.T) {
	call := newHarness(t, "strict", legacyOnly).open().Call
	arguments := `{"text":"` + strings.Repeat("x", 5<<20) + `"}`
	if got, want := tool(t, call, "echo", arguments), `{"content":[],"structuredContent":`+arguments+`}`; got != want {
		t.Errorf("got %d bytes, want %d", len(got), len(want))
	}
}

func TestAMessageThatIsTooLongCostsOnlyItsCall(t *testing.T) {
	h := newHarness(t, "strict", legacyOnly, func(u *outriggerv1.Upstream) { u.GetStdio().MaxMessageBytes = 100 << 10 })
	s := h.open()
	pid := tool(t, s.Call, "pid", "{}")
	other, err := s.Call(within(t), message(t, toolCall("2", "hold", "{}")))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for _, idFirst := range []bool{true, false} {
		for _, size := range []int{100 << 10, 3 << 20} {
			_, err := s.Call(within(t), message(t, toolCall("1", "big", fmt.Sprintf(`{"bytes":%d,"idFirst":%v}`, size, idFirst))))
			wantKind(t, err, upstream.Overloaded)
		}
	}
	if got := tool(t, s.Call, "big", `{"bytes":99000}`); len(got) < 99000 {
		t.Errorf("a message within the limit came as %.100s", got)
	}
	if got := tool(t, s.Call, "pid", "{}"); got != pid {
		t.Errorf("process %s answers, want the same as before, %s", got, pid)
	}
	next(t, other.Events) // its progress message: it is still in flight
}

func TestNoiseOnStandardOutputIsSkipped(t *testing.T) {
	h := newHarness(t, "strict", legacyOnly)
	call := h.open().Call
	got := tool(t, call, "say", `{"lines":["Listening...","","{\"half\":","[1]","\u0001","{\"jsonrpc\":\"2.0\",\"id\":424242,\"result\":{}}","{\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{\"said\":true}}"]}`)
	if got != `{"said":true}` {
		t.Errorf("got %s", got)
	}
	if !strings.Contains(h.log.String(), "Listening...") {
		t.Error("the log does not show the noise")
	}
}

func TestAnAnswerThatIsNotJSONRPCFailsItsCall(t *testing.T) {
	call := newHarness(t, "strict", legacyOnly).open().Call
	for _, line := range []string{
		`{"jsonrpc":"2.0","id":$ID,"result":{},"error":{}}`, `{"jsonrpc":"1.0","id":$ID,"result":{}}`,
		`{"jsonrpc":"2.0","id":$ID,"result":{"a":tru}}`, `{"result":{"a":tru},"jsonrpc":"2.0","id":$ID}`,
	} {
		_, err := call(within(t), message(t, toolCall("1", "say", `{"lines":[`+quote(line)+`]}`)))
		wantKind(t, err, upstream.BadAnswer)
	}
}

func TestAFloodOnStandardErrorIsCappedAndCounted(t *testing.T) {
	h := newHarness(t, "strict", legacyOnly)
	tool(t, h.open().Call, "flood", "{}")
	h.Close(within(t))
	text := h.log.String()
	if n := strings.Count(text, `line="line `); n > 400 || n == 0 {
		t.Errorf("%d lines logged, want some and at most a few hundred of 5000", n)
	}
	if !strings.Contains(text, "dropped=") {
		t.Error("the log does not say how many lines were left out")
	}
	for l := range strings.Lines(text) {
		if len(l) > 2*stderrLine {
			t.Errorf("a log line of %d bytes", len(l))
		}
	}
}

// Lesson L27: the owner gets it, with the process's id, and other clients' calls go on.
func TestACancelReachesItsCallOnly(t *testing.T) {
	h := newHarness(t, "strict", legacyOnly)
	a, b := h.open(), h.open()
	hold := func(s upstream.Session) *upstream.Answer {
		answer, err := s.Call(within(t), message(t, toolCall("1", "hold", "{}")))
		if err != nil {
			t.Fatal(err)
		}
		if answer.Events == nil {
			t.Fatalf("hold answered %s", body(t, answer))
		}
		next(t, answer.Events)
		return answer
	}
	first, second := hold(a), hold(b)
	defer second.Close()
	for _, notice := range []string{
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"1"}}`, // another id
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled"}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"enough"}}`,
	} {
		if _, err := a.Call(within(t), message(t, notice)); err != nil {
			t.Fatalf("%s: %v", notice, err)
		}
	}
	if _, err := first.Events.Next(); !errors.Is(err, context.Canceled) {
		t.Errorf("the cancelled call ended with %v", err)
	}
	// initialize is 1, the calls are 2 and 3; the question itself is 4.
	if got := tool(t, b.Call, "cancelled", "{}"); got != `{"ids":[2],"me":4}` {
		t.Errorf("the process heard %s, want the cancel of its 2", got)
	}
	second.Close() // given up: cancelled too
	if got := tool(t, b.Call, "cancelled", "{}"); got != `{"ids":[2,3],"me":5}` {
		t.Errorf("the process heard %s, want the cancel of its 3", got)
	}
}

func TestTheEndOfAContextCancels(t *testing.T) {
	for _, wire := range []string{"sdk-legacy", "sdk-stateless"} {
		t.Run(wire, func(t *testing.T) {
			h := newHarness(t, wire)
			call, meta := caller(h.Call), statelessMeta
			if wire == "sdk-legacy" {
				call, meta = h.open().Call, ""
			}
			ctx, cancel := context.WithCancel(within(t))
			a, err := call(ctx, message(t, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hold","arguments":{},"_meta":{"progressToken":"p"`+meta+`}}}`))
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			next(t, a.Events)
			cancel()
			if _, err := a.Events.Next(); !errors.Is(err, context.Canceled) {
				t.Errorf("the call ended with %v", err)
			}
			eventually(t, "the server's tool is cancelled", func() bool { return strings.Contains(h.log.String(), "hold was cancelled") })
		})
	}
}

func TestACallTimesOut(t *testing.T) {
	h := newHarness(t, "strict", legacyOnly, timeouts(5*time.Second, 5*time.Second, 50*time.Millisecond))
	s := h.open()
	a, err := s.Call(within(t), message(t, toolCall("1", "hold", "{}")))
	if err != nil {
		t.Fatal(err)
	}
	next(t, a.Events)
	_, err = a.Events.Next()
	wantKind(t, err, upstream.TimedOut)
}

func TestACrashLosesItsCallsAndTheNextOneWorks(t *testing.T) {
	h := newHarness(t, "strict", legacyOnly)
	a, b := h.open(), h.open()
	stream, err := b.Listen(within(t))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	held, err := b.Call(within(t), message(t, toolCall("1", "hold", "{}")))
	if err != nil {
		t.Fatal(err)
	}
	next(t, held.Events)
	_, err = a.Call(within(t), message(t, toolCall("1", "exit", "{}")))
	wantKind(t, err, upstream.Lost)
	began := time.Now()
	_, err = held.Events.Next()
	wantKind(t, err, upstream.Lost)
	if got := tool(t, b.Call, "echo", "{}"); got == "" {
		t.Error("no answer after the restart")
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("recovery took %v, want under 10s", took)
	}
	if got := next(t, stream); got != `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}` {
		t.Errorf("the session heard %s of the restart", got)
	}
}

// Lesson L15.
func TestAProcessIsInitializedOnce(t *testing.T) {
	h := newHarness(t, "strict")
	for range 3 {
		h.open()
		if err := h.Check(within(t)); err != nil {
			t.Fatalf("Check: %v", err)
		}
	}
	s := h.open()
	if got := ask(t, s.Call, initialize); !strings.Contains(got[0], "-32600") {
		t.Errorf("a second initialize in a session got %s", got)
	}
	if got := ask(t, s.Call, `{"jsonrpc":"2.0","id":"p","method":"ping"}`); got[0] != `{"jsonrpc":"2.0","id":"p","result":{}}` {
		t.Errorf("ping got %s", got)
	}
	var seen []string
	for _, m := range strings.Split(strings.Trim(tool(t, s.Call, "seen", "{}"), "[]"), ",") {
		seen = append(seen, strings.Trim(m, `"`))
	}
	want := []string{"initialize", "notifications/initialized", "ping", "ping", "ping", "tools/call"}
	if !slices.Equal(seen, want) {
		t.Errorf("the process saw %q, want %q", seen, want)
	}
}

func TestTheErasOfAServerAreFound(t *testing.T) {
	for _, tt := range []struct {
		peer              string
		legacy, stateless bool
	}{
		{"sdk-legacy", true, false}, {"sdk-stateless", false, true}, {"sdk-both", true, true},
		{"strict", true, false}, {"silent", true, false}, {"plain", true, false},
	} {
		t.Run(tt.peer, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t, tt.peer)
			eras, err := h.Eras(within(t))
			if err != nil || eras.Has(mcp.Legacy) != tt.legacy || eras.Has(mcp.Stateless) != tt.stateless {
				t.Fatalf("Eras are %v, %v", eras, err)
			}
			if err := h.Check(within(t)); err != nil {
				t.Errorf("Check: %v", err)
			}
			if tt.legacy {
				h.open()
			} else {
				_, _, err := h.Open(within(t), message(t, initialize))
				wantKind(t, err, upstream.WrongEra)
			}
			list := `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"progressToken":1` + statelessMeta + `}}}`
			if tt.stateless {
				ask(t, h.Call, list)
			} else {
				_, err := h.Call(within(t), message(t, list))
				wantKind(t, err, upstream.WrongEra)
			}
		})
	}
}

// Lesson L12.
func TestAServerThatHangsIsNotReady(t *testing.T) {
	short := timeouts(200*time.Millisecond, 200*time.Millisecond, time.Minute)
	for _, peer := range []string{"hang", "mute"} {
		h := newHarness(t, peer, legacyOnly, short)
		began := time.Now()
		if err := h.Check(within(t)); err == nil {
			t.Errorf("%s: Check found it ready", peer)
		}
		if took := time.Since(began); took > 10*time.Second { // a call may take a minute
			t.Errorf("%s: Check took %v", peer, took)
		}
	}
	h := newHarness(t, "hang", short)
	if eras, err := h.Eras(within(t)); err == nil {
		t.Errorf("Eras of a server that hangs are %v", eras)
	}
}

func TestAMissingProgramIsSaidAtOnce(t *testing.T) {
	h := newHarness(t, "", func(u *outriggerv1.Upstream) { u.GetStdio().Command = []string{"/no/such/program"} })
	for range 2 {
		began := time.Now()
		_, err := h.Eras(within(t))
		e := wantKind(t, err, upstream.Unreachable)
		if !strings.Contains(e.Detail, "does not exist") || strings.Contains(e.Error(), "/no/such") {
			t.Errorf("the error says %q", e.Error())
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("it took %v", took)
		}
	}
}

func TestAProgramThatEndsAtOnceIsSaidAtOnce(t *testing.T) {
	h := newHarness(t, "", func(u *outriggerv1.Upstream) { u.GetStdio().Command = []string{"false"} })
	began := time.Now()
	for range 3 {
		_, _, err := h.Open(within(t), message(t, initialize))
		if e := wantKind(t, err, upstream.Unreachable); !strings.Contains(e.Detail, "ended before it answered") {
			t.Errorf("the error says %q", e.Detail)
		}
		wantKind(t, h.Check(within(t)), upstream.Unreachable)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v, want what it takes to start a program twice", took)
	}
}

func TestTheGroupDiesWithItsProcess(t *testing.T) {
	h := newHarness(t, "strict", legacyOnly)
	s := h.open()
	grandchild := func() int {
		pid, err := strconv.Atoi(tool(t, s.Call, "grandchild", "{}"))
		if err != nil {
			t.Fatal(err)
		}
		return pid
	}
	gone := func(pid int) func() bool {
		return func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH || zombie(pid) }
	}
	first := grandchild()
	if _, err := s.Call(within(t), message(t, toolCall("1", "exit", "{}"))); err == nil {
		t.Fatal("exit answered")
	}
	eventually(t, "the grandchild of a crashed process is gone", gone(first))
	second := grandchild()
	h.Close(within(t))
	eventually(t, "the grandchild of a stopped process is gone", gone(second))
}

func TestAStubbornProcessIsKilled(t *testing.T) {
	h := newHarness(t, "stubborn", legacyOnly)
	h.open()
	p := h.running(mcp.Legacy)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	h.Close(ctx)
	if state := fmt.Sprint(p.proc.err); !strings.Contains(state, "killed") {
		t.Errorf("it ended with %s", state)
	}
}

func TestAProcessMayEndByItself(t *testing.T) {
	h := newHarness(t, "strict", legacyOnly)
	h.open()
	p := h.running(mcp.Legacy)
	h.Close(within(t))
	if err := p.proc.err; err != nil {
		t.Errorf("it ended with %v, want to exit by itself at the end of its input", err)
	}
	_, _, err := h.Open(within(t), message(t, initialize))
	wantKind(t, err, upstream.Unreachable)
}

func TestOnlyTheNamedEnvironmentIsPassedOn(t *testing.T) {
	t.Setenv("OUTRIGGER_CREDENTIAL_X", "secret")
	t.Setenv("LANG", "C.UTF-8")
	t.Setenv("HOME", "/nowhere")
	h := newHarness(t, "strict", legacyOnly, func(u *outriggerv1.Upstream) { u.GetStdio().Env["HOME"] = "/home/peer" })
	got := tool(t, h.open().Call, "env", "{}")
	if strings.Contains(got, "secret") || !strings.Contains(got, "LANG=C.UTF-8") || !strings.Contains(got, "PATH=") ||
		!strings.Contains(got, "HOME=/home/peer") || strings.Contains(got, "nowhere") {
		t.Errorf("the process has %s", got)
	}
}

func TestAQueueThatIsFullRefuses(t *testing.T) {
	h := newHarness(t, "deaf", legacyOnly)
	s := h.open()
	ctx, cancel := context.WithCancel(within(t))
	var all sync.WaitGroup
	refused := make(chan error, 1)
	arguments := `{"x":"` + strings.Repeat("x", 32<<10) + `"}`
	for range queuedMost + 8 {
		all.Go(func() {
			_, err := s.Call(ctx, message(t, toolCall("1", "echo", arguments)))
			if e := (*upstream.Error)(nil); errors.As(err, &e) {
				select {
				case refused <- err:
				default:
				}
			}
		})
	}
	select {
	case err := <-refused:
		wantKind(t, err, upstream.Overloaded)
	case <-within(t).Done():
		t.Error("nothing was refused")
	}
	cancel()
	all.Wait()
	stop, now := context.WithCancel(context.Background())
	now()
	h.Close(stop)
}

func TestInitializeIsAnsweredWithTheOlderVersion(t *testing.T) {
	h := newHarness(t, "strict", legacyOnly)
	for asked, want := range map[string]string{
		"2025-11-25": "2025-11-25", "2025-06-18": "2025-06-18", "2025-03-26": "2025-03-26",
		"2026-07-28": "2025-11-25", "2024-11-05": "2025-11-25", "nonsense": "2025-11-25",
	} {
		s, a, err := h.Open(within(t), message(t, strings.Replace(initialize, "2025-11-25", asked, 1)))
		if err != nil {
			t.Fatal(err)
		}
		want := `{"jsonrpc":"2.0","id":"init","result":{"protocolVersion":"` + want + `","capabilities":{"tools":{"listChanged":true},"logging":{},"resources":{"subscribe":true}},` +
			`"serverInfo":{"name":"script","version":"1","x-big":9007199254740993},"instructions":"be kind"}}`
		if got := body(t, a); got != want {
			t.Errorf("asked for %s: got %s, want %s", asked, got, want)
		}
		s.Close(within(t))
	}
}

func TestTheServersOwnRequestsAreAnsweredHere(t *testing.T) {
	s := newHarness(t, "strict", legacyOnly).open()
	tool(t, s.Call, "say", `{"lines":["{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"ping\"}","{\"jsonrpc\":\"2.0\",\"id\":\"b\",\"method\":\"sampling/createMessage\",\"params\":{}}","{\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{}}"]}`)
	// The peer takes a response for a message without a method, and counts it.
	eventually(t, "both are answered", func() bool {
		return strings.Count(tool(t, s.Call, "seen", "{}"), `""`) == 2
	})
}

func TestEveryCallEndsWhenProcessesAreKilledUnderLoad(t *testing.T) {
	h := newHarness(t, "strict", legacyOnly)
	ctx, stop := context.WithCancel(within(t))
	var clients sync.WaitGroup
	for i := range 16 {
		s := h.open()
		clients.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				arguments := fmt.Sprintf(`{"client":%d,"n":%d}`, i, n)
				a, err := s.Call(context.Background(), message(t, toolCall("1", "echo", arguments)))
				e := (*upstream.Error)(nil)
				switch {
				case err == nil && !strings.Contains(body(t, a), arguments):
					t.Errorf("client %d got another's answer", i)
				case err != nil && (!errors.As(err, &e) || e.Kind != upstream.Lost && e.Kind != upstream.Unreachable):
					t.Errorf("client %d got %v", i, err)
				}
			}
		})
	}
	for range 4 {
		p, err := h.pipeFor(ctx, mcp.Legacy, 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		p.proc.kill()
		<-p.done
	}
	tool(t, h.open().Call, "echo", "{}")
	stop()
	clients.Wait()
}

func TestCloseEndsWhatIsBeingOpened(t *testing.T) {
	h := newHarness(t, "hang", legacyOnly)
	failed := make(chan error, 1)
	go func() {
		_, _, err := h.Open(context.Background(), message(t, initialize))
		failed <- err
	}()
	eventually(t, "the process is started", func() bool { return strings.Contains(h.log.String(), "server started") })
	h.Close(within(t))
	select {
	case err := <-failed:
		wantKind(t, err, upstream.Unreachable)
	case <-within(t).Done():
		t.Error("Open did not return")
	}
}

func TestEveryLogLineNamesTheUpstreamOnce(t *testing.T) {
	h := newHarness(t, "strict")
	if err := h.Check(within(t)); err != nil {
		t.Fatal(err)
	}
	h.Close(within(t))
	lines := slices.Collect(strings.Lines(h.log.String()))
	if len(lines) == 0 {
		t.Error("nothing was logged")
	}
	for _, line := range lines {
		if strings.Count(line, "upstream=peer") != 1 {
			t.Errorf("want upstream=peer once: %s", line)
		}
	}
}
