package budget

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/iotest"
)

func TestWhatIsTakenIsBoundedAndComesBack(t *testing.T) {
	b := New(10 * small)
	for i, c := range []struct {
		n    int
		want bool
	}{{9 * small, true}, {2 * small, false}, {small, true}, {small, true}, {small + 1, false}, {1, true}} {
		if got := b.Take(c.n); got != c.want {
			t.Errorf("step %d: Take(%d) is %v with %d used, want %v", i, c.n, got, b.Used(), c.want)
		}
	}
	if !b.Over() || b.Used() != 11*small+1 {
		t.Errorf("over %v with %d used, want true with %d: what is small always fits", b.Over(), b.Used(), 11*small+1)
	}
	if b.Refused() != 2 || b.Most() != 10*small {
		t.Errorf("%d were refused of a budget of %d, want 2 and %d", b.Refused(), b.Most(), 10*small)
	}
	for range 11 {
		b.Give(small)
	}
	if b.Give(1); b.Used() != 0 || b.Over() {
		t.Errorf("%d used after all was given back", b.Used())
	}
	for _, unbounded := range []*Budget{nil, New(0)} {
		if !unbounded.Take(1<<40) || unbounded.Over() {
			t.Error("a budget without a bound refuses")
		}
	}
}

func TestReadAllIsBoundedAsItReads(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		most   int64
		r      io.Reader
		size   int64
		limit  int
		length int
		err    error
	}{
		"empty":                    {most: 1 << 20, r: bytes.NewReader(nil), size: 0, limit: 10},
		"of its size":              {most: 1 << 20, r: bytes.NewReader(make([]byte, 9999)), size: 9999, limit: 9999, length: 9999},
		"of no size":               {most: 1 << 20, r: iotest.HalfReader(bytes.NewReader(make([]byte, 9999))), size: -1, limit: 9999, length: 9999},
		"longer than it says":      {most: 1 << 20, r: bytes.NewReader(make([]byte, 9999)), size: 10, limit: 1 << 20, length: 9999},
		"shorter than it says":     {most: 1 << 20, r: bytes.NewReader(make([]byte, 10)), size: 9999, limit: 1 << 20, length: 10},
		"longer than the limit":    {most: 1 << 20, r: bytes.NewReader(make([]byte, 10000)), size: -1, limit: 9999, err: ErrTooLong},
		"longer than all":          {most: 1 << 16, r: bytes.NewReader(make([]byte, 1<<20)), size: -1, limit: 1 << 20, err: ErrSpent},
		"longer than all, and so":  {most: 1 << 16, r: bytes.NewReader(make([]byte, 1<<20)), size: 1 << 20, limit: 1 << 20, err: ErrSpent},
		"one that breaks off":      {most: 1 << 20, r: io.MultiReader(bytes.NewReader(make([]byte, 999)), iotest.ErrReader(broken)), size: -1, limit: 9999, err: broken},
		"the end with the last":    {most: 1 << 20, r: iotest.DataErrReader(bytes.NewReader(make([]byte, 999))), size: -1, limit: 999, length: 999},
		"a claim without anything": {most: 1 << 16, r: bytes.NewReader(make([]byte, 1<<20)), size: 1 << 40, limit: 1 << 30, err: ErrSpent},
	} {
		b := New(c.most)
		data, err := b.ReadAll(c.r, c.size, c.limit)
		if len(data) != c.length || !errors.Is(err, c.err) || b.Used() != int64(cap(data)) {
			t.Errorf("%s: %d bytes, %v, %d used; want %d, %v, %d", name, len(data), err, b.Used(), c.length, c.err, cap(data))
		}
	}
}

func TestABodyGivesBackOnce(t *testing.T) {
	b := New(1 << 20)
	b.Take(5)
	r := b.Body([]byte("hello"))
	if got, err := io.ReadAll(r); string(got) != "hello" || err != nil || b.Used() != 5 {
		t.Errorf("read %q, %v with %d used, want hello with 5", got, err, b.Used())
	}
	r.Close()
	if r.Close(); b.Used() != 0 {
		t.Errorf("%d used after Close, want 0", b.Used())
	}
}

func TestManyAtOnceNeverHoldMore(t *testing.T) {
	const most = 1 << 20
	b := New(most)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 2000 {
				n := small + 1 + rand.IntN(most)
				if !b.Take(n) {
					continue
				}
				b.Give(n)
			}
		})
	}
	all.Wait()
	if b.Used() != 0 {
		t.Errorf("%d used at the end, want 0", b.Used())
	}
}
