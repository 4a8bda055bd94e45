package jwt

import (
	"fmt"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/identity"
)

// held makes tokens that are in nobody's hands but the cache's.
type held struct {
	source *source
	key    *key
}

func newHeld() held {
	s := &source{limit: time.Hour}
	s.current.Store(&keySet{at: time.Now()})
	return held{s, &key{}}
}

func (h held) token(n int) (tokenKey, *Token) {
	return tokenKey{hash: uint64(n) * shards}, &Token{ // all in one shard
		Principal: &identity.Principal{Token: fmt.Sprint(n), Expires: time.Now().Add(time.Hour)}, key: h.key, source: h.source, size: 1000,
	}
}

func TestAFullCacheForgetsWhatWasNotAskedFor(t *testing.T) {
	c, h, now := newCache(), newHeld(), time.Now()
	for n := range perShard {
		c.put2(h.token(n))(now)
	}
	for n := range perShard / 2 { // the first half is asked for
		if k, _ := h.token(n); c.has(k) == nil {
			t.Fatalf("token %d was forgotten before the shard was full", n)
		}
	}
	for n := range perShard / 2 {
		c.put2(h.token(perShard + n))(now)
	}
	for n := range perShard + perShard/2 {
		k, _ := h.token(n)
		if known, want := c.has(k) != nil, n < perShard/2 || n >= perShard; known != want {
			t.Errorf("token %d of %d: remembered %v, want %v", n, perShard+perShard/2, known, want)
		}
	}
	if c.len() != perShard {
		t.Errorf("%d tokens, want %d", c.len(), perShard)
	}
}

// has is the token of held.token that is remembered.
func (c *cache) has(k tokenKey) *Token { return c.get(&k, []byte(fmt.Sprint(k.hash/shards))) }

// put2 puts what held.token returns.
func (c *cache) put2(k tokenKey, t *Token) func(now time.Time) *Token {
	return func(now time.Time) *Token { return c.put(k, t, now) }
}

func TestAFullCacheForgetsWhatIsNotAcceptedBeforeWhatIsAskedFor(t *testing.T) {
	c, h, now := newCache(), newHeld(), time.Now()
	for n := range perShard {
		k, token := h.token(n)
		if n == 500 {
			token.Principal.Expires = now
		}
		c.put(k, token, now)
		c.has(k) // all are asked for
	}
	k, token := h.token(perShard)
	c.put(k, token, now)
	if k, _ := h.token(500); c.has(k) != nil {
		t.Error("the one that expired is remembered, and another was forgotten")
	}
}

func TestLargeTokensAreRememberedWithinABoundOfBytes(t *testing.T) {
	c, h, now := newCache(), newHeld(), time.Now()
	for n := range perShard {
		k, token := h.token(n)
		token.size = 4 * maxToken
		c.put(k, token, now)
	}
	if s := &c[0]; s.bytes > maxBytes || s.byAge.Len() != maxBytes/(4*maxToken) || len(s.byKey) != s.byAge.Len() {
		t.Errorf("%d tokens of %d bytes, want at most %d bytes", s.byAge.Len(), s.bytes, maxBytes)
	}
}

func TestATokenThatIsPutTwiceStaysTheFirstWhileItIsAccepted(t *testing.T) {
	c, h, now := newCache(), newHeld(), time.Now()
	k, first := h.token(1)
	_, second := h.token(1)
	if c.put(k, first, now); c.put(k, second, now) != first {
		t.Error("the second took the place of the first")
	}
	h.key.withdrawn.Store(true)
	second.key = &key{}
	if c.put(k, second, now) != second || c.has(k) != second || c.len() != 1 {
		t.Error("the second did not take the place of one that is not accepted any more")
	}
}

func TestTokensWithOneHashAreNotTakenForEachOther(t *testing.T) {
	c, h, now := newCache(), newHeld(), time.Now()
	k, one := h.token(1)
	_, two := h.token(2)
	c.put(k, one, now)
	if got := c.get(&k, []byte("2")); got != nil {
		t.Errorf("token 2 is %q", got.Principal.Token)
	}
	if c.put(k, two, now) != two || c.get(&k, []byte("2")) != two || c.get(&k, []byte("1")) != nil || c.len() != 1 {
		t.Error("the second did not take the first's place")
	}
}
