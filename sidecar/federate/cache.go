package federate

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/background"
	"github.com/outrigger-mesh/outrigger/sidecar/budget"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	// patience is how long a fetch may take before callers do without it: with the last list, or where the member failed
	// before, with none.
	patience = 300 * time.Millisecond
	// leastPause and mostPause are between attempts to get a list from a member that does not give one: callers are then
	// answered without it at once.
	leastPause = time.Second
	mostPause  = 30 * time.Second
	// maxScopes is for how many scopes a member's lists are kept, and maxCached how many bytes of them. The list that was
	// fetched last is kept in any case.
	maxScopes = 256
	maxCached = 64 << 20
	// maxTurns is how often a caller looks again because a list turned out to be for other callers than was thought.
	maxTurns = 3
)

// cache holds one member's lists. It is safe for concurrent use.
//
// A list is thought to be for everybody, and is fetched once for all who ask, until the member says that one is private.
// From then on each scope has its own: a member that says both, depending on who asks, would otherwise show one caller
// what it meant for another.
type cache struct {
	mu      sync.Mutex // guards below
	kept    map[cacheKey]*kept
	size    int            // bytes of all lists
	budget  *budget.Budget // of the process
	private [numKinds]bool // the member said so; it stays so
	failing bool           // the last fetch of any kind had no answer
	apart   [numKinds]bool // the member refused a list to one who asked; others ask for themselves until it gives one to all
}

type cacheKey struct {
	kind  kind
	scope scope
}

// kept is a member's list for one scope, and what is under way to get the next. Under a key for everybody there is a
// public list only, under another one only what was fetched for it.
type kept struct {
	list     *list
	until    time.Time // fresh
	last     time.Time // until it may stand in
	used     time.Time
	flight   *flight // nil when none is under way
	fault    string  // why the last fetch failed, "" when it did not
	failures int     // in a row
	retry    time.Time
}

// flight is a fetch under way.
type flight struct {
	done  chan struct{} // closed when it has ended
	began time.Time
	dirty bool // the list changed since; guarded by the cache's lock
}

func newCache(b *budget.Budget) cache { return cache{kept: make(map[cacheKey]*kept), budget: b} }

// sizeLocked notes the size of all lists.
func (c *cache) sizeLocked(size int) {
	c.budget.Hold(size - c.size)
	c.size = size
}

// close gives back what is kept. Nobody fetches any more.
func (c *cache) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.kept)
	c.sizeLocked(0)
}

// part is what a member contributes to a merged list.
type part struct {
	list   *list  // nil when it has none to give
	fault  string // why it is missing or old, "" when it is neither
	until  time.Time
	shared bool // it is the same for every caller
}

// expire makes the lists of a kind be fetched again: all of them, or those for everybody and those of one scope. The last
// ones may stand in meanwhile.
func (c *cache) expire(k kind, all bool, sc scope) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, e := range c.kept {
		if key.kind != k || !all && !key.scope.everybody && key.scope != sc {
			continue
		}
		e.until, e.retry, e.failures = time.Time{}, time.Time{}, 0
		if e.flight != nil {
			e.flight.dirty = true
		}
	}
}

// fresh is a member's list if it is at hand and need not be asked for.
func (c *cache) fresh(k kind, sc scope) (part, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key, now := c.keyLocked(k, sc), time.Now()
	e := c.kept[key]
	if e == nil || e.list == nil || !now.Before(e.until) {
		return part{}, false
	}
	e.used = now
	return part{list: e.list, until: e.until, shared: key.scope.everybody}, true
}

// get is a member's list: the one at hand, or else the next, waited for within ctx. It never waits long where an older
// list is at hand, nor where the member has just failed.
func (s *Server) get(ctx context.Context, m *member, k kind, by asker) part {
	for range maxTurns {
		p, key, f, wait := s.look(m, k, by)
		if f == nil {
			return p
		}
		background.Await(ctx, f.done, wait)
		if m.lists.key(k, by.scope) == key {
			break
		} // else it was not for everybody, or now is
	}
	return m.lists.read(k, by.scope)
}

// look is what there is of a list, and the fetch that is under way where it is worth waiting for.
func (s *Server) look(m *member, k kind, by asker) (part, cacheKey, *flight, time.Duration) {
	c := &m.lists
	c.mu.Lock()
	defer c.mu.Unlock()
	key, now := c.keyLocked(k, by.scope), time.Now()
	e := c.kept[key]
	if e == nil {
		e = new(kept)
		c.kept[key] = e
	}
	e.used = now
	c.boundLocked(key, e)
	if e.list != nil && now.Before(e.until) {
		return c.partLocked(key, e, now), key, nil, 0
	}
	if e.flight == nil && !now.Before(e.retry) {
		f := &flight{done: make(chan struct{}), began: now}
		if s.start(func() { s.refresh(m, k, by, e, f) }) {
			e.flight = f
		}
	}
	if e.flight == nil {
		return c.partLocked(key, e, now), key, nil, 0
	}
	most := s.timeout() + patience // the fetch ends before, unless the member does not even mind that it is given up
	if c.failing || e.failures > 0 || e.list != nil && now.Before(e.last) {
		most = patience
	}
	return part{}, key, e.flight, e.flight.began.Add(most).Sub(now)
}

// read is what there is of a list now.
func (c *cache) read(k kind, sc scope) part {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := c.keyLocked(k, sc)
	e := c.kept[key]
	if e == nil {
		e = new(kept)
	}
	return c.partLocked(key, e, time.Now())
}

func (c *cache) partLocked(key cacheKey, e *kept, now time.Time) part {
	p := part{shared: key.scope.everybody, fault: e.fault, until: now.Add(patience)}
	if p.fault == "" {
		p.fault = upstream.TimedOut.Reason() // it takes its time
	}
	switch {
	case e.list == nil || !now.Before(e.last):
	case now.Before(e.until):
		p.list, p.fault, p.until = e.list, "", e.until
	default:
		p.list = e.list
	}
	return p
}

// keyLocked is where a scope's list is kept.
func (c *cache) keyLocked(k kind, sc scope) cacheKey {
	if !c.private[k] && !c.apart[k] {
		sc = sc.forEverybody()
	}
	return cacheKey{k, sc}
}

func (c *cache) key(k kind, sc scope) cacheKey {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.keyLocked(k, sc)
}

// boundLocked drops what was unused for longest until the rest is within bounds, but not e, which is kept under at. When
// it is the process's lists that are too large, only those of e's kind go: of each kind one stays. A fetch under way ends
// all the same, and keeps what it brings.
func (c *cache) boundLocked(at cacheKey, e *kept) {
	for len(c.kept) > 1 {
		own := len(c.kept) > maxScopes || c.size > maxCached
		if !own && !c.budget.Over() {
			return
		}
		var oldest cacheKey
		var found *kept
		for key, other := range c.kept {
			if other != e && (own || key.kind == at.kind && other.list != nil) && (found == nil || other.used.Before(found.used)) {
				oldest, found = key, other
			}
		}
		if found == nil {
			return
		}
		c.dropLocked(oldest)
	}
}

func (c *cache) dropLocked(key cacheKey) {
	if e := c.kept[key]; e != nil && e.list != nil {
		c.sizeLocked(c.size - e.list.size)
	}
	delete(c.kept, key)
}

// refresh fetches a list and keeps it, or why it did not come. One that changed meanwhile is fetched once more.
func (s *Server) refresh(m *member, k kind, by asker, e *kept, f *flight) {
	ctx, cancel := context.WithTimeout(s.ctx, s.timeout())
	defer cancel()
	l, err := s.fetch(ctx, m, k, by)
	if err == nil && m.lists.wasDirty(f) {
		l, err = s.fetch(ctx, m, k, by)
	}
	s.settle(m, k, by.scope, e, f, l, err)
	switch {
	case s.ctx.Err() != nil:
	case err != nil:
		s.o.Log.Warn("an upstream did not give its list", "upstream", m.Name, "method", kinds[k].method, "error", err)
	case l.cut != "":
		s.o.Log.Warn("an upstream's list is not served whole", "upstream", m.Name, "method", kinds[k].method, "reason", l.cut, "entries", len(l.entries))
	}
}

func (c *cache) wasDirty(f *flight) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	dirty := f.dirty
	f.dirty = false
	return dirty
}

// settle ends a flight with what it brought.
func (s *Server) settle(m *member, k kind, sc scope, e *kept, f *flight, l *list, err error) {
	c := &m.lists
	c.mu.Lock()
	defer c.mu.Unlock()
	defer close(f.done)
	before := c.keyLocked(k, sc)
	e.flight = nil
	now := time.Now()
	if err != nil {
		c.failLocked(k, e, err, now)
	} else {
		c.sortLocked(k, l)
		s.keepLocked(c, e, l, now, f.dirty)
	}
	key := c.keyLocked(k, sc)
	c.moveLocked(key, e)
	if key != before {
		s.epoch.Add(1)
	}
}

func (c *cache) failLocked(k kind, e *kept, err error, now time.Time) {
	e.fault = reasonOf(err)
	if e.fault == reasonLoop {
		e.retry = now.Add(leastPause)
		return // it says nothing of the member
	}
	if !wasNotSent(err) { // for another caller it may be
		e.retry = now.Add(min(mostPause, leastPause<<min(e.failures, 10)))
		e.failures++
	}
	answered := errors.Is(err, errAnswered) || isOfCaller(err)
	c.failing = !answered
	if answered && e.list == nil {
		c.apart[k] = true
	}
}

// isOfCaller reports whether a failure may be one for this caller alone: there was no credential for it, or the member
// refused it.
func isOfCaller(err error) bool {
	var e *upstream.Error
	return errors.As(err, &e) && (e.Kind == upstream.NoCredential || e.Kind == upstream.Unauthorized)
}

// wasNotSent reports whether a member was not asked, since there was no credential for this caller.
func wasNotSent(err error) bool {
	var e *upstream.Error
	return errors.As(err, &e) && e.Kind == upstream.NoCredential
}

// sortLocked learns from a list for whom lists of its kind are.
func (c *cache) sortLocked(k kind, l *list) {
	if l.public {
		c.apart[k] = false
		return
	}
	c.private[k] = true
}

// keepLocked makes a list the one at hand. One that has changed again already is due at once, but for a pause.
func (s *Server) keepLocked(c *cache, e *kept, l *list, now time.Time, changed bool) {
	lists := s.o.Binding.GetLists()
	ttl := l.ttl
	if ttl <= 0 {
		ttl = lists.GetTtl().AsDuration()
	}
	if changed {
		ttl = min(ttl, leastPause)
	}
	c.failing = false
	e.list, e.fault, e.failures = l, "", 0
	e.until, e.last = now.Add(ttl), now.Add(ttl+lists.GetStale().AsDuration())
}

// moveLocked puts a list where it is looked for, and drops those of its kind that nobody can reach any more.
func (c *cache) moveLocked(key cacheKey, e *kept) {
	for at, other := range c.kept {
		if other == e || at.kind == key.kind && at.scope.everybody != key.scope.everybody {
			delete(c.kept, at)
		}
	}
	c.kept[key] = e
	size := 0
	for _, other := range c.kept {
		if other.list != nil {
			size += other.list.size
		}
	}
	c.sizeLocked(size)
	c.boundLocked(key, e)
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
	case errors.Is(err, errLoop):
		return reasonLoop
	case errors.Is(err, context.DeadlineExceeded):
		return upstream.TimedOut.Reason()
	case errors.As(err, &e):
		return e.Kind.Reason()
	}
	return upstream.BadAnswer.Reason()
}
