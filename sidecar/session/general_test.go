package session

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// listening is a server's session whose stream a test feeds. Opening it takes a second.
type listening struct {
	closeCounter
	feed   chan any // a message's text, or the error that ends the stream
	opened int      // Listen calls
	refuse error    // Listen's answer
}

func (l *listening) Listen(ctx context.Context) (upstream.EventStream, error) {
	l.opened++
	time.Sleep(time.Second)
	return &fedStream{ctx, l.feed}, l.refuse
}

type fedStream struct {
	ctx  context.Context
	feed chan any
}

func (s *fedStream) Ready() bool  { return false }
func (s *fedStream) Close() error { return nil }

func (s *fedStream) Next() (mcp.Event, error) {
	select {
	case what := <-s.feed:
		if err, ok := what.(error); ok {
			return mcp.Event{}, err
		}
		return mcp.Event{Data: []byte(what.(string))}, nil
	case <-s.ctx.Done():
		return mcp.Event{}, s.ctx.Err()
	}
}

func TestTheServersStreamIsOpenedOnceAndOutlivesItsReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, open, closed := newStore(t, roomy)
		s := open()
		up := &listening{closeCounter: closeCounter{closed: closed}, feed: make(chan any)}
		s.Upstream = up
		readers := make(chan *Reader, 2)
		for range 2 {
			go func() {
				r, err := s.Listen(t.Context())
				if err != nil {
					t.Error(err)
				}
				readers <- r
			}()
		}
		one, two := <-readers, <-readers
		if up.opened != 1 {
			t.Errorf("opened %d times, want once", up.opened)
		}
		one.Detach()
		two.Detach()
		two.Detach() // does nothing
		up.feed <- "a"
		synctest.Wait()
		r, err := s.Listen(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		expect(t, "what came meanwhile", readAll(t, r), "1:a")
		r.Detach()
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if store.Len() != 0 || closed.Load() != 1 {
			t.Errorf("%d sessions live and %d ends told; want none, for nobody reads, and one", store.Len(), closed.Load())
		}
	})
}

func TestAServerWithoutAStreamIsAskedByEachListen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, open, closed := newStore(t, roomy)
		s := open()
		up := &listening{closeCounter: closeCounter{closed: closed}, refuse: upstream.ErrNoStream}
		s.Upstream = up
		for range 2 {
			if _, err := s.Listen(t.Context()); !errors.Is(err, upstream.ErrNoStream) {
				t.Errorf("got %v, want ErrNoStream", err)
			}
		}
		if up.opened != 2 {
			t.Errorf("asked %d times, want 2", up.opened)
		}
		go s.Listen(t.Context())
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := s.Listen(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a wait for another's opening ended with %v, want its context's error", err)
		}
		time.Sleep(time.Second)
	})
}

func TestASessionThatItsServerForgotEndsWithItsStream(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		live int
	}{
		"forgotten": {&upstream.Error{Kind: upstream.SessionGone}, 0}, "broken": {&upstream.Error{Kind: upstream.Lost}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, open, closed := newStore(t, roomy)
				s := open()
				up := &listening{closeCounter: closeCounter{closed: closed}, feed: make(chan any)}
				s.Upstream = up
				r, err := s.Listen(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer r.Detach()
				up.feed <- tt.err
				if _, _, err := next(t.Context(), r); err == nil {
					t.Error("the stream goes on")
				}
				synctest.Wait()
				if store.Len() != tt.live {
					t.Errorf("%d sessions live, want %d", store.Len(), tt.live)
				}
			})
		})
	}
}
