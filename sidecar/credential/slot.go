package credential

import (
	"sync"
	"sync/atomic"
	"time"
)

// token is what requests present for a while. It is not changed once made.
type token struct {
	value string        // with its prefix; empty for nothing
	renew time.Duration // from then on another is got, while this serves
	until time.Duration // from then on it does not
}

// flight is a request that one task makes and many calls wait for.
type flight struct {
	done  chan struct{} // closed when the fields below are set
	token *token
	err   error
}

// slot is one caller's token, or the sidecar's own.
type slot struct {
	subject string // the caller's token; empty for the sidecar

	current atomic.Pointer[token]
	used    atomic.Int64 // the second of the last call

	mu       sync.Mutex    // guards below
	flight   *flight       // nil when none is under way
	failed   *failure      // the last request's; nil when it brought a token
	again    time.Duration // when another may be made after that
	replaced time.Duration // when a token was last given up since the server had refused it

	size int // bytes that callers count for it; guarded by their lock
}

// drop gives up the token that a server refused, if it is the one at hand. It reports whether there may be another.
func (s *slot) drop(refused string, now time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.current.Load()
	if k == nil || k.value != refused {
		return true // somebody else has
	}
	if now-s.replaced < replacePause {
		return false
	}
	s.replaced = now
	s.current.Store(nil)
	return true
}

const (
	// maxCallers and maxBytes bound what is kept for callers: how many, and their tokens and what was given for them.
	maxCallers = 4096
	maxBytes   = 16 << 20
	// unusedFor is after what time a caller is forgotten that makes no calls. sweepEach is how often that is looked for.
	unusedFor = 10 * time.Minute
	sweepEach = time.Minute
)

// callers are the slots of a token exchange, by the end of the caller's token. Of two tokens that end alike, which no issuer
// makes, the one seen last is kept.
type callers struct {
	mu    sync.RWMutex // guards below
	slots map[string]*slot
	bytes int
	swept time.Duration
}

func newCallers() callers { return callers{slots: make(map[string]*slot)} }

// endOf is enough of a token to find it by: its signature's end, or a random number's.
func endOf(token string) string { return token[max(0, len(token)-32):] }

// slot is that of a caller with a token, which is what tells callers apart: two tokens of one caller may be for different
// things.
//
// Hot: one lookup while the caller is known.
func (c *callers) slot(token string, now time.Duration) *slot {
	c.mu.RLock()
	s := c.slots[endOf(token)]
	c.mu.RUnlock()
	if s == nil || s.subject != token {
		s = c.add(token, now)
	}
	if at := int64(now / time.Second); s.used.Load() != at {
		s.used.Store(at)
	}
	return s
}

// add makes a caller known.
func (c *callers) add(token string, now time.Duration) *slot {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.slots[endOf(token)]; s != nil {
		if s.subject == token {
			return s // it has come meanwhile
		}
		c.dropLocked(s)
	}
	s := &slot{subject: token, size: len(token)}
	s.used.Store(int64(now / time.Second))
	if now-c.swept >= sweepEach {
		c.sweepLocked(now)
	}
	c.slots[endOf(token)] = s
	c.bytes += s.size
	c.boundLocked(s)
	return s
}

// grew counts the token that was given for a caller, if it is still known.
func (c *callers) grew(s *slot, token int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.slots[endOf(s.subject)] != s {
		return
	}
	c.bytes += len(s.subject) + token - s.size
	s.size = len(s.subject) + token
	c.boundLocked(s)
}

// sweepLocked forgets who made no calls for a while.
func (c *callers) sweepLocked(now time.Duration) {
	c.swept = now
	oldest := int64((now - unusedFor) / time.Second)
	for _, s := range c.slots {
		if s.used.Load() < oldest {
			c.dropLocked(s)
		}
	}
}

// boundLocked forgets who made no calls for longest, but not who is to stay, until the rest is within bounds. A request
// that is under way for one goes on for those who wait for it.
func (c *callers) boundLocked(stays *slot) {
	for len(c.slots) > 1 && (len(c.slots) > maxCallers || c.bytes > maxBytes) {
		var oldest *slot
		for _, s := range c.slots {
			if s != stays && (oldest == nil || s.used.Load() < oldest.used.Load()) {
				oldest = s
			}
		}
		c.dropLocked(oldest)
	}
}

func (c *callers) dropLocked(s *slot) {
	delete(c.slots, endOf(s.subject))
	c.bytes -= s.size
}
