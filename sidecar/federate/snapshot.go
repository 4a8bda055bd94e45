package federate

import (
	"context"
	"sync"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	// maxSnapshots is how many merged lists are kept.
	maxSnapshots = 256
	// keptForCursors is how long an older snapshot is kept for clients that are paging through it.
	keptForCursors = time.Minute
	// maxLeftOut is how many entries MetaLeftOut names.
	maxLeftOut = 100
)

// snapshot is a merged list for one scope. It is not changed once made.
type snapshot struct {
	id      uint64
	parts   []part
	epoch   uint64
	until   time.Time
	pages   [][]byte          // each a result without nextCursor, ttlMs, cacheScope, _meta and closing brace
	targets map[string]target // by the name or URI shown
	public  bool
	meta    []byte // the _meta member with a comma before it, or nothing
	missing bool
}

// target is where a name leads.
type target struct {
	member *member
	name   string // there
}

// snapshots are the merged lists at hand.
type snapshots struct {
	mu     sync.RWMutex // guards below
	byKey  map[cacheKey]*snapshot
	older  map[uint64]older // by id, for cursors
	public [numKinds]bool
	last   uint64
}

// older is a snapshot that another took the place of.
type older struct {
	snapshot *snapshot
	until    time.Time
}

func (s *snapshots) init() {
	s.byKey, s.older = make(map[cacheKey]*snapshot), make(map[uint64]older)
}

// at is the snapshot at hand for a scope; nil when there is none.
func (s *snapshots) at(k kind, sc scope) *snapshot {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.public[k] {
		sc = sc.public()
	}
	return s.byKey[cacheKey{k, sc}]
}

// put keeps a snapshot in place of the one before it.
func (s *snapshots) put(k kind, sc scope, n *snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.public[k] = n.public; n.public {
		sc = sc.public()
	}
	key := cacheKey{k, sc}
	if old := s.byKey[key]; old != nil && len(old.pages) > 1 && old.id != n.id {
		s.older[old.id] = older{old, time.Now().Add(keptForCursors)}
	}
	for id, old := range s.older {
		if time.Now().After(old.until) || len(s.older) > maxSnapshots {
			delete(s.older, id)
		}
	}
	for other := range s.byKey {
		if len(s.byKey) < maxSnapshots {
			break
		}
		delete(s.byKey, other) // any: it is made again when it is asked for
	}
	s.byKey[key] = n
}

// numbered is a snapshot by its id, for a client that pages through it; nil when it is gone.
func (s *snapshots) numbered(k kind, sc scope, id uint64) *snapshot {
	if now := s.at(k, sc); now != nil && now.id == id {
		return now
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.older[id].snapshot
}

func (s *snapshots) next() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	return s.last
}

// snapshot is the merged list for a scope: the one at hand while it is fresh, or else a new one of what the members
// have, each asked at the same time.
//
// Hot: a fresh one costs two lookups and allocates nothing (TestAWarmListAllocatesLittle).
func (s *Server) snapshot(ctx context.Context, k kind, sc scope) *snapshot {
	epoch := s.epoch.Load()
	old := s.snapshots.at(k, sc)
	if old != nil && old.epoch == epoch && time.Now().Before(old.until) {
		return old
	}
	s.watching.Do(s.watch)
	parts := s.gather(ctx, k, sc)
	if old != nil && same(old.parts, parts) {
		n := *old
		n.parts, n.epoch, n.until = parts, epoch, soonest(parts)
		s.snapshots.put(k, sc, &n)
		return &n
	}
	n := s.merge(k, parts)
	n.epoch = epoch
	s.snapshots.put(k, sc, n)
	return n
}

// gather asks every member at once.
func (s *Server) gather(ctx context.Context, k kind, sc scope) []part {
	parts := make([]part, len(s.members))
	var wait sync.WaitGroup
	for i, m := range s.members {
		wait.Go(func() { parts[i] = s.get(ctx, m, k, sc) })
	}
	wait.Wait()
	return parts
}

func same(a, b []part) bool {
	for i := range a {
		if a[i].list != b[i].list || a[i].fault != b[i].fault {
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

// merge makes one list out of the members'.
func (s *Server) merge(k kind, parts []part) *snapshot {
	n := &snapshot{id: s.snapshots.next(), parts: parts, until: soonest(parts), targets: make(map[string]target), public: true}
	m := merger{s: s, kind: k, snapshot: n, pageSize: int(s.o.Binding.GetLists().GetPageSize())}
	for i, p := range parts {
		if p.fault != "" {
			m.fault(s.members[i], p)
		}
		if p.list == nil {
			n.missing = true
			continue
		}
		n.public = n.public && p.list.public
		if p.list.cut != "" {
			m.note(&m.faults, s.members[i].Name, "reason", p.list.cut, "")
		}
		m.add(s.members[i], p.list)
	}
	m.finish()
	return n
}

// merger is a merged list being made.
type merger struct {
	s        *Server
	kind     kind
	snapshot *snapshot
	pageSize int
	page     []byte
	entries  int    // on page
	faults   []byte // elements of MetaPartialFailure
	leftOut  []byte // elements of MetaLeftOut
	left     int
}

// add takes a member's entries, but for those whose name or URI is another's already.
func (m *merger) add(from *member, l *list) {
	for _, e := range l.entries {
		shown := m.shown(from, e.key)
		if _, taken := m.snapshot.targets[shown]; taken {
			if m.left++; m.left <= maxLeftOut {
				m.note(&m.leftOut, from.Name, "name", e.key, "")
			}
			continue
		}
		m.snapshot.targets[shown] = target{from, e.key}
		if m.entries == m.pageSize {
			m.turn()
		}
		m.append(e, shown)
	}
}

// shown is the name under which an entry is offered. URIs are the servers' own.
func (m *merger) shown(from *member, key string) string {
	if m.kind != tools && m.kind != prompts {
		return key
	}
	switch m.s.names.mode {
	case outriggerv1.Prefix_PREFIX_ALWAYS:
		return m.s.names.prefixed(from.Prefix, key)
	case outriggerv1.Prefix_PREFIX_ON_CONFLICT:
		if t, taken := m.snapshot.targets[key]; taken && t.member != from {
			return m.s.names.prefixed(from.Prefix, key)
		}
	}
	return key
}

func (m *merger) append(e entry, shown string) {
	if m.entries == 0 {
		m.page = append(m.page, `{"resultType":"complete","`+kinds[m.kind].field+`":[`...)
	} else {
		m.page = append(m.page, ',')
	}
	m.entries++
	if shown == e.key {
		m.page = append(m.page, e.raw...)
		return
	}
	m.page = mcp.Splice(m.page, e.raw, mcp.Edit{Span: e.span, With: rawjson.AppendString(nil, shown)})
}

// turn ends the page.
func (m *merger) turn() {
	if m.entries == 0 {
		m.page = append(m.page, `{"resultType":"complete","`+kinds[m.kind].field+`":[`...)
	}
	m.snapshot.pages = append(m.snapshot.pages, append(m.page, ']'))
	m.page, m.entries = nil, 0
}

// fault notes that a member's part is missing or old.
func (m *merger) fault(from *member, p part) {
	stale := ""
	if p.list != nil {
		stale = `,"stale":true`
	}
	m.note(&m.faults, from.Name, "reason", p.fault, stale)
}

func (m *merger) note(to *[]byte, upstream, field, value, more string) {
	b := *to
	if len(b) > 0 {
		b = append(b, ',')
	}
	b = rawjson.AppendString(append(b, `{"upstream":`...), upstream)
	b = rawjson.AppendString(append(b, `,"`+field+`":`...), value)
	*to = append(append(b, more...), '}')
}

func (m *merger) finish() {
	if m.entries > 0 || len(m.snapshot.pages) == 0 {
		m.turn()
	}
	m.snapshot.meta = metaOf(m.faults, m.leftOut)
	if m.left > 0 {
		m.s.o.Log.Warn("entries are left out since another upstream has their names", "binding", m.s.o.Binding.GetName(),
			"method", kinds[m.kind].method, "entries", m.left)
	}
}

// metaOf is a result's _meta member with a comma before it; nothing when there is nothing to say.
func metaOf(faults, leftOut []byte) []byte {
	var b []byte
	for _, part := range []struct {
		key      string
		elements []byte
	}{{MetaPartialFailure, faults}, {MetaLeftOut, leftOut}} {
		if len(part.elements) == 0 {
			continue
		}
		if b == nil {
			b = append(b, `,"_meta":{`...)
		} else {
			b = append(b, ',')
		}
		b = append(append(append(b, `"`+part.key+`":[`...), part.elements...), ']')
	}
	if b != nil {
		b = append(b, '}')
	}
	return b
}

// refused is the failure of a list that must be whole and is not; nil when it may be served.
func (s *Server) refused(n *snapshot) error {
	if s.o.Binding.GetPartialFailure() != outriggerv1.PartialFailure_PARTIAL_FAILURE_REFUSE || !n.missing {
		return nil
	}
	for i, p := range n.parts {
		if p.list == nil {
			return &upstream.Error{Kind: upstream.Unreachable, Upstream: s.members[i].Name, Detail: "did not give its part of the list (" + p.fault + "), and the binding refuses lists that are not whole"}
		}
	}
	return nil
}
