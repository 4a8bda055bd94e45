package federate

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/rawjson"
)

// What MetaLeftOut says of entries: how many it names, and how much of a name, in bytes. Names are the servers' own.
const (
	maxLeftOut     = 100
	maxLeftOutName = 128
)

// merger is a merged list being made.
type merger struct {
	s        *Server
	kind     kind
	snapshot *snapshot
	pageSize int
	page     []byte
	room     int       // what a page may need, in bytes
	entries  int       // on page
	order    hash.Hash // of what was shown
	scratch  []byte
	faults   []byte // elements of MetaPartialFailure
	leftOut  []byte // elements of MetaLeftOut
	left     int
}

// merge makes one list out of the members'.
func (s *Server) merge(k kind, parts []part) *snapshot {
	entries, bytes := 0, 0
	for _, p := range parts {
		if p.list != nil {
			entries, bytes = entries+len(p.list.entries), bytes+p.list.size
		}
	}
	n := &snapshot{parts: parts, until: soonest(parts), targets: make(map[string]target, entries), shared: true, public: true}
	m := merger{s: s, kind: k, snapshot: n, pageSize: int(s.o.Binding.GetLists().GetPageSize()), order: sha256.New()}
	m.room = (bytes/max(entries, 1)+32)*min(entries, m.pageSize) + 64
	m.order.Write(binary.AppendUvarint([]byte{byte(k)}, uint64(m.pageSize)))
	for i, p := range parts {
		m.part(s.members[i], p)
	}
	m.finish()
	return n
}

// part takes what one member has to give.
func (m *merger) part(from *member, p part) {
	n := m.snapshot
	n.shared = n.shared && p.shared
	n.public = n.public && p.shared && p.list != nil && p.list.public
	if p.fault != "" {
		m.fault(from, p)
	}
	if p.list == nil {
		return
	}
	if p.list.cut != "" {
		m.note(&m.faults, from.Name, "reason", p.list.cut, "")
	}
	for _, e := range p.list.entries {
		m.add(from, e)
	}
}

// add takes an entry, but for one that has no name or URI, or another's.
func (m *merger) add(from *member, e entry) {
	shown := m.shown(from, e.key)
	if _, taken := m.snapshot.targets[shown]; taken || e.key == "" {
		if m.left++; m.left <= maxLeftOut {
			m.note(&m.leftOut, from.Name, "name", cut(e.key, maxLeftOutName), "")
		}
		return
	}
	m.snapshot.targets[shown] = target{from, e.key}
	m.scratch = append(binary.AppendUvarint(m.scratch[:0], uint64(len(shown))), shown...)
	m.order.Write(m.scratch)
	if m.entries == m.pageSize {
		m.turn()
	}
	m.append(e, shown)
}

// shown is the name under which an entry is offered. URIs are the servers' own.
func (m *merger) shown(from *member, key string) string {
	if m.kind != tools && m.kind != prompts {
		return key
	}
	switch m.s.names.mode {
	case outriggerv1.Prefix_PREFIX_ALWAYS:
		name := m.s.names.prefixed(from.Prefix, key)
		if hashed(name) {
			m.s.rememberHashed(name, target{from, key})
		}
		return name
	case outriggerv1.Prefix_PREFIX_ON_CONFLICT:
		if t, taken := m.snapshot.targets[key]; taken && t != (target{from, key}) {
			return m.s.names.prefixed(from.Prefix, key)
		}
	}
	return key
}

func (m *merger) append(e entry, shown string) {
	if m.entries == 0 {
		m.begin()
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

func (m *merger) begin() {
	m.page = append(make([]byte, 0, m.room), `{"resultType":"complete","`+kinds[m.kind].field+`":[`...)
}

// turn ends the page.
func (m *merger) turn() {
	if m.entries == 0 {
		m.begin()
	}
	m.page = append(m.page, ']')
	m.snapshot.pages = append(m.snapshot.pages, m.page)
	m.snapshot.size += cap(m.page)
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
	copy(m.snapshot.id[:], m.order.Sum(nil))
	m.snapshot.meta = metaOf(m.faults, m.leftOut)
	if m.left > 0 {
		m.s.o.Log.Warn("entries are left out since another has their name, or they have none", "binding", m.s.o.Binding.GetName(),
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
