package streamable

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

func discovered(versions ...string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":"outrigger-discover","result":{"resultType":"complete","supportedVersions":["%s"],`+
		`"capabilities":{},"ttlMs":0,"cacheScope":"private"}}`, strings.Join(versions, `","`))
}

func rpcError(code int, data string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":"outrigger-discover","error":{"code":%d,"message":"x","data":%s}}`, code, data)
}

func TestErasAreWhatTheAnswerToDiscoverSays(t *testing.T) {
	legacy, modern := mcp.EraSet(mcp.Legacy), mcp.EraSet(mcp.Stateless)
	tests := []struct {
		name   string
		status int
		body   string
		want   mcp.Eras
		kind   upstream.Kind
	}{
		{"modern", 200, discovered("2026-07-28"), modern, 0},
		{"both", 200, discovered("2026-07-28", "2025-11-25"), modern | legacy, 0},
		{"legacy only", 200, discovered("2025-11-25"), legacy, 0},
		{"versions of the future", 200, discovered("2031-01-01"), 0, upstream.WrongEra},
		{"-32022, legacy", 400, rpcError(-32022, `{"supported":["2025-06-18"]}`), legacy, 0},
		{"-32020", 400, rpcError(-32020, "null"), modern, 0},
		{"-32601", 404, rpcError(-32601, "null"), legacy, 0},
		{"-32602 with 200", 200, rpcError(-32602, "null"), legacy, 0},
		{"a session is missing", 400, "Bad Request: no session", legacy, 0},
		{"nothing", 400, "", legacy, 0},
		{"405", 405, "", legacy, 0},
		{"401", 401, "", 0, upstream.Unauthorized},
		{"403", 403, rpcError(-32601, "null"), 0, upstream.Unauthorized},
		{"503", 503, "", 0, upstream.BadAnswer},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var header http.Header
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if header == nil { // of discover, which may not be all
					header = r.Header
				}
				writeJSON(w, tt.status, tt.body)
			}))
			defer srv.Close()
			got, err := newServer(t, srv.URL).Eras(testContext(t))
			if got != tt.want {
				t.Errorf("Eras = %v, %v; want %v", got, err, tt.want)
			}
			if tt.want == 0 {
				wantKind(t, err, tt.kind)
			}
			if header.Get(mcp.HeaderVersion) != mcp.Version20260728 || header.Get(mcp.HeaderMethod) != mcp.MethodDiscover {
				t.Errorf("discover went out with %v, want its headers", header)
			}
		})
	}
}

// A server that cannot bear what it does not know is found out by what it knows.
func TestAServerThatFailsAtDiscoverIsAskedForASession(t *testing.T) {
	for name, fail := range map[string]http.HandlerFunc{
		"fails":    func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"hangs":    func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"hangs up": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				m, err := mcp.Scan(body, mcp.Limits{MaxDepth: 9})
				if err != nil || m.Method != mcp.MethodInitialize {
					fail(w, r)
					return
				}
				w.Header().Set(mcp.HeaderSessionID, "s")
				writeJSON(w, 200, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{},`+
					`"serverInfo":{"name":"x","version":"1"}}}`, m.ID.Of(m.Raw)))
			}))
			defer srv.Close()
			s := newServer(t, srv.URL, func(u *outriggerv1.Upstream) {
				u.Timeouts = &outriggerv1.Timeouts{Handshake: durationpb.New(200 * time.Millisecond)}
			})
			if eras, err := s.Eras(testContext(t)); err != nil || eras != mcp.EraSet(mcp.Legacy) {
				t.Errorf("Eras = %v, %v; want legacy", eras, err)
			}
		})
	}
}

func TestCallersShareAProbeAndItsVerdict(t *testing.T) {
	var asked atomic.Int32
	release := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		<-release
		sse(w)("data: " + discovered("2026-07-28") + "\n\n")
	}))
	defer srv.Close()
	s := newServer(t, srv.URL)
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if eras, err := s.Eras(testContext(t)); err != nil || !eras.Has(mcp.Stateless) {
				t.Errorf("Eras = %v, %v; want stateless", eras, err)
			}
		})
	}
	close(release)
	wg.Wait()
	if n := asked.Load(); n != 1 {
		t.Errorf("asked %d times, want once", n)
	}
}

func TestAFailedProbeIsRepeatedButNotAtOnce(t *testing.T) {
	var asked atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		writeJSON(w, 200, discovered("2026-07-28"))
	}))
	defer srv.Close()
	s := newServer(t, srv.URL)
	for range 3 {
		if _, err := s.Eras(testContext(t)); err == nil {
			t.Error("Eras after 502: no error")
		}
	}
	if n := asked.Load(); n != 2 { // the second time whether it opens a session
		t.Errorf("asked %d times, want twice within %v", n, probePause)
	}
	s.eras.mu.Lock()
	s.eras.failedAt = s.eras.failedAt.Add(-probePause)
	s.eras.mu.Unlock()
	if eras, err := s.Eras(testContext(t)); err != nil || !eras.Has(mcp.Stateless) {
		t.Errorf("Eras = %v, %v; want stateless", eras, err)
	}
}

func TestAnAnswerThatContradictsTheVerdictMakesItAskedForAgain(t *testing.T) {
	legacyOnly := rpcError(-32022, `{"supported":["2025-11-25"]}`)
	tests := []struct {
		name   string
		status int
		body   string
		era    mcp.Era
		again  bool
	}{
		{"stateless, a session is missing", 400, "no session", mcp.Stateless, true},
		{"stateless, -32022 of a legacy server", 400, legacyOnly, mcp.Stateless, true},
		{"stateless, an unknown method", 404, rpcError(-32601, "null"), mcp.Stateless, false},
		{"stateless, a bad gateway", 502, "", mcp.Stateless, false},
		{"legacy, no such method", 404, rpcError(-32601, "null"), mcp.Legacy, true},
		{"legacy, -32022", 400, rpcError(-32022, `{"supported":["2026-07-28"]}`), mcp.Legacy, true},
		{"legacy, 405", 405, "", mcp.Legacy, true},
		{"legacy, full", 400, rpcError(-32603, "null"), mcp.Legacy, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				writeJSON(w, tt.status, tt.body)
			}))
			defer srv.Close()
			s := newServer(t, srv.URL)
			s.eras.known = mcp.EraSet(tt.era)
			if tt.era == mcp.Stateless {
				a, _ := s.Call(testContext(t), stateless(t, "1", "echo", "{}"))
				a.Close()
			} else {
				_, a, _ := s.Open(testContext(t), call(t, initialize))
				a.Close()
			}
			if again := s.eras.known == 0; again != tt.again {
				t.Errorf("asked again: %v, want %v", again, tt.again)
			}
		})
	}
}

func TestAConfiguredEraIsNotAskedFor(t *testing.T) {
	p := newPeer(t, always(jsonAnswer(result)))
	s := newServer(t, p.url, func(u *outriggerv1.Upstream) { u.Era = outriggerv1.Era_ERA_STATELESS })
	if eras, err := s.Eras(testContext(t)); err != nil || eras != mcp.EraSet(mcp.Stateless) {
		t.Errorf("Eras = %v, %v; want stateless", eras, err)
	}
	if n := p.conns.Load(); n != 0 {
		t.Errorf("%d connections, want none", n)
	}
}

func TestACheckIsATrueHandshakeWithinItsTime(t *testing.T) {
	silent := newPeer(t, func(p *peer, c net.Conn, r *bufio.Reader) { p.read(r); _, _ = io.Copy(io.Discard, r) })
	for _, era := range []outriggerv1.Era{outriggerv1.Era_ERA_AUTO, outriggerv1.Era_ERA_LEGACY, outriggerv1.Era_ERA_STATELESS} {
		s := newServer(t, silent.url, func(u *outriggerv1.Upstream) {
			u.Era, u.Timeouts.Handshake = era, durationpb.New(100*time.Millisecond)
		})
		begun := time.Now()
		wantKind(t, s.Check(testContext(t)), upstream.TimedOut)
		if took := time.Since(begun); took > patience/2 {
			t.Errorf("%v: it took %v, want about 100ms", era, took)
		}
	}
}

func TestChecksOfALegacyServerPingOnOneSession(t *testing.T) {
	l := newLegacyServer(t)
	s := newServer(t, l.url, func(u *outriggerv1.Upstream) { u.Era = outriggerv1.Era_ERA_LEGACY })
	for range 3 {
		if err := s.Check(testContext(t)); err != nil {
			t.Fatal(err)
		}
	}
	l.forget()
	if err := s.Check(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if n, pings := l.count("POST initialize"), l.count("POST ping session-1"); n != 2 || pings != 3 {
		t.Errorf("%d initializes and %d pings of the first session, want 2 and 3", n, pings)
	}
}

func TestACheckRecoversFromASessionThatCannotBeOpenedAgain(t *testing.T) {
	l := newLegacyServer(t, func(l *legacyServer) {
		l.welcome = func(w http.ResponseWriter, n int) {
			w.Header().Set("Mcp-Session-Id", fmt.Sprintf("session-%d", n))
			body := initializeResultFor(`"outrigger-initialize"`)
			if n > 1 { // another release
				body = strings.Replace(body, mcp.Version20251125, mcp.Version20250618, 1)
			}
			writeJSON(w, 200, body)
		}
	})
	s := newServer(t, l.url, func(u *outriggerv1.Upstream) { u.Era = outriggerv1.Era_ERA_LEGACY })
	for i := range 3 {
		if err := s.Check(testContext(t)); err != nil {
			t.Fatalf("check %d: %v; the server saw %q", i, err, l.log())
		}
		if i == 0 {
			l.forget()
		}
	}
	if n, pings := l.count("POST initialize"), l.count("POST ping session-3"); n != 3 || pings != 1 {
		t.Errorf("%d initializes and %d pings of the third session, want 3 and 1", n, pings)
	}
	l.wait(t, http.MethodDelete, "", 2) // the second session, and what was left of the first
}

func TestAFailedCheckClosesTheSessionItOpened(t *testing.T) {
	l := newLegacyServer(t, func(l *legacyServer) {
		l.answer = func(w http.ResponseWriter, r *http.Request, _ *mcp.Message) {
			if r.Method == http.MethodPost {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}
	})
	s := newServer(t, l.url, func(u *outriggerv1.Upstream) { u.Era = outriggerv1.Era_ERA_LEGACY })
	wantKind(t, s.Check(testContext(t)), upstream.BadAnswer)
	l.wait(t, http.MethodDelete, "", 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.sessions); n != 0 {
		t.Errorf("%d sessions are left after a check that failed, want none", n)
	}
}

func TestAServerThatAnswersRubbishIsNotReady(t *testing.T) {
	p := newPeer(t, always(jsonAnswer(`{"ok":true}`)))
	for _, era := range []outriggerv1.Era{outriggerv1.Era_ERA_LEGACY, outriggerv1.Era_ERA_STATELESS} {
		s := newServer(t, p.url, func(u *outriggerv1.Upstream) { u.Era = era })
		wantKind(t, s.Check(testContext(t)), upstream.BadAnswer)
	}
}
