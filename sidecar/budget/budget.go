// Package budget bounds what a process holds in memory of a kind of data, over all calls and all servers.
//
// Each answer that is translated has a bound of its own, and so has each upstream; without one over all of them, many
// slow clients of many upstreams could still take all the memory there is. What was taken is given back by whoever took
// it, in every case. A Budget is safe for concurrent use.
package budget

import (
	"bytes"
	"errors"
	"io"
	"sync/atomic"
)

// small is what always fits, in bytes: errors and questions get through when large answers do not. How many there can be
// others bound.
const small = 4 << 10

// least is with how many bytes ReadAll begins.
const least = 512

var (
	// ErrSpent is that there is no room now. It may pass.
	ErrSpent = errors.New("the memory for such answers is in use: try again later")
	// ErrTooLong is that something is longer than its own limit.
	ErrTooLong = errors.New("longer than what is held at a time")
)

// Budget is a number of bytes. The nil Budget, and that of zero, has no bound.
type Budget struct {
	most    int64
	used    atomic.Int64
	refused atomic.Uint64
}

// New makes a Budget of so many bytes.
func New(most int64) *Budget { return &Budget{most: most} }

// Take takes n bytes, or reports that there is no room. What is small always fits.
func (b *Budget) Take(n int) bool {
	if b == nil || n == 0 {
		return true
	}
	if used := b.used.Add(int64(n)); used <= b.most || n <= small || b.most <= 0 {
		return true
	}
	b.used.Add(int64(-n))
	b.refused.Add(1)
	return false
}

// Hold takes n bytes, or gives back -n, whatever there is room for: for what has other bounds, and makes room when it is
// told that it is over.
func (b *Budget) Hold(n int) {
	if b != nil && n != 0 {
		b.used.Add(int64(n))
	}
}

// Give gives n bytes back.
func (b *Budget) Give(n int) { b.Hold(-n) }

// Over reports whether more is taken than there is.
func (b *Budget) Over() bool { return b != nil && b.most > 0 && b.used.Load() > b.most }

// Used is what is taken, in bytes.
func (b *Budget) Used() int64 {
	if b == nil {
		return 0
	}
	return b.used.Load()
}

// Most is how much can be taken, in bytes; 0 for no bound.
func (b *Budget) Most() int64 {
	if b == nil {
		return 0
	}
	return b.most
}

// Refused is how often Take found no room.
func (b *Budget) Refused() uint64 {
	if b == nil {
		return 0
	}
	return b.refused.Load()
}

// ReadAll reads r to its end, which is expected after size bytes if that is not negative and comes after at most limit.
// The caller gives cap(data) bytes back. Errors, after which there is nothing to give back: ErrSpent, ErrTooLong, and r's.
func (b *Budget) ReadAll(r io.Reader, size int64, limit int) (data []byte, err error) {
	room := least
	if size >= 0 {
		room = int(min(size, int64(limit))) + 1 // and one byte to see the end
	}
	for data = nil; ; {
		if len(data) == cap(data) {
			if data, err = b.grow(data, room); err != nil {
				return nil, err
			}
		}
		n, err := r.Read(data[len(data):min(cap(data), limit+1)])
		data = data[:len(data)+n]
		switch {
		case len(data) > limit:
			err = ErrTooLong
		case err == io.EOF:
			return data, nil
		}
		if err != nil {
			b.Give(cap(data))
			return nil, err
		}
		room = 2 * cap(data)
	}
}

// grow is data with more room behind it.
func (b *Budget) grow(data []byte, room int) ([]byte, error) {
	if !b.Take(room) {
		b.Give(cap(data))
		return nil, ErrSpent
	}
	grown := make([]byte, len(data), room)
	copy(grown, data)
	b.Give(cap(data))
	return grown, nil
}

// Body is data to be read, of which len(data) bytes were taken. Close gives them back.
func (b *Budget) Body(data []byte) io.ReadCloser {
	return &body{Reader: bytes.NewReader(data), budget: b, n: len(data)}
}

type body struct {
	*bytes.Reader
	budget *Budget
	n      int
	closed atomic.Bool
}

// Close implements io.Closer.
func (b *body) Close() error {
	if !b.closed.Swap(true) {
		b.budget.Give(b.n)
	}
	return nil
}
