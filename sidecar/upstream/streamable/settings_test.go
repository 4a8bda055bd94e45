package streamable

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream/settings"
)

func subscription(method, uri string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":"outrigger-again-1","method":"resources/%s","params":{"uri":%q,"_meta":{"x":1}}}`, method, uri)
}

func logLevel(level string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":9,"method":"logging/setLevel","params":{"level":%q}}`, level)
}

// granter answers settings with a result, or with an error those whose bodies contain refuse; in events if asked to.
func granter(inEvents bool, refuse string) func(http.ResponseWriter, *http.Request, *mcp.Message) {
	return func(w http.ResponseWriter, r *http.Request, m *mcp.Message) {
		outcome := `"result":{}`
		if refuse != "" && strings.Contains(string(m.Raw), refuse) {
			outcome = `"error":{"code":-32002,"message":"no"}`
		}
		response := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,%s}`, m.ID.Of(m.Raw), outcome)
		switch {
		case m.Kind != mcp.Request:
			w.WriteHeader(http.StatusAccepted)
		case inEvents:
			sse(w)("data: " + progressed + "\n\ndata: " + response + "\n\n")
		default:
			writeJSON(w, 200, response)
		}
	}
}

// settingsOf are the params that a session was set with, sorted.
func (l *legacyServer) settingsOf(session string) (params []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.requests {
		m, _ := mcp.Scan([]byte(r.body), mcp.Limits{}) // GET and DELETE have none
		if settings.Is(&m) && r.header.Get("Mcp-Session-Id") == session {
			params = append(params, string(m.Params.Of(m.Raw)))
		}
	}
	slices.Sort(params)
	return params
}

func TestASessionOpenedAgainHasItsSubscriptionsAndLogLevel(t *testing.T) {
	for _, inEvents := range []bool{false, true} {
		l := newLegacyServer(t, func(l *legacyServer) { l.answer = granter(inEvents, "file:///secret") })
		session := open(t, newServer(t, l.url), initialize)
		for _, message := range []string{
			logLevel("debug"), logLevel("warning"),
			subscription("subscribe", "file:///a"), subscription("subscribe", "file:///b"), subscription("subscribe", "file:///c"),
			subscription("subscribe", "file:///secret"), subscription("subscribe", "file:///c"),
			subscription("unsubscribe", "file:///b"), subscription("unsubscribe", "file:///never"),
		} {
			a, err := session.Call(testContext(t), call(t, message))
			got, _ := responseOf(t, a, err)
			if c := call(t, message); !strings.Contains(got, `"id":`+string(c.Message.ID.Of(c.Message.Raw))) {
				t.Errorf("%s: answer %s, want one with its own id", message, got)
			}
		}
		for n := 2; n <= 3; n++ { // what was restored is kept for the next time
			l.forget()
			a, err := session.Call(testContext(t), call(t, legacyCall))
			if got, _ := responseOf(t, a, err); got != result {
				t.Errorf("answer %s, want the call's own", got)
			}
			want := []string{`{"level":"warning"}`, `{"uri":"file:///a","_meta":{"x":1}}`, `{"uri":"file:///c","_meta":{"x":1}}`}
			id := fmt.Sprintf("session-%d", n)
			if got := l.settingsOf(id); !slices.Equal(got, want) {
				t.Errorf("in events %v: %s was set with %q, want %q", inEvents, id, got, want)
			}
			if log := l.log(); log[len(log)-1] != "POST tools/call "+id {
				t.Errorf("the server saw %q, want the call after everything was restored", log)
			}
		}
	}
}

func TestASessionWhoseSettingsAreNotGrantedAgainIsGone(t *testing.T) {
	tests := map[string]func(w http.ResponseWriter, r *http.Request, m *mcp.Message){
		"an error":     granter(false, "outrigger-again"),
		"a status":     func(w http.ResponseWriter, _ *http.Request, _ *mcp.Message) { w.WriteHeader(500) },
		"no response":  func(w http.ResponseWriter, _ *http.Request, _ *mcp.Message) { w.WriteHeader(202) },
		"another call": func(w http.ResponseWriter, _ *http.Request, _ *mcp.Message) { writeJSON(w, 200, legacyCall) },
	}
	for name, second := range tests {
		t.Run(name, func(t *testing.T) {
			l := newLegacyServer(t, func(l *legacyServer) {
				l.answer = func(w http.ResponseWriter, r *http.Request, m *mcp.Message) {
					if r.Header.Get("Mcp-Session-Id") == "session-1" || !settings.Is(m) {
						granter(false, "")(w, r, m)
					} else {
						second(w, r, m)
					}
				}
			})
			session := open(t, newServer(t, l.url), initialize)
			a, err := session.Call(testContext(t), call(t, logLevel("debug")))
			responseOf(t, a, err)
			l.forget()
			_, err = session.Call(testContext(t), call(t, legacyCall))
			wantKind(t, err, upstream.SessionGone)
			if r := l.wait(t, http.MethodDelete, "", 1); r.header.Get("Mcp-Session-Id") != "session-2" {
				t.Errorf("the end of session %q, want that of session-2, which nobody uses", r.header.Get("Mcp-Session-Id"))
			}
			if n := l.count("POST tools/call session-2"); n != 0 {
				t.Errorf("the call was sent %d times to a session that is not the client's", n)
			}
		})
	}
}

func TestASessionWithMoreSettingsThanAreKeptIsGone(t *testing.T) {
	l := newLegacyServer(t)
	session := open(t, newServer(t, l.url), initialize)
	a, err := session.Call(testContext(t), call(t, logLevel(strings.Repeat("u", settings.MaxParams))))
	responseOf(t, a, err)
	l.forget()
	_, err = session.Call(testContext(t), call(t, legacyCall))
	wantKind(t, err, upstream.SessionGone)
}

// subscribable is a real server that tells the channel of every subscription. Its sessions end with the test.
func subscribable(t *testing.T, subscribed chan<- string) http.Handler {
	server := sdk.NewServer(&sdk.Implementation{Name: "real", Version: "1"}, &sdk.ServerOptions{
		SubscribeHandler: func(_ context.Context, r *sdk.SubscribeRequest) error {
			subscribed <- r.Params.URI
			return nil
		},
		UnsubscribeHandler: func(context.Context, *sdk.UnsubscribeRequest) error { return nil },
	})
	server.AddResource(&sdk.Resource{Name: "a", URI: "file:///a"}, func(
		context.Context, *sdk.ReadResourceRequest,
	) (*sdk.ReadResourceResult, error) {
		return nil, nil
	})
	t.Cleanup(func() {
		for session := range server.Sessions() {
			session.Close()
		}
	})
	return sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, nil)
}

func TestARealServerThatCameBackIsSubscribedToAgain(t *testing.T) {
	subscribed := make(chan string, 10)
	var now atomic.Value // of http.Handler: the server as it is at present
	now.Store(subscribable(t, subscribed))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		now.Load().(http.Handler).ServeHTTP(w, r)
	}))
	defer srv.Close()
	session := open(t, newServer(t, srv.URL), initialize)
	for _, message := range []string{subscription("subscribe", "file:///a"), logLevel("error")} {
		a, err := session.Call(testContext(t), call(t, message))
		if got, _ := responseOf(t, a, err); !strings.Contains(got, `"result":{}`) {
			t.Fatalf("%s: answer %s, want it granted", message, got)
		}
	}
	now.Store(subscribable(t, subscribed))
	a, err := session.Call(testContext(t), call(t, `{"jsonrpc":"2.0","id":1,"method":"resources/list"}`))
	if got, _ := responseOf(t, a, err); !strings.Contains(got, "file:///a") {
		t.Errorf("answer %s, want the list", got)
	}
	if n := len(subscribed); n != 2 {
		t.Errorf("%d subscriptions, want the client's and that of its session opened again", n)
	}
}
