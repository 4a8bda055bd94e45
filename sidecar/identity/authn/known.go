package authn

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/sidecar/identity"
)

// What a generation of a memory holds: credentials, and bytes of their principals, about.
const (
	maxGeneration = 8192
	maxBytes      = 8 << 20
)

// memory has the principals of credentials that were let in, by what those are known by. It has two generations: when the
// young one is full it becomes the old one, whose place it takes, and what is asked for becomes young again. So what is in
// use stays, and is one value. A new configuration begins with none. The zero value is ready.
type memory[K comparable] struct {
	mu         sync.RWMutex // guards below
	young, old map[K]*identity.Principal
	size       int // bytes of the young, about
}

// get is the principal that is remembered, or nil.
//
// Hot: a lookup under a read lock.
func (m *memory[K]) get(k K) *identity.Principal {
	m.mu.RLock()
	p, young := m.young[k]
	if !young {
		p = m.old[k]
	}
	m.mu.RUnlock()
	if p == nil || young {
		return p
	}
	return m.put(k, p)
}

// put remembers a principal, and returns the one that there is if another request was faster.
func (m *memory[K]) put(k K, p *identity.Principal) *identity.Principal {
	m.mu.Lock()
	defer m.mu.Unlock()
	if first := m.young[k]; first != nil {
		return first
	}
	if first := m.old[k]; first != nil {
		p = first
	}
	size := 1<<10 + 2*(len(p.Token)+len(p.Claims))
	if m.young == nil || len(m.young) >= maxGeneration || m.size+size > maxBytes {
		m.young, m.old, m.size = make(map[K]*identity.Principal), m.young, 0
	}
	m.young[k] = p
	m.size += size
	return p
}

// counts are the counters of one binding. Those that every call touches are resolved once.
type counts struct {
	vec     *prometheus.CounterVec
	binding string
	let     map[string]prometheus.Counter // by provider
}

func countsFor(vec *prometheus.CounterVec, s Spec) counts {
	c := counts{vec, s.Binding.GetName(), map[string]prometheus.Counter{"": vec.WithLabelValues(s.Binding.GetName(), "", "ok")}}
	for _, p := range s.Identity.GetProviders() {
		c.let[p.GetName()] = vec.WithLabelValues(c.binding, p.GetName(), "ok")
	}
	return c
}

func (c counts) ok(provider string) { c.let[provider].Inc() }

func (c counts) refused(provider, reason string) {
	c.vec.WithLabelValues(c.binding, provider, reason).Inc()
}
