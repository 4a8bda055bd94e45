package proxy

import (
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// quietServer is a real server of streams that begin with a comment, and then say what they are fed until that ends.
type quietServer struct {
	feeds chan chan string // of each stream
}

func (s *quietServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	switch {
	case strings.Contains(string(body), `"initialize"`):
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Mcp-Session-Id", "s")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"q","version":"1"}}}`)
		return
	case r.Method == http.MethodGet, strings.Contains(string(body), `"subscriptions/listen"`):
	default:
		w.WriteHeader(http.StatusAccepted)
		return
	}
	feed := make(chan string)
	s.feeds <- feed
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, ": hello\n\n")
	for {
		_ = http.NewResponseController(w).Flush()
		select {
		case text, ok := <-feed:
			if !ok {
				return
			}
			_, _ = io.WriteString(w, text)
		case <-r.Context().Done():
			return
		}
	}
}

const changed = `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`

// TestAStreamAtRestHoldsNoHandler: whatever came before, comments included, a stream on which nothing happens waits for its
// server on a goroutine that has nothing else on its stack, and for its client on none.
func TestAStreamAtRestHoldsNoHandler(t *testing.T) {
	if *plain {
		t.Skip("net/http's handlers hold their goroutines")
	}
	for era, spec := range map[string]outriggerv1.Era{"stateless": outriggerv1.Era_ERA_STATELESS, "legacy": outriggerv1.Era_ERA_LEGACY} {
		t.Run(era, func(t *testing.T) {
			server := &quietServer{make(chan chan string, 1)}
			web := httptest.NewServer(server)
			defer web.Close()
			up := &outriggerv1.Upstream{Name: "up", Era: spec,
				Transport: &outriggerv1.Upstream_Http{Http: &outriggerv1.HTTPTransport{Url: web.URL + "/mcp"}}}
			r := newRig(t, up)
			defer r.stop()
			method, body := "GET", ""
			var h head
			if era == "legacy" {
				h = r.initialize()
			} else {
				method, h = "POST", modern("subscriptions/listen", "")
				body = `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{},` + meta + `}}`
			}
			s := r.open(method, h, body)
			feed := <-server.feeds
			for _, text := range []string{": comment\n\n", "data: " + changed + "\n\n", "id: 1\n\n", strings.Repeat("data: "+changed+"\n\n", 2)} {
				r.wantAtRest()
				feed <- text
				for range strings.Count(text, "data") {
					for e := s.event(); e.data != changed; e = s.event() {
						if e.data != "" { // a priming event's is empty
							t.Fatalf("got %+v, want %s", e, changed)
						}
					}
				}
			}
			r.wantAtRest()
			if era == "stateless" {
				feed <- "data: " + response("1", "over") + "\n\n"
			}
			close(feed)
			r.Drain()
			if left, err := s.end(); err != nil {
				t.Errorf("then %v, %v, want the end", left, err)
			}
		})
	}
}

// wantAtRest waits until nothing of a handler, or of a reader, is on any stack.
func (r *rig) wantAtRest() {
	r.t.Helper()
	stacks := make([]byte, 1<<20)
	eventually(r.t, "no stack has anything of a stream but the wait for its server", func() bool {
		all := string(stacks[:runtime.Stack(stacks, true)])
		for _, frame := range []string{"proxy.(*Proxy).ServeHTTP", "proxy.(*exchange)", "http1.(*conn).resume", "EventReader).Next"} {
			if strings.Contains(all, frame) {
				return false
			}
		}
		return true
	})
}
