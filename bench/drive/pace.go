package drive

import (
	"context"
	"sync/atomic"
	"time"
)

// phase is a part of a run: for some time, or for some calls.
type phase struct {
	tally *tally
	start time.Time
	end   time.Time    // zero: when the calls are made
	left  atomic.Int64 // calls to make; very many without a limit
}

func newPhase(t *tally, d time.Duration, calls int64) *phase {
	p := &phase{tally: t, start: time.Now()}
	if calls == 0 {
		calls = 1 << 62
	}
	p.left.Store(calls)
	if d > 0 {
		p.end = p.start.Add(d)
	}
	return p
}

// over reports whether the phase's time is up.
func (p *phase) over(now time.Time) bool { return !p.end.IsZero() && !now.Before(p.end) }

// takeNow is a closed loop's next call: it is due at once. It is false when the phase is over.
func (p *phase) takeNow() (due time.Time, ok bool) {
	now := time.Now()
	return now, !p.over(now) && p.left.Add(-1) >= 0
}

// sleep lets some time pass, but not longer than the phase or ctx.
func (p *phase) sleep(ctx context.Context, d time.Duration) {
	if !p.end.IsZero() {
		d = min(d, time.Until(p.end))
	}
	sleep(ctx, d)
}

// sleep lets some time pass, but not longer than ctx.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// queue holds an open loop's calls from when they are due until a connection is free: the k-th of a phase is due at
// start + k/rate, whatever became of those before it. It has room for what falls due in one timeout, at most maxQueue;
// a call that finds no room is never sent, and counts as such, as does one that still waits when the phase ends.
type queue struct {
	p        *phase
	interval float64            // between calls, in nanoseconds
	calls    chan time.Duration // when they are due, after the phase's start
}

// maxQueue is the most calls that wait, 8 bytes each.
const maxQueue = 1 << 20

func newQueue(p *phase, rate float64, timeout time.Duration) *queue {
	room := min(rate*timeout.Seconds(), maxQueue)
	return &queue{p: p, interval: float64(time.Second) / rate, calls: make(chan time.Duration, int(room)+1)}
}

// fill puts each call into the queue when it is due, until the phase or ctx is over.
func (q *queue) fill(ctx context.Context) {
	defer close(q.calls)
	t := newTimer()
	defer t.close()
	defer context.AfterFunc(ctx, t.wake)()
	for k := 0; ctx.Err() == nil && q.p.left.Add(-1) >= 0; k++ {
		due := time.Duration(float64(k) * q.interval)
		at := q.p.start.Add(due)
		if q.p.over(at) {
			return
		}
		t.sleepUntil(ctx, at)
		if ctx.Err() != nil {
			return
		}
		select {
		case q.calls <- due:
		default:
			q.p.tally.unsent(1)
		}
	}
}

// take waits for the next call. It is false when there are no more.
func (q *queue) take() (due time.Time, ok bool) {
	for after := range q.calls {
		if !q.p.over(time.Now()) {
			return q.p.start.Add(after), true
		}
		q.p.tally.unsent(1)
	}
	return time.Time{}, false
}
