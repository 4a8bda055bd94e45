package jwt

import (
	"crypto/sha256"
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

// tokenKey is a token as one Verifier judged it.
type tokenKey struct {
	verifier uint64
	hash     [sha256.Size]byte
}

// cache remembers tokens that were verified; strangers' bad tokens never get in. A shard that is full forgets what was not
// asked for since its hand last passed, and what is not accepted any more first (the clock, or second-chance, policy).
type cache [shards]shard

type shard struct {
	mu    sync.RWMutex // guards below
	byKey map[tokenKey]*entry
	ring  []*entry
	hand  int
	bytes int
}

// entry is one token.
type entry struct {
	key   tokenKey
	token *Token
	used  atomic.Bool
	at    int // its place in the ring; guarded by the shard's mu
}

func newCache() *cache {
	c := new(cache)
	for i := range c {
		c[i].byKey = make(map[tokenKey]*entry)
	}
	return c
}

func (c *cache) shard(k *tokenKey) *shard { return &c[k.hash[0]%shards] }

// get is the token that is remembered, or nil.
//
// Hot: a lookup under a shard's read lock.
func (c *cache) get(k *tokenKey) *Token {
	s := c.shard(k)
	s.mu.RLock()
	e := s.byKey[*k]
	s.mu.RUnlock()
	if e == nil {
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
		if e.token.Valid(now) == nil {
			return e.token
		}
		s.removeLocked(e)
	}
	for len(s.ring) >= perShard || len(s.ring) > 0 && s.bytes+t.size > maxBytes {
		s.removeLocked(s.leastLocked(now))
	}
	e := &entry{key: k, token: t, at: len(s.ring)}
	s.byKey[k] = e
	s.ring = append(s.ring, e)
	s.bytes += t.size
	return t
}

// leastLocked moves the hand to what is missed least.
func (s *shard) leastLocked(now time.Time) *entry {
	for ; ; s.hand++ {
		s.hand %= len(s.ring)
		e := s.ring[s.hand]
		if !e.used.Swap(false) || e.token.Valid(now) != nil {
			return e
		}
	}
}

func (s *shard) removeLocked(e *entry) {
	last := len(s.ring) - 1
	s.ring[e.at] = s.ring[last]
	s.ring[e.at].at = e.at
	s.ring[last] = nil
	s.ring = s.ring[:last]
	delete(s.byKey, e.key)
	s.bytes -= e.token.size
}

// len is how many tokens are remembered.
func (c *cache) len() (n int) {
	for i := range c {
		c[i].mu.RLock()
		n += len(c[i].ring)
		c[i].mu.RUnlock()
	}
	return n
}
