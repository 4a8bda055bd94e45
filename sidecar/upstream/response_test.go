package upstream_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
	"github.com/outrigger-mesh/outrigger/sidecar/bridge/tolegacy"
	"github.com/outrigger-mesh/outrigger/sidecar/bridge/tostateless"
	"github.com/outrigger-mesh/outrigger/sidecar/budget"
	"github.com/outrigger-mesh/outrigger/sidecar/federate"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/seal"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream/streamable"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is far more than anything here takes, and less than any time that the sidecar gives a request: what ends in
// time did not end because its time was over.
const patience = time.Minute

// endless is a number of notifications that no bound lets through.
const endless = -1

// talker is a server whose answers to one method come in an event stream behind notifications.
type talker struct {
	era     mcp.Era
	method  string
	before  int    // how many notifications
	message string // one of them
}

// results are what a talker answers with.
var results = map[string]string{
	mcp.MethodInitialize: `{"protocolVersion":"` + mcp.NewestLegacy + `","capabilities":{"tools":{},"logging":{}},"serverInfo":{"name":"t","version":"1"}}`,
	mcp.MethodDiscover: `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"ttlMs":0,"cacheScope":"private",` +
		`"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"t","version":"1"}}}`,
	mcp.MethodToolsList: `{"resultType":"complete","tools":[{"name":"a","inputSchema":{"type":"object"}}],"ttlMs":0,"cacheScope":"private"}`,
	mcp.MethodToolsCall: `{"resultType":"complete","content":[{"type":"text","text":"done"}]}`,
	mcp.MethodSetLevel:  `{}`,
}

func (s *talker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m struct {
		ID     json.RawMessage
		Method string
	}
	if r.Method != http.MethodPost || json.NewDecoder(r.Body).Decode(&m) != nil {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	answer := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, results[m.Method])
	switch {
	case m.ID == nil:
		w.WriteHeader(http.StatusAccepted)
	case results[m.Method] == "":
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}`, m.ID)
	case m.Method != s.method:
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, answer)
	default:
		w.Header().Set("Content-Type", "text/event-stream")
		s.talk(w)
		fmt.Fprintf(w, "data: %s\n\n", answer)
	}
}

// talk sends the notifications, in pieces, until all are sent or nobody listens.
func (s *talker) talk(w http.ResponseWriter) {
	const piece = 100
	many := strings.Repeat("data: "+s.message+"\n\n", piece)
	for sent := 0; s.before == endless || sent < s.before; sent += piece {
		if _, err := io.WriteString(w, many); err != nil {
			return
		}
		if http.NewResponseController(w).Flush() != nil {
			return
		}
	}
}

// spec is the Upstream for a URL, with more time than a test has.
func spec(url string) *outriggerv1.Upstream {
	long := durationpb.New(10 * patience)
	return resource.WithDefaults(&outriggerv1.Upstream{
		Name: "talker", Transport: &outriggerv1.Upstream_Http{Http: &outriggerv1.HTTPTransport{Url: url}},
		Timeouts: &outriggerv1.Timeouts{Connect: long, Handshake: long, Call: long},
	})
}

// serve starts a talker and makes the transport to it. Both end with the test.
func serve(t *testing.T, s *talker) (upstream.Server, *outriggerv1.Upstream) {
	t.Helper()
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	u := spec(web.URL)
	if u.Era = outriggerv1.Era_ERA_LEGACY; s.era == mcp.Stateless {
		u.Era = outriggerv1.Era_ERA_STATELESS
	}
	plain, err := streamable.New(u.GetName(), u, streamable.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return plain, u
}

// closing closes a server with the test, and holds it to have given back what it took of the budget.
func closing(t *testing.T, s upstream.Server, b *budget.Budget) upstream.Server {
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), patience)
		defer stop()
		if err := s.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
		if n := b.Used(); n != 0 {
			t.Errorf("%d bytes are still taken", n)
		}
	})
	return s
}

func call(t *testing.T, raw string) *upstream.Call {
	t.Helper()
	m, err := mcp.Scan([]byte(raw), mcp.Limits{})
	if err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return &upstream.Call{Message: &m, Header: http.Header{}}
}

// stateless is a request of a stateless client.
func stateless(t *testing.T, method, params string) *upstream.Call {
	return call(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s"_meta":{`+
		`"io.modelcontextprotocol/logLevel":"info","io.modelcontextprotocol/protocolVersion":"2026-07-28",`+
		`"io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`, method, params))
}

// text is what an answer's response says, or what went wrong.
func text(a *upstream.Answer, err error) string {
	if err == nil {
		var m mcp.Message
		if m, _, err = upstream.ReadResponse("talker", a, nil, 1<<20); err == nil {
			return string(m.Raw)
		}
	}
	var known *upstream.Error
	if !errors.As(err, &known) {
		return "not an *Error: " + err.Error()
	}
	return known.Kind.Reason()
}

// usage is what a client does through a layer of the sidecar that makes a request of its own for it.
type usage struct {
	name    string
	era     mcp.Era // of the server
	method  string  // of the sidecar's own request
	through func(t *testing.T, inner upstream.Server, u *outriggerv1.Upstream) string
	want    string // when the server never comes to its response
}

func toLegacy(method, params string) func(*testing.T, upstream.Server, *outriggerv1.Upstream) string {
	return func(t *testing.T, inner upstream.Server, u *outriggerv1.Upstream) string {
		b := budget.New(1 << 20)
		s := closing(t, tolegacy.New(inner, tolegacy.Options{Upstream: u, Budget: b}), b)
		return text(s.Call(t.Context(), stateless(t, method, params)))
	}
}

func toStateless(t *testing.T, inner upstream.Server, u *outriggerv1.Upstream) string {
	b := budget.New(1 << 20)
	s := closing(t, tostateless.New(inner, tostateless.Options{Upstream: u.GetName(), Handshake: 10 * patience, Budget: b}), b)
	session, a, err := s.Open(t.Context(), call(t, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"`+mcp.NewestLegacy+
		`","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`))
	if session != nil {
		defer session.Close(t.Context())
	}
	return text(a, err)
}

func federated(t *testing.T, inner upstream.Server, u *outriggerv1.Upstream) string {
	b := budget.New(1 << 20)
	s := closing(t, federate.New([]federate.Member{{Name: u.GetName(), Prefix: u.GetName(), Server: inner}}, federate.Options{
		Binding: resource.WithDefaults(&outriggerv1.Binding{
			Name: "b", Upstreams: []*outriggerv1.UpstreamReference{{Name: u.GetName()}}, Lists: &outriggerv1.Lists{Timeout: durationpb.New(10 * patience)},
		}),
		Log: slog.New(slog.DiscardHandler), Sealer: seal.New(), Name: "outrigger", Version: "1", Answers: b,
	}), b)
	return text(s.Call(t.Context(), stateless(t, mcp.MethodToolsList, "")))
}

// Each place where the sidecar reads a response for itself: nobody is told of what comes before it.
func TestAServerThatOnlyTalksHoldsNoRequestOfTheSidecarsOwn(t *testing.T) {
	const short = `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"loading"}}`
	long := strings.Replace(short, "loading", strings.Repeat("x", 1<<20), 1)
	uses := []usage{
		{"initialize of tolegacy", mcp.Legacy, mcp.MethodInitialize, toLegacy(mcp.MethodToolsList, ""), upstream.BadAnswer.Reason()},
		{"logging/setLevel of tolegacy", mcp.Legacy, mcp.MethodSetLevel, toLegacy(mcp.MethodToolsCall, `"name":"a","arguments":{},`), `"done"`},
		{"server/discover of tostateless", mcp.Stateless, mcp.MethodDiscover, toStateless, upstream.BadAnswer.Reason()},
		{"tools/list of federate", mcp.Stateless, mcp.MethodToolsList, federated, upstream.BadAnswer.Reason()},
	}
	for _, use := range uses {
		for _, row := range []struct {
			name, message string
			before        int
			want          string
		}{
			{"thousands before it", short, 9_000, `"result"`},
			{"without end", short, endless, use.want},
			{"long ones without end", long, endless, use.want},
		} {
			t.Run(use.name+"/"+row.name, func(t *testing.T) {
				inner, u := serve(t, &talker{use.era, use.method, row.before, row.message})
				if got := use.through(t, inner, u); !strings.Contains(got, row.want) {
					t.Errorf("got %s, want %s", got, row.want)
				}
			})
		}
	}
}

// chatter is a stream that says one thing for ever.
type chatter struct {
	upstream.EventStream
	message []byte
	said    int
}

func (c *chatter) Next() (mcp.Event, error) {
	c.said++
	return mcp.Event{Data: c.message}, nil
}

func TestMessagesBeforeAResponseAreBoundedInNumberAndInBytes(t *testing.T) {
	for size, most := range map[int]int{50: 10_001, 1 << 20: 17} {
		c := &chatter{message: fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"m","params":{"a":"%s"}}`, strings.Repeat("x", size))}
		_, err := upstream.NextResponse("talker", c)
		var known *upstream.Error
		if !errors.As(err, &known) || known.Kind != upstream.BadAnswer || c.said > most {
			t.Errorf("messages of %d bytes: %v after %d of them, want upstream_bad_answer after at most %d", size, err, c.said, most)
		}
	}
}
