package proxy

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// What two readers could read differently is refused, whatever the rest says.
func TestKeysThatTwoReadersReadDifferentlyAreRefused(t *testing.T) {
	reached := 0
	f := &fake{}
	f.call = func(_ ctx, c *upstream.Call) (*upstream.Answer, error) { reached++; return answerTo(c), nil }
	r := newRig(t, f)
	h := r.initialize()
	reached = 0
	for _, body := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call","params":{"name":"echo"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"ping","Method":"tools/call"}`,
		`{"jsonrpc":"2.0","id":1,"method":"ping","\u006dethod":"tools/call"}`,
		`{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}`,
		`{"jsonrpc":"2.0","id":1,"ID":2,"method":"ping"}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","name":"b"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","Name":"b"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"},"params":{"name":"b"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a"},"PARAMS":{"name":"b"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"ping"}{"jsonrpc":"2.0","id":2,"method":"ping"}`,
		`{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}`,
		`{"jsonrpc":"1.0","id":1,"method":"ping"}`,
		`{"id":1,"method":"ping"}`,
		"\ufeff" + `{"jsonrpc":"2.0","id":1,"method":"ping"}`,
		"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"pi\xffng\"}",
		`{"jsonrpc":"2.0","id":` + strings.Repeat("9", 100_000) + `,"method":7}`,
		`{"jsonrpc":"2.0","id":{"a":1},"method":"ping"}`,
		`{"jsonrpc":"2.0","id":[1],"method":"ping"}`,
		`{"jsonrpc":"2.0","id":true,"method":"ping"}`,
	} {
		p := r.do("POST", h, body)
		if p.status != 400 || p.rpc(t).Error == nil || !json.Valid([]byte(p.body)) {
			t.Errorf("%.120s: %d %.200s; want 400 and an error", body, p.status, p.body)
		}
	}
	if reached > 0 {
		t.Errorf("%d of them reached the server", reached)
	}
}

func TestLongIdsComeBackAsTheyWere(t *testing.T) {
	r := newRig(t, &fake{})
	h := r.initialize()
	for _, id := range []string{`"` + strings.Repeat("x", 1000) + `"`, strings.Repeat("9", 300), `"\u0000\"\\"`, `""`, `"\ud800"`, "0", "-0"} {
		p := r.do("POST", h, toolCall(id, "echo", "{}"))
		if p.status == 200 && !strings.Contains(p.body, `"id":`+id) {
			t.Errorf("id %.50s came back in %.100s", id, p.body)
		}
		if p.status != 200 && p.status != 400 {
			t.Errorf("id %.50s: %d %.100s", id, p.status, p.body)
		}
	}
}

func TestHeadersCannotBreakIntoTheServersRequestOrTheLog(t *testing.T) {
	var seen []http.Header
	var mu sync.Mutex
	up := faulty(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen = append(seen, r.Header.Clone())
		mu.Unlock()
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	})
	up.Era = outriggerv1.Era_ERA_STATELESS
	r := newRig(t, up)
	name := "a\r\nX-Evil: 1\r\n\r\nGET /admin HTTP/1.1\n"
	body := modernCall("1", "?", "{}")
	quoted, _ := json.Marshal(name)
	body = strings.Replace(body, `"?"`, string(quoted), 1)
	h := modern("tools/call", mcp.EncodeHeaderValue(name), "X-Forwarded-For", "1.2.3.4", "Authorization", "Bearer c", "Cookie", "c", "Mcp-Session-Id", "s", "Connection", "Mcp-Method")
	r.do("POST", h, body)
	r.stop()
	mu.Lock()
	defer mu.Unlock()
	if len(seen) != 1 {
		t.Fatalf("%d requests reached the server, want one", len(seen))
	}
	for _, bad := range []string{"X-Evil", "X-Forwarded-For", "Authorization", "Cookie", "Mcp-Session-Id"} {
		if v, ok := seen[0][bad]; ok {
			t.Errorf("%s: %q reached the server", bad, v)
		}
	}
	lines := strings.Split(strings.TrimSpace(r.access.String()), "\n")
	for _, line := range lines {
		if !json.Valid([]byte(line)) {
			t.Errorf("an access line that is not JSON: %q", line)
		}
	}
	if len(lines) != 1 {
		t.Errorf("%d access lines, want one: %q", len(lines), lines)
	}
}

// net/http holds these; a change of server must too.
func TestSmuggledRequestsAreRefused(t *testing.T) {
	r := newRig(t, &fake{})
	inner := "POST /mcp HTTP/1.1\nHost: evil.example\n\n"
	for name, text := range map[string]string{
		"two lengths":           "Content-Length: 5\nContent-Length: 6\n\nabcdef",
		"length with a sign":    "Content-Length: +5\n\nabcde",
		"length that is no one": "Content-Length: 5, 6\n\nabcdef",
		"unknown coding":        "Transfer-Encoding: xchunked\n\n" + inner,
		"two codings":           "Transfer-Encoding: gzip, chunked\n\n0\n\n",
		"a space before colon":  "Content-Length : 5\n\nabcde",
		"a folded header":       "X: a\n b\nContent-Length: 0\n\n",
		"bad chunk size":        "Transfer-Encoding: chunked\n\nzz\nabc\n0\n\n",
		"a NUL in a header":     "X: a\x00b\nContent-Length: 0\n\n",
		"two hosts":             "Host: localhost\nContent-Length: 0\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			c := r.dialRaw()
			c.say("%s", rawHead+text)
			if p := c.answer(); p.status < 400 {
				t.Errorf("%d %s, want a refusal", p.status, p.body)
			}
		})
	}
	t.Run("both a length and chunks", func(t *testing.T) { // RFC 9112, 6.3: chunks win
		c := r.dialRaw()
		c.say("%s", rawHead+"Content-Length: 3\nTransfer-Encoding: chunked\n\n2\n{}\n0\n\n"+inner)
		p := c.answer()
		rest, _ := io.ReadAll(c.r)
		if p.status < 400 || len(rest) > 0 {
			t.Errorf("%d, then %q; want a refusal and no answer to what was inside", p.status, rest)
		}
	})
}

// An event id is no key: it opens nothing without the session it belongs to, and nothing else within it.
func TestEventIdsOpenNothingOfOthers(t *testing.T) {
	f := &fake{}
	calls := streaming(f)
	r := newRig(t, f)
	mine, theirs := r.initialize(), r.initialize()
	s := r.open("POST", theirs, toolCall("1", "echo", "{}"))
	id := s.event().id
	e := <-calls
	e.feed <- response("1", "private")
	close(e.feed)
	s.end()
	for _, guess := range []string{id, "1_0", "1_1", "0_0", "2_0", "-1_0", "1_18446744073709551615", "1_9223372036854775807", "18446744073709551616_0", "1_", "_1", "1_0_0", strings.Repeat("9", 1000)} {
		p := r.do("GET", mine.with("Last-Event-ID", guess), "")
		if p.status != 400 || strings.Contains(p.body, "private") {
			t.Errorf("%.30s: %d %s, want 400", guess, p.status, p.body)
		}
	}
	for _, h := range []head{{"Last-Event-ID": id}, {"Last-Event-ID": id, mcp.HeaderSessionID: "guess"}} {
		if p := r.do("GET", h, ""); p.status != 405 && p.status != 404 {
			t.Errorf("without the session: %d %s", p.status, p.body)
		}
	}
	for _, guess := range []string{"1_18446744073709551615", "1_9223372036854775807", "1_2"} {
		if p := r.do("GET", theirs.with("Last-Event-ID", guess), ""); p.status != 400 {
			t.Errorf("%s, an event not sent yet: %d %s, want 400", guess, p.status, p.body)
		}
	}
}

func TestManyConnectionsAndStreamsEndWithTheirClients(t *testing.T) {
	f := &fake{}
	calls := make(chan *events, 1000)
	f.call = func(ctx ctx, c *upstream.Call) (*upstream.Answer, error) {
		e := newEvents(ctx)
		calls <- e
		return e.answer(), nil
	}
	r := newRig(t, f)
	var all []*stream
	for i := range 200 {
		all = append(all, r.open("POST", modern("tools/call", "echo"), modernCall(fmt.Sprint(i), "echo", "{}")))
	}
	if n := r.metric("outrigger_open_streams", "era", "stateless"); n != 200 {
		t.Errorf("%v streams are shown, want 200", n)
	}
	for _, s := range all {
		s.leave()
	}
	eventually(t, "every stream has ended", func() bool { return r.metric("outrigger_open_streams") == 0 })
	eventually(t, "200 calls are counted as cancelled", func() bool { // which each is after its stream
		return r.metric("outrigger_call_duration_seconds", "outcome", "cancelled") == 200
	})
}

// Strangers' words make no series.
func TestMetricsHaveNoLabelOfAStrangersMaking(t *testing.T) {
	r := newRig(t, &fake{})
	for i := range 20 {
		method := fmt.Sprint("made/up", i)
		r.do("POST", modern(method, ""), fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s}}`, method, meta))
		r.do(fmt.Sprint("VERB", i), nil, "")
	}
	families, err := r.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if strings.Contains(l.GetValue(), "made") || strings.Contains(l.GetValue(), "VERB") {
					t.Errorf("%s has %s=%q", f.GetName(), l.GetName(), l.GetValue())
				}
			}
		}
	}
}
