package federate

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	// patience is how long a list that has run out is waited for before the last one stands in.
	patience = 300 * time.Millisecond
	// leastPause and mostPause are between attempts to get a list from a member that does not give one: callers without
	// a last list to fall back on are then answered without it at once.
	leastPause = time.Second
	mostPause  = 30 * time.Second
	// maxScopes is for how many scopes a member's lists are kept.
	maxScopes = 256
)

// cache holds one member's lists. It is safe for concurrent use.
type cache struct {
	mu     sync.Mutex // guards below
	kept   map[cacheKey]*kept
	public [numKinds]bool // whether the last list of a kind was for everybody
}

type cacheKey struct {
	kind  kind
	scope scope
}

// kept is a member's list for one scope, and what is under way to get the next.
type kept struct {
	list     *list
	until    time.Time // fresh
	last     time.Time // until it may stand in
	used     time.Time
	flight   chan struct{} // closed when the fetch under way has ended; nil when there is none
	fault    string        // why the last fetch failed, "" when it did not
	failures int           // in a row
	retry    time.Time     // not before, after a failure
	dirty    bool          // it changed while it was being fetched
}

func newCache() cache { return cache{kept: make(map[cacheKey]*kept)} }

// part is what a member contributes to a merged list.
type part struct {
	list  *list  // nil when it has none to give
	fault string // why it is missing or old, "" when it is neither
	until time.Time
}

// expire makes the lists of a kind be fetched again. The last ones may stand in meanwhile.
func (c *cache) expire(k kind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, e := range c.kept {
		if key.kind == k {
			e.until, e.retry, e.failures = time.Time{}, time.Time{}, 0
			e.dirty = e.flight != nil
		}
	}
}

// get is a member's list: the one at hand, or else the next, waited for within ctx. It never waits long where an older
// list is at hand, nor where the member has just failed.
func (s *Server) get(ctx context.Context, m *member, k kind, sc scope) part {
	c := &m.lists
	c.mu.Lock()
	e := c.entryLocked(k, sc)
	now := time.Now()
	e.used = now
	if e.list != nil && now.Before(e.until) {
		defer c.mu.Unlock()
		return part{list: e.list, until: e.until}
	}
	if e.flight == nil && !now.Before(e.retry) {
		e.flight = make(chan struct{})
		if !s.start(func() { s.refresh(m, k, sc, e) }) {
			close(e.flight)
			e.flight = nil
		}
	}
	flight, wait := e.flight, s.timeout()
	if e.list != nil && now.Before(e.last) {
		wait = min(wait, patience)
	}
	c.mu.Unlock()
	if flight != nil {
		await(ctx, flight, wait)
	}
	return c.read(e)
}

func await(ctx context.Context, done <-chan struct{}, most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// read is what there is of a list now.
func (c *cache) read(e *kept) part {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	switch {
	case e.list != nil && now.Before(e.until):
		return part{list: e.list, until: e.until}
	case e.list != nil && now.Before(e.last):
		return part{list: e.list, fault: orSlow(e.fault), until: now.Add(patience)}
	}
	return part{fault: orSlow(e.fault), until: now.Add(patience)}
}

// orSlow is a fault, or that the member takes its time.
func orSlow(fault string) string {
	if fault == "" {
		return upstream.TimedOut.Reason()
	}
	return fault
}

// entryLocked is the place of a list, made if need be. What everybody may see is kept once.
func (c *cache) entryLocked(k kind, sc scope) *kept {
	if c.public[k] {
		sc = sc.public()
	}
	key := cacheKey{k, sc}
	if e := c.kept[key]; e != nil {
		return e
	}
	if len(c.kept) >= maxScopes {
		c.forgetLocked()
	}
	e := new(kept)
	c.kept[key] = e
	return e
}

// forgetLocked drops what was unused for longest. A fetch under way ends all the same.
func (c *cache) forgetLocked() {
	var oldest cacheKey
	var at time.Time
	for key, e := range c.kept {
		if at.IsZero() || e.used.Before(at) {
			oldest, at = key, e.used
		}
	}
	delete(c.kept, oldest)
}

// refresh fetches a list and keeps it, or why it did not come.
func (s *Server) refresh(m *member, k kind, sc scope, e *kept) {
	ctx, cancel := context.WithTimeout(s.ctx, s.timeout())
	defer cancel()
	l, err := s.fetch(ctx, m, k, sc)
	c := &m.lists
	c.mu.Lock()
	defer c.mu.Unlock()
	defer close(e.flight)
	e.flight = nil
	changed := e.dirty
	e.dirty = false
	now := time.Now()
	if err != nil {
		e.fault = reasonOf(err)
		e.retry = now.Add(min(mostPause, leastPause<<min(e.failures, 10)))
		e.failures++
		s.o.Log.Warn("an upstream did not give its list", "upstream", m.Name, "method", kinds[k].method, "error", err)
		return
	}
	lists := s.o.Binding.GetLists()
	ttl := l.ttl
	if ttl <= 0 {
		ttl = lists.GetTtl().AsDuration()
	}
	e.list, e.fault, e.failures = l, "", 0
	e.until, e.last = now.Add(ttl), now.Add(ttl+lists.GetStale().AsDuration())
	if changed {
		e.until = now
	}
	if l.public != c.public[k] {
		c.public[k] = l.public
		c.shareLocked(k, sc, e)
	}
	if l.cut != "" {
		s.o.Log.Warn("an upstream's list is not served whole", "upstream", m.Name, "method", kinds[k].method, "reason", l.cut, "entries", len(l.entries))
	}
}

// shareLocked keeps a list where it is looked for now that it is for everybody, and drops the others when it is not.
func (c *cache) shareLocked(k kind, sc scope, e *kept) {
	if c.public[k] {
		c.kept[cacheKey{k, sc.public()}] = e
		return
	}
	for key, other := range c.kept {
		if key.kind == k && other != e {
			delete(c.kept, key)
		}
	}
	c.kept[cacheKey{k, sc}] = e
}

// start runs f in a goroutine of the federation's, unless it was closed.
func (s *Server) start(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	s.work.Go(f)
	return true
}

// reasonOf is a failure's short name, as in metrics.
func reasonOf(err error) string {
	var e *upstream.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return upstream.TimedOut.Reason()
	case errors.As(err, &e):
		return e.Kind.Reason()
	}
	return upstream.BadAnswer.Reason()
}
