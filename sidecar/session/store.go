// Package session is the legacy wire's sessions as clients see them: their ids, their calls in flight, and their
// streams with what a client may need to resume one (MCP 2025-11-25, basic/transports: Session Management,
// Resumability and Redelivery).
//
// A session lives from initialize until DELETE, until it was unused for the idle time, or until its Store closes;
// then its upstream session is closed too. A Store and its Sessions are safe for concurrent use. A Store's goroutines
// are its sweeper, one for each session that is being ended, up to closers, and one for each session whose client has
// read its GET stream; Close waits for them.
// Not here: HTTP (package proxy), the session with the server (package upstream).
package session

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/sidecar/lazyctx"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// Settings bound a Store; every field is required.
type Settings struct {
	IdleTimeout time.Duration // a session unused for this long ends
	Max         int           // sessions at once
	ReplayBytes int           // what one session keeps of streamed messages, for clients that resume
}

const (
	// yieldAfter is how long a session must be unused before a full Store may end it for a new one.
	yieldAfter = time.Minute
	// closeTimeout bounds telling a server that a session has ended.
	closeTimeout = 5 * time.Second
	// closers is how many sessions are ended at the same time. Those that wait for it are still live.
	closers = 64
)

// ErrFull is Reserve's answer when the Store holds its most and none is unused for long enough.
var ErrFull = errors.New("too many sessions")

// Store holds one binding's sessions on this sidecar.
type Store struct {
	// Set by NewStore, never changed.
	settings Settings
	log      *slog.Logger
	stop     context.CancelFunc
	ctx      context.Context
	swept    chan struct{} // closed when the sweeper has returned
	closing  chan struct{} // capacity closers: a place for each session being ended
	late     context.Context
	giveUp   context.CancelFunc // ends late, when Close has no more time

	running sync.WaitGroup // goroutines; none begins once closed is true

	mu       sync.Mutex // guards below
	sessions map[string]*Session
	reserved int       // places promised to an initialize in flight
	fullTill time.Time // no session can yield before
	closed   bool
}

// NewStore makes a Store and starts its sweeper.
func NewStore(s Settings, log *slog.Logger) *Store {
	ctx, stop := context.WithCancel(context.Background())
	late, giveUp := context.WithCancel(context.Background())
	st := &Store{
		settings: s, log: log, ctx: ctx, stop: stop, late: late, giveUp: giveUp,
		swept: make(chan struct{}), closing: make(chan struct{}, closers),
		sessions: make(map[string]*Session),
	}
	go st.sweep()
	return st
}

// Settings are what the Store was made with.
func (s *Store) Settings() Settings { return s.settings }

// Reserve takes a place for a session that is about to be opened; Add or Release must follow. With the Store full, the
// longest unused session that was so for a minute gives way. Otherwise it returns ErrFull.
func (s *Store) Reserve() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrFull
	}
	if len(s.sessions)+s.reserved >= s.settings.Max && !s.yieldLocked(time.Now()) {
		return ErrFull
	}
	s.reserved++
	return nil
}

// Release gives back a reserved place.
func (s *Store) Release() {
	s.mu.Lock()
	s.reserved--
	s.mu.Unlock()
}

// yieldLocked ends the longest unused session, if one was unused for yieldAfter. The search is linear, so its failure is
// remembered until it could come out differently.
func (s *Store) yieldLocked(now time.Time) bool {
	if now.Before(s.fullTill) {
		return false
	}
	var oldest *Session
	at := int64(math.MaxInt64)
	for _, c := range s.sessions {
		if used := c.used.Load(); c.active.Load() == 0 && used < at {
			oldest, at = c, used
		}
	}
	if oldest == nil || now.Sub(time.Unix(0, at)) < yieldAfter {
		s.fullTill = now.Add(time.Second)
		return false
	}
	select {
	case s.closing <- struct{}{}:
	default:
		return false // the server is slow to end those that gave way before
	}
	delete(s.sessions, oldest.ID)
	s.running.Go(func() { s.endPlaced(oldest) })
	return true
}

// Add fills a reserved place with a session just opened at the server, under the version agreed on, for an owner. It
// returns nil when the Store was closed meanwhile; the caller then still owns up.
func (s *Store) Add(up upstream.Session, version, owner string) *Session {
	c := newSession(s, up, version)
	c.owner = owner
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reserved--
	if s.closed {
		return nil
	}
	s.sessions[c.ID] = c
	return c
}

// Get finds a live session and marks it used; nil when unknown or ended, or another owner's: an id alone opens nothing.
func (s *Store) Get(id, owner string) *Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.sessions[id]
	if c == nil || c.owner != owner {
		return nil
	}
	c.used.Store(time.Now().UnixNano()) // under the lock: the sweeper sees it, or has taken the session out
	return c
}

// Announce adds a message to the stream outside of calls of every session that has one open. data is not changed after.
func (s *Store) Announce(data []byte) {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.sessions))
	s.mu.Unlock()
	for _, c := range all {
		if st := c.openStream(); st != nil {
			st.Append(data, nil)
		}
	}
}

// Len is how many sessions are live.
func (s *Store) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sessions)
}

// End ends a session and tells its server, within ctx. It reports whether the id was a live session's.
func (s *Store) End(ctx context.Context, id string) bool {
	s.mu.Lock()
	c := s.sessions[id]
	delete(s.sessions, id)
	s.fullTill = time.Time{}
	s.mu.Unlock()
	if c == nil {
		return false
	}
	c.end(ctx)
	return true
}

// Close ends every session, telling servers within ctx, and waits for the Store's goroutines. Calls in flight end first,
// all at once.
func (s *Store) Close(ctx context.Context) {
	s.mu.Lock()
	s.closed = true
	all := s.sessions
	s.sessions = make(map[string]*Session)
	s.mu.Unlock()
	s.stop()
	<-s.swept
	unwatch := context.AfterFunc(ctx, s.giveUp)
	defer unwatch()
	for _, c := range all {
		c.endWaits()
	}
	var ends errgroup.Group
	ends.SetLimit(closers)
	for _, c := range all {
		ends.Go(func() error { c.end(ctx); return nil })
	}
	_ = ends.Wait() // there is no error
	s.running.Wait()
	s.giveUp()
}

// run runs f in a goroutine that Close waits for, unless the Store is closed.
func (s *Store) run(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.running.Go(f)
	}
	return !s.closed
}

// endPlaced ends a session that is out of the map and has a place in closing.
func (s *Store) endPlaced(c *Session) {
	defer func() { <-s.closing }()
	ctx, cancel := context.WithTimeout(s.late, closeTimeout)
	defer cancel()
	c.end(ctx)
}

// sweep ends sessions that were unused for the idle time and forgets what streams keep beyond their time.
func (s *Store) sweep() {
	defer close(s.swept)
	every := min(max(s.settings.IdleTimeout/4, 10*time.Millisecond), 15*time.Second)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case now := <-tick.C:
			s.sweepOnce(now)
		}
	}
}

func (s *Store) sweepOnce(now time.Time) {
	for _, c := range s.idle(now) {
		select {
		case s.closing <- struct{}{}:
			s.endIdle(c, now)
		case <-s.ctx.Done():
			return
		}
	}
}

// idle lists the sessions that were unused for the idle time, and makes the others forget.
func (s *Store) idle(now time.Time) (all []*Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.sessions {
		if s.isIdle(c, now) {
			all = append(all, c)
		} else {
			c.forget(now)
		}
	}
	return all
}

func (s *Store) isIdle(c *Session, now time.Time) bool {
	return c.active.Load() == 0 && c.used.Load() < now.Add(-s.settings.IdleTimeout).UnixNano()
}

// endIdle ends a session, for which there is a place in closing, unless it was used or ended meanwhile.
func (s *Store) endIdle(c *Session, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.sessions[c.ID] != c || !s.isIdle(c, now) {
		<-s.closing
		return
	}
	delete(s.sessions, c.ID)
	s.running.Go(func() {
		s.log.Debug("session unused, ended", "unused_for", s.settings.IdleTimeout)
		s.endPlaced(c)
	})
}

// newID makes a session id: 192 random bits in visible ASCII.
func newID() string {
	var b [24]byte
	rand.Read(b[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// Session is one client's session.
type Session struct {
	// Set when made, never changed.
	ID       string
	Version  string // protocol version agreed on at initialize
	Upstream upstream.Session
	owner    string // who opened it; empty where nobody is asked
	store    *Store
	ctx      lazyctx.Context // ends with the session

	used   atomic.Int64 // last use, Unix nanoseconds
	active atomic.Int32 // calls in flight and attached streams

	mu       sync.Mutex    // guards below and every Stream of the session
	latest   *call         // of the calls in flight
	inFlight int           // calls, those with a repeated id included
	streams  []*Stream     // oldest first
	numbered uint64        // streams made so far
	kept     int           // bytes kept by streams
	general  *Stream       // what GET reads; nil before the first
	opening  chan struct{} // closed when the opening of general was tried; nil while nobody tries
}

func newSession(s *Store, up upstream.Session, version string) *Session {
	c := &Session{ID: newID(), Version: version, Upstream: up, store: s}
	c.used.Store(time.Now().UnixNano())
	return c
}

// Context ends with the session, and not with any request of its client: on the legacy wire a client that leaves has
// not cancelled (MCP 2025-11-25, basic/transports, "Disconnection SHOULD NOT be interpreted as ... cancelling").
func (c *Session) Context() context.Context { return &c.ctx }

// endWaits makes every wait of the session return.
func (c *Session) endWaits() {
	c.ctx.Cancel()
	c.cancelCalls()
	c.wakeReaders()
}

// end makes every wait of the session return, then tells the server within ctx.
func (c *Session) end(ctx context.Context) {
	c.endWaits()
	_ = c.Upstream.Close(ctx) // the server may be gone; the session is over either way
}
