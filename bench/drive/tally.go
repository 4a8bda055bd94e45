package drive

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/outrigger-mesh/outrigger/bench/record"
)

// Range of the histograms. What is above counts as the highest value.
const (
	lowest  = time.Microsecond
	highest = time.Minute
	digits  = 3
)

// tally counts what calls came to. It is safe for concurrent use: each connection counts in one of a few parts, since
// a histogram is too large for every connection to have its own.
type tally struct {
	parts [parts]part

	mu    sync.Mutex // guards below
	first string     // the first failure
}

// parts is how many parts a tally has.
const parts = 16

// part is the count of some of the connections.
type part struct {
	mu                  sync.Mutex // guards below
	calls, failures     int64
	wrong, unsent       int64
	events              int64
	latency, firstEvent *hdrhistogram.Histogram
}

func newTally() *tally {
	t := &tally{}
	for i := range t.parts {
		t.parts[i].latency, t.parts[i].firstEvent = newHistogram(), newHistogram()
	}
	return t
}

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(int64(lowest), int64(highest), digits)
}

// call counts the last call of the i-th connection, which was due at a time and came to err.
func (t *tally) call(i int, k *conn, due time.Time, err error) {
	p := &t.parts[i%parts]
	p.mu.Lock()
	var wrong *wrongAnswer
	switch {
	case err == nil:
		p.calls++
		p.events += k.eventCount
		observe(p.latency, k.answered.Sub(due))
		if !k.firstEvent.IsZero() {
			observe(p.firstEvent, k.firstEvent.Sub(due))
		}
	case errors.As(err, &wrong):
		p.wrong++
	default:
		p.failures++
	}
	p.mu.Unlock()
	if err != nil {
		t.failed(k, err)
	}
}

// failed keeps the first failure.
func (t *tally) failed(k *conn, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.first == "" {
		t.first = fmt.Sprintf("%s: %v", k.requests.owner, err)
	}
}

// unsent counts calls that were due and never sent.
func (t *tally) unsent(n int64) {
	p := &t.parts[0]
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unsent += n
}

// event counts an event of the i-th connection's held stream.
func (t *tally) event(i int) {
	p := &t.parts[i%parts]
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events++
}

func observe(h *hdrhistogram.Histogram, d time.Duration) {
	h.RecordValue(int64(min(max(d, lowest), highest))) //nolint:errcheck // it is in range
}

// load is what was counted so far. Only its counts and distributions are set.
func (t *tally) load(full bool) (l record.Load) {
	latency, firstEvent := newHistogram(), newHistogram()
	for i := range t.parts {
		p := &t.parts[i]
		p.mu.Lock()
		l.Calls += p.calls
		l.Failures += p.failures
		l.Wrong += p.wrong
		l.Unsent += p.unsent
		l.Events += p.events
		latency.Merge(p.latency)
		firstEvent.Merge(p.firstEvent)
		p.mu.Unlock()
	}
	t.mu.Lock()
	l.FirstFailure = t.first
	t.mu.Unlock()
	l.Latency, l.FirstEvent = distribution(latency), distribution(firstEvent)
	if full && l.Latency.Count > 0 {
		if encoded, err := latency.Encode(hdrhistogram.V2CompressedEncodingCookieBase); err == nil {
			l.Histogram = string(encoded)
		}
	}
	return l
}

// distribution is a histogram's, in microseconds.
func distribution(h *hdrhistogram.Histogram) record.Latency {
	us := func(ns int64) float64 { return float64(ns) / 1e3 }
	if h.TotalCount() == 0 {
		return record.Latency{}
	}
	v := h.ValueAtPercentiles([]float64{50, 90, 99, 99.9, 99.99})
	return record.Latency{
		Count: h.TotalCount(),
		Mean:  h.Mean() / 1e3,
		P50:   us(v[50]),
		P90:   us(v[90]),
		P99:   us(v[99]),
		P999:  us(v[99.9]),
		P9999: us(v[99.99]),
		Max:   us(h.Max()),
	}
}

// cpu is the user and system time that this process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
