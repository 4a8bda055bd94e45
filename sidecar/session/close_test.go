package session

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// hanging is a server's session that takes all the time it is given to end.
type hanging struct {
	upstream.Session
	under, told *atomic.Int32 // ends under way, and begun
}

func (h hanging) Close(ctx context.Context) error {
	h.told.Add(1)
	h.under.Add(1)
	defer h.under.Add(-1)
	<-ctx.Done()
	return ctx.Err()
}

// newHanging is a Store with n sessions of a server that hangs.
func newHanging(t *testing.T, n int, s Settings) (st *Store, all []*Session, h hanging) {
	t.Helper()
	st = NewStore(s, slog.New(slog.DiscardHandler))
	h = hanging{under: new(atomic.Int32), told: new(atomic.Int32)}
	for range n {
		if err := st.Reserve(); err != nil {
			t.Fatal(err)
		}
		all = append(all, st.Add(h, "2025-11-25", ""))
	}
	return st, all, h
}

func TestCloseEndsAllCallsAtOnceAndReturnsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, all, h := newHanging(t, 500, Settings{IdleTimeout: time.Hour, Max: 500, ReplayBytes: 1})
		begun := time.Now()
		late := new(atomic.Int32)
		for _, s := range all {
			ctx, done, _ := s.Begin([]byte("1"))
			go func() {
				<-ctx.Done()
				if time.Since(begun) > 0 {
					late.Add(1)
				}
				done()
			}()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		go func() {
			synctest.Wait()
			if n := h.under.Load(); n != closers {
				t.Errorf("%d servers are being told, want %d", n, closers)
			}
		}()
		st.Close(ctx)
		if took := time.Since(begun); took != time.Second || h.told.Load() != 500 || late.Load() != 0 {
			t.Errorf("Close took %v, told %d servers, and %d calls ended after others; want 1s, 500, 0", took, h.told.Load(), late.Load())
		}
	})
}

func TestEndingsAreBoundedAndCloseWaitsForThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, all, h := newHanging(t, 3*closers, Settings{IdleTimeout: time.Minute, Max: 3 * closers, ReplayBytes: 1})
		time.Sleep(time.Minute + 16*time.Second) // all are unused: the sweeper ends them
		synctest.Wait()
		if n := h.under.Load(); n != closers || st.Len() != 2*closers {
			t.Errorf("%d endings under way and %d sessions live; want %d and %d", n, st.Len(), closers, 2*closers)
		}
		live := 0
		for _, s := range all { // those that wait for their end are used again
			if st.Get(s.ID, "") != nil {
				live++
			}
		}
		time.Sleep(2 * closeTimeout)
		synctest.Wait()
		if st.Len() != live || h.told.Load() != closers {
			t.Errorf("%d sessions live and %d ended; want those used, %d, and %d", st.Len(), h.told.Load(), live, closers)
		}
		time.Sleep(time.Minute + 16*time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		begun := time.Now()
		st.Close(ctx)
		if n := h.under.Load(); n != 0 || time.Since(begun) > 0 {
			t.Errorf("Close returned after %v with %d endings under way, want none and no wait: it had no time", time.Since(begun), n)
		}
	})
}

func TestAFullStoreRefusesWhileTheServerIsSlowToEndOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, _, h := newHanging(t, 2*closers, Settings{IdleTimeout: time.Hour, Max: 2 * closers, ReplayBytes: 1})
		time.Sleep(2 * yieldAfter)
		for i := range closers {
			if err := st.Reserve(); err != nil {
				t.Fatalf("Reserve %d: %v", i, err)
			}
			st.Add(h, "2025-11-25", "")
		}
		synctest.Wait()
		if err := st.Reserve(); !errors.Is(err, ErrFull) || h.under.Load() != closers {
			t.Errorf("with %d endings under way Reserve returned %v, want ErrFull", h.under.Load(), err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		st.Close(ctx)
	})
}
