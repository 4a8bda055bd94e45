package streamable

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/sidecar/background"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	strayResult  = `{"jsonrpc":"2.0","id":2,"result":{}}`
	sampling     = `{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage","params":{}}`
	unreadError  = `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no"}}`
	chunkedJSON  = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
	noLengthJSON = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
)

func data(message string) string { return "data: " + message + "\n\n" }

// statusAnswer is a JSON body with a status.
func statusAnswer(status int, body string) string {
	return strings.Replace(jsonAnswer(body), "200 OK", fmt.Sprint(status, " X"), 1)
}

func TestAnAnswerThatIsNotTheRequestsIsRefused(t *testing.T) {
	long := strings.Repeat("x", 2*readBuffer)
	for name, answer := range map[string]string{
		"another id":                     jsonAnswer(strayResult),
		"another id in chunks":           chunkedJSON + chunk(strayResult) + "0\r\n\r\n",
		"another id until close":         noLengthJSON + strayResult,
		"another id's error":             jsonAnswer(`{"jsonrpc":"2.0","id":2,"error":{"code":1,"message":"x"}}`),
		"another id's error with 400":    statusAnswer(400, `{"jsonrpc":"2.0","id":2,"error":{"code":1,"message":"x"}}`),
		"the id as a string":             jsonAnswer(`{"jsonrpc":"2.0","id":"1","result":{}}`),
		"a longer id":                    jsonAnswer(`{"jsonrpc":"2.0","id":11,"result":{}}`),
		"an id behind the result":        jsonAnswer(`{"result":{"id":1},"jsonrpc":"2.0","id":2}`),
		"no id":                          jsonAnswer(`{"jsonrpc":"2.0","result":{}}`),
		"a long one with another id":     jsonAnswer(`{"jsonrpc":"2.0","id":2,"result":"` + long + `"}`),
		"a long one in chunks":           chunkedJSON + chunk(`{"id":2,"result":"`+long+`","jsonrpc":"2.0"}`) + "0\r\n\r\n",
		"HTML":                           jsonAnswer("<html></html>"),
		"long HTML":                      jsonAnswer("<html>" + long + "</html>"),
		"half a text":                    jsonAnswer(result[:30]),
		"two texts":                      jsonAnswer(result + result),
		"two texts in chunks":            chunkedJSON + chunk(result+result) + "0\r\n\r\n",
		"white space":                    jsonAnswer("  "),
		"a batch":                        jsonAnswer("[" + result + "]"),
		"a request":                      jsonAnswer(sampling),
		"a long request":                 jsonAnswer(`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"` + long + `"}}`),
		"no body in chunks":              chunkedJSON + "0\r\n\r\n",
		"an event with another id":       sseHead + "\r\n" + data(strayResult),
		"a result with 404":              statusAnswer(404, result),
		"a result with 500":              statusAnswer(500, result),
		"a result with 599":              statusAnswer(599, result),
		"an event, then a batch of them": sseHead + "\r\n" + data(progressed) + data("["+result+"]"),
	} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t, onceEach(answer))
			s := newServer(t, p.url)
			wantKind(t, failureOf(s.Call(testContext(t), stateless(t, "1", "echo", "{}"))), upstream.BadAnswer)
			server := newServer(t, p.url)
			session := &session{server: server, current: &incarnation{server: server, version: mcp.Version20251125}}
			wantKind(t, failureOf(session.Call(testContext(t), call(t, legacyCall))), upstream.BadAnswer)
		})
	}
}

func TestAnAnswerOfTheRequestPassesAsItCame(t *testing.T) {
	long := strings.Repeat("x", 2*readBuffer)
	longResult := `{"jsonrpc":"2.0","id":1,"result":"` + long + `"}`
	idLast := `{"result":"` + long + `","jsonrpc":"2.0","id":1}`
	for _, tt := range []struct{ name, answer, want string }{
		{"200", jsonAnswer(result), result},
		{"201", statusAnswer(201, result), result},
		{"205", statusAnswer(205, result), result},
		{"206", statusAnswer(206, result), result},
		{"space around it", jsonAnswer(" " + result + "\r\n"), " " + result + "\r\n"},
		{"an error without id", jsonAnswer(unreadError), unreadError},
		{"a long one", jsonAnswer(longResult), longResult},
		{"a long one with its id last", jsonAnswer(idLast), idLast},
		{"a long one in a chunk", chunkedJSON + chunk(longResult) + "0\r\n\r\n", longResult},
		{"one that fills the buffer", jsonAnswer(longResult[:readBuffer-2] + `"}`), longResult[:readBuffer-2] + `"}`},
		{"a long one until close", noLengthJSON + longResult, longResult},
		{"two chunks", chunkedJSON + chunk(result[:30]) + chunk(result[30:]) + "0\r\n\r\n", result},
	} {
		for _, step := range []int{len(tt.answer), 7} {
			t.Run(fmt.Sprintf("%s in steps of %d", tt.name, step), func(t *testing.T) {
				p := newPeer(t, func(p *peer, c net.Conn, r *bufio.Reader) {
					p.read(r)
					for part := range slices.Chunk([]byte(tt.answer), step) {
						if _, err := c.Write(part); err != nil {
							return
						}
					}
				})
				s := newServer(t, p.url)
				a, err := s.Call(testContext(t), stateless(t, "1", "echo", "{}"))
				if got, _ := responseOf(t, a, err); got != tt.want || a.Status != 200 {
					t.Errorf("got %d %.80q, want 200 %.80q", a.Status, got, tt.want)
				}
			})
		}
	}
}

func TestAStreamHasOnlyWhatItsWireAllows(t *testing.T) {
	stream := sseHead + "\r\n" + data(strayResult) + data(progressed) + data(sampling) + data(strayResult) + data(result)
	for _, ask := range []bool{false, true} {
		s := newServer(t, newPeer(t, onceEach(stream)).url)
		a, err := s.Call(testContext(t), stateless(t, "1", "echo", "{}"))
		wantMessages(t, "stateless", a, err, ask, progressed, result)

		session := &session{server: s, current: &incarnation{server: s, version: mcp.Version20251125}}
		a, err = session.Call(testContext(t), call(t, legacyCall))
		wantMessages(t, "legacy", a, err, ask, progressed, sampling, result)
	}
}

// wantMessages reads an answer's events to their end, asking each time before whether one is ready.
func wantMessages(t *testing.T, what string, a *upstream.Answer, err error, ask bool, want ...string) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	var got []string
	for {
		if ask {
			a.Events.Ready()
		}
		e, err := a.Events.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("%s: %v after %q", what, err, got)
		}
		got = append(got, string(e.Data))
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s, asking first %v: got %q, want %q", what, ask, got, want)
	}
}

func TestAStreamIsNotReadyForWhatItDrops(t *testing.T) {
	more := make(chan struct{})
	p := newPeer(t, func(p *peer, c net.Conn, r *bufio.Reader) {
		p.read(r)
		_, _ = io.WriteString(c, sseHead+"\r\n"+data(progressed)+data(strayResult))
		<-more
		_, _ = io.WriteString(c, data(result))
	})
	s := newServer(t, p.url)
	a, err := s.Call(testContext(t), stateless(t, "1", "echo", "{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if _, err := a.Events.Next(); err != nil {
		t.Fatal(err)
	}
	if a.Events.Ready() {
		t.Error("ready with nothing but a response to another request, want not")
	}
	close(more)
	if e, err := a.Events.Next(); err != nil || string(e.Data) != result {
		t.Errorf("got %q, %v; want the response", e.Data, err)
	}
}

func TestInitializeMustBeAnsweredWithItsID(t *testing.T) {
	stray := initializeResultFor("5")
	for name, answer := range map[string]string{
		"JSON": jsonAnswer(stray), "events": sseHead + "\r\n" + data(stray),
		"an error": statusAnswer(400, `{"jsonrpc":"2.0","id":5,"error":{"code":-32600,"message":"no"}}`),
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, newPeer(t, onceEach(answer)).url)
			session, _, err := s.Open(testContext(t), call(t, initialize))
			if session != nil {
				t.Error("a session was opened")
			}
			wantKind(t, err, upstream.BadAnswer)
		})
	}
	s := newServer(t, newPeer(t, onceEach(sseHead+"\r\n"+data(stray)+data(initializeResult))).url)
	_, a, err := s.Open(testContext(t), call(t, initialize))
	if got, _ := responseOf(t, a, err); got != initializeResult {
		t.Errorf("behind a stray one: got %s, want %s", got, initializeResult)
	}
}

func TestAnEventAboveTheLimitIsRefusedAndNotHeld(t *testing.T) {
	p := newPeer(t, func(p *peer, c net.Conn, r *bufio.Reader) {
		p.read(r)
		_, err := io.WriteString(c, sseHead+"\r\ndata: ")
		for part := strings.Repeat("x", 1<<20); err == nil; { // until the sidecar closes
			_, err = io.WriteString(c, part)
		}
	})
	s := newServer(t, p.url)
	wantKind(t, failureOf(s.Call(testContext(t), stateless(t, "1", "echo", "{}"))), upstream.Overloaded)
}

func TestCheckingABodyDoesNotAllocate(t *testing.T) {
	id := []byte("1")
	for _, body := range []string{result, `{"jsonrpc":"2.0","id":1,"result":"` + strings.Repeat("x", 2*readBuffer)} {
		cl := &client{tasks: background.New()}
		c := newConn(&cl.pool, wire{strings.NewReader("")}, nil, false)
		c.in = []byte(body)[:min(len(body), readBuffer)]
		c.w = len(c.in)
		x := &exchange{client: cl, conn: c, left: int64(len(body))}
		n := testing.AllocsPerRun(100, func() {
			if fault, err := x.checkBody(id); fault != "" || err != nil {
				t.Fatalf("%.40s: %s, %v", body, fault, err)
			}
		})
		if n != 0 {
			t.Errorf("%.40s: %v allocations, want 0", body, n)
		}
	}
}
