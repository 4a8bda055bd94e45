package jwt

import (
	"container/list"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of the tokens that are remembered, over all Verifiers.
const (
	shards   = 16
	perShard = 1024    // tokens
	maxBytes = 2 << 20 // of a shard, about
)

// tokenKey is a token as one Verifier judged it. The hash is keyed with a seed that nobody knows and says where to look;
// what is there is then compared byte for byte. A SHA-256 would do without that, but takes 1 µs for a token of 1 kB.
type tokenKey struct {
	verifier uint64
	hash     uint64
}

var seed = maphash.MakeSeed()

func hashOf(token []byte) uint64 { return maphash.Bytes(seed, token) }

// cache remembers tokens that were verified; strangers' bad tokens never get in. A shard that is full forgets the oldest
// that was not asked for, or is not accepted any more; what was asked for begins anew as the youngest (second chance).
type cache [shards]shard

type shard struct {
	mu    sync.RWMutex // guards below
	byKey map[tokenKey]*entry
	byAge list.List // of *entry, the oldest first
	bytes int
}

// entry is one token.
type entry struct {
	key   tokenKey
	token *Token
	used  atomic.Bool
	place *list.Element // in byAge
}

func newCache() *cache {
	c := new(cache)
	for i := range c {
		c[i].byKey = make(map[tokenKey]*entry)
	}
	return c
}

func (c *cache) shard(k *tokenKey) *shard { return &c[k.hash%shards] }

// get is the token that is remembered, or nil.
//
// Hot: a lookup under a shard's read lock, and one comparison.
func (c *cache) get(k *tokenKey, token []byte) *Token {
	s := c.shard(k)
	s.mu.RLock()
	e := s.byKey[*k]
	s.mu.RUnlock()
	if e == nil || e.token.Principal.Token != string(token) {
		return nil
	}
	if !e.used.Load() {
		e.used.Store(true)
	}
	return e.token
}

// put remembers a token and returns it, or the one that somebody else put there meanwhile and is accepted.
func (c *cache) put(k tokenKey, t *Token, now time.Time) *Token {
	s := c.shard(&k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.byKey[k]; e != nil {
		if e.token.Principal.Token == t.Principal.Token && e.token.Valid(now) == nil {
			return e.token
		}
		s.removeLocked(e)
	}
	for s.byAge.Len() >= perShard || s.byAge.Len() > 0 && s.bytes+t.size > maxBytes {
		s.removeLocked(s.leastLocked(now))
	}
	e := &entry{key: k, token: t}
	e.place = s.byAge.PushBack(e)
	s.byKey[k] = e
	s.bytes += t.size
	return t
}

// leastLocked is what is missed least.
func (s *shard) leastLocked(now time.Time) *entry {
	for {
		e := s.byAge.Front().Value.(*entry)
		if !e.used.Swap(false) || e.token.Valid(now) != nil {
			return e
		}
		s.byAge.MoveToBack(e.place)
	}
}

func (s *shard) removeLocked(e *entry) {
	s.byAge.Remove(e.place)
	delete(s.byKey, e.key)
	s.bytes -= e.token.size
}

// len is how many tokens are remembered.
func (c *cache) len() (n int) {
	for i := range c {
		c[i].mu.RLock()
		n += c[i].byAge.Len()
		c[i].mu.RUnlock()
	}
	return n
}
