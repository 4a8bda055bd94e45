package drive

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/outrigger-mesh/outrigger/bench/drive/wire"
	"github.com/outrigger-mesh/outrigger/bench/null/server"
	"github.com/outrigger-mesh/outrigger/bench/record"
)

func TestEveryOperationIsMadeAndCheckedInItsEras(t *testing.T) {
	s, url := startNull(t)
	calls := int64(0)
	for _, era := range []string{wire.Stateless, wire.Legacy} {
		for name, c := range map[string]Config{
			"call":               {Op: Call},
			"list":               {Op: List},
			"read":               {Op: Read},
			"prompt":             {Op: Prompt},
			"stream":             {Op: Stream},
			"session":            {Op: Session},
			"streamed":           {Streamed: 1},
			"half streamed":      {Streamed: 0.5, Events: 2},
			"late":               {Delay: time.Millisecond},
			"events with gaps":   {Streamed: 1, Events: 2, EventGap: time.Millisecond, Delay: time.Millisecond},
			"64 KiB":             {AnswerBytes: 64 << 10},
			"1 MiB":              {AnswerBytes: 1 << 20, RequestBytes: 1 << 20},
			"1 MiB streamed":     {AnswerBytes: 1 << 20, Streamed: 1, Events: 1},
			"in an open loop":    {Rate: 5000},
			"header with a name": {Op: Read, Header: http.Header{"Authorization": {"Bearer x"}}},
		} {
			if era == wire.Stateless && c.Op == Session {
				continue
			}
			t.Run(era+"/"+name, func(t *testing.T) {
				c.URL, c.Era, c.Conns, c.Calls = url, era, 3, 30
				l := run(t, c)
				expect(t, l, 30, 0, 0)
				want, uneven := float64(c.Events)*30*c.Streamed, 0.0
				if c.Streamed < 1 {
					uneven = float64(c.Events * c.Conns) // each connection keeps to the share to within a call
				}
				if math.Abs(float64(l.Events)-want) > uneven {
					t.Errorf("%d events, want %v, give or take %v", l.Events, want, uneven)
				}
				if streamed := l.FirstEvent.Count > 0; streamed != (c.Streamed > 0 || c.Op == Stream && era == wire.Stateless) {
					t.Errorf("%d first events", l.FirstEvent.Count)
				}
				if c.Op == "" || c.Op == Call || c.Op == Session {
					calls += 30
				}
			})
		}
	}
	if got := s.Stats(); got.Calls != calls || got.Sessions != 0 || got.Cancelled != 0 {
		t.Errorf("the server counted %+v, want %d calls and no session left", got, calls)
	}
}

func TestRequestsAndAnswersHaveTheirStatedSizes(t *testing.T) {
	for _, era := range []string{wire.Stateless, wire.Legacy} {
		for _, size := range []int{250, 1 << 10, 64 << 10} {
			c := Config{URL: "http://host/mcp", Era: era, AnswerBytes: size, RequestBytes: size + 150}.withDefaults()
			k := newDriver(t, c).conns[0]
			_, body, _ := bytes.Cut(k.json.bytes, []byte("\r\n\r\n"))
			if len(body) != size+150 || !json.Valid(body) {
				t.Errorf("a %s request of %d bytes has %d: %.300s", era, size+150, len(body), body)
			}
			w := k.json.want
			if got := len(w.bytes) + w.pad + len(w.end); got != size {
				t.Errorf("a %s answer of %d bytes has %d", era, size, got)
			}
		}
	}
}

func TestAnAnswerThatIsNotTheCallsIsWrong(t *testing.T) {
	_, null := startNull(t)
	for name, change := range map[string]func(string) string{
		"another caller's":   func(s string) string { return strings.Replace(s, "-000000 ", "-000001 ", 1) },
		"another call's":     func(s string) string { return strings.Replace(s, "00001 b", "00002 b", 1) },
		"another id":         func(s string) string { return strings.Replace(s, `"id":1`, `"id":2`, 1) },
		"an id of text":      func(s string) string { return strings.Replace(s, `"id":100000001`, `"id":"100000001"`, 1) },
		"one byte less":      func(s string) string { return strings.Replace(s, "bb", "b", 1) },
		"another byte":       func(s string) string { return strings.Replace(s, "bbbbb", "bbxbb", 1) },
		"an error result":    func(s string) string { return strings.Replace(s, `"result":{`, `"result":{"isError":true,`, 1) },
		"a null result":      func(string) string { return `{"jsonrpc":"2.0","id":100000001,"result":null}` },
		"not JSON":           func(string) string { return "<html>" },
		"nothing":            func(string) string { return "" },
		"two answers in one": func(s string) string { return s + s },
	} {
		t.Run(name, func(t *testing.T) {
			url := behindHandler(t, null, func(b []byte) []byte { return []byte(change(string(b))) })
			l := run(t, Config{URL: url, Calls: 1})
			expect(t, l, 0, 0, 1)
			if !strings.Contains(l.FirstFailure, "got ") || !strings.Contains(l.FirstFailure, "want ") {
				t.Errorf("the first failure does not say what was got and wanted: %s", l.FirstFailure)
			}
		})
	}
}

func TestAnAnswerThatAProxyWroteAnewIsRight(t *testing.T) {
	_, null := startNull(t)
	url := behindHandler(t, null, func(b []byte) []byte {
		var m map[string]any
		if err := json.Unmarshal(b, &m); err != nil {
			t.Errorf("%s: %v", b, err)
		}
		m["id"] = json.Number(fmt.Sprintf("%.0f", m["id"]))
		again, err := json.MarshalIndent(m, "", " ")
		if err != nil {
			t.Error(err)
		}
		return again
	})
	for _, op := range []Op{Call, Read, Prompt, List} {
		expect(t, run(t, Config{URL: url, Op: op, Calls: 20, Conns: 2}), 20, 0, 0)
	}
}

func TestACallThatFailedIsAFailure(t *testing.T) {
	for name, answer := range map[string]string{
		"refused":       "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n",
		"an error":      answerOf(`{"jsonrpc":"2.0","id":100000001,"error":{"code":-32603,"message":"no"}}`),
		"cut short":     "HTTP/1.1 200 OK\r\nContent-Length: 250\r\n\r\n{",
		"a bad chunk":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
		"not HTTP":      "hello\r\n\r\n",
		"a request":     "POST / HTTP/1.1\r\n\r\n",
		"nothing":       "",
		"empty stream":  "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 0\r\n\r\n",
		"notified only": "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"x\"}\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			l := run(t, Config{URL: "http://" + answerAlways(t, answer) + "/mcp", Calls: 1})
			expect(t, l, 0, 1, 0)
			if l.FirstFailure == "" {
				t.Error("the first failure is not said")
			}
		})
	}
}

// answerAlways answers each connection's first request with the same bytes and closes it.
func answerAlways(t *testing.T, answer string) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Read(make([]byte, 4096))
			io.WriteString(c, answer)
			c.Close()
		}
	}()
	return l.Addr().String()
}

func TestACallThatTakesTooLongFails(t *testing.T) {
	_, url := startNull(t)
	c := Config{URL: url, Calls: 1, Timeout: 200 * time.Millisecond, Delay: 199 * time.Millisecond}
	d := newDriver(t, c)
	d.c.Delay = time.Minute // a server that is later than it should be
	d.conns[0].prepare()
	begin := time.Now()
	l, err := d.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	expect(t, l, 0, 1, 0)
	if took := time.Since(begin); took < 180*time.Millisecond || took > 5*time.Second {
		t.Errorf("it took %v, want about the timeout, 200ms", took)
	}
}

func TestAnAnswerThatWasRightBeforeIsWrongForTheNextCall(t *testing.T) {
	_, null := startNull(t)
	var first atomic.Pointer[[]byte]
	url := behindHandler(t, null, func(b []byte) []byte {
		first.CompareAndSwap(nil, &b)
		return *first.Load()
	})
	for _, op := range []Op{Call, List} {
		first.Store(nil)
		expect(t, run(t, Config{URL: url, Op: op, Calls: 3}), 1, 0, 2)
	}
}

func TestEveryAnswerMustHoldTheWholeValue(t *testing.T) {
	_, null := startNull(t)
	list := server.Tools(server.ToolNames("", 1))
	expiry := 0
	for name, tc := range map[string]struct {
		value       []byte
		change      func(string) string
		calls, lost int64
	}{
		"it does":              {value: list, calls: 3},
		"with another time":    {value: list, calls: 3, change: func(s string) string { expiry++; return strings.Replace(s, "60000", fmt.Sprint(expiry), 1) }},
		"a tool less":          {value: server.Tools(server.ToolNames("", 2)), lost: 3},
		"one byte of it":       {value: list, lost: 3, change: func(s string) string { return strings.Replace(s, "Answers", "answers", 1) }},
		"around it, another's": {value: list, lost: 3, change: func(s string) string { return strings.Replace(s, `"id":1`, `"id":2`, 1) }},
	} {
		t.Run(name, func(t *testing.T) {
			url := behindHandler(t, null, func(b []byte) []byte {
				if tc.change == nil {
					return b
				}
				return []byte(tc.change(string(b)))
			})
			expect(t, run(t, Config{URL: url, Op: List, Value: tc.value, Calls: 3}), tc.calls, 0, tc.lost)
		})
	}
}

func TestAConnectionOutlivesTheTimeoutOfItsCalls(t *testing.T) {
	_, url := startNull(t)
	l := run(t, Config{URL: url, Timeout: 500 * time.Millisecond, Delay: 5 * time.Millisecond, Duration: 1200 * time.Millisecond})
	if l.Failures+l.Wrong > 0 || l.Calls == 0 {
		t.Errorf("%d calls, %d failures; first: %s", l.Calls, l.Failures, l.FirstFailure)
	}
}

func TestInterimAnswersArePassedOver(t *testing.T) {
	body := `{"jsonrpc":"2.0","id":100000001,"result":{"x":"hello"}}`
	answer := "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + answerOf(body)
	l := run(t, Config{URL: "http://" + answerAlways(t, answer) + "/mcp", Tool: "t", Expect: "hello", Calls: 1})
	expect(t, l, 1, 0, 0)
}

func TestARestartedServerIsMeasuredAsFailuresAndCalledAgain(t *testing.T) {
	for _, era := range []string{wire.Stateless, wire.Legacy} {
		t.Run(era, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			_, stop := serveNull(t, l)
			d := newDriver(t, Config{URL: "http://" + l.Addr().String() + "/mcp", Era: era, Conns: 4, Duration: time.Minute})
			end := inBackground(t, d.Run)
			eventually(t, d, "call", func(l record.Load) bool { return l.Calls > 100 })
			stop()
			eventually(t, d, "failures while the server is away", func(l record.Load) bool { return l.Failures >= 8 })
			_, before := d.Progress()
			if l, err = net.Listen("tcp", l.Addr().String()); err != nil {
				t.Fatal(err)
			}
			_, stop = serveNull(t, l)
			defer stop()
			eventually(t, d, "calls after the server came back", func(l record.Load) bool { return l.Calls > before.Calls+100 })
			if got := end(); got.Wrong != 0 || got.Failures > 200 {
				t.Errorf("%d failures and %d wrong answers, want few and none; first: %s", got.Failures, got.Wrong, got.FirstFailure)
			}
		})
	}
}

func TestAServerThatIsNotThereIsAnError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if _, err := newDriver(t, Config{URL: "http://" + l.Addr().String()}).Run(t.Context()); err == nil {
		t.Error("Run returned no error")
	}
}

func TestStreamsAndSessionsAreHeldUntilToldToEnd(t *testing.T) {
	for _, c := range []Config{{Op: Stream}, {Op: Stream, Era: wire.Legacy}, {Op: Session, Era: wire.Legacy}} {
		t.Run(c.Era+string(c.Op), func(t *testing.T) {
			s, url := startNull(t)
			c.URL, c.Conns = url, 100
			d := newDriver(t, c)
			held := make(chan int, 1)
			end := inBackground(t, func(ctx context.Context) (record.Load, error) {
				return d.Hold(ctx, func(n int) { held <- n })
			})
			if n := <-held; n != 100 {
				t.Errorf("%d are held, want 100", n)
			}
			got := s.Stats()
			if c.Op == Stream && got.Streams != 100 || c.Era == wire.Legacy && got.Sessions != 100 {
				t.Errorf("the server holds %+v, want 100 of them", got)
			}
			expect(t, end(), 100, 0, 0)
			if n := s.Stats().Sessions; n != 0 {
				t.Errorf("%d sessions are left", n)
			}
		})
	}
}

func TestAHeldStreamThatEndsIsAFailure(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, stop := serveNull(t, l)
	d := newDriver(t, Config{URL: "http://" + l.Addr().String() + "/mcp", Op: Stream, Conns: 5})
	held := make(chan int, 1)
	end := inBackground(t, func(ctx context.Context) (record.Load, error) { return d.Hold(ctx, func(n int) { held <- n }) })
	<-held
	stop()
	eventually(t, d, "failures", func(l record.Load) bool { return l.Failures == 5 })
	expect(t, end(), 5, 5, 0)
}

func TestHeldStreamsEndWithTheDurationWhenOneIsGiven(t *testing.T) {
	_, url := startNull(t)
	if d := newDriver(t, Config{URL: url, Op: Stream}); d.c.Duration != 0 || d.duration() != 10*time.Second {
		t.Errorf("by default streams are held for %v and calls measured for %v, want 0 (for ever) and 10s", d.c.Duration, d.duration())
	}
	d := newDriver(t, Config{URL: url, Op: Stream, Conns: 2, Duration: time.Millisecond})
	l, err := d.Hold(t.Context(), func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, l, 2, 0, 0)
	if _, err := newDriver(t, Config{URL: url}).Hold(t.Context(), func(int) {}); err == nil {
		t.Error("calls can be held")
	}
}

// TestARealServerIsDriven drives the official SDK's server in every form it has, with and without TLS.
func TestARealServerIsDriven(t *testing.T) {
	for name, tc := range map[string]struct {
		era     string
		options *sdk.StreamableHTTPOptions
		serve   func(http.Handler) *httptest.Server
	}{
		"stateless in events": {wire.Stateless, &sdk.StreamableHTTPOptions{Stateless: true}, httptest.NewTLSServer},
		"stateless in JSON":   {wire.Stateless, &sdk.StreamableHTTPOptions{Stateless: true, JSONResponse: true}, httptest.NewServer},
		"legacy in events":    {wire.Legacy, nil, httptest.NewServer},
		"legacy in JSON":      {wire.Legacy, &sdk.StreamableHTTPOptions{JSONResponse: true}, httptest.NewTLSServer},
	} {
		t.Run(name, func(t *testing.T) {
			srv := tc.serve(sdkHandler(tc.options))
			defer srv.Close()
			c := Config{URL: srv.URL + "/mcp", Era: tc.era, Conns: 2, Calls: 8,
				TLS: srv.Client().Transport.(*http.Transport).TLSClientConfig}
			for _, op := range []Config{
				{Op: Call, Tool: "echo", Args: json.RawMessage(`{"text":"héllo"}`), Expect: "héllo"},
				{Op: List, Expect: `"echo"`},
				{Op: Read, URI: "file:///gr%C3%BC%C3%9F e", Expect: "contents of it"},
			} {
				c.Op, c.Tool, c.Args, c.Expect, c.URI = op.Op, op.Tool, op.Args, op.Expect, op.URI
				expect(t, run(t, c), 8, 0, 0)
			}
			c.Op, c.Tool, c.Args, c.Expect = Call, "echo", json.RawMessage(`{"text":"a"}`), "no such text"
			expect(t, run(t, c), 0, 0, 8)
			c.Tool, c.Expect = "unknown", ""
			expect(t, run(t, c), 0, 8, 0)
			if tc.era == wire.Legacy {
				c.Op, c.Tool = Session, "echo"
				expect(t, run(t, c), 8, 0, 0)
				c.Op, c.Duration = Stream, time.Millisecond
				l, err := newDriver(t, c).Hold(t.Context(), func(int) {}) // it takes one stream of a session at a time
				if err != nil {
					t.Fatal(err)
				}
				expect(t, l, int64(c.Conns), 0, 0)
			}
		})
	}
}

// sdkHandler serves a real server with a tool that echoes and a resource.
func sdkHandler(o *sdk.StreamableHTTPOptions) http.Handler {
	s := sdk.NewServer(&sdk.Implementation{Name: "real", Version: "1"}, nil)
	type in struct {
		Text string `json:"text"`
	}
	sdk.AddTool(s, &sdk.Tool{Name: "echo"}, func(_ context.Context, _ *sdk.CallToolRequest, i in) (*sdk.CallToolResult, any, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: i.Text}}}, nil, nil
	})
	const uri = "file:///gr%C3%BC%C3%9F e"
	s.AddResource(&sdk.Resource{URI: uri, Name: "r"}, func(context.Context, *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
		return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: uri, Text: "contents of it"}}}, nil
	})
	return sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, o)
}

func TestAServerThatClosesAfterEachAnswerIsServedOnNewConnections(t *testing.T) {
	_, null := startNull(t)
	inner := behindHandler(t, null, func(b []byte) []byte { return b })
	var answers atomic.Int64
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	url := startHandler(t, func(w http.ResponseWriter, r *http.Request) {
		req, _ := http.NewRequestWithContext(r.Context(), r.Method, inner, r.Body)
		req.Header = r.Header
		res, err := transport.RoundTrip(req)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		defer res.Body.Close()
		w.Header().Set("Connection", "close")
		answers.Add(1)
		io.Copy(w, res.Body)
	})
	expect(t, run(t, Config{URL: url, Calls: 5}), 5, 0, 0)
	if n := answers.Load(); n != 5 {
		t.Errorf("the server answered %d times, want 5", n)
	}
}

func TestTheHistogramIsTheWholeDistribution(t *testing.T) {
	_, url := startNull(t)
	l := run(t, Config{URL: url, Calls: 200, Conns: 20, Warm: time.Millisecond})
	h, err := hdrhistogram.Decode([]byte(l.Histogram))
	if err != nil {
		t.Fatal(err)
	}
	if h.TotalCount() != 200 || l.Latency.Count != 200 || float64(h.Max())/1e3 != l.Latency.Max {
		t.Errorf("the histogram has %d values up to %d ns, the record %+v", h.TotalCount(), h.Max(), l.Latency)
	}
	v := l.Latency
	if !(0 < v.P50 && v.P50 <= v.P90 && v.P90 <= v.P99 && v.P99 <= v.P999 && v.P999 <= v.P9999 && v.P9999 <= v.Max) {
		t.Errorf("percentiles are out of order: %+v", v)
	}
	if l.CPUSeconds <= 0 || l.Seconds <= 0 || l.SetUpSeconds <= 0 || l.Connections != 20 || time.Since(l.Began) > time.Minute {
		t.Errorf("the record lacks a figure: %+v", l)
	}
}

func TestARunEndsWhenItIsTold(t *testing.T) {
	for name, c := range map[string]Config{
		"closed loop":        {Conns: 3},
		"open loop":          {Conns: 3, Rate: 1000},
		"between rare calls": {Rate: 0.01},
		"while answers wait": {Delay: 9 * time.Second, Conns: 3},
	} {
		t.Run(name, func(t *testing.T) {
			s, url := startNull(t)
			c.URL, c.Duration = url, time.Minute
			d := newDriver(t, c)
			end := inBackground(t, d.Run)
			eventually(t, d, "call on its way", func(l record.Load) bool { return l.Calls > 0 || s.Stats().Delayed > 0 })
			if l := end(); l.Failures != 0 || l.Wrong != 0 {
				t.Errorf("calls that were cut short count: %d failed, %d wrong; %s", l.Failures, l.Wrong, l.FirstFailure)
			}
		})
	}
}

func TestAConfigurationSaysEverythingThatIsWrongWithIt(t *testing.T) {
	c := Config{URL: "ftp://x", Era: "old", Op: "what", Conns: -1, Rate: -1, Streamed: 2, AnswerBytes: 1, Args: json.RawMessage("[1]"),
		Value: json.RawMessage("[2"), Delay: time.Hour, Calls: -1}
	_, err := New(c)
	for _, want := range []string{"ftp://x", `"old"`, `"what"`, "-1 connections", "rate -1", "streamed 2", "answers of 1 ", "[1]", "[2",
		"timeout", "below 0"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%+v) = %v, which does not say %q", c, err, want)
		}
	}
	if _, err := New(Config{URL: "http://x", Op: Session}); err == nil {
		t.Error("the stateless era has sessions")
	}
}

func TestTheNullServersToolIsKnownBehindAPrefix(t *testing.T) {
	for tool, want := range map[string]bool{"null": true, "a.null": true, "a_b__null": true, "a/null": true, "anull": false, "echo": false} {
		if got := (Config{Tool: tool, Op: Call}).ofNull(); got != want {
			t.Errorf("ofNull(%q) = %v, want %v", tool, got, want)
		}
	}
}

// FuzzCheck holds that nothing is taken for an answer unless it has the call's id and text.
func FuzzCheck(f *testing.F) {
	d, err := New(Config{URL: "http://x"})
	if err != nil {
		f.Fatal(err)
	}
	k := d.conns[0]
	k.number++
	k.json.want.set(k.number)
	right := string(k.json.want.bytes) + strings.Repeat("b", k.json.want.pad) + k.json.want.end
	f.Add(right)
	f.Add(`{"id":100000001,"result":{"content":[{"text":""}]}}`)
	f.Add("[]")
	f.Add(`{"id":1,"error":null}`)
	text := string(k.json.want.bytes[k.json.want.text:]) + strings.Repeat("b", k.json.want.pad)
	f.Fuzz(func(t *testing.T, s string) {
		k.right = template{}
		if k.check(&k.json, []byte(s)) == nil && !(strings.Contains(s, text) && strings.Contains(s, "100000001")) {
			t.Errorf("taken for the answer: %s", s)
		}
		isNotification([]byte(s))
	})
}

// TestACallAllocatesNothing holds for both sides of a call, since they are in one process here.
func TestACallAllocatesNothing(t *testing.T) {
	for name, c := range map[string]Config{
		"stateless": {}, "legacy": {Era: wire.Legacy}, "streamed": {Streamed: 1, Events: 2}, "a list": {Op: List},
		"64 KiB": {AnswerBytes: 64 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			k := openForTest(t, c)
			n := testing.AllocsPerRun(200, func() {
				if err := k.call(); err != nil {
					t.Fatal(err)
				}
			})
			if n != 0 {
				t.Errorf("%v allocations for a call, want 0", n)
			}
		})
	}
}

// openForTest opens a connection to a null server of its own.
func openForTest(tb testing.TB, c Config) *conn {
	tb.Helper()
	_, c.URL = startNull(tb)
	d := newDriver(tb, c)
	tb.Cleanup(d.closeAll)
	k := d.conns[0]
	if err := k.open(context.WithoutCancel(tb.Context())); err != nil {
		tb.Fatal(err)
	}
	return k
}

// BenchmarkCall is one call of the null server in this process, both sides together; allocations are of both too.
func BenchmarkCall(b *testing.B) {
	for _, era := range []string{wire.Stateless, wire.Legacy} {
		for name, c := range map[string]Config{"json": {}, "streamed": {Streamed: 1}, "64KiB": {AnswerBytes: 64 << 10}} {
			b.Run(era+"/"+name, func(b *testing.B) {
				c.Era = era
				k := openForTest(b, c)
				b.ReportAllocs()
				for b.Loop() {
					if err := k.call(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
