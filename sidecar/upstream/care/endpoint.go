package care

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// endpoint is one of the servers that calls are spread over, with what is known of it.
type endpoint struct {
	// Set by newEndpoint, never changed.
	server   *Server
	inner    upstream.Server
	name     string
	bit      uint64 // its own in a set of endpoints
	times    upstream.Timeouts
	interval time.Duration // between checks while it is well; not above zero: there are none
	pause    time.Duration // between checks while it is not: the breaker's retry_after
	wake     chan struct{} // capacity 1: that watch should look again, not how often

	state   atomic.Uint64 // the breaker's epoch and, below it, isCalm and isUp
	verdict atomic.Uint32 // mcp.Eras, as it was last heard; 0: not known
	seen    atomic.Bool   // a call has succeeded since the last look
	calls   atomic.Int64  // in flight, where there is a choice of endpoints
	asked   atomic.Bool   // a task asks for its eras

	mu       sync.Mutex // guards below
	breaker  breaker
	news     chan struct{} // closed, and made anew, when the breaker has moved or a check has ended
	demanded bool          // a call waits for a check
	checks   int           // that have begun
	checking time.Time     // when the one under way began; zero when there is none
	lastEnd  time.Time     // of the last check
}

// Of endpoint.state.
const (
	isCalm    = 1 << iota // a success would change nothing
	isUp                  // calls pass
	epochBits = iota      // how many bits these take
)

func newEndpoint(s *Server, inner upstream.Server, name string, number uint, spec *outriggerv1.Upstream) *endpoint {
	h := spec.GetHealth()
	e := &endpoint{
		server:   s,
		inner:    inner,
		name:     name,
		bit:      1 << number,
		times:    upstream.TimeoutsOf(spec.GetTimeouts()),
		interval: h.GetInterval().AsDuration(),
		pause:    durationOr(h.GetRetryAfter().AsDuration(), time.Second),
		wake:     make(chan struct{}, 1),
		news:     make(chan struct{}),
	}
	e.breaker = breaker{limit: max(1, int(h.GetFailures())), retryAfter: e.pause, trialTime: e.times.Handshake, checked: e.interval > 0}
	e.state.Store(isCalm | isUp)
	return e
}

func (e *endpoint) up() bool { return e.state.Load()&isUp != 0 }

// admit asks the breaker, and gives the ticket for telling the outcome.
//
// Hot: one atomic operation while the endpoint is calm.
func (e *endpoint) admit() (ticket uint64, ok bool) {
	if v := e.state.Load(); v&isCalm != 0 {
		return v >> epochBits, true
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	ok = e.moveLocked(move{event: ask, now: time.Now()})
	return e.breaker.epoch, ok
}

// answers tells the breaker that an answer has begun.
func (e *endpoint) answers(ticket uint64) {
	if e.state.Load()&isCalm == 0 {
		e.tell(move{event: answered, ticket: ticket})
	}
}

// succeeded tells it that a call came to its end.
func (e *endpoint) succeeded(ticket uint64) {
	if !e.seen.Load() {
		e.seen.Store(true)
	}
	if e.state.Load()&isCalm == 0 {
		e.tell(move{event: succeeded, ticket: ticket})
	}
}

// failed tells it what an error means, and that the call has left.
func (e *endpoint) failed(ctx context.Context, ticket uint64, err error) {
	e.left()
	if meansOtherEra(err) {
		e.verdict.Store(0)
	}
	e.settle(ticket, judge(ctx, err))
}

// settle tells it a call's outcome.
func (e *endpoint) settle(ticket uint64, outcome event) {
	switch {
	case outcome == succeeded:
		e.succeeded(ticket)
		return
	case outcome == doubted && e.hasStandIn():
		outcome = failed
	}
	e.tell(move{event: outcome, ticket: ticket})
}

// hasStandIn reports whether another endpoint is beyond doubt. While there is one, to leave this one alone closes the
// server to nobody; and one that fails at once would otherwise draw the calls of all, for it has the fewest.
func (e *endpoint) hasStandIn() bool {
	for _, other := range e.server.endpoints {
		if other != e && other.state.Load()&(isCalm|isUp) == isCalm|isUp {
			return true
		}
	}
	return false
}

// entered counts a call in flight, where there is a choice of endpoints.
func (e *endpoint) entered() {
	if len(e.server.endpoints) > 1 {
		e.calls.Add(1)
	}
}

// left undoes entered.
func (e *endpoint) left() {
	if len(e.server.endpoints) > 1 {
		e.calls.Add(-1)
	}
}

// spread is how much of each second of a pause is left out, so that many sidecars do not come at once.
func spread() time.Duration { return rand.N(time.Second / 4) }

func (e *endpoint) tell(m move) {
	m.now, m.spread = time.Now(), spread()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.moveLocked(m)
}

// moveLocked makes one step of the breaker and shows what came of it.
func (e *endpoint) moveLocked(m move) (passes bool) {
	before := e.breaker
	e.breaker, passes = before.step(m)
	state := e.breaker.epoch << epochBits
	if e.breaker.phase == closed {
		state |= isUp
	}
	if e.breaker.calm() {
		state |= isCalm
	}
	e.state.Store(state)
	switch {
	case e.breaker.phase != before.phase || e.breaker.epoch != before.epoch:
		e.announceLocked(before.phase)
	case e.breaker.faults+e.breaker.doubts == 1 && before.faults+before.doubts == 0:
		e.wakeLocked() // to make a check sooner
	}
	return passes
}

// wakeLocked has watch look again.
func (e *endpoint) wakeLocked() {
	select {
	case e.wake <- struct{}{}:
	default: // it will look already
	}
}

// announceLocked tells the log and whoever waits that the breaker has moved.
func (e *endpoint) announceLocked(before phase) {
	e.newsLocked()
	e.wakeLocked()
	switch b := &e.breaker; {
	case b.phase == closed && before != closed:
		e.server.log.Info("an endpoint is well again", "endpoint", e.name)
	case b.phase == open && before == closed:
		e.server.log.Warn("an endpoint is left alone for its faults", "endpoint", e.name,
			"faults", b.limit, "retry_after", time.Until(b.retryAt).Round(time.Millisecond))
	}
}

func (e *endpoint) newsLocked() {
	close(e.news)
	e.news = make(chan struct{})
}

// refused is the error of a call that admitSoon did not let through.
func (e *endpoint) refused(ctx context.Context) error {
	if ctx.Err() != nil {
		return e.server.gaveUp(ctx, "before an endpoint was well")
	}
	return e.refusal()
}

// refusal is the error of a call that the breaker does not let through.
func (e *endpoint) refusal() error {
	e.mu.Lock()
	b := e.breaker
	e.mu.Unlock()
	detail := fmt.Sprintf("is left alone after %d faults in a row", b.limit)
	switch left := time.Until(b.retryAt); {
	case b.phase == halfOpen:
		detail += "; another call tries whether it is well again"
	case left > 0:
		detail += fmt.Sprintf("; it is tried again in %v", max(left.Round(100*time.Millisecond), 100*time.Millisecond))
	}
	return e.server.fault(upstream.Unreachable, detail, nil)
}

// judge is what an error says about the endpoint that it came from. ctx is the caller's.
func judge(ctx context.Context, err error) event {
	var e *upstream.Error
	switch {
	case err == nil, errors.Is(err, upstream.ErrNoStream):
		return succeeded
	case errors.Is(ctx.Err(), context.Canceled), !errors.As(err, &e), errors.Is(err, upstream.ErrOtherID):
		return noOutcome
	}
	switch e.Kind {
	case upstream.Unreachable, upstream.Lost:
		return broke
	case upstream.TimedOut:
		return late
	case upstream.BadAnswer:
		switch {
		case e.Status > http.StatusInternalServerError:
			return failed // it, or what stands before it, says that it is not there, or not well
		case e.Status >= http.StatusBadRequest && e.Status < http.StatusInternalServerError:
			return succeeded // it is there, and refused what it was sent
		}
		return doubted
	case upstream.Unauthorized, upstream.WrongEra, upstream.Loop:
		return succeeded
	}
	return noOutcome
}

// meansOtherEra reports whether an error may come of a wrong idea of the wires that the endpoint speaks.
func meansOtherEra(err error) bool {
	var e *upstream.Error
	return errors.As(err, &e) && (e.Kind == upstream.WrongEra ||
		e.Kind == upstream.BadAnswer && e.Status >= http.StatusBadRequest && e.Status < http.StatusInternalServerError)
}

// eras asks the endpoint for its wires, which it remembers. While it is left alone it is not bothered for what is not
// known.
func (e *endpoint) eras(ctx context.Context) (mcp.Eras, error) {
	if e.verdict.Load() != 0 {
		return e.askEras(ctx)
	}
	ticket, ok := e.admitSoon(ctx)
	if !ok {
		return 0, e.refused(ctx)
	}
	eras, err := e.askEras(ctx)
	e.settle(ticket, judge(ctx, err))
	return eras, err
}

// askEras remembers what the endpoint says, or that it says nothing.
func (e *endpoint) askEras(ctx context.Context) (mcp.Eras, error) {
	eras, err := e.inner.Eras(ctx)
	if e.verdict.Load() != uint32(eras) { // hardly ever: calls read what lies beside it
		e.verdict.Store(uint32(eras))
	}
	return eras, err
}
