// Package drive makes calls of an MCP server, as fast as it answers or at a rate, and checks every answer.
//
// A Driver opens its connections (in the legacy era a session each), makes calls for a while that do not count, then
// for a while that do, and says what it found. Each connection is one goroutine with one call in flight. In a closed
// loop it makes the next call when the last is answered; in an open loop calls fall due at times fixed beforehand
// (pace.go), and their latency counts from there, however late they were sent.
//
// An answer is right when it is its call's: of the null server every byte is known, and holds the connection's own
// name and the call's number. What is wrong or fails is counted and never ends a run; a connection that broke is opened
// again after a pause that grows to maxPause, so that a server that restarts is measured and not hammered.
//
// A Driver runs once. Progress may be called meanwhile by anyone. Not here: flags and printing (bench/load), the bytes
// (package wire).
package drive

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/outrigger-mesh/outrigger/bench/record"
)

// Driver is a set of connections to one endpoint.
type Driver struct {
	// Set by New, never changed.
	c     Config
	url   *url.URL
	conns []*conn

	tally atomic.Pointer[tally] // of the phase that runs
	stage atomic.Pointer[string]
}

// New makes a Driver. It connects nowhere until Run or Hold.
func New(c Config) (*Driver, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	u, err := url.Parse(c.URL)
	if err != nil {
		return nil, err
	}
	d := &Driver{c: c.withDefaults(), url: u}
	process := rand.Uint32()
	for i := range d.c.Conns {
		d.conns = append(d.conns, newConn(&d.c, u, fmt.Sprintf("%08x-%06d", process, i)))
	}
	d.enter("opening")
	return d, nil
}

// enter begins a stage with a new tally.
func (d *Driver) enter(stage string) *tally {
	t := newTally()
	d.tally.Store(t)
	d.stage.Store(&stage)
	return t
}

// Progress is the stage a Driver is in and what it counted since that began.
func (d *Driver) Progress() (stage string, soFar record.Load) {
	return *d.stage.Load(), d.tally.Load().load(false)
}

// Run opens the connections, warms up and measures. A connection that cannot be opened at first is an error; after that
// failures are counted. When ctx ends, what was measured so far is returned.
func (d *Driver) Run(ctx context.Context) (record.Load, error) {
	defer d.closeAll()
	begin := time.Now()
	if err := d.openAll(ctx); err != nil {
		return record.Load{}, err
	}
	setUp := time.Since(begin)
	if d.c.Warm > 0 {
		d.run(ctx, newPhase(d.enter("warming up"), d.c.Warm, 0))
	}
	before := cpu()
	p := newPhase(d.enter("measuring"), d.duration(), d.c.Calls)
	d.run(ctx, p)
	l := d.result(p.tally, p.start, before)
	l.SetUpSeconds = setUp.Seconds()
	l.Intended = d.c.Rate
	return l, nil
}

// duration is how long Run measures; 0: until the calls are made.
func (d *Driver) duration() time.Duration {
	if d.c.Duration == 0 && d.c.Calls == 0 {
		return 10 * time.Second
	}
	return d.c.Duration
}

// result is a record of what was counted since a time. before is the CPU time then.
func (d *Driver) result(t *tally, began time.Time, before time.Duration) record.Load {
	l := t.load(true)
	l.Connections = len(d.conns)
	l.Began, l.Seconds = began, time.Since(began).Seconds()
	l.CallsPerS = float64(l.Calls) / l.Seconds
	l.CPUSeconds = (cpu() - before).Seconds()
	return l
}

// openers is how many connections are opened at once.
const openers = 64

// each calls f for every connection, several at once.
func (d *Driver) each(f func(i int, k *conn)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(openers, len(d.conns)) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(d.conns); i = int(next.Add(1)) - 1 {
				f(i, d.conns[i])
			}
		})
	}
	wg.Wait()
}

// openAll opens every connection, or returns why the first that failed did.
func (d *Driver) openAll(ctx context.Context) error {
	var first error
	var once sync.Once
	var failed atomic.Bool
	d.each(func(i int, k *conn) {
		if failed.Load() || ctx.Err() != nil {
			return
		}
		if err := k.open(ctx); err != nil {
			failed.Store(true)
			once.Do(func() { first = fmt.Errorf("connection %d: %w", i+1, err) })
		}
	})
	if err := ctx.Err(); err != nil {
		return err
	}
	return first
}

// closeMost is how long ending sessions may take. What is left then the server forgets by itself.
const closeMost = time.Minute

// closeAll ends every connection, and then the sessions that are still open, over a few new connections. What a server
// says to that does not matter.
func (d *Driver) closeAll() {
	for _, k := range d.conns {
		k.close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeMost)
	defer cancel()
	idle := make(chan *conn, openers)
	for range openers {
		idle <- &conn{c: &d.c, url: d.url, requests: d.conns[0].requests}
	}
	d.each(func(_ int, k *conn) {
		if k.session == "" || ctx.Err() != nil {
			return
		}
		closer := <-idle
		closer.session, k.session = k.session, ""
		if closer.nc == nil && closer.dial(ctx) != nil {
			idle <- closer
			return
		}
		if closer.closeSession() != nil {
			closer.close()
		}
		idle <- closer
	})
	for range openers {
		(<-idle).close()
	}
}

// Pauses before a connection that failed is used again: the first, and the longest. Each is twice the one before.
const (
	minPause = 10 * time.Millisecond
	maxPause = time.Second
)

// run makes calls until the phase is over and the last of them is answered.
func (d *Driver) run(ctx context.Context, p *phase) {
	var wg sync.WaitGroup
	take := p.takeNow
	if d.c.Rate > 0 {
		q := newQueue(p, d.c.Rate, d.c.Timeout)
		wg.Go(func() { q.fill(ctx) })
		take = q.take
	}
	for i, k := range d.conns {
		wg.Go(func() {
			pause := minPause
			for ctx.Err() == nil {
				due, ok := take()
				if !ok {
					return
				}
				if d.call(ctx, p, i, k, due) {
					pause = minPause
					continue
				}
				p.sleep(ctx, pause)
				pause = min(2*pause, maxPause)
			}
		})
	}
	wg.Wait()
}

// call makes and counts one call. It is false when the connection had to be closed.
func (d *Driver) call(ctx context.Context, p *phase, i int, k *conn, due time.Time) bool {
	err := k.open(ctx)
	opened := err == nil
	if opened {
		err = k.call()
	}
	if ctx.Err() != nil {
		return false // cut short by us
	}
	p.tally.call(i, k, due, err)
	var wrong *wrongAnswer
	if opened && (err == nil || errors.Is(err, errRefused) || errors.As(err, &wrong)) {
		return true
	}
	k.close()
	if errors.Is(err, errSession) {
		k.session = ""
	}
	return false
}

// Hold opens streams or, with the operation Session, sessions, tells holding how many there are, and keeps them until
// ctx ends or, when it is set, the duration has passed. What cannot be opened, and a stream that ends, is a failure. A
// held session needs no connection, and keeps none.
func (d *Driver) Hold(ctx context.Context, holding func(n int)) (record.Load, error) {
	if d.c.Op != Stream && d.c.Op != Session {
		return record.Load{}, fmt.Errorf("op %s: only %s and %s can be held", d.c.Op, Stream, Session)
	}
	defer d.closeAll()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t, begin, before := d.enter("opening"), time.Now(), cpu()
	held := make([]bool, len(d.conns))
	d.each(func(i int, k *conn) { held[i] = d.openHeld(ctx, t, i, k) })
	setUp := time.Since(begin)
	if d.c.Duration > 0 {
		defer time.AfterFunc(d.c.Duration, cancel).Stop()
	}
	var wg sync.WaitGroup
	n := 0
	for i, k := range d.conns {
		if !held[i] {
			continue
		}
		n++
		if d.c.Op == Stream {
			wg.Go(func() { d.follow(ctx, t, i, k) })
		}
	}
	name := "holding"
	d.stage.Store(&name)
	holding(n)
	<-ctx.Done()
	wg.Wait()
	l := d.result(t, begin, before)
	l.SetUpSeconds = setUp.Seconds()
	return l, nil
}

// openHeld opens one stream or session, and counts it as a call. It reports whether it is open.
func (d *Driver) openHeld(ctx context.Context, t *tally, i int, k *conn) bool {
	due := time.Now()
	err := k.open(ctx)
	switch {
	case err != nil:
	case d.c.Op == Session:
		err = k.openSession()
		k.answered = time.Now()
		k.close()
	default:
		err = k.openStream()
	}
	if ctx.Err() != nil {
		return false
	}
	t.call(i, k, due, err)
	if err != nil {
		k.close()
	}
	return err == nil
}

// follow reads a held stream to its end.
func (d *Driver) follow(ctx context.Context, t *tally, i int, k *conn) {
	err := k.follow(ctx, func() { t.event(i) })
	if err != nil {
		t.call(i, k, time.Now(), err)
	}
}
