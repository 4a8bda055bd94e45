package lazyctx

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDerivedContextsStartNoGoroutine(t *testing.T) {
	x := new(Context)
	ctx, cancel := context.WithCancel(x)
	if len(x.hooks) != 1 {
		t.Fatalf("%d hooks, want 1: package context did not use AfterFunc", len(x.hooks))
	}
	cancel()
	if len(x.hooks) != 0 {
		t.Errorf("%d hooks after the derived context ended, want 0", len(x.hooks))
	}
	if ctx.Err() != context.Canceled || x.Err() != nil {
		t.Errorf("derived: %v, parent: %v; want only the derived one ended", ctx.Err(), x.Err())
	}
}

func TestCancelEndsEveryWaitAndRunsEveryFunctionOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := new(Context)
		derived, stop := context.WithCancel(x)
		defer stop()
		ran := make(chan string, 10)
		x.AfterFunc(func() { ran <- "first" })
		stopSecond := x.AfterFunc(func() { ran <- "second" })
		x.AfterFunc(func() { ran <- "third" })
		if !stopSecond() || stopSecond() {
			t.Error("stop: want true, then false")
		}
		waited := x.Done()
		x.Cancel()
		x.Cancel()
		<-waited
		<-derived.Done()
		synctest.Wait()
		close(ran)
		got := map[string]int{}
		for name := range ran {
			got[name]++
		}
		if len(got) != 2 || got["first"] != 1 || got["third"] != 1 {
			t.Errorf("ran %v, want first and third once each", got)
		}
	})
}

func TestAnEndedContextRunsFunctionsAtOnce(t *testing.T) {
	x := new(Context)
	x.Cancel()
	<-x.Done()
	ran := make(chan struct{}, 2)
	for _, after := range []func(func()) func() bool{x.AfterFunc, func(f func()) func() bool { return context.AfterFunc(x, f) }} {
		if stop := after(func() { ran <- struct{}{} }); stop() {
			t.Error("stop after the end: got true")
		}
		<-ran
	}
}

type counter struct{ n atomic.Int32 }

func (c *counter) ContextEnded() { c.n.Add(1) }

func TestAHookRunsOnceUnlessItWasTakenOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var x Context
		var stays, goes, late counter
		x.Hook(&stays)
		x.Hook(&goes)
		if !x.Unhook(&goes) || x.Unhook(&goes) {
			t.Error("Unhook: want true, then false")
		}
		x.Cancel()
		if x.Unhook(&stays) {
			t.Error("Unhook after the end: got true")
		}
		x.Hook(&late)
		synctest.Wait()
		if stays.n.Load() != 1 || goes.n.Load() != 0 || late.n.Load() != 1 {
			t.Errorf("ran %d, %d and %d times, want 1, 0 and 1", stays.n.Load(), goes.n.Load(), late.n.Load())
		}
	})
}

func TestOneHookAllocatesNothing(t *testing.T) {
	var x Context
	var h counter
	if n := testing.AllocsPerRun(100, func() { x.Hook(&h); x.Unhook(&h) }); n > 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func TestHooksWorkOnAnyContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours := new(Context)
		theirs, cancel := context.WithCancel(context.Background())
		for ctx, end := range map[context.Context]func(){ours: ours.Cancel, theirs: cancel} {
			var stays, goes counter
			kept := OnEnd(ctx, &stays)
			if !OnEnd(ctx, &goes).Undo() {
				t.Errorf("%T: a hook that has not run could not be taken off", ctx)
			}
			end()
			synctest.Wait()
			if stays.n.Load() != 1 || goes.n.Load() != 0 || kept.Undo() {
				t.Errorf("%T: ran %d and %d times, want 1 and 0, and no undoing afterwards", ctx, stays.n.Load(), goes.n.Load())
			}
		}
	})
}
