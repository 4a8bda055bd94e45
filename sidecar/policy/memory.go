package policy

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/outrigger-mesh/outrigger/sidecar/identity"
)

// Bounds of what a Set remembers. When one is reached everything is forgotten, and found anew as it is asked for.
const (
	maxCallers     = 4096
	maxVerdicts    = 65536
	maxVariants    = 64   // verdicts of one name; others are found each time
	maxRemembered  = 512  // bytes of a name whose verdict is remembered
	maxSubjectName = 8192 // bytes of a name that rules can allow
)

// memory is what a Set knows of callers and calls that it has seen.
type memory struct {
	callers  remembered[*identity.Principal, *class]
	classes  remembered[string, *class]
	seen     atomic.Int64 // callers
	verdicts atomic.Int64 // over all classes
}

func newMemory() *memory { return &memory{} }

// remembered is a map that only grows. What has been there for a while is found without a lock.
type remembered[K comparable, V any] struct {
	old atomic.Pointer[map[K]V] // never changed

	mu     sync.Mutex // guards below
	recent map[K]V
	asked  int // how often something was found, or not found, in recent only
}

// oldMap is what is found without a lock.
func (r *remembered[K, V]) oldMap() map[K]V {
	if m := r.old.Load(); m != nil {
		return *m
	}
	return nil
}

// find is the slow half of a look-up, after oldMap has nothing. Once recent was asked as often as a copy of all is long, it
// becomes old, so that copying costs each question little.
func (r *remembered[K, V]) find(k K) (V, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.recent[k]
	if !ok {
		v, ok = r.oldMap()[k]
	}
	if r.asked++; len(r.recent) > 0 && r.asked > len(r.oldMap())+len(r.recent) {
		merged := make(map[K]V, len(r.oldMap())+len(r.recent))
		maps.Copy(merged, r.oldMap())
		maps.Copy(merged, r.recent)
		r.old.Store(&merged)
		r.recent, r.asked = nil, 0
	}
	return v, ok
}

// add keeps what is there already, and returns it.
func (r *remembered[K, V]) add(k K, v V) (kept V, added bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range []map[K]V{r.recent, r.oldMap()} {
		if v, ok := m[k]; ok {
			return v, false
		}
	}
	if r.recent == nil {
		r.recent = make(map[K]V)
	}
	r.recent[k] = v
	return v, true
}

// named is the verdicts of one name.
type named struct {
	variants atomic.Pointer[[]variant] // never changed
}

// variant is what a verdict depends on, beside the class and the name.
type variant struct {
	method, upstream string
	subject          Subject
	hints            uint8 // 0 where no rule asks for them
	verdict          *verdict
}

// look is the verdict, or nil.
func (n *named) look(k variant) *verdict {
	all := n.variants.Load()
	if all == nil {
		return nil
	}
	for i := range *all {
		v := &(*all)[i]
		if v.subject == k.subject && v.hints == k.hints && v.method == k.method && v.upstream == k.upstream {
			return v.verdict
		}
	}
	return nil
}

// add reports whether there was room. Two at once may both be added; they say the same.
func (n *named) add(k variant, v *verdict) bool {
	k.method, k.upstream, k.verdict = strings.Clone(k.method), strings.Clone(k.upstream), v // they may be parts of a request
	for {
		old := n.variants.Load()
		var all []variant
		if old != nil {
			all = *old
		}
		if len(all) == maxVariants {
			return false
		}
		all = append(all[:len(all):len(all)], k)
		if n.variants.CompareAndSwap(old, &all) {
			return true
		}
	}
}
