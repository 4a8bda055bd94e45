package http1

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// lockedBuffer is a log that several goroutines write.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func echo(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	w.Header().Set("X-Proto", r.Proto)
	_, _ = w.Write(b)
}

// TestEverythingElseIsServedToo: what real clients send beside plain calls works on the same port.
func TestEverythingElseIsServedToo(t *testing.T) {
	_, addr := start(t, http.HandlerFunc(echo), Options{})
	h2 := new(http.Protocols)
	h2.SetUnencryptedHTTP2(true)
	rows := map[string]struct {
		transport *http.Transport
		body      io.Reader
		header    string
		proto     string
	}{
		"plain":    {&http.Transport{}, strings.NewReader("hello"), "", "HTTP/1.1"},
		"chunked":  {&http.Transport{}, struct{ io.Reader }{strings.NewReader("hello")}, "", "HTTP/1.1"},
		"continue": {&http.Transport{ExpectContinueTimeout: patience}, strings.NewReader("hello"), "Expect", "HTTP/1.1"},
		"HTTP/2":   {&http.Transport{Protocols: h2}, strings.NewReader("hello"), "", "HTTP/2.0"},
	}
	for name, row := range rows {
		defer row.transport.CloseIdleConnections()
		req, _ := http.NewRequest("POST", "http://"+addr+"/mcp", row.body)
		if row.header != "" {
			req.Header.Set(row.header, "100-continue")
		}
		res, err := row.transport.RoundTrip(req)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := io.ReadAll(res.Body)
		if res.Body.Close(); string(got) != "hello" || err != nil || res.Header.Get("X-Proto") != row.proto {
			t.Errorf("%s: got %q by %s, %v", name, got, res.Header.Get("X-Proto"), err)
		}
	}
}

func TestManyClientsGetTheirOwnAnswers(t *testing.T) {
	_, addr := start(t, http.HandlerFunc(echo), Options{})
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 20}}
	defer client.CloseIdleConnections()
	var wait sync.WaitGroup
	for i := range 20 {
		wait.Go(func() {
			for n := range 30 {
				want := strings.Repeat(fmt.Sprintf("%d-%d ", i, n), 1+n*n*9)
				res, err := client.Post("http://"+addr+"/mcp", "text/plain", strings.NewReader(want))
				if err != nil {
					t.Error(err)
					return
				}
				got, err := io.ReadAll(res.Body)
				if res.Body.Close(); string(got) != want || err != nil {
					t.Errorf("got %.40q of %d bytes, %v, want %.40q of %d", got, len(got), err, want, len(want))
				}
			}
		})
	}
	wait.Wait()
}

// closedWithin waits for the server to end a connection.
func closedWithin(t *testing.T, r io.Reader, limit time.Duration, what string) {
	t.Helper()
	ended := make(chan struct{})
	go func() { _, _ = io.Copy(io.Discard, r); close(ended) }()
	within(t, limit, 1, ended, what)
}

func TestSlowHeadsAndIdleConnectionsEnd(t *testing.T) {
	_, addr := start(t, http.HandlerFunc(echo), Options{HeadTimeout: 50 * time.Millisecond, IdleTimeout: 50 * time.Millisecond})
	for what, sent := range map[string]string{
		"half a head": "POST /mcp HTTP/1.1\r\nHo", "nothing": "", "one request": string(callBytes), "half a method": "PO",
	} {
		nc := dial(t, addr)
		send(t, nc, sent)
		closedWithin(t, nc, 3*time.Second, what)
	}
	nc := dial(t, addr)
	stop := make(chan struct{})
	defer close(stop)
	go func() { // a byte now and then does not keep it
		for i := 0; ; i = (i + 1) % len(callHead) {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				_, _ = nc.Write([]byte(callHead[i : i+1]))
			}
		}
	}()
	closedWithin(t, nc, 3*time.Second, "a byte at a time")
}

func TestADeadlineIsToldSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []time.Duration
		begin := time.Now()
		d := deadline{def: time.Minute, set: func(at time.Time) error { told = append(told, at.Sub(begin)); return nil }}
		for range 1000 {
			d.begin(time.Now())
			d.end()
			time.Sleep(10 * time.Millisecond)
		}
		if len(told) != 1 || told[0] != 75*time.Second {
			t.Errorf("in ten seconds: told %v, want once, a quarter beyond the minute", told)
		}
		time.Sleep(10 * time.Second)
		d.begin(time.Now())
		if len(told) != 2 || told[1] != 95*time.Second {
			t.Errorf("when the quarter was used: told %v", told)
		}
		d.ask(time.Now().Add(-time.Second)) // while it waits
		if len(told) != 3 || told[2] != 19*time.Second {
			t.Errorf("asked while waiting: told %v, want at once", told)
		}
	})
}

// ends runs Shutdown and returns its error.
func ends(t *testing.T, s *Server, limit time.Duration) chan error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	done := make(chan error, 1)
	go func() { done <- s.Shutdown(ctx) }()
	return done
}

func TestShutdownLetsCallsFinishAndClosesTheRest(t *testing.T) {
	entered, release := make(chan struct{}, 9), make(chan struct{})
	s, addr := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			entered <- struct{}{}
			<-release
		}
		io.WriteString(w, "whole")
	}), Options{})
	used, fresh, calling, handed := dial(t, addr), dial(t, addr), dial(t, addr), dial(t, addr)
	send(t, used, string(callBytes))
	r := bufio.NewReader(used)
	if _, err := http.ReadResponse(r, nil); err != nil {
		t.Fatal(err)
	}
	send(t, calling, strings.Replace(string(callBytes), "/mcp", "/wait", 1))
	send(t, handed, "GET /wait?a HTTP/1.1\r\nHost: a\r\n\r\n")
	within(t, patience, 2, entered, "calls run")

	done := ends(t, s, patience)
	closedWithin(t, r, time.Second, "a used idle connection closes")
	closedWithin(t, fresh, time.Second, "a fresh connection closes")
	select {
	case err := <-done:
		t.Fatalf("Shutdown returned %v while calls ran", err)
	default:
	}
	close(release)
	for _, nc := range []*net.TCPConn{calling, handed} {
		res, err := http.ReadResponse(bufio.NewReader(nc), nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(res.Body); string(body) != "whole" || err != nil {
			t.Errorf("got %q, %v, want all of it", body, err)
		}
		if nc == calling && !res.Close { // net/http's may not know yet
			t.Error("the answer does not say that the connection ends")
		}
	}
	if err := <-done; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
}

func TestShutdownGivesUpAndCloseCuts(t *testing.T) {
	h := newWaits(false)
	s, addr := start(t, h, Options{})
	nc := dial(t, addr)
	send(t, nc, string(callBytes))
	within(t, patience, 1, h.runs, "the call runs")
	if err := <-ends(t, s, 20*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown: got %v, want %v", err, context.DeadlineExceeded)
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	within(t, time.Second, 1, h.left, "the call is cancelled")
	if err := s.Serve(listen(t)); !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("Serve afterwards: got %v", err)
	}
}

func TestAcceptWaitsBeyondTheBound(t *testing.T) {
	_, addr := start(t, http.HandlerFunc(echo), Options{MaxConns: 2})
	plain, handed, third := dial(t, addr), dial(t, addr), dial(t, addr)
	send(t, plain, string(callBytes))
	send(t, handed, "GET /?a HTTP/1.1\r\nHost: a\r\n\r\n")
	for _, nc := range []io.Reader{plain, handed} {
		if _, err := http.ReadResponse(bufio.NewReader(nc), nil); err != nil {
			t.Fatal(err)
		}
	}
	send(t, third, string(callBytes))
	_ = third.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := third.Read(make([]byte, 1)); err == nil {
		t.Fatal("a third connection was served beyond two")
	}
	_ = third.SetReadDeadline(time.Now().Add(patience))
	handed.Close()
	if _, err := http.ReadResponse(bufio.NewReader(third), nil); err != nil {
		t.Errorf("after another closed: %v", err)
	}
}

func TestABodyTellsWhatHasArrivedOfIt(t *testing.T) {
	const text = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n"
	type buffered interface{ Buffered() int }
	for _, tt := range []struct {
		name, first, rest string
		want              int
	}{
		{"all of it", "0123456789", "", 10}, {"a part", "01234", "56789", 5},
		{"all, and the next request", "0123456789" + text + "0123456789", "", 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			told, proceed := make(chan [2]int, 2), make(chan struct{})
			var last buffered
			_, addr := start(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				last = r.Body.(buffered)
				before := last.Buffered()
				<-proceed
				io.Copy(io.Discard, r.Body)
				told <- [2]int{before, last.Buffered()}
			}), Options{})
			nc, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			io.WriteString(nc, text+tt.first)
			proceed <- struct{}{}
			io.WriteString(nc, tt.rest)
			if got := <-told; got != [2]int{tt.want, 0} {
				t.Errorf("got %d bytes before and %d after reading, want %d and 0", got[0], got[1], tt.want)
			}
			close(proceed)
		})
	}
}

// TestAStreamHoldsNoBuffer: 10,000 idle streams are to be cheap.
func TestAStreamHoldsNoBuffer(t *testing.T) {
	_, addr := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		echo(w, r)
		if flush(w); w.(*response).c.in != nil || w.(*response).out != nil {
			t.Error("the connection holds a buffer behind a flush")
		}
	}), Options{})
	nc := dial(t, addr)
	r := bufio.NewReader(nc)
	for i := range 3 { // it gets one again for the next request
		send(t, nc, string(callBytes))
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, res.Body); n != 350 || err != nil {
			t.Errorf("request %d: got %d bytes, %v, want 350", i, n, err)
		}
	}
}

func TestAPlainCallCostsTwoAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes pools forget")
	}
	addr := serveFor(t, "http1", http.HandlerFunc(answerCall))
	c := newCaller(t, addr)
	if n := testing.AllocsPerRun(2000, func() { c.call(t) }); n > 3 { // one is the handler's buffer
		t.Errorf("got %v allocations for a call, want 2 and the handler's", n)
	}
}
