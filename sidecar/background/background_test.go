package background

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWaitIsForEveryTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tasks := New()
		var ended atomic.Int32
		for i := range 3 {
			tasks.Run(func() {
				<-tasks.Context().Done()
				time.Sleep(time.Duration(3-i) * time.Second) // of the bubble: the slowest ends last
				ended.Add(1)
			})
		}
		tasks.Stop()
		if err := tasks.Wait(t.Context()); err != nil || ended.Load() != 3 {
			t.Errorf("%v with %d of 3 tasks ended", err, ended.Load())
		}
		if tasks.Run(func() { t.Error("a task ran after Wait") }) {
			t.Error("a task started after Wait")
		}
	})
}

func TestWaitIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tasks, release := New(), make(chan struct{})
		tasks.Run(func() { <-release })
		ctx, cancel := context.WithTimeout(t.Context(), 2*grace)
		defer cancel()
		if err := tasks.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want the deadline's error", err)
		}
		close(release)
		if err := tasks.Wait(t.Context()); err != nil {
			t.Errorf("the second time: %v", err)
		}
	})
}

func TestAwaitEndsWithTheFirstOfThree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closed, never := make(chan struct{}), make(chan struct{})
		close(closed)
		brief, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		for _, r := range []struct {
			what string
			ctx  context.Context
			done chan struct{}
			most time.Duration
			want time.Duration
		}{
			{"done", t.Context(), closed, time.Hour, 0},
			{"no time", t.Context(), never, 0, 0},
			{"the end of ctx", brief, never, time.Hour, time.Second},
			{"its time", t.Context(), never, time.Minute, time.Minute},
			{"a pause", t.Context(), nil, time.Minute, time.Minute},
		} {
			began := time.Now()
			Await(r.ctx, r.done, r.most)
			if took := time.Since(began); took != r.want {
				t.Errorf("%s: waited %v, want %v", r.what, took, r.want)
			}
		}
	})
}
