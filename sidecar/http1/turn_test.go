package http1

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestWhatComesWhileAHandlerRunsIsServed: requests, parts of them and the client's end may all come before the
// connection waits again.
func TestWhatComesWhileAHandlerRunsIsServed(t *testing.T) {
	entered, proceed := make(chan struct{}, 9), make(chan struct{})
	_, addr := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-proceed
		echo(w, r)
	}), Options{})
	call, half := string(callBytes), len(callBytes)/2
	for name, pieces := range map[string][2]string{
		"a request":                 {call, ""},
		"two":                       {call + call, ""},
		"a request, later its rest": {call[:half], call[half:]},
		"a head, later the body":    {callHead, call[len(callHead):]},
		"one, and half of the next": {call + call[:half], call[half:]},
	} {
		nc := dial(t, addr)
		send(t, nc, call)
		within(t, patience, 1, entered, "the first runs")
		send(t, nc, pieces[0])
		proceed <- struct{}{}
		r := bufio.NewReader(nc)
		want := 1 + strings.Count(pieces[0]+pieces[1], "POST")
		for i := range want {
			if i > 0 {
				proceed <- struct{}{}
			}
			if i == want-2 {
				send(t, nc, pieces[1])
			}
			res, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatalf("%s: answer %d: %v", name, i, err)
			}
			if n, err := io.Copy(io.Discard, res.Body); n != 350 || err != nil {
				t.Errorf("%s: answer %d: %d bytes, %v, want 350", name, i, n, err)
			}
		}
		within(t, patience, want-1, entered, "the others ran")
	}
}

// TestCloseWaitsForNoHandler: it cuts connections whose handlers run, also those that wait for a client to read.
func TestCloseWaitsForNoHandler(t *testing.T) {
	runs, ended, release := make(chan struct{}, 2), make(chan struct{}, 2), make(chan struct{})
	s, addr := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		runs <- struct{}{}
		if r.URL.Path == "/writes" {
			for chunk := make([]byte, 1<<20); ; {
				if _, err := w.Write(chunk); err != nil {
					break
				}
			}
		} else {
			<-release
		}
		ended <- struct{}{}
	}), Options{})
	silent, deaf := dial(t, addr), dial(t, addr)
	send(t, silent, string(callBytes))
	send(t, deaf, strings.Replace(string(callBytes), "/mcp", "/writes", 1))
	within(t, patience, 2, runs, "the handlers run")
	closed := make(chan struct{})
	go func() { _ = s.Close(); close(closed) }()
	within(t, time.Second, 1, closed, "Close returns")
	within(t, time.Second, 1, ended, "the write fails")
	closedWithin(t, silent, time.Second, "the other connection is cut")
	close(release)
	within(t, time.Second, 1, ended, "its handler is let go")
}

// TestAClientsEndIsSeenWhileItsConnectionWaits: the end may come with a request, or with one that is being served.
func TestAClientsEndIsSeenWhileItsConnectionWaits(t *testing.T) {
	s, addr := start(t, http.HandlerFunc(echo), Options{IdleTimeout: time.Hour})
	for range 200 {
		nc := dial(t, addr)
		send(t, nc, string(callBytes))
		if res, err := http.ReadResponse(bufio.NewReader(nc), nil); err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("got %v, %v", res, err)
		}
		send(t, nc, string(callBytes))
		_ = nc.CloseWrite()
		if _, err := io.Copy(io.Discard, nc); err != nil {
			t.Fatalf("the connection stays open: %v", err)
		}
	}
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		n := len(s.conns)
		s.mu.Unlock()
		if n == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d connections are left of clients that are gone", n)
		}
	}
}
