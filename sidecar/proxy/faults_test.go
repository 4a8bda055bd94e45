package proxy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/config"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
)

// faulty serves every request alike.
func faulty(t testing.TB, h http.HandlerFunc) *outriggerv1.Upstream {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	u := atURL(srv.URL + "/mcp")
	u.Timeouts = &outriggerv1.Timeouts{
		Connect: durationpb.New(time.Second), Handshake: durationpb.New(300 * time.Millisecond), Call: durationpb.New(300 * time.Millisecond),
	}
	return u
}

func say(status int, contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

// What a server does wrong on the network, as clients of both eras are told of it: with their id, in their form, in time.
func TestAFaultyServerIsAnErrorOfTheCallersEra(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	hang := func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // else the server does not notice that the client leaves
		<-r.Context().Done()
	}
	hangUp := func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }
	garbage := func(w http.ResponseWriter, r *http.Request) {
		c, _, _ := w.(http.Hijacker).Hijack()
		io.WriteString(c, "\x00\x01 what?\r\n\r\n")
		c.Close()
	}
	for _, tt := range []struct {
		name   string
		up     *outriggerv1.Upstream
		reason string
		status int
	}{
		{"refuses connections", atURL("http://" + closed.Addr().String()), "upstream_unreachable", 200},
		{"never answers", faulty(t, hang), "upstream_timeout", 200},
		{"hangs up", faulty(t, hangUp), "upstream_lost", 200},
		{"answers garbage", faulty(t, garbage), "upstream_bad_answer", 200},
		{"answers HTML", faulty(t, say(200, "text/html", "<html>token=planted-secret</html>")), "upstream_bad_answer", 200},
		{"answers JSON that is no JSON-RPC", faulty(t, say(200, "application/json", `{"ok":"planted-secret"}`)), "upstream_bad_answer", 200},
		{"answers nothing", faulty(t, say(200, "application/json", ``)), "upstream_bad_answer", 200},
		{"answers 500", faulty(t, say(500, "text/plain", "at planted-secret.go:1")), "upstream_bad_answer", 200},
		{"answers 401", faulty(t, say(401, "text/plain", "planted-secret")), "upstream_unauthorized", 200},
		{"answers 403", faulty(t, say(403, "text/plain", "planted-secret")), "upstream_unauthorized", 200},
		{"redirects", faulty(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://planted-secret/", http.StatusFound)
		}), "upstream_bad_answer", 200},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, era := range []outriggerv1.Era{outriggerv1.Era_ERA_LEGACY, outriggerv1.Era_ERA_STATELESS} {
				tt.up.Era = era
				r := newRig(t, tt.up)
				begun := time.Now()
				var p reply
				if era == outriggerv1.Era_ERA_LEGACY {
					p = r.do("POST", nil, strings.Replace(initialize, `"id":0`, `"id":"q"`, 1))
				} else {
					p = r.callModern(`"q"`, "echo", "{}")
				}
				if m := p.rpc(t); era == outriggerv1.Era_ERA_STATELESS && tt.name == "answers JSON that is no JSON-RPC" && m.Error == nil {
					continue // an answer's bytes are not judged on their way
				}
				wantOurs(t, p.wantError(t, tt.status, -32603, `"q"`), tt.reason)
				if took := time.Since(begun); took > patience/2 {
					t.Errorf("it took %v", took)
				}
				if all := p.body + r.log.String(); strings.Contains(all, "planted-secret") {
					t.Errorf("the server's words are shown: %s", all)
				}
				if problems := r.Ready(testContext(t)); len(problems) != 1 {
					t.Errorf("ready: %v, want one problem", problems)
				}
			}
		})
	}
}

// L12
func TestAServerThatAcceptsAndNeverAnswersIsNotReadyInTime(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // it accepts by its backlog
	up := atURL("http://" + l.Addr().String())
	up.Timeouts = &outriggerv1.Timeouts{Handshake: durationpb.New(200 * time.Millisecond)}
	r := newRig(t, up)
	begun := time.Now()
	problems := r.Ready(testContext(t))
	if took := time.Since(begun); len(problems) != 1 || took > patience/2 {
		t.Errorf("%v after %v; want one problem within the handshake's time", problems, took)
	}
	for _, p := range []reply{
		r.do("POST", nil, initialize),
		r.callModern("0", "echo", "{}"),
	} {
		wantOurs(t, p.wantError(t, 200, -32603, "0"), "upstream_timeout")
	}
}

// L14
func TestAServerWithoutStreamsIsAskedForOneOnlyByClients(t *testing.T) {
	var gets atomic.Int32
	p := newPeer()
	spec := p.serveHTTP(t, nil)
	proxied := faulty(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "GET" {
			gets.Add(1)
			w.Header().Set("Allow", "POST")
			w.WriteHeader(405)
			return
		}
		req, _ := http.NewRequestWithContext(r.Context(), r.Method, spec.GetHttp().Url, r.Body)
		req.Header = r.Header.Clone()
		res, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			w.WriteHeader(502)
			return
		}
		defer res.Body.Close()
		for k, v := range res.Header {
			w.Header()[k] = v
		}
		w.WriteHeader(res.StatusCode)
		io.Copy(w, res.Body)
	})
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	proxied.Timeouts = nil
	r := newRig(t, proxied)
	s := r.connect(mcp.Version20251125, nil) // a real client asks once
	for range 5 {
		if _, err := s.ListTools(testContext(t), nil); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "the client has asked for a stream", func() bool { return gets.Load() > 0 })
	if n := gets.Load(); n != 1 {
		t.Errorf("%d GETs reached the server, want the client's one", n)
	}
}

func TestASessionThatTheServerForgotAndRefusesIs404(t *testing.T) {
	var forget atomic.Bool
	up := faulty(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.Method != "POST" || strings.Contains(string(body), "server/discover"):
			w.WriteHeader(405)
		case forget.Load() && strings.Contains(string(body), `"initialize"`):
			fmt.Fprint(w, `{"jsonrpc":"2.0","id":0,"error":{"code":-32603,"message":"full"}}`)
		case forget.Load():
			w.WriteHeader(404)
		case strings.Contains(string(body), `"initialize"`):
			w.Header().Set(mcp.HeaderSessionID, "theirs")
			fmt.Fprint(w, `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"x","version":"1"}}}`)
		default:
			w.WriteHeader(202)
		}
	})
	r := newRig(t, up)
	h := r.initialize()
	if h[mcp.HeaderSessionID] == "theirs" {
		t.Error("the client was given the server's own session id")
	}
	forget.Store(true)
	wantOurs(t, r.do("POST", h, toolCall("1", "echo", "{}")).wantError(t, 404, -32603, "1"), "upstream_session_gone")
	r.do("POST", h, toolCall("2", "echo", "{}")).wantError(t, 404, -32600, "2")
}

// Secrets are planted where they may be, and looked for where they may not.
func TestNothingSecretIsShown(t *testing.T) {
	const secret = "planted-secret"
	t.Setenv("OUTRIGGER_CREDENTIAL_TEST", secret+"-credential")
	var sent atomic.Value
	sent.Store("")
	up := faulty(t, func(w http.ResponseWriter, r *http.Request) {
		sent.Store(r.Header.Get("Authorization") + "|" + r.Header.Get("Cookie"))
		w.WriteHeader(401)
	})
	up.GetHttp().Url = strings.Replace(up.GetHttp().Url, "http://", "http://user:"+secret+"-url@", 1)
	up.Era = outriggerv1.Era_ERA_STATELESS
	up.Credential = &outriggerv1.Credential{Prefix: "Bearer ", Source: &outriggerv1.Credential_Env{Env: "OUTRIGGER_CREDENTIAL_TEST"}}
	process := overStdio(t, "none", "SECRET", secret+"-env")
	process.Name, process.GetStdio().Command = "process", []string{"/no/such/program"}
	r := newRig(t, up)
	r.wantApplied(func(c *config.Config) {
		c.Upstreams = append(c.Upstreams, process)
		c.Bindings = append(c.Bindings, binding(func(b *bindingSpec) { b.Name, b.Path, b.Upstreams[0].Name = "process", "/process", "process" }))
	})
	h := modern("tools/call", "echo", "Authorization", "Bearer "+secret+"-client", "Cookie", secret+"-cookie")
	all := r.do("POST", h, modernCall("1", "echo", `{"x":"`+secret+`-argument"}`)).body
	if got := sent.Load(); got != "Bearer "+secret+"-credential|" {
		t.Errorf("the server was sent %q, want the sidecar's credential and nothing of the client's", got)
	}
	r.url = "http://" + r.addr + "/process"
	all += r.do("POST", h, modernCall("1", "echo", `{}`)).body + r.do("POST", nil, initialize).body
	for _, problem := range r.Ready(testContext(t)) {
		all += problem.Error()
	}
	for _, missing := range []*outriggerv1.Credential{
		{Source: &outriggerv1.Credential_Env{Env: "OUTRIGGER_CREDENTIAL_NONE"}}, {Source: &outriggerv1.Credential_File{File: "none"}},
		{Header: "Bad\nHeader", Source: &outriggerv1.Credential_Env{Env: "OUTRIGGER_CREDENTIAL_TEST"}},
		{Prefix: "Bad\n", Source: &outriggerv1.Credential_Env{Env: "OUTRIGGER_CREDENTIAL_TEST"}},
	} {
		up := atURL("http://user:" + secret + "@127.0.0.1/")
		up.Credential = missing
		err := r.Check(up)
		if err == nil {
			t.Errorf("%v: no error", missing)
			continue
		}
		all += err.Error()
	}
	r.stop()
	all += r.log.String() + r.access.String()
	for line := range strings.Lines(all) {
		if strings.Contains(line, secret) {
			t.Errorf("shown: %s", line)
		}
	}
	if !strings.Contains(r.log.String(), "configuration applied") {
		t.Error("there is no log to look into")
	}
}

// A client that leaves while its session is opened leaves none behind.
func TestAClientThatLeavesDuringInitializeHoldsNoPlace(t *testing.T) {
	arrived := make(chan struct{}, 1)
	up := faulty(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		arrived <- struct{}{}
		<-r.Context().Done()
	})
	up.Era, up.Timeouts = outriggerv1.Era_ERA_LEGACY, nil
	r := newRig(t, up, func(b *bindingSpec) { b.Session = &outriggerv1.SessionSettings{MaxSessions: 1} })
	for range 3 {
		ctx, leave := context.WithCancel(testContext(t))
		done := make(chan struct{})
		go func() {
			defer close(done)
			if res, err := r.client.Do(r.request(ctx, "POST", nil, initialize)); err == nil {
				res.Body.Close()
				if res.StatusCode == 503 {
					t.Error("no place is left")
				}
			}
		}()
		select {
		case <-arrived:
		case <-time.After(patience):
			t.Fatal("the server was not asked: no place is left")
		}
		leave()
		<-done
		eventually(t, "the place is free", func() bool {
			sessions := r.table.Load().endpoints["/mcp"].sessions
			if sessions.Reserve() != nil {
				return false
			}
			sessions.Release()
			return true
		})
	}
}

// L27
func TestAnAnsweredCallIsNotCancelled(t *testing.T) {
	var cancelled atomic.Int32
	up := faulty(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch text := string(body); {
		case strings.Contains(text, "notifications/cancelled"):
			cancelled.Add(1)
			w.WriteHeader(202)
		case strings.Contains(text, `"initialize"`):
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"x","version":"1"}}}`)
		case strings.Contains(text, `"tools/call"`):
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "data: %s\n\n", response("1", "x"))
			w.(http.Flusher).Flush()
			time.Sleep(20 * time.Millisecond) // the stream's end comes after its last event
		default:
			w.WriteHeader(202)
		}
	})
	up.Era, up.Timeouts = outriggerv1.Era_ERA_LEGACY, nil
	r := newRig(t, up)
	h := head{}
	if p := r.do("POST", nil, initialize); p.status == 200 {
		h[mcp.HeaderSessionID] = p.header.Get(mcp.HeaderSessionID)
	}
	for range 5 {
		wantText(t, r.do("POST", h, toolCall("1", "echo", "{}")), "1", "x")
	}
	r.stop()
	if n := cancelled.Load(); n > 0 {
		t.Errorf("the server was told %d times that an answered call was cancelled", n)
	}
}
