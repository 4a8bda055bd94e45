package federate

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/budget"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	// maxSnapshots is how many merged lists are kept, and maxSnapshotBytes how large they are together.
	maxSnapshots     = 256
	maxSnapshotBytes = 256 << 20
	// keptForCursors is how long an older snapshot is kept for clients that are paging through it.
	keptForCursors = time.Minute
)

// snapshot is a merged list for one scope. It is not changed once made.
type snapshot struct {
	id      snapshotID
	parts   []part
	epoch   uint64
	until   time.Time
	pages   [][]byte          // each a result without nextCursor, ttlMs, cacheScope, _meta and closing brace
	targets map[string]target // by the name or URI shown
	shared  bool              // it is the same for every caller with these capabilities
	public  bool              // and says so
	meta    []byte            // the _meta member with a comma before it, or nothing
	size    int               // bytes of pages
}

// snapshotID is a digest of what is on which page: equal lists have equal ids, on every sidecar.
type snapshotID [16]byte

// target is where a name leads.
type target struct {
	member *member
	name   string // there
}

// snapshots are the merged lists at hand.
type snapshots struct {
	mu     sync.RWMutex // guards below
	byKey  map[cacheKey]*snapshot
	older  map[olderKey]older // for cursors
	shared [numKinds]bool
	size   int            // bytes of all
	budget *budget.Budget // of the process
}

// older is a snapshot that another took the place of.
type older struct {
	snapshot *snapshot
	until    time.Time
}

type olderKey struct {
	cacheKey
	id snapshotID
}

func (s *snapshots) init(b *budget.Budget) {
	s.budget = b
	s.byKey, s.older = make(map[cacheKey]*snapshot), make(map[olderKey]older)
}

// at is the snapshot at hand for a scope; nil when there is none.
func (s *snapshots) at(k kind, sc scope) *snapshot {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.shared[k] {
		sc = sc.forEverybody()
	}
	return s.byKey[cacheKey{k, sc}]
}

// put keeps a snapshot in place of the one before it.
func (s *snapshots) put(k kind, sc scope, n *snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n.shared {
		sc = sc.forEverybody()
	}
	now := time.Now()
	if s.shared[k] != n.shared {
		for key := range s.byKey {
			if key.kind == k {
				s.dropLocked(key, now)
			}
		}
		s.shared[k] = n.shared
	}
	key := cacheKey{k, sc}
	s.dropLocked(key, now)
	s.byKey[key] = n
	delete(s.older, olderKey{key, n.id})
	s.boundLocked(key, now)
}

// dropLocked makes a snapshot an older one, if a client may be paging through it.
func (s *snapshots) dropLocked(key cacheKey, now time.Time) {
	if old := s.byKey[key]; old != nil && len(old.pages) > 1 {
		s.older[olderKey{key, old.id}] = older{old, now.Add(keptForCursors)}
	}
	delete(s.byKey, key)
}

// boundLocked drops what is over the bounds: older snapshots first, then any but the one that was put; of other kinds only
// when it is not the process's lists that are too large. They are made again when they are asked for.
func (s *snapshots) boundLocked(but cacheKey, now time.Time) {
	size := 0
	for _, n := range s.byKey {
		size += n.size
	}
	for key, old := range s.older {
		if now.After(old.until) {
			delete(s.older, key)
			continue
		}
		size += old.snapshot.size
	}
	s.sizeLocked(size)
	own := func() bool { return len(s.byKey)+len(s.older) > maxSnapshots || s.size > maxSnapshotBytes }
	for key, old := range s.older {
		if !own() && !s.budget.Over() {
			return
		}
		delete(s.older, key)
		s.sizeLocked(s.size - old.snapshot.size)
	}
	for key, n := range s.byKey {
		if key != but && (own() || key.kind == but.kind && s.budget.Over()) {
			delete(s.byKey, key)
			s.sizeLocked(s.size - n.size)
		}
	}
}

// sizeLocked notes the size of all snapshots.
func (s *snapshots) sizeLocked(size int) {
	s.budget.Hold(size - s.size)
	s.size = size
}

// close gives back what is kept.
func (s *snapshots) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.byKey)
	clear(s.older)
	s.sizeLocked(0)
}

// identified is a scope's snapshot by its id, for a client that pages through it; nil when it is gone.
func (s *snapshots) identified(k kind, sc scope, id snapshotID) *snapshot {
	if now := s.at(k, sc); now != nil && now.id == id {
		return now
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, sc := range []scope{sc, sc.forEverybody()} {
		if old, ok := s.older[olderKey{cacheKey{k, sc}, id}]; ok {
			return old.snapshot
		}
	}
	return nil
}

// fresh is the snapshot at hand for a scope if no member need be asked; nil otherwise.
func (s *Server) fresh(k kind, sc scope) *snapshot {
	n := s.snapshots.at(k, sc)
	if n == nil || n.epoch != s.epoch.Load() || !time.Now().Before(n.until) {
		return nil
	}
	return n
}

// snapshot is the merged list for a scope: the one at hand while it is fresh, or else a new one of what the members
// have, each asked at the same time. Its error is ctx's: what a caller that left has not waited for is not missing.
//
// Hot: a fresh one costs two lookups and allocates nothing (TestAllocationsOfAWarmList).
func (s *Server) snapshot(ctx context.Context, k kind, by asker) (*snapshot, error) {
	if n := s.fresh(k, by.scope); n != nil {
		return n, nil
	}
	s.watching.Do(s.watch)
	epoch := s.epoch.Load()
	parts := s.gather(ctx, k, by)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	merging := s.mergingOf(k, by.scope, parts) // callers that come together share the merged list too
	merging.Lock()
	defer merging.Unlock()
	old := s.snapshots.at(k, by.scope)
	if old != nil && same(old.parts, parts) {
		n := *old
		n.parts, n.epoch, n.until = parts, max(epoch, old.epoch), soonest(parts)
		s.snapshots.put(k, by.scope, &n)
		return &n, nil
	}
	n := s.merge(k, parts)
	n.epoch = epoch
	s.snapshots.put(k, by.scope, n)
	return n, nil
}

// gather asks every member at once that has to be asked.
func (s *Server) gather(ctx context.Context, k kind, by asker) []part {
	parts := make([]part, len(s.members))
	var wait sync.WaitGroup
	for i, m := range s.members {
		if p, ok := m.lists.fresh(k, by.scope); ok {
			parts[i] = p
			continue
		}
		wait.Go(func() { parts[i] = s.get(ctx, m, k, by) })
	}
	wait.Wait()
	return parts
}

// mergingOf is held by who merges parts, so that those with the same parts wait for it.
func (s *Server) mergingOf(k kind, sc scope, parts []part) *sync.Mutex {
	if !slices.ContainsFunc(parts, func(p part) bool { return !p.shared }) {
		sc = sc.forEverybody()
	}
	return &s.merging[maphash.Comparable(s.seed, cacheKey{k, sc})%uint64(len(s.merging))]
}

func same(a, b []part) bool {
	for i := range a {
		if a[i].list != b[i].list || a[i].fault != b[i].fault || a[i].shared != b[i].shared {
			return false
		}
	}
	return true
}

func soonest(parts []part) time.Time {
	until := parts[0].until
	for _, p := range parts[1:] {
		if p.until.Before(until) {
			until = p.until
		}
	}
	return until
}

// refused is the failure of a list that must be whole and is not; nil when it may be served.
func (s *Server) refused(n *snapshot) error {
	if s.o.Binding.GetPartialFailure() != outriggerv1.PartialFailure_PARTIAL_FAILURE_REFUSE {
		return nil
	}
	for i, p := range n.parts {
		if p.list == nil {
			return &upstream.Error{Kind: upstream.Unreachable, Upstream: s.members[i].Name, Detail: "did not give its part of the list (" + p.fault + "), and the binding refuses lists that are not whole"}
		}
	}
	return nil
}
