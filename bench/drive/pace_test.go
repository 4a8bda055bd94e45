package drive

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"
)

// TestLatencyCountsFromTheTimeACallWasDue holds that a server that stops for a while is seen by every call that fell
// due meanwhile, not only by the one that waited for it.
func TestLatencyCountsFromTheTimeACallWasDue(t *testing.T) {
	_, null := startNull(t)
	const pause = 400 * time.Millisecond
	var calls atomic.Int64
	url := behindHandler(t, null, func(b []byte) []byte {
		if calls.Add(1) == 10 {
			time.Sleep(pause)
		}
		return b
	})
	l := run(t, Config{URL: url, Rate: 100, Duration: time.Second})
	if l.Calls+l.Unsent != 100 || l.Failures+l.Wrong != 0 {
		t.Fatalf("%d calls, %d unsent, %d failures, want 100 together and none: %s", l.Calls, l.Unsent, l.Failures, l.FirstFailure)
	}
	// 40 calls fell due in the pause, evenly: three quarters of them waited 100 ms and more.
	if l.Latency.P90 < 100e3 || l.Latency.Max < 390e3 {
		t.Errorf("p90 is %.0f us and the maximum %.0f us, want over 100,000 and about 400,000", l.Latency.P90, l.Latency.Max)
	}
}

func TestCallsThatFoundNoConnectionAreUnsent(t *testing.T) {
	url := startHandler(t, func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // so that the client's leaving is noticed
		<-r.Context().Done()
	})
	l := run(t, Config{URL: url, Rate: 100, Duration: 200 * time.Millisecond, Timeout: time.Second})
	expect(t, l, 0, 1, 0)
	if l.Unsent != 19 {
		t.Errorf("%d calls are unsent, want the 19 that were due while the first was not answered", l.Unsent)
	}
}

func TestCallsFallDueAtAConstantRateWhateverIsTaken(t *testing.T) {
	p := newPhase(newTally(), 300*time.Millisecond, 0)
	q := newQueue(p, 1000, time.Second)
	go q.fill(t.Context())
	time.Sleep(20 * time.Millisecond) // the taker is late, and sees it in what is due
	n := 0
	for due, ok := q.take(); ok; due, ok = q.take() {
		if want := p.start.Add(time.Duration(n) * time.Millisecond); !due.Equal(want) {
			t.Errorf("call %d is due %v after the start, want %v", n, due.Sub(p.start), want.Sub(p.start))
		}
		if early := time.Until(due); early > 0 {
			t.Errorf("call %d could be taken %v before it was due", n, early)
		}
		n++
	}
	if unsent := p.tally.load(false).Unsent; int64(n)+unsent != 300 || n == 0 {
		t.Errorf("%d calls were taken and %d unsent, want 300 together", n, unsent)
	}
}

func TestAQueueThatIsFullDropsWhatFallsDue(t *testing.T) {
	p := newPhase(newTally(), 0, 500)
	q := newQueue(p, 100_000, 100*time.Microsecond) // room for 10 and one
	q.fill(t.Context())
	if got := len(q.calls); got != 11 || p.tally.load(false).Unsent != 489 {
		t.Errorf("%d calls wait and %d are unsent, want 11 and 489", got, p.tally.load(false).Unsent)
	}
}

func TestTheTimerIsNeverEarlyAndEndsWithItsContext(t *testing.T) {
	timer := newTimer()
	defer timer.close()
	for _, d := range []time.Duration{-time.Second, 0, 50 * time.Microsecond, 2 * time.Millisecond} {
		at := time.Now().Add(d)
		if timer.sleepUntil(t.Context(), at); time.Now().Before(at) {
			t.Errorf("sleepUntil(%v) returned before", d)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer context.AfterFunc(ctx, timer.wake)()
	time.AfterFunc(10*time.Millisecond, cancel)
	begin := time.Now()
	if timer.sleepUntil(ctx, begin.Add(time.Minute)); time.Since(begin) > 30*time.Second {
		t.Error("sleepUntil went on when its context had ended")
	}
}
