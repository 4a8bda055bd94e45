package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// A server keeps what it counts for one user apart from another's (L28), whoever asks first and how often.
func TestUsersDoNotShareASessionOfTheServers(t *testing.T) {
	t.Parallel()
	w := newWorkshop("workshop", versionLegacy).serve(t)
	s, _ := fileSidecar(t, nil, httpUpstream("workshop", w.url), binding("workshop", "/mcp", "workshop", ""))
	counts := map[string]int{}
	for i := range 30 {
		user := []string{"ann", "bob", ""}[i%3]
		counts[user]++
		r, err := newAsker(t, s.url+"/mcp", user).call(within(t), "1", "count", "", "", "")
		if err != nil || r.text() != fmt.Sprint(counts[user]) {
			t.Errorf("call %d of %q counted %v (%v)", counts[user], user, r, err)
		}
	}
}

// Any sidecar serves any request, each on a connection of its own; a session that one does not have is 404 there (L30).
func TestThreeReplicasServeAnyRequest(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	var all []*kin
	for i := range 3 {
		all = append(all, f.sidecar(t, fmt.Sprint("replica-", i)))
	}
	n := 0
	next := func() *asker {
		n++
		a := newAsker(t, all[n%3].endpoint(), "ann")
		a.http = &http.Client{Transport: bearer{"ann", &http.Transport{DisableKeepAlives: true}}}
		return a
	}
	for i := range 15 {
		text := fmt.Sprint("attempt ", i)
		if r, err := next().send(within(t), "1", "server/discover", "", ""); err != nil || r.Error != nil {
			t.Errorf("%s: discover: %v (%v)", text, r, err)
		}
		if r, err := next().send(within(t), "1", "tools/list", "", ""); err != nil || len(r.Result.Tools) == 0 {
			t.Errorf("%s: list: %v (%v)", text, r, err)
		}
		q := next().asked(t, "ask", text)
		next().goesOn(t, "ask", text, q, text+":accept:ann")
		f.ran(t, "ask", text, 1)
	}
	w := dialWire(t, all[0].endpoint(), versionLegacy)
	for _, other := range all[1:] {
		w.url = other.endpoint()
		if r, err := w.call(within(t), "1", "echo", "x", nil); err != nil || r.Status != http.StatusNotFound {
			t.Errorf("a session of another replica: %+v (%v), want 404", r, err)
		}
	}
	w.url = all[0].endpoint()
	if r, err := w.call(within(t), "1", "echo", "x", nil); err != nil || r.text() != "x" {
		t.Errorf("the session at its own replica: %+v (%v)", r, err)
	}
}

// nasty is a server with sessions that does not know server/discover, and says so in one of the ways that there are. It
// has no streams but the answers of calls.
type nasty struct {
	discover func(http.ResponseWriter, *http.Request)
}

func (n *nasty) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m struct {
		ID     json.RawMessage
		Method string
		Params struct{ ProtocolVersion string }
	}
	if r.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	result := `{"tools":[{"name":"echo","inputSchema":{"type":"object"}}]}`
	switch m.Method {
	case "initialize":
		w.Header().Set("Mcp-Session-Id", "session")
		result = fmt.Sprintf(`{"protocolVersion":%q,"capabilities":{"tools":{}},"serverInfo":{"name":"nasty","version":"1"}}`, m.Params.ProtocolVersion)
	case "tools/list", "ping":
	case "tools/call":
		result = `{"content":[{"type":"text","text":"done"}]}`
	default:
		if r.Header.Get("Mcp-Session-Id") == "" {
			n.discover(w, r)
			return
		}
		if m.ID == nil {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"method not found"}}`, m.ID)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
}

// says is a handler that gives one answer.
func says(status int, contentType, body string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
}

// What a server says of server/discover and subscriptions/listen (L21, L22) is no matter of its clients: they get a
// discovery, in time, and an acknowledgement of what there is.
func TestServersThatDoNotKnowDiscoverAreServedAllTheSame(t *testing.T) {
	t.Parallel()
	ways := map[string]func(http.ResponseWriter, *http.Request){
		"session-required": says(400, "application/json", `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: Mcp-Session-Id header is required"}}`),
		"session-unknown":  says(404, "application/json", `{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}`),
		"html":             says(200, "text/html", "<html><body>Welcome!</body></html>"),
		"html-404":         says(404, "text/html", "<html><body>Not found</body></html>"),
		"empty-404":        says(404, "text/plain", ""),
		"empty-202":        says(202, "application/json", ""),
		"failure":          says(500, "text/plain", "TypeError: undefined is not a function"),
		"nothing":          func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"cut": func(w http.ResponseWriter, _ *http.Request) {
			panic(http.ErrAbortHandler)
		},
	}
	var resources []string
	for name, way := range ways {
		server := httptest.NewServer(&nasty{way})
		t.Cleanup(server.Close)
		resources = append(resources, upstream(name, fmt.Sprintf("http: {url: %q}, timeouts: {handshake: 1s}", server.URL)),
			binding(name, "/"+name, name, ""))
	}
	s, _ := fileSidecar(t, nil, resources...)
	for name := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAsker(t, s.url+"/"+name, "")
			r, err := a.send(within(t), "1", "server/discover", "", "")
			if err != nil || r.Status != 200 || !containsAll(r.raw, []string{`"supportedVersions":["2026-07-28"`, `"resultType":"complete"`, `"capabilities":{`, "nasty"}) {
				t.Errorf("discover answered %v (%v)", r, err)
			}
			if err == nil && r.Took > 2*soon {
				t.Errorf("discover took %v, want less than %v", r.Took, 2*soon)
			}
			if r, err := a.call(within(t), "2", "echo", "x", "", ""); err != nil || r.text() != "done" {
				t.Errorf("a call answered %v (%v)", r, err)
			}
			acknowledgesNothing(t, a)
		})
	}
}

// acknowledgesNothing opens a listen at a server that pushes nothing: that is acknowledged at once, and no more.
func acknowledgesNothing(t *testing.T, a *asker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	var got []string
	begun := time.Now()
	err := a.listens(ctx, `"toolsListChanged":true,"resourceSubscriptions":["file:///a"]`, func(m string) {
		if got = append(got, m); len(got) == 1 && time.Since(begun) > soon {
			t.Errorf("it was acknowledged after %v", time.Since(begun))
		}
		cancel()
	})
	if err != nil || len(got) == 0 || strings.Contains(got[0], "true") || strings.Contains(got[0], "file:///a") {
		t.Errorf("a listen got %q (%v), want that nothing is acknowledged", got, err)
	}
}

// A fleet keeps going when the control plane is away: questions need no more than the sidecars.
func TestQuestionsNeedNoControlPlane(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	a, b := f.sidecar(t, "a"), f.sidecar(t, "b")
	f.kill()
	ann := newAsker(t, a.endpoint(), "ann")
	ann.at(b.endpoint()).goesOn(t, "ask", "alone", ann.asked(t, "ask", "alone"), "alone:accept:ann")
	a.stop()
	a.sidecar = startSidecar(t, nil, append([]string{"--control-plane", f.xds, "--node-id", "a", "--state-dir", a.dir}, a.args...)...)
	a.serves()
	q := newAsker(t, a.endpoint(), "ann").asked(t, "ask", "restored")
	ann.at(b.endpoint()).goesOn(t, "ask", "restored", q, "restored:accept:ann")
	f.ran(t, "ask", "restored", 1)
	if got := a.config().Source; got.Source != "disk" || got.Connected {
		t.Errorf("the source is %+v, want the disk, and no control plane", got)
	}
}
