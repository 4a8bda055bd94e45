package seal

import (
	"bytes"
	"errors"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

func secret(b byte) []byte { return bytes.Repeat([]byte{b}, 32) }

// keyOf makes a key whose secret follows from its id.
func keyOf(id uint32, from int64) *outriggerv1.SealingKey {
	return &outriggerv1.SealingKey{Id: id, Secret: secret(byte(id)), SealsFromUnix: from}
}

func withRing(t testing.TB, keys ...*outriggerv1.SealingKey) *Sealer {
	t.Helper()
	s := New()
	if err := s.Swap(&outriggerv1.KeyRing{Keys: keys}); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestWhatWasSealedOpens(t *testing.T) {
	s := New()
	for _, size := range []int{0, 1, 100, MaxPlaintext} {
		want := bytes.Repeat([]byte{'x'}, size)
		token := s.Seal("state", want, []byte("aad"))
		if url.QueryEscape(token) != token {
			t.Errorf("token %q is not safe in a URL", token)
		}
		got, err := s.Open("state", token, []byte("aad"))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes: got %d bytes, %v", size, len(got), err)
		}
		if size > 1 && strings.Contains(token, string(want)) {
			t.Errorf("token %q shows its content", token)
		}
	}
	if _, err := s.Open("state", s.Seal("state", make([]byte, MaxToken), nil), nil); !errors.Is(err, ErrMalformed) {
		t.Errorf("a token above the limit: %v, want %v", err, ErrMalformed)
	}
}

func TestTokensOfOnePlaintextDiffer(t *testing.T) {
	s := New()
	if a, b := s.Seal("p", []byte("x"), nil), s.Seal("p", []byte("x"), nil); a == b {
		t.Errorf("two tokens are the same: %s", a)
	}
}

func TestWhatIsNotExactlyTheTokenIsRefused(t *testing.T) {
	s := withRing(t, keyOf(7, 0), keyOf(8, 0))
	token := s.Seal("state", []byte("contents"), []byte("aad"))
	for name, c := range map[string]struct {
		purpose, token, aad string
		want                error
	}{
		"another purpose":       {"cursor", token, "aad", ErrForged},
		"another aad":           {"state", token, "aae", ErrForged},
		"no aad":                {"state", token, "", ErrForged},
		"purpose into aad":      {"statea", token, "ad", ErrForged},
		"another key's id":      {"state", strings.Replace(token, "v1.7.", "v1.8.", 1), "aad", ErrForged},
		"an unknown key's id":   {"state", strings.Replace(token, "v1.7.", "v1.9.", 1), "aad", ErrUnknownKey},
		"an id written anew":    {"state", strings.Replace(token, "v1.7.", "v1.07.", 1), "aad", ErrMalformed},
		"an id too large":       {"state", strings.Replace(token, "v1.7.", "v1.4294967303.", 1), "aad", ErrMalformed},
		"another version":       {"state", strings.Replace(token, "v1.", "v2.", 1), "aad", ErrMalformed},
		"a line break":          {"state", token[:20] + "\n" + token[20:], "aad", ErrMalformed},
		"padding":               {"state", token + "=", "aad", ErrMalformed},
		"cut off":               {"state", token[:len(token)-4], "aad", ErrForged},
		"nothing but a nonce":   {"state", "v1.7." + strings.Repeat("A", 32), "aad", ErrMalformed},
		"empty":                 {"state", "", "aad", ErrMalformed},
		"a megabyte of nothing": {"state", strings.Repeat("v1.7.", 1<<18), "aad", ErrMalformed},
	} {
		if got, err := s.Open(c.purpose, c.token, []byte(c.aad)); err != c.want || got != nil {
			t.Errorf("%s: got %q, %v; want %v", name, got, err, c.want)
		}
	}
}

func TestEveryBitOfATokenCounts(t *testing.T) {
	s := withRing(t, keyOf(7, 0))
	token := s.Seal("state", []byte("content"), nil)
	for i := range token {
		altered := []byte(token)
		altered[i] ^= 1
		if got, err := s.Open("state", string(altered), nil); err == nil {
			t.Errorf("byte %d altered: opened as %q", i, got)
		}
	}
}

func TestTheNewestKeyInUseSealsAndAllOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now().Unix()
		ring := []*outriggerv1.SealingKey{keyOf(3, now+60), keyOf(2, now), keyOf(1, now-60)}
		a, b := withRing(t, ring...), withRing(t, ring...)
		if token := a.Seal("p", nil, nil); !strings.HasPrefix(token, "v1.2.") {
			t.Errorf("sealed with %s, want key 2", token)
		}
		time.Sleep(time.Minute)
		token := a.Seal("p", []byte("x"), nil)
		if !strings.HasPrefix(token, "v1.3.") {
			t.Errorf("sealed with %s, want key 3", token)
		}
		old := withRing(t, keyOf(1, 0)).Seal("p", []byte("y"), nil)
		for _, token := range []string{token, old} {
			if _, err := b.Open("p", token, nil); err != nil {
				t.Errorf("another sidecar's %s: %v", token, err)
			}
		}
	})
}

func TestARingWithoutAKeyInUseSealsWithItsOldest(t *testing.T) {
	later := time.Now().Add(time.Hour).Unix()
	s := withRing(t, keyOf(2, later+60), keyOf(1, later))
	if token := s.Seal("p", nil, nil); !strings.HasPrefix(token, "v1.1.") {
		t.Errorf("sealed with %s, want key 1", token)
	}
}

func TestASwapKeepsWhatTheProcessSealedBefore(t *testing.T) {
	s := New()
	own := s.Seal("p", []byte("own"), nil)
	if _, err := New().Open("p", own, nil); err == nil {
		t.Error("another process opened a token of this one's own key")
	}
	if err := s.Swap(&outriggerv1.KeyRing{Keys: []*outriggerv1.SealingKey{keyOf(1, 0)}}); err != nil {
		t.Fatal(err)
	}
	first := s.Seal("p", []byte("first"), nil)
	if got, err := s.Open("p", own, nil); err != nil || string(got) != "own" {
		t.Errorf("its own key's: %q, %v", got, err)
	}
	if err := s.Swap(&outriggerv1.KeyRing{Keys: []*outriggerv1.SealingKey{keyOf(2, 0)}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open("p", first, nil); err != ErrUnknownKey {
		t.Errorf("a token of a key that is gone: %v, want %v", err, ErrUnknownKey)
	}
}

func TestARingThatCannotBeUsedChangesNothing(t *testing.T) {
	s := withRing(t, keyOf(1, 0))
	for name, ring := range map[string]*outriggerv1.KeyRing{
		"nil":              nil,
		"empty":            {},
		"a short secret":   {Keys: []*outriggerv1.SealingKey{{Id: 2, Secret: secret(2)[:31]}}},
		"an id twice":      {Keys: []*outriggerv1.SealingKey{keyOf(2, 0), keyOf(2, 0)}},
		"more than enough": {Keys: make([]*outriggerv1.SealingKey, maxKeys+1)},
	} {
		err := s.Swap(ring)
		if err == nil || strings.Contains(err.Error(), string(secret(2)[:8])) {
			t.Errorf("%s: error %v, want one without the secret", name, err)
		}
		if token := s.Seal("p", nil, nil); !strings.HasPrefix(token, "v1.1.") {
			t.Errorf("%s: sealed with %s afterwards, want key 1", name, token)
		}
	}
}

func TestSwapsDisturbNobody(t *testing.T) {
	s := withRing(t, keyOf(1, 0))
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 500 {
				if got, err := s.Open("p", s.Seal("p", []byte("x"), nil), nil); err != nil || string(got) != "x" {
					t.Errorf("got %q, %v", got, err)
				}
			}
		})
	}
	for i := range uint32(100) {
		if err := s.Swap(&outriggerv1.KeyRing{Keys: []*outriggerv1.SealingKey{keyOf(i%2+1, 0), keyOf(2-i%2, 0)}}); err != nil {
			t.Error(err)
		}
	}
	all.Wait()
}

func FuzzOpen(f *testing.F) {
	s := withRing(f, keyOf(7, 0))
	f.Add(s.Seal("p", []byte("content"), nil))
	f.Add("v1.7.")
	f.Add("v1..")
	f.Fuzz(func(t *testing.T, token string) {
		got, err := s.Open("p", token, nil)
		if err != nil {
			if got != nil {
				t.Errorf("%q: both %q and %v", token, got, err)
			}
			return
		}
		if string(got) != "content" {
			t.Errorf("%q: opened as %q, which nobody sealed", token, got)
		}
	})
}

func BenchmarkSealOpen(b *testing.B) {
	s, plaintext := New(), make([]byte, 200)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Open("p", s.Seal("p", plaintext, nil), nil); err != nil {
			b.Fatal(err)
		}
	}
}
