package credential

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	// maxRequests are under way at an endpoint at once; others wait within the same timeout.
	maxRequests = 16
	// replacePause is the least time between two tokens that a server refused.
	replacePause = 10 * time.Second
	// ownPause is how long the sidecar goes without a token for itself where only callers are given any.
	ownPause = 5 * time.Minute
)

// tokens are what one endpoint gave for one server.
type tokens struct {
	// Set by newTokens, never changed.
	sources  *Sources
	upstream string
	prefix   string
	endpoint *endpoint
	places   chan struct{} // capacity maxRequests

	own     slot // the sidecar's
	callers callers

	mu      sync.Mutex    // guards below
	failure *failure      // of the whole endpoint; nil when the last request had another outcome
	until   time.Duration // when it is asked again
}

func newTokens(s *Sources, name, prefix string, e *endpoint) *tokens {
	return &tokens{
		sources: s, upstream: name, prefix: prefix, endpoint: e,
		places: make(chan struct{}, maxRequests), callers: newCallers(),
	}
}

// value is Source.Value.
func (t *tokens) value(ctx context.Context, caller *identity.Principal) (string, error) {
	now := t.sources.now()
	s, err := t.slotOf(caller, now)
	if err != nil {
		return "", err
	}
	if k := s.current.Load(); k != nil && now < k.until {
		if now >= k.renew {
			t.renew(s, now)
		}
		return k.value, nil
	}
	return t.wait(ctx, s, now)
}

// slotOf is where a caller's token is kept.
func (t *tokens) slotOf(caller *identity.Principal, now time.Duration) (*slot, error) {
	switch {
	case !t.endpoint.exchanges || caller == upstream.Self:
		return &t.own, nil
	case caller == nil || caller.Token == "":
		return nil, t.fault("has nothing to present for a caller that came without a token", nil)
	}
	return t.callers.slot(caller.Token, now), nil
}

// wait is for a token that is not at hand.
func (t *tokens) wait(ctx context.Context, s *slot, now time.Duration) (string, error) {
	f, k, err := t.begin(s, now)
	switch {
	case err != nil:
		return "", err
	case k != nil:
		return k.value, nil
	}
	select {
	case <-f.done:
	case <-ctx.Done():
		return "", t.gaveUp(ctx)
	}
	if f.err != nil {
		return "", f.err
	}
	return f.token.value, nil
}

// renew gets the next token while the one before it still serves.
func (t *tokens) renew(s *slot, now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flight == nil && now >= s.again && t.resting(now) == nil {
		t.startLocked(s) // or the Sources are closed
	}
}

// begin finds out how a slot gets its token: it has one by now, a request is under way, or begins; or none is made since the
// last one failed a moment ago.
func (t *tokens) begin(s *slot, now time.Duration) (*flight, *token, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.current.Load(); k != nil && now < k.until {
		return nil, k, nil
	}
	if s.flight != nil {
		return s.flight, nil, nil
	}
	if s.failed != nil && now < s.again {
		return nil, nil, t.faultOf(s.failed)
	}
	if f := t.resting(now); f != nil {
		return nil, nil, t.faultOf(f)
	}
	if !t.startLocked(s) {
		return nil, nil, t.fault("was removed", nil)
	}
	return s.flight, nil, nil
}

// resting is why the endpoint is not asked now, by anybody; nil when it is.
func (t *tokens) resting(now time.Duration) *failure {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failure != nil && now < t.until {
		return t.failure
	}
	return nil
}

// startLocked begins a request, unless it is too late for that.
func (t *tokens) startLocked(s *slot) bool {
	f := &flight{done: make(chan struct{})}
	if !t.sources.tasks.Run(func() { t.fly(s, f) }) {
		return false
	}
	s.flight = f
	return true
}

// fly is the task of one request.
func (t *tokens) fly(s *slot, f *flight) {
	ctx, stop := context.WithTimeout(t.sources.tasks.Context(), t.endpoint.timeout)
	defer stop()
	began := t.sources.now()
	g, failed := t.ask(ctx, s.subject)
	t.count(failed)
	now := t.sources.now()
	if failed != nil && failed.answered && t.endpoint.exchanges && s == &t.own {
		g, failed = noneForSelf(failed), nil
	}
	t.note(failed, now)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flight = nil
	if s.failed = failed; failed != nil {
		s.again, f.err = now+failed.pause, t.faultOf(failed)
	} else {
		f.token = t.tokenOf(g, began)
		s.current.Store(f.token)
		t.callers.grew(s, len(f.token.value))
	}
	close(f.done)
}

// noneForSelf is what comes of it that an endpoint, which is there for callers, gives the sidecar no token: it presents none.
func noneForSelf(f *failure) grant {
	if f.refused {
		return grant{lifetime: ownPause}
	}
	return grant{lifetime: maxPause}
}

// ask waits for a place, and makes the request.
func (t *tokens) ask(ctx context.Context, subject string) (grant, *failure) {
	select {
	case t.places <- struct{}{}:
		defer func() { <-t.places }()
	case <-ctx.Done():
		return grant{}, t.endpoint.failed(ctx, ctx.Err())
	}
	return t.endpoint.ask(ctx, subject)
}

// count counts an outcome.
func (t *tokens) count(failed *failure) {
	outcome := "ok"
	switch {
	case failed != nil && failed.refused:
		outcome = "refused"
	case failed != nil:
		outcome = "failed"
	}
	t.sources.asked.WithLabelValues(outcome).Inc()
}

// note remembers what would be the same for all. The log has the first of failures in a row; calls that suffer of them have
// their own lines.
func (t *tokens) note(failed *failure, now time.Duration) {
	t.mu.Lock()
	before := t.failure
	t.failure = nil
	if failed != nil && failed.whole {
		t.failure, t.until = failed, now+failed.pause
	}
	t.mu.Unlock()
	switch {
	case failed != nil && failed.whole && (before == nil || before.detail != failed.detail):
		t.sources.log.Warn("no token for a server", "upstream", t.upstream, "reason", failed.detail, "error", failed.cause)
	case failed == nil && before != nil:
		t.sources.log.Info("there are tokens for a server again", "upstream", t.upstream)
	}
}

// tokenOf is a grant as requests present it. It is replaced when a quarter of its life is left, a minute at most, and not
// used in the last tenth, ten seconds at most: an answer, and a server's clock, may be late.
func (t *tokens) tokenOf(g grant, began time.Duration) *token {
	ends := began + g.lifetime
	k := &token{
		renew: ends - min(g.lifetime/4, time.Minute),
		until: ends - min(g.lifetime/10, 10*time.Second),
	}
	if g.token != "" {
		k.value = t.prefix + g.token
	}
	return k
}

// forget is Source.Forget. It reports whether there may be another value.
func (t *tokens) forget(caller *identity.Principal, refused string) bool {
	now := t.sources.now()
	s, err := t.slotOf(caller, now)
	return err == nil && s.drop(refused, now)
}

// replace is Source.Renew.
func (t *tokens) replace(ctx context.Context, caller *identity.Principal, refused string) (string, bool) {
	if !t.forget(caller, refused) {
		return "", false
	}
	value, err := t.value(ctx, caller)
	return value, err == nil && value != "" && value != refused
}

func (t *tokens) fault(detail string, cause error) error {
	return &upstream.Error{Kind: upstream.NoCredential, Upstream: t.upstream, Detail: detail, Cause: cause}
}

func (t *tokens) faultOf(f *failure) error { return t.fault("got no token: "+f.detail, f.cause) }

// gaveUp is the error of a call whose own context ended. That a deadline passed is no fault of the server's.
func (t *tokens) gaveUp(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return t.fault("got no token before the call's deadline", ctx.Err())
	}
	return &upstream.Error{Kind: upstream.Lost, Upstream: t.upstream, Detail: "the call was cancelled", Cause: ctx.Err()}
}
