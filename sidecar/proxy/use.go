package proxy

import "sync/atomic"

// retired is added to a use's count when it is to end: the count is negative from then on.
const retired = -1 << 40

// use counts the requests on something that may be replaced under them.
type use struct {
	n    atomic.Int64
	over chan struct{} // closed when retired and no request is left
}

// begin counts a request in, unless what it would use was retired.
func (u *use) begin() bool {
	if u.n.Add(1) > 0 {
		return true
	}
	u.end()
	return false
}

// end counts a request out.
func (u *use) end() {
	if u.n.Add(-1) == retired {
		u.finish()
	}
}

// retire lets no request begin any more. It is called once.
func (u *use) retire() {
	if u.n.Add(retired) == retired {
		u.finish()
	}
}

// finish runs when the count is exactly retired, which a request that came too late can bring about again.
func (u *use) finish() {
	if u.n.CompareAndSwap(retired, 2*retired) {
		close(u.over)
	}
}
