package stdio

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	firstDelay = 100 * time.Millisecond
	mostDelay  = 30 * time.Second
	ranWell    = 10 * time.Second // a process that lived this long starts the back-off anew
)

// errAgain is launch's error when another launch should follow without a pause.
var errAgain = errors.New("starting again")

// supervisor keeps one process running from the first time it is needed until close.
type supervisor struct {
	// Set by newSupervisor, never changed.
	name   string
	log    *slog.Logger
	launch func(ctx context.Context) (*pipe, error) // starts a process and makes it ready
	ctx    context.Context
	cancel context.CancelFunc
	ended  chan struct{} // closed when run has returned

	mu      sync.Mutex // guards below
	started bool
	stopBy  context.Context // how long close lets the process take; set before ctx is cancelled
	pipe    *pipe           // nil while there is none
	err     error           // why the last launch failed; nil after one that did not
	changed chan struct{}   // closed and replaced when pipe or err change
}

func newSupervisor(name string, log *slog.Logger, launch func(context.Context) (*pipe, error)) *supervisor {
	ctx, cancel := context.WithCancel(context.Background())
	return &supervisor{
		name: name, log: log, launch: launch, ctx: ctx, cancel: cancel,
		ended: make(chan struct{}), changed: make(chan struct{}),
	}
}

// get returns the running process's pipe, starting it when it never was. While it is down get waits up to wait; when the
// last launch failed it says so at once, since the next will likely fail too.
func (s *supervisor) get(ctx context.Context, wait time.Duration) (*pipe, error) {
	pipe, changed, err := s.look()
	if pipe != nil {
		return pipe, nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		switch {
		case pipe != nil:
			return pipe, nil
		case err != nil:
			return nil, s.unreachable(err)
		}
		select {
		case <-changed:
		case <-timer.C:
			return nil, s.unreachable(nil)
		case <-ctx.Done():
			return nil, s.unreachable(ctx.Err())
		}
		pipe, changed, err = s.look()
	}
}

// unreachable says why there is no process to ask. The call itself was not sent, whatever became of the handshake; but
// that the server refused it stays what it is.
func (s *supervisor) unreachable(cause error) error {
	detail := "its process is not ready"
	if known := (*upstream.Error)(nil); errors.As(cause, &known) {
		if known.Kind == upstream.BadAnswer {
			return known
		}
		detail = known.Detail
	}
	return &upstream.Error{Kind: upstream.Unreachable, Upstream: s.name, Detail: detail, Cause: cause}
}

// look returns the pipe, or why the last launch failed (nil when it is not known), and what is closed when that changes.
func (s *supervisor) look() (*pipe, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started && s.ctx.Err() == nil {
		s.started = true
		go s.run()
	}
	if s.ctx.Err() != nil {
		return nil, s.changed, &upstream.Error{Kind: upstream.Unreachable, Upstream: s.name, Detail: "it was closed"}
	}
	if s.pipe != nil && s.pipe.isBroken() {
		return nil, s.changed, nil
	}
	return s.pipe, s.changed, s.err
}

func (s *supervisor) set(pipe *pipe, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pipe, s.err = pipe, err
	close(s.changed)
	s.changed = make(chan struct{})
}

// run starts the process again whenever it ends, with exponential back-off and full jitter.
func (s *supervisor) run() {
	defer close(s.ended)
	defer s.set(nil, nil) // for those who still wait
	for failures := 0; s.ctx.Err() == nil; {
		began := time.Now()
		pipe, err := s.launch(s.ctx)
		if errors.Is(err, errAgain) {
			continue
		}
		s.set(pipe, err)
		if err == nil {
			s.watch(pipe)
			s.set(nil, nil)
		}
		if time.Since(began) > ranWell && err == nil {
			failures = 0
		}
		delay := rand.N(min(mostDelay, firstDelay<<min(failures, 10)))
		failures++
		if s.ctx.Err() == nil {
			log := s.log.With("again_in", delay)
			if err != nil { // else how it ended was logged when it did
				log = log.With("error", err, "cause", errors.Unwrap(err))
			}
			log.Warn("server is down")
		}
		sleep(s.ctx, delay)
	}
}

// watch returns when the process is gone.
func (s *supervisor) watch(pipe *pipe) {
	select {
	case <-pipe.done:
		s.log.Warn("server ended", "pid", pipe.proc.pid, "error", pipe.proc.err)
	case <-s.ctx.Done():
		s.mu.Lock()
		stopBy := s.stopBy
		s.mu.Unlock()
		pipe.stop(stopBy)
	}
}

// close stops the process and the supervision.
func (s *supervisor) close(ctx context.Context) {
	s.mu.Lock()
	if s.ctx.Err() == nil {
		s.stopBy = ctx
	}
	s.cancel()
	started := s.started
	s.mu.Unlock()
	if started {
		<-s.ended
	}
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
