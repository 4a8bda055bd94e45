package http1

import (
	"sync"
	"time"
)

// deadline bounds one direction of a connection. The socket is told only when something is about to wait, and only if
// what it was told last will not do: that may be later than asked by a quarter of the time, never earlier.
type deadline struct {
	set func(time.Time) error // the socket's; set once
	def time.Duration         // for each read or write when the handler asks for nothing

	mu   sync.Mutex // guards below
	want time.Time  // what was asked for; zero takes the default
	at   time.Time  // what the socket was told; zero for nothing
	busy bool       // a read or write may be waiting
	idle bool       // what may be waiting is beginIdle's
}

// ask sets the bound, also of a read or write that waits at present.
func (d *deadline) ask(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.want = t
	if d.busy {
		d.tellLocked(time.Now())
	}
}

// reset takes back what was asked for.
func (d *deadline) reset() {
	d.mu.Lock()
	d.want = time.Time{}
	d.mu.Unlock()
}

// begin comes before each read or write, end after it.
func (d *deadline) begin(now time.Time) {
	d.mu.Lock()
	d.busy = true
	d.tellLocked(now)
	d.mu.Unlock()
}

// beginIdle is begin before a wait that wake may end.
func (d *deadline) beginIdle(now time.Time) {
	d.mu.Lock()
	d.busy, d.idle = true, true
	d.tellLocked(now)
	d.mu.Unlock()
}

func (d *deadline) end() {
	d.mu.Lock()
	d.busy, d.idle = false, false
	d.mu.Unlock()
}

// wake makes a wait that began with beginIdle return with os.ErrDeadlineExceeded.
func (d *deadline) wake() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.idle {
		d.at = time.Unix(1, 0)
		_ = d.set(d.at) // fails when closed, and then nothing waits
	}
}

func (d *deadline) tellLocked(now time.Time) {
	t := d.want
	if t.IsZero() {
		t = now.Add(d.def)
	}
	latest := t.Add(max(0, t.Sub(now)/4))
	if d.at.Before(t) || d.at.After(latest) {
		d.at = latest
		_ = d.set(latest) // fails when closed, which the read or write then says
	}
}
