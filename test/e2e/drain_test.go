package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// heldCalls makes calls of both eras that the peer holds, unary ones and streams, and waits until it has them all.
// Each says on the channel how it ended.
func heldCalls(t *testing.T, p *peer, url string, each int, transport http.RoundTripper) <-chan error {
	t.Helper()
	ended := make(chan error, 2*each*len(eras))
	for _, era := range eras {
		for i := range 2 * each {
			tool, text := []string{"hold", "stream"}[i%2], fmt.Sprintf("%s %d", era.name, i)
			w := dialWireOver(t, transport, url+era.path, era.version)
			go func() {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				r, err := w.call(ctx, "1", tool, text, nil)
				if err == nil && r.text() != text {
					err = fmt.Errorf("%s %q answered %+v", tool, text, r)
				}
				ended <- err
			}()
		}
	}
	for range cap(ended) {
		select {
		case <-p.held:
		case err := <-ended:
			t.Fatalf("a call ended before it was let: %v", err)
		case <-time.After(patience):
			t.Fatal("the peer did not get every call")
		}
	}
	return ended
}

// standingStreams opens a legacy session's GET stream and a stateless listen, and returns how each ended and what its
// last message was.
func standingStreams(t *testing.T, url string, transport http.RoundTripper) map[string]<-chan string {
	t.Helper()
	legacy := dialWireOver(t, transport, url+legacyPath, versionLegacy)
	r, err := http.NewRequestWithContext(within(t), http.MethodGet, legacy.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "text/event-stream")
	r.Header.Set("Mcp-Session-Id", legacy.session)
	r.Header.Set("Mcp-Protocol-Version", versionLegacy)
	get, err := legacy.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	listen, err := dialWireOver(t, transport, url+statelessPath, versionStateless).post(within(t),
		`{"jsonrpc":"2.0","id":"listen","method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},`+meta+`}}`, "subscriptions/listen", "")
	if err != nil {
		t.Fatal(err)
	}
	ends := map[string]<-chan string{}
	for name, res := range map[string]*http.Response{"GET": get, "listen": listen} {
		if err := wantStatus(res, http.StatusOK); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		end := make(chan string, 1)
		ends[name] = end
		go func() {
			defer res.Body.Close()
			last := ""
			if err := events(res.Body, func(data string) { last = data }); err != nil {
				last = "broken: " + err.Error()
			}
			end <- last
		}()
	}
	return ends
}

func TestADrainCutsNoCallThatCouldFinish(t *testing.T) {
	t.Parallel()
	for name, protocols := range map[string]*http.Protocols{"HTTP/1.1": onlyHTTP1(), "h2c": onlyH2C()} {
		t.Run(name, func(t *testing.T) {
			transport := &http.Transport{Protocols: protocols, MaxIdleConnsPerHost: 64}
			t.Cleanup(transport.CloseIdleConnections)
			drainUnderLoad(t, transport)
		})
	}
}

func onlyHTTP1() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	return p
}

func onlyH2C() *http.Protocols {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return p
}

func drainUnderLoad(t *testing.T, transport http.RoundTripper) {
	p := newPeer("peer")
	s, _ := fileSidecar(t, nil, both(p.serve(t), "")...)
	held := heldCalls(t, p, s.url, 4, transport)
	streams := standingStreams(t, s.url, transport)
	var mu sync.Mutex
	failed := map[string]error{} // by the call's text
	wires := make([]*wire, 8)
	for i := range wires {
		wires[i] = dialWireOver(t, transport, s.url+eras[i%2].path, eras[i%2].version)
	}
	calls := underLoad(t, len(wires), func(ctx context.Context, client, n int) error {
		text := fmt.Sprintf("client %d call %d", client, n)
		r, err := wires[client].call(ctx, "1", "echo", text, nil)
		if err == nil && r.text() == text {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		failed[text] = fmt.Errorf("%+v (%w)", r, err)
		return errDone
	})
	calls.more(200)

	s.signal(syscall.SIGTERM)
	s.says("draining")
	for name, want := range map[string]string{"GET": "", "listen": `"resultType":"complete"`} {
		select {
		case last := <-streams[name]:
			if !strings.Contains(last, want) || strings.HasPrefix(last, "broken") {
				t.Errorf("the %s stream ended with %q, want %q and in good order", name, last, want)
			}
		case <-time.After(patience):
			t.Errorf("the %s stream did not end", name)
		}
	}
	eventually(t, "new connections are refused", func() error {
		c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err == nil {
			c.Close()
			return errors.New("connected")
		}
		return nil
	})
	p.let()
	for range cap(held) {
		if err := <-held; err != nil {
			t.Errorf("a call that was under way: %v", err)
		}
	}
	released := time.Now()
	if code := s.exit(patience); code != 0 {
		t.Errorf("it ended with status %d, want 0", code)
	}
	if took := time.Since(released); took > 10*time.Second {
		t.Errorf("it ended %v after its last call", took)
	}
	calls.stop()
	t.Logf("%d calls went well; %d came too late", calls.done.Load(), len(failed))
	for text, err := range failed {
		if n := p.times(text); n > 0 {
			t.Errorf("%s was carried out and then cut: %v", text, err)
		}
	}
}

func TestADrainIsBounded(t *testing.T) {
	t.Parallel()
	p := newPeer("peer")
	s, _ := fileSidecar(t, []string{"--drain-timeout", "1s"}, both(p.serve(t), "")...)
	held := heldCalls(t, p, s.url, 1, httpClient(t, "").Transport) // and never let go
	s.signal(syscall.SIGTERM)
	asked := time.Now()
	s.says("draining")
	s.signal(syscall.SIGTERM) // changes nothing
	if code := s.exit(patience); code != 0 {
		t.Errorf("it ended with status %d, want 0", code)
	}
	if took := time.Since(asked); took < time.Second || took > 10*time.Second {
		t.Errorf("it ended after %v, want the second that it may take, and little more", took)
	}
	for range cap(held) {
		if err := <-held; err == nil {
			t.Error("a call that nobody finished has an answer")
		}
	}
	s.says("calls were still under way at the end of the drain")
}
