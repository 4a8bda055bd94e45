package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// closeCounter is a server's session of which only the end matters here.
type closeCounter struct {
	upstream.Session
	closed *atomic.Int32
}

func (c closeCounter) Close(context.Context) error { c.closed.Add(1); return nil }

func newStore(t testing.TB, s Settings) (*Store, func() *Session, *atomic.Int32) {
	t.Helper()
	st := NewStore(s, slog.New(slog.DiscardHandler))
	t.Cleanup(func() { st.Close(context.Background()) })
	closed := new(atomic.Int32)
	return st, func() *Session {
		t.Helper()
		if err := st.Reserve(); err != nil {
			t.Fatalf("Reserve: %v", err)
		}
		return st.Add(closeCounter{closed: closed}, "2025-11-25", "")
	}, closed
}

var roomy = Settings{IdleTimeout: time.Minute, Max: 100, ReplayBytes: 1 << 20}

func TestAnUnusedSessionEndsAtTheServerToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, open, closed := newStore(t, roomy)
		s := open()
		time.Sleep(50 * time.Second)
		if st.Get(s.ID, "") == nil {
			t.Fatal("gone before its idle time")
		}
		time.Sleep(50 * time.Second)
		if st.Get(s.ID, "") == nil {
			t.Fatal("use did not renew it")
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if st.Get(s.ID, "") != nil || closed.Load() != 1 {
			t.Errorf("after two idle times: alive %v, server told %d times; want dead, once", st.Get(s.ID, "") != nil, closed.Load())
		}
		if s.Context().Err() == nil {
			t.Error("its context goes on")
		}
	})
}

func TestASessionInUseOutlivesTheIdleTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, open, _ := newStore(t, roomy)
		calling, listening := open(), open()
		_, done, _ := calling.Begin([]byte("1"))
		r := listening.NewStream().Attach()
		time.Sleep(time.Hour)
		if st.Get(calling.ID, "") == nil || st.Get(listening.ID, "") == nil {
			t.Error("a session with a call or a stream open was ended")
		}
		done()
		r.Detach()
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := st.Len(); n != 0 {
			t.Errorf("%d sessions live an hour after their last use, want 0", n)
		}
	})
}

func TestAFullStoreRefusesUntilOneWasUnusedForAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, open, closed := newStore(t, Settings{IdleTimeout: time.Hour, Max: 10_000, ReplayBytes: 1})
		first := open()
		for range 9_999 {
			open()
		}
		if err := st.Reserve(); !errors.Is(err, ErrFull) {
			t.Fatalf("Reserve at the bound: %v, want ErrFull", err)
		}
		time.Sleep(59 * time.Second)
		if err := st.Reserve(); !errors.Is(err, ErrFull) {
			t.Fatalf("Reserve within a minute: %v, want ErrFull", err)
		}
		time.Sleep(2 * time.Second)
		for range 5 {
			open()
		}
		synctest.Wait()
		if st.Len() != 10_000 || closed.Load() != 5 {
			t.Errorf("%d live and %d ended; want the bound, 10000, and 5", st.Len(), closed.Load())
		}
		_ = first
	})
}

func TestCloseEndsEverySessionAndRefusesNewOnes(t *testing.T) {
	st, open, closed := newStore(t, roomy)
	for range 40 {
		open()
	}
	st.Close(context.Background())
	if closed.Load() != 40 || st.Len() != 0 {
		t.Errorf("%d servers told, %d live; want 40, 0", closed.Load(), st.Len())
	}
	if err := st.Reserve(); !errors.Is(err, ErrFull) {
		t.Errorf("Reserve after Close: %v, want ErrFull", err)
	}
}

func TestIDsAreVisibleASCIIAndDiffer(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := newID()
		if len(id) != 32 || seen[id] {
			t.Fatalf("id %q: %d characters, seen before: %v", id, len(id), seen[id])
		}
		for _, c := range []byte(id) {
			if c < 0x21 || c > 0x7e {
				t.Fatalf("id %q holds %#x", id, c)
			}
		}
		seen[id] = true
	}
}

func TestACancelledCallIsGivenUpAfterItsGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, open, _ := newStore(t, roomy)
		s := open()
		asString, done1, _ := s.Begin([]byte(`"7"`))
		asNumber, done2, _ := s.Begin([]byte(`7`))
		defer done1()
		defer done2()
		s.Cancel([]byte(`7`))
		s.Cancel([]byte(`8`)) // unknown: ignored
		time.Sleep(cancelGrace - time.Millisecond)
		if asNumber.Err() != nil {
			t.Error("given up before the server could answer")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if asNumber.Err() == nil || asString.Err() != nil {
			t.Errorf("7 given up: %v, %q given up: %v; want only 7", asNumber.Err() != nil, "7", asString.Err() != nil)
		}
	})
}

// readAll takes what is there without waiting for more.
func readAll(t *testing.T, r *Reader) (got []string) {
	t.Helper()
	for {
		n, data, err := r.Poll()
		if err != nil {
			return append(got, err.Error())
		}
		if data == nil {
			return got
		}
		got = append(got, fmt.Sprintf("%d:%s", n, data))
	}
}

func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func TestAResumedStreamBeginsAfterTheEventNamed(t *testing.T) {
	_, open, _ := newStore(t, roomy)
	s := open()
	st := s.NewStream()
	lost := st.Attach()
	for _, m := range []string{"a", "b", "c"} {
		st.Append([]byte(m), lost)
	}
	lost.Detach()
	st.Append([]byte("d"), nil)
	r, err := s.Resume(string(st.EventID(1)))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Detach()
	expect(t, "after event 1", readAll(t, r), "2:b", "3:c", "4:d")
	st.Append([]byte("e"), nil)
	st.End()
	expect(t, "live, then the end", readAll(t, r), "5:e", io.EOF.Error())
}

func TestThePrimingEventResumesFromTheBeginning(t *testing.T) {
	_, open, _ := newStore(t, roomy)
	s := open()
	st := s.NewStream()
	st.Append([]byte("a"), nil)
	r, err := s.Resume(string(st.EventID(0)))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Detach()
	expect(t, "after the priming event", readAll(t, r), "1:a")
}

func TestAMessageGoesOutOnOneConnection(t *testing.T) {
	_, open, _ := newStore(t, roomy)
	s := open()
	st := s.NewStream()
	first := st.Attach()
	if _, mine := st.Append([]byte("a"), first); !mine {
		t.Error("the attached reader does not own the message")
	}
	second := st.Attach()
	if _, mine := st.Append([]byte("b"), first); mine {
		t.Error("a replaced reader still owns messages")
	}
	expect(t, "the one replaced", readAll(t, first), ErrReplaced.Error())
	expect(t, "the newest", readAll(t, second), "2:b")
	first.Detach()
	second.Detach()
	st.Append([]byte("c"), nil)
	third := st.Attach()
	defer third.Detach()
	expect(t, "a reader after a pause", readAll(t, third), "3:c")
}

func TestResumptionIsRefusedForWhatIsNotKept(t *testing.T) {
	_, open, _ := newStore(t, Settings{IdleTimeout: time.Minute, Max: 10, ReplayBytes: 10 * (eventCost + 1)})
	s, other := open(), open()
	st := s.NewStream()
	r := st.Attach()
	defer r.Detach()
	for range 30 {
		st.Append([]byte("x"), r)
	}
	if got := len(st.events); got != 10 {
		t.Errorf("%d messages kept, want the bound's 10", got)
	}
	for _, id := range []string{
		string(st.EventID(5)), string(st.EventID(31)), "", "1", "_", "1_", "_1", "9_1", "1_x", "-1_1",
		"1_18446744073709551615", "1_99999999999999999999999",
	} {
		if _, err := s.Resume(id); !errors.Is(err, ErrNotKept) {
			t.Errorf("Resume(%q): %v, want ErrNotKept", id, err)
		}
	}
	if _, err := other.Resume(string(st.EventID(25))); !errors.Is(err, ErrNotKept) {
		t.Errorf("another session resumed the stream: %v", err)
	}
}

func TestAnAnswerLargerThanTheBoundReachesAClientThatCameBack(t *testing.T) {
	_, open, _ := newStore(t, Settings{IdleTimeout: time.Minute, Max: 10, ReplayBytes: 100})
	s := open()
	st := s.NewStream()
	r, err := s.Resume(string(st.EventID(0)))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Detach()
	big := bytes.Repeat([]byte("x"), 5000)
	st.Append(big, nil)
	st.End()
	n, data, err := next(context.Background(), r)
	if err != nil || n != 1 || !bytes.Equal(data, big) {
		t.Errorf("got message %d of %d bytes, %v; want message 1 of 5000", n, len(data), err)
	}
}

// held is what the session holds for resumption: streams and bytes.
func (c *Session) held() (streams, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.streams), c.kept
}

func TestEndedStreamsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, open, _ := newStore(t, Settings{IdleTimeout: time.Hour, Max: 10, ReplayBytes: 1 << 20})
		s := open()
		for range 200 {
			one := s.NewStream()
			one.Append([]byte("answer"), nil)
			one.End()
		}
		if n, _ := s.held(); n > 2*keepStreams {
			t.Errorf("%d ended streams kept, want at most %d", n, 2*keepStreams)
		}
		time.Sleep(2 * keepEnded)
		synctest.Wait()
		if streams, bytes := st.Get(s.ID, "").held(); streams != 0 || bytes != 0 {
			t.Errorf("%d streams and %d bytes kept past their time, want none", streams, bytes)
		}
	})
}

// next waits for a Reader's next message, within ctx.
func next(ctx context.Context, r *Reader) (number uint64, data []byte, err error) {
	stop := context.AfterFunc(ctx, r.Wake)
	defer stop()
	for {
		if number, data, err = r.Poll(); data != nil || err != nil {
			return number, data, err
		}
		if ctx.Err() != nil {
			return 0, nil, ctx.Err()
		}
		woken := make(chan struct{})
		r.Await(func() { close(woken) })
		<-woken
	}
}

// TestAWakeIsNeverLostAndCountsOnce: it may come before the wait that it is to end.
func TestAWakeIsNeverLostAndCountsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, open, _ := newStore(t, roomy)
		st := open().NewStream()
		r := st.Attach()
		defer r.Detach()
		wakes := 0
		expect := func(after string, want int) {
			t.Helper()
			synctest.Wait()
			if wakes != want {
				t.Errorf("%d wakes after %s, want %d", wakes, after, want)
			}
		}
		wait := func() { r.Await(func() { wakes++ }) }
		wait()
		expect("a wait", 0)
		r.Wake()
		expect("a Wake", 1)
		r.Wake()
		r.Wake()
		expect("two more, which nobody waited for", 1)
		wait()
		expect("a wait after them", 2)
		wait()
		expect("another", 2)
		st.Append([]byte("a"), nil)
		st.Append([]byte("b"), nil)
		expect("two messages", 3)
		wait()
		expect("a wait with messages to take", 4)
		readAll(t, r)
		wait()
		expect("a wait with none", 4)
		st.End()
		expect("the stream's end", 5)
	})
}

func TestWhoWaitsForAStreamIsWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, open, _ := newStore(t, roomy)
		s := open()
		st := s.NewStream()
		var wait sync.WaitGroup
		got := make([]error, 2)
		r := st.Attach()
		wait.Go(func() {
			for _, want := range []string{"a", "b"} {
				if _, data, err := next(t.Context(), r); err != nil || string(data) != want {
					t.Errorf("got %q, %v; want %q", data, err, want)
				}
			}
			_, _, got[0] = next(t.Context(), r)
			r.Detach()
		})
		synctest.Wait()
		st.Append([]byte("a"), nil)
		synctest.Wait()
		st.Append([]byte("b"), nil)
		synctest.Wait()
		r2 := st.Attach()
		wait.Go(func() { _, _, got[1] = next(t.Context(), r2); r2.Detach() })
		synctest.Wait()
		store.End(context.Background(), s.ID)
		wait.Wait()
		if !errors.Is(got[0], ErrReplaced) || !errors.Is(got[1], context.Canceled) {
			t.Errorf("the replaced reader ended with %v, the session's with %v", got[0], got[1])
		}
	})
}

// A session may live for weeks: what a cancellation needs must go with its call.
func TestCancelledCallsLeaveNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, open, _ := newStore(t, roomy)
		s := open()
		heap := func() int64 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		before := heap()
		for range 20_000 {
			ctx, done, _ := s.Begin([]byte("1"))
			s.Cancel([]byte("1"))
			done()
			if ctx.Err() == nil {
				t.Fatal("a call that is done has a live context")
			}
		}
		time.Sleep(2 * cancelGrace)
		synctest.Wait()
		if left := heap() - before; left > 1<<20 {
			t.Errorf("%d bytes are left of 20000 cancelled calls", left)
		}
		runtime.KeepAlive(s)
	})
}

func TestARepeatedIdIsTheLaterCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, open, _ := newStore(t, roomy)
		s := open()
		_, first, _ := s.Begin([]byte("1"))
		second, done, _ := s.Begin([]byte("1"))
		defer done()
		first()
		s.Cancel([]byte("1"))
		time.Sleep(2 * cancelGrace)
		if second.Err() == nil {
			t.Error("the call in flight was not cancelled")
		}
	})
}

func TestASessionsCallsInFlightAreBounded(t *testing.T) {
	_, open, _ := newStore(t, roomy)
	s := open()
	var last func()
	for i := range maxCalls {
		_, done, err := s.Begin([]byte("1"))
		if err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
		last = done
	}
	if _, _, err := s.Begin([]byte("2")); !errors.Is(err, ErrBusy) {
		t.Errorf("a call beyond the bound: %v, want ErrBusy", err)
	}
	last()
	if _, _, err := s.Begin([]byte("2")); err != nil {
		t.Errorf("a call once another has ended: %v", err)
	}
}
