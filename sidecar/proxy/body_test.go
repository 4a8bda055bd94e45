package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
)

// raw is a connection on which a test says what it likes.
type raw struct {
	t testing.TB
	net.Conn
	r *bufio.Reader
}

func (r *rig) dialRaw() *raw {
	r.t.Helper()
	c, err := net.Dial("tcp", r.addr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return &raw{r.t, c, bufio.NewReader(c)}
}

func (c *raw) say(format string, args ...any) {
	c.t.Helper()
	if _, err := fmt.Fprintf(c, strings.ReplaceAll(format, "\n", "\r\n"), args...); err != nil {
		c.t.Fatal(err)
	}
}

func (c *raw) answer() reply {
	c.t.Helper()
	res, err := http.ReadResponse(c.r, nil)
	if err != nil {
		c.t.Fatalf("no answer: %v", err)
	}
	b, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return reply{res.StatusCode, res.Header, string(b)}
}

// ends waits for the other side to close.
func (c *raw) ends() {
	c.t.Helper()
	if n, err := io.Copy(io.Discard, c.r); err != nil && strings.Contains(err.Error(), "timeout") {
		c.t.Errorf("still open after %v and %d bytes more", patience, n)
	}
}

const rawHead = "POST /mcp HTTP/1.1\nHost: localhost\nContent-Type: application/json\n"

func limits(l *outriggerv1.Limits) func(*bindingSpec) { return func(b *bindingSpec) { b.Limits = l } }

func TestABodyIsRefusedByItsLength(t *testing.T) {
	r := newRig(t, &fake{}, limits(&outriggerv1.Limits{MaxBodyBytes: 1000}))
	fits := modernCall("1", "echo", `{"t":"`+strings.Repeat("x", 1000-len(modernCall("1", "echo", `{"t":""}`)))+`"}`)
	if p := r.do("POST", modern("tools/call", "echo"), fits); p.status != 200 {
		t.Errorf("%d bytes: %d %s, want 200", len(fits), p.status, p.body)
	}
	m := r.do("POST", modern("tools/call", "echo"), fits+" ").wantError(t, 413, -32600, "")
	if string(m.Error.Data) != `{"maxBodyBytes":1000}` {
		t.Errorf("data %s, want the bound", m.Error.Data)
	}
	t.Run("chunked", func(t *testing.T) {
		c := r.dialRaw()
		c.say(rawHead + "Transfer-Encoding: chunked\n\n")
		for range 11 {
			c.say("64\n%s\n", strings.Repeat(" ", 100))
		}
		c.say("0\n\n")
		c.answer().wantError(t, 413, -32600, "")
		c.ends()
	})
	t.Run("by its claim alone", func(t *testing.T) {
		c := r.dialRaw()
		c.say(rawHead + "Content-Length: 999999999999\n\n")
		c.answer().wantError(t, 413, -32600, "")
		c.ends()
	})
	t.Run("before it is asked for", func(t *testing.T) {
		c := r.dialRaw()
		c.say(rawHead + "Expect: 100-continue\nContent-Length: 1001\n\n")
		c.answer().wantError(t, 413, -32600, "")
		c.ends()
	})
}

func TestABodyMayBeAskedForAndMayBeChunked(t *testing.T) {
	r := newRig(t, &fake{})
	h := fmt.Sprintf("%s: 2026-07-28\n%s: tools/call\n%s: echo\n", mcp.HeaderVersion, mcp.HeaderMethod, mcp.HeaderName)
	body := modernCall("1", "echo", "{}")
	c := r.dialRaw()
	c.say(rawHead+h+"Expect: 100-continue\nContent-Length: %d\n\n", len(body))
	if p := c.answer(); p.status != 100 {
		t.Fatalf("first answer %d %s, want 100", p.status, p.body)
	}
	c.say("%s", body)
	if p := c.answer(); p.status != 200 {
		t.Errorf("%d %s, want 200", p.status, p.body)
	}
	c.say(rawHead+h+"Transfer-Encoding: chunked\n\n1\n{\n%x\n%s\n0\n\n", len(body)-1, body[1:])
	if p := c.answer(); p.status != 200 {
		t.Errorf("chunked: %d %s, want 200", p.status, p.body)
	}
}

func TestABodyThatIsTooDeepIsRefused(t *testing.T) {
	r := newRig(t, &fake{}, limits(&outriggerv1.Limits{MaxDepth: 10}))
	deep := func(n int) string { return `{"a":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}` }
	if p := r.callModern("1", "echo", deep(6)); p.status != 200 {
		t.Errorf("%d %s, want 200", p.status, p.body)
	}
	if p := r.callModern("1", "echo", deep(20)); p.status != 400 || p.rpc(t).Error.Code != -32600 {
		t.Errorf("%d %s, want 400 and -32600", p.status, p.body)
	}
	if p := r.do("POST", modern("tools/call", "echo"), strings.Repeat("[", 1<<20)); p.status != 400 {
		t.Errorf("%d %s, want 400", p.status, p.body)
	}
}

func TestASlowBodyIsGivenUpAndItsConnectionToo(t *testing.T) {
	r := newRig(t, &fake{}, limits(&outriggerv1.Limits{ReadTimeout: durationpb.New(100 * time.Millisecond)}))
	begun := time.Now()
	c := r.dialRaw()
	c.say(rawHead + "Content-Length: 100\n\n{")
	c.answer().wantError(t, 408, -32600, "")
	c.ends()
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("it took %v, want about 100ms", took)
	}
	t.Run("bytes that trickle do not help", func(t *testing.T) {
		c := r.dialRaw()
		c.say(rawHead + "Transfer-Encoding: chunked\n\n")
		go func() {
			for {
				if _, err := c.Write([]byte("1\r\n \r\n")); err != nil {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		}()
		c.answer().wantError(t, 408, -32600, "")
		c.ends()
	})
}

// A request is also refused before its body is read. The server then reads on, and must not wait for ever.
func TestARefusedRequestsBodyIsNotWaitedForLong(t *testing.T) {
	r := newRig(t, &fake{})
	for name, head := range map[string]string{
		"no binding":     "POST /nowhere HTTP/1.1\nHost: localhost\n",
		"foreign host":   "POST /mcp HTTP/1.1\nHost: evil.example\n",
		"foreign origin": "POST /mcp HTTP/1.1\nHost: localhost\nOrigin: http://evil.example\n",
		"wrong type":     "POST /mcp HTTP/1.1\nHost: localhost\nContent-Type: text/html\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := r.dialRaw()
			c.say(head + "Content-Length: 10000\n\n")
			if p := c.answer(); p.status < 400 {
				t.Errorf("%d %s", p.status, p.body)
			}
			c.ends()
		})
	}
}

func TestABodyOnAVerbWithoutOneIsReadAway(t *testing.T) {
	r := newRig(t, &fake{}, limits(&outriggerv1.Limits{MaxBodyBytes: 1000, ReadTimeout: durationpb.New(100 * time.Millisecond)}))
	s := r.initialize()
	if p := r.do("DELETE", s, "{}"); p.status != 204 {
		t.Errorf("DELETE with a body: %d %s, want 204", p.status, p.body)
	}
	c := r.dialRaw()
	c.say("DELETE /mcp HTTP/1.1\nHost: localhost\nMcp-Session-Id: x\nContent-Length: 50\n\n")
	c.answer().wantError(t, 408, -32600, "")
	c.ends()
	r.do("PUT", nil, strings.Repeat("x", 2000)).wantError(t, 413, -32600, "")
}

func TestOneClientsBadBodyDoesNotEndASharedConnection(t *testing.T) {
	r := newRig(t, &fake{}, limits(&outriggerv1.Limits{MaxBodyBytes: 100}))
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	r.client.CloseIdleConnections()
	noted := &noteConnections{Transport: &http.Transport{Protocols: protocols}, used: map[string]bool{}}
	r.client = &http.Client{Transport: noted}
	for range 3 {
		r.do("POST", nil, strings.Repeat("x", 200)).wantError(t, 413, -32600, "")
	}
	if len(noted.used) != 1 {
		t.Errorf("3 requests went over %d connections, want one", len(noted.used))
	}
}

// noteConnections notes by their addresses here which connections carried requests. A Transport may open one more that
// it does not use, when the one there is was not free at that moment.
type noteConnections struct {
	*http.Transport
	used map[string]bool
}

func (n *noteConnections) RoundTrip(r *http.Request) (*http.Response, error) {
	trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { n.used[i.Conn.LocalAddr().String()] = true }}
	return n.Transport.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
}

func TestAHeadThatIsTooLargeIsRefused(t *testing.T) {
	r := newRig(t, &fake{})
	c := r.dialRaw()
	c.say(rawHead+"X: %s\n\n", strings.Repeat("x", 80<<10))
	if p := c.answer(); p.status != 431 {
		t.Errorf("%d %s, want 431", p.status, p.body)
	}
}

// deadlines counts the read deadlines that a handler sets.
type deadlines struct {
	*httptest.ResponseRecorder
	set int
}

func (d *deadlines) SetReadDeadline(time.Time) error { d.set++; return nil }

// arriving is a body of which some is in memory.
type arriving struct {
	io.ReadCloser
	buffered int
}

func (a arriving) Buffered() int { return a.buffered }

func TestABodyThatHasArrivedNeedsNoDeadline(t *testing.T) {
	r := newRig(t, &fake{})
	body := modernCall("1", "echo", "{}")
	for missing, want := range []int{0, 2} {
		req := r.request(testContext(t), "POST", modern("tools/call", "echo"), body)
		req.Body = arriving{req.Body, len(body) - missing}
		w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		r.ServeHTTP(w, req)
		if w.Code != 200 || w.set != want {
			t.Errorf("with %d bytes missing: %d, and %d deadlines set; want 200 and %d", missing, w.Code, w.set, want)
		}
	}
}

// TestAListenHoldsItsBodyAlone: a subscription lasts, so what it holds is as long as what was sent, and its message says
// what any other's would.
func TestAListenHoldsItsBodyAlone(t *testing.T) {
	s := newStub(t, mcp.Stateless, 1, 0)
	body := modernCall("7", mcp.MethodListen, `{}`)
	body = strings.Replace(body, "tools/call", mcp.MethodListen, 1)
	x := &exchange{ep: s.proxy.table.Load().endpoints["/mcp"], r: httptest.NewRequest("POST", "/mcp", strings.NewReader(body))}
	if err := x.read(); err != nil {
		t.Fatal(err)
	}
	if x.pooled != nil || cap(x.body) > 2*len(body) {
		t.Errorf("a body of %d bytes takes %d of the pool's %v", len(body), cap(x.body), x.pooled != nil)
	}
	if id := string(x.msg.ID.Of(x.msg.Raw)); string(x.body) != body || string(x.msg.Raw) != body || x.msg.Method != mcp.MethodListen || id != "7" {
		t.Errorf("got the message %q of %s with id %s, want %q", x.msg.Raw, x.msg.Method, id, body)
	}
}
