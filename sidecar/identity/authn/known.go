package authn

import (
	"crypto/sha256"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/sidecar/identity"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/jwt"
)

// maxRemembered is how many credentials of each sort are remembered; beyond it all are found anew.
const maxRemembered = 1 << 16

// remembered are the callers that were let in. A new configuration begins with none. The zero value is ready.
type remembered struct {
	mu      sync.RWMutex // guards below
	digests map[[sha256.Size]byte]*identity.Principal
	tokens  map[*jwt.Token]*identity.Principal
}

func (r *remembered) byDigest(digest [sha256.Size]byte) *identity.Principal {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.digests[digest]
}

func (r *remembered) byToken(t *jwt.Token) *identity.Principal {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.tokens[t]
}

// putDigest remembers a caller, and returns the one that there is if another request was faster.
func (r *remembered) putDigest(digest [sha256.Size]byte, p *identity.Principal) *identity.Principal {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.digests == nil || len(r.digests) >= maxRemembered {
		r.digests = make(map[[sha256.Size]byte]*identity.Principal)
	}
	if first := r.digests[digest]; first != nil && first.Expires.Equal(p.Expires) {
		return first
	}
	r.digests[digest] = p
	return p
}

// putToken likewise.
func (r *remembered) putToken(t *jwt.Token, p *identity.Principal) *identity.Principal {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tokens == nil || len(r.tokens) >= maxRemembered {
		r.tokens = make(map[*jwt.Token]*identity.Principal)
	}
	if first := r.tokens[t]; first != nil {
		return first
	}
	r.tokens[t] = p
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

func (c counts) refused(reason string) { c.vec.WithLabelValues(c.binding, "", reason).Inc() }
