package care

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

const (
	// soon is how long a call waits for the outcome of an attempt to reach an endpoint that it would be refused by.
	soon = 100 * time.Millisecond
	// checkPause is the least time between two checks, however many calls wait for one.
	checkPause = 50 * time.Millisecond
)

// watch makes true handshakes while no call shows how the endpoint is: at every interval while it is idle, after each
// fault, when the breaker would let somebody try, and when a call waits for it. It ends with ctx.
func (e *endpoint) watch(ctx context.Context) {
	for {
		wait := time.Until(e.nextCheck(time.Now()))
		if wait <= 0 && ctx.Err() == nil {
			e.look(ctx)
			continue
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-e.wake:
			t.Stop()
		case <-t.C:
			e.look(ctx)
		}
	}
}

// nextCheck is when to look next.
func (e *endpoint) nextCheck(now time.Time) time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lastEnd.IsZero() {
		e.lastEnd = now // the first use shows how it is
	}
	pause := jittered(e.interval)
	switch b := &e.breaker; {
	case e.demanded:
		pause = 0
	case b.phase == closed && b.faults+b.doubts > 0:
		pause = min(pause, jittered(e.pause))
	case b.phase != closed:
		pause = min(pause, b.retryAt.Sub(e.lastEnd))
	}
	return e.lastEnd.Add(max(pause, checkPause))
}

// jittered spreads a pause, so that many sidecars do not come at once.
func jittered(d time.Duration) time.Duration { return d - rand.N(d/4+1) }

// look makes a check, unless calls have shown meanwhile that the endpoint is well.
func (e *endpoint) look(ctx context.Context) {
	if e.up() && e.seen.Swap(false) {
		e.mu.Lock()
		e.lastEnd = time.Now()
		e.mu.Unlock()
		return
	}
	ctx, stop := context.WithTimeoutCause(ctx, e.times.Connect+e.times.Handshake, errCheckHangs)
	defer stop()
	_ = e.checkNow(ctx) // what it means is the breaker's affair
	if e.verdict.Load() == 0 && e.up() && len(e.server.endpoints) > 1 {
		e.server.learn(e)
	}
}

var errCheckHangs = errors.New("the check did not end in its time")

// checkNow makes one handshake and tells the breaker what came of it. While a call tries, it leaves the trial to it.
func (e *endpoint) checkNow(ctx context.Context) error {
	e.mu.Lock()
	passes := e.moveLocked(move{event: ask, now: time.Now()})
	ticket := e.breaker.epoch
	e.checks++
	e.checking, e.demanded = time.Now(), false
	e.mu.Unlock()

	err := e.inner.Check(ctx)

	m := move{event: checkOutcome(judge(ctx, err), passes), ticket: ticket, now: time.Now(), spread: spread()}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.checking, e.lastEnd = time.Time{}, m.now
	e.moveLocked(m)
	e.newsLocked()
	return err
}

// checkOutcome is what the outcome of a check is to the breaker, which had let it pass or not. A success does not undo
// the faults that calls had: these may go on all the same.
func checkOutcome(outcome event, passed bool) event {
	if outcome == doubted || outcome == late {
		outcome = failed // nobody chose what a check asks for
	}
	switch {
	case outcome == succeeded:
		return proved
	case passed:
		return outcome
	case outcome == failed:
		return disproved
	case outcome == broke:
		return brokeAgain
	}
	return nothing
}

// admitSoon is admit for a call that can wait a moment: if the connection was what failed, the server may just have been
// started again, and asking it costs it nothing; if calls took too long, that may be one tool's doing. So a call that would
// be refused gets a check made, though not more often than checkPause, and passes if that succeeds; so it does if another
// call's trial succeeds. An endpoint whose check hangs, or that answers with errors, is left alone, and so refuses at once.
func (e *endpoint) admitSoon(ctx context.Context) (ticket uint64, ok bool) {
	if ticket, ok = e.admit(); ok {
		return ticket, true
	}
	late := time.NewTimer(soon)
	defer late.Stop()
	after := e.begun() // what counts is a check that begins from now on
	for {
		news := e.demand(time.Now(), after)
		if news == nil {
			return 0, false
		}
		select {
		case <-news:
		case <-late.C:
			return 0, false
		case <-ctx.Done():
			return 0, false
		case <-e.server.tasks.Context().Done():
			return 0, false
		}
		if ticket, ok = e.admit(); ok {
			return ticket, true
		}
	}
}

// begun is how many checks have begun.
func (e *endpoint) begun() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.checks
}

// demand asks for a check and returns what tells of its end; nil when there is nothing to wait for.
func (e *endpoint) demand(now time.Time, after int) <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	running := !e.checking.IsZero()
	switch b := &e.breaker; {
	case !b.unsure, running && now.Sub(e.checking) > soon:
		return nil
	case b.phase == halfOpen:
		if now.Sub(b.since) > soon {
			return nil
		}
		return e.news
	case e.checks > after && !running, e.interval <= 0:
		return nil // one has begun since, and failed; or there are none
	}
	if e.checks == after && !e.demanded {
		e.demanded = true
		e.wakeLocked()
	}
	return e.news
}
