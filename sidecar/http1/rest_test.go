package http1

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"
)

// rests is a handler whose answer rests before each word of the request's body, and then says it. At "panic" it does that.
type rests struct {
	asleep chan func()   // resumes an answer that rests
	ended  chan struct{} // a request's context has ended
}

func newRests() *rests { return &rests{make(chan func(), 100), make(chan struct{}, 100)} }

func (h *rests) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	context.AfterFunc(r.Context(), func() { h.ended <- struct{}{} })
	for name := range r.Header {
		if strings.HasPrefix(name, "X-") {
			w.Header().Set(name, r.Header.Get(name))
		}
	}
	_ = http.NewResponseController(w).Flush()
	h.rest(w.(*response), strings.Fields(string(body)))
}

func (h *rests) rest(w *response, words []string) {
	if len(words) == 0 {
		return
	}
	w.Rest(func() {
		h.asleep <- func() {
			w.Resume(func() {
				if words[0] == "panic" {
					panic(http.ErrAbortHandler)
				}
				_, _ = io.WriteString(w, words[0])
				w.Flush()
				h.rest(w, words[1:])
			})
		}
	})
}

// resume lets n answers go on.
func (h *rests) resume(t *testing.T, n int) {
	t.Helper()
	for range n {
		select {
		case f := <-h.asleep:
			f()
		case <-time.After(patience):
			t.Fatal("no answer rests")
		}
	}
}

func named(name, body string) string {
	return fmt.Sprintf("POST / HTTP/1.1\r\nHost: a\r\nX-Is-%s: yes\r\nContent-Length: %d\r\n\r\n%s", name, len(body), body)
}

// TestAnAnswerRestsAndGoesOn: its connection serves what comes after it, or has come meanwhile, as after any other answer.
func TestAnAnswerRestsAndGoesOn(t *testing.T) {
	bodies := []string{"one two three", "", "four", "five six", ""}
	for _, together := range []bool{false, true} {
		h := newRests()
		_, addr := start(t, h, Options{})
		nc := dial(t, addr)
		r := bufio.NewReader(nc)
		if together {
			for i, body := range bodies {
				send(t, nc, named(fmt.Sprint(i), body))
			}
		}
		for i, body := range bodies {
			if !together {
				send(t, nc, named(fmt.Sprint(i), body))
			}
			h.resume(t, len(strings.Fields(body)))
			res, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatalf("together %v, answer %d: %v", together, i, err)
			}
			got, err := io.ReadAll(res.Body)
			if want := strings.Join(strings.Fields(body), ""); string(got) != want || err != nil {
				t.Errorf("together %v, answer %d: got %q, %v, want %q", together, i, got, err, want)
			}
			for other := range bodies {
				if has := res.Header.Get(fmt.Sprintf("X-Is-%d", other)) != ""; has != (other == i) {
					t.Errorf("together %v, answer %d has the header of request %d: %v", together, i, other, has)
				}
			}
		}
	}
}

func TestAnAnswerThatRestsHoldsNoGoroutine(t *testing.T) {
	h := newRests()
	_, addr := start(t, h, Options{})
	for range 20 {
		send(t, dial(t, addr), named("silent", "word"))
	}
	var asleep []func()
	for range 20 {
		asleep = append(asleep, <-h.asleep)
	}
	stacks := make([]byte, 1<<20)
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		n := strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "http1.(*conn)")
		if n == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d frames of connections whose answers rest", n)
		}
	}
	for _, f := range asleep {
		f()
	}
}

func TestAClientThatLeavesEndsAnAnswerThatRests(t *testing.T) {
	for name, leave := range ways {
		h := newRests()
		s, addr := start(t, h, Options{})
		nc := dial(t, addr)
		send(t, nc, named("a", "word word"))
		f := <-h.asleep
		leave(nc)
		within(t, time.Second, 1, h.ended, name+" seen")
		f()
		h.resume(t, 1)
		for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			s.mu.Lock()
			n := len(s.conns)
			s.mu.Unlock()
			if n == 0 {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %d connections are left of a client that is gone", name, n)
			}
		}
	}
}

func TestShutdownWaitsForAnAnswerThatRests(t *testing.T) {
	h := newRests()
	s, addr := start(t, h, Options{})
	nc := dial(t, addr)
	send(t, nc, named("a", "word"))
	f := <-h.asleep
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := s.Shutdown(short); err != context.DeadlineExceeded {
		t.Errorf("Shutdown returned %v while an answer rests, want %v", err, context.DeadlineExceeded)
	}
	f()
	if res, err := http.ReadResponse(bufio.NewReader(nc), nil); err != nil {
		t.Error(err)
	} else if got, err := io.ReadAll(res.Body); string(got) != "word" || err != nil {
		t.Errorf("got %q, %v, want word", got, err)
	}
	closedWithin(t, nc, patience, "the connection ends with its answer")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Errorf("Shutdown returned %v when the answer had ended", err)
	}
}

func TestCloseCutsAnAnswerThatRests(t *testing.T) {
	h := newRests()
	s, addr := start(t, h, Options{})
	nc := dial(t, addr)
	send(t, nc, named("a", "word"))
	f := <-h.asleep
	_ = s.Close()
	within(t, time.Second, 1, h.ended, "the request is cancelled")
	closedWithin(t, nc, time.Second, "the connection is cut")
	f()
}

func TestAnAnswerThatRestedCanBreakOff(t *testing.T) {
	h := newRests()
	_, addr := start(t, h, Options{})
	nc := dial(t, addr)
	send(t, nc, named("a", "word panic"))
	h.resume(t, 2)
	res, err := http.ReadResponse(bufio.NewReader(nc), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(res.Body); string(got) != "word" || err != io.ErrUnexpectedEOF {
		t.Errorf("got %q, %v, want word and %v", got, err, io.ErrUnexpectedEOF)
	}
}

// TestAnAnswerIsWrittenWhileItComesToRest: as a comment on a quiet stream is, by a timer.
func TestAnAnswerIsWrittenWhileItComesToRest(t *testing.T) {
	const words = 50
	_, addr := start(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w := rw.(*response)
		w.Flush()
		written := make(chan struct{})
		go func() {
			defer close(written)
			for range words {
				_, _ = io.WriteString(w, "word")
				w.Flush()
			}
		}()
		w.Rest(func() {
			go func() {
				<-written
				w.Resume(func() {})
			}()
		})
	}), Options{})
	nc := dial(t, addr)
	r := bufio.NewReader(nc)
	for range 20 {
		send(t, nc, named("a", "body"))
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(res.Body); string(got) != strings.Repeat("word", words) || err != nil {
			t.Errorf("got %q, %v, want %d words", got, err, words)
		}
	}
}
