package jwt

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// When keys are fetched beside the provider's `refresh`.
const (
	coolDown   = 10 * time.Second // between fetches that unknown kids cause
	firstPause = time.Second      // after a fetch that failed; it doubles
	maxPause   = 30 * time.Second
	patience   = 3 * time.Second // how long a token waits for a fetch
)

// source has the keys of one issuer and keeps them fresh. One fetch runs at a time, however many wait for it, and it ends
// in its own time, whoever leaves.
type source struct {
	// Set by newSource, never changed.
	issuer  string
	refresh time.Duration
	limit   time.Duration // how old keys may be that are used
	log     *slog.Logger
	ctx     context.Context   // done when the owner closes
	start   func(func()) bool // runs a task of the owner's
	unused  func() bool       // whether there is no user; the owner has then forgotten the source

	current atomic.Pointer[keySet] // nil: none were ever fetched
	fetched [len(results)]atomic.Uint64
	users   atomic.Int64 // Verifiers that something refers to

	mu       sync.Mutex    // guards below
	flight   chan struct{} // closed when the fetch that runs ends; nil: none runs
	due      time.Time     // of the next refresh
	failures int           // since the last success
	unknown  time.Time     // when an unknown kid last caused a fetch

	fetcher *fetcher // the fetch that runs has it
}

// usable are the keys, or nil where there are none that may be used still.
//
// Hot: two loads and the clock.
func (s *source) usable() *keySet {
	set := s.current.Load()
	if set == nil || time.Since(set.at) > s.limit {
		return nil
	}
	return set
}

// run fetches keys until the owner closes, or they are due and nobody uses them: at once, then each time that they are due.
func (s *source) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-timer.C:
		}
		if s.unused() {
			return
		}
		timer.Reset(s.refreshIfDue())
	}
}

// refreshIfDue fetches keys if they are due, and tells when to ask again.
func (s *source) refreshIfDue() time.Duration {
	s.mu.Lock()
	flight := s.flight
	if flight == nil && !time.Now().Before(s.due) {
		flight = s.fetchLocked()
	}
	s.mu.Unlock()
	if flight != nil {
		select {
		case <-flight:
		case <-s.ctx.Done():
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(time.Until(s.due), 0)
}

// fetchLocked starts a fetch and returns what is closed at its end; nil: it is too late for one.
func (s *source) fetchLocked() chan struct{} {
	flight := make(chan struct{})
	if s.ctx.Err() != nil || !s.start(func() { s.fetch(flight) }) {
		return nil
	}
	s.flight = flight
	return flight
}

func (s *source) fetch(flight chan struct{}) {
	began := time.Now()
	keys, unusable, err := s.fetcher.fetch(s.ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flight = nil
	defer close(flight)
	if s.ctx.Err() != nil {
		return // nobody wants them any more
	}
	s.fetched[resultOf(err)].Add(1)
	if err != nil {
		s.failedLocked(err)
		return
	}
	if s.failures > 0 || s.current.Load() == nil {
		s.log.Info("the issuer's keys were fetched", "issuer", s.issuer, "keys", len(keys), "unusable", unusable)
	}
	s.failures = 0
	s.due = began.Add(s.refresh - rand.N(s.refresh/10+1)) // sidecars that started together do not stay together
	s.current.Store(s.current.Load().succeed(keys, began))
}

// failedLocked logs the first failure of a row, and sets when the next try is.
func (s *source) failedLocked(err error) {
	if s.failures == 0 {
		s.log.Warn("the issuer's keys cannot be fetched; those that there are stay in use", "issuer", s.issuer, "err", err)
	}
	s.due = time.Now().Add(min(firstPause<<min(s.failures, 10), maxPause))
	s.failures++
}

// keysFor finds the keys that a token may be signed with. Where the issuer does not have them, they are fetched if that is
// allowed now, or a fetch that runs is waited for, within patience.
func (s *source) keysFor(ctx context.Context, kid, algorithm string) ([]*key, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, ErrUnavailable)
	defer cancel()
	for {
		keys, err := s.choose(kid, algorithm)
		if err != ErrUnavailable && err != refuse(KeyUnknown) {
			return keys, err
		}
		// A fetch that ran already may have begun before the issuer had the key; then another may follow.
		flight := s.join(err != ErrUnavailable)
		if flight == nil {
			return nil, s.unless(err)
		}
		select {
		case <-flight:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// choose looks among the keys that there are.
func (s *source) choose(kid, algorithm string) ([]*key, error) {
	set := s.usable()
	if set == nil {
		return nil, ErrUnavailable
	}
	return set.choose(kid, algorithm)
}

// unless is err, or ErrUnavailable while the issuer is not well: it may have a key that nobody here can know of.
func (s *source) unless(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failures > 0 {
		return ErrUnavailable
	}
	return err
}

// join is the end of the fetch that runs, or of one that it starts; nil: neither is there.
func (s *source) join(unknownKid bool) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.flight != nil || !s.mayFetchLocked(now, unknownKid) {
		return s.flight
	}
	if unknownKid {
		s.unknown = now
	}
	return s.fetchLocked()
}

// mayFetchLocked holds fetches that tokens cause apart: strangers choose when they come.
func (s *source) mayFetchLocked(now time.Time, unknownKid bool) bool {
	if s.failures > 0 && now.Before(s.due) {
		return false
	}
	return !unknownKid || s.unknown.IsZero() || now.Sub(s.unknown) >= coolDown
}
