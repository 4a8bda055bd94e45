package care

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

func newGate(calls, waiting uint32, wait time.Duration) *gate {
	g := new(gate)
	g.limit(&outriggerv1.Concurrency{MaxCalls: calls, MaxWaiting: waiting, MaxWait: durationpb.New(wait)})
	return g
}

// TestAGateIsAQueueWithAsManyPlaces walks a gate and its plainest model through the same random days.
func TestAGateIsAQueueWithAsManyPlaces(t *testing.T) {
	for day := range uint64(200) {
		random := rand.New(rand.NewPCG(1, day))
		const places, room = 3, 4
		g := newGate(places, room, time.Hour)
		inFlight := 0
		var queue []*waiter
		for range 200 {
			switch random.IntN(3) {
			case 0:
				w, ok := g.join()
				if entered := ok && w == nil; entered != (inFlight < places && len(queue) == 0) || ok != (entered || len(queue) < room) {
					t.Fatalf("day %d: with %d in flight and %d waiting, join said %v, %v", day, inFlight, len(queue), w, ok)
				} else if entered {
					inFlight++
				} else if ok {
					queue = append(queue, w)
				}
			case 1:
				if inFlight == 0 {
					continue
				}
				g.leave()
				if len(queue) == 0 {
					inFlight--
				} else {
					if !isGranted(queue[0]) {
						t.Fatalf("day %d: a place came free, and the first of %d did not get it", day, len(queue))
					}
					queue = queue[1:]
				}
			case 2:
				if len(queue) > 0 {
					i := random.IntN(len(queue))
					g.abandon(queue[i])
					queue = slices.Delete(queue, i, i+1)
				}
			}
			if i := slices.IndexFunc(queue, isGranted); i >= 0 {
				t.Fatalf("day %d: number %d of the queue has a place that nobody left", day, i)
			}
			if f, w := g.load(); f != inFlight || w != len(queue) {
				t.Fatalf("day %d: %d in flight and %d waiting, want %d and %d", day, f, w, inFlight, len(queue))
			}
		}
	}
}

func isGranted(w *waiter) bool {
	select {
	case <-w.granted:
		return true
	default:
		return false
	}
}

// TestPlacesAreNeverTooManyNorLost has many callers enter, leave and give up at once.
func TestPlacesAreNeverTooManyNorLost(t *testing.T) {
	const places, callers, rounds = 4, 64, 200
	g := newGate(places, callers, time.Hour)
	var inFlight, most, served atomic.Int64
	var wg sync.WaitGroup
	for n := range uint64(callers) {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(2, n))
			for range rounds {
				ctx, cancel := context.WithCancel(t.Context())
				if random.IntN(2) == 0 {
					time.AfterFunc(time.Duration(random.IntN(200))*time.Microsecond, cancel)
				}
				if g.tryEnter() || g.wait(ctx, nil) == taken {
					now := inFlight.Add(1)
					for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
					}
					served.Add(1)
					time.Sleep(time.Duration(random.IntN(20)) * time.Microsecond)
					inFlight.Add(-1)
					g.leave()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if most.Load() > places || served.Load() == 0 {
		t.Errorf("%d calls were in flight at once of %d served, want at most %d", most.Load(), served.Load(), places)
	}
	if f, w := g.load(); f != 0 || w != 0 || g.waiting.Len() != 0 {
		t.Errorf("at the end %d are in flight and %d wait (%d in the queue), want none", f, w, g.waiting.Len())
	}
}

func TestAWaitEndsInOneOfFiveWays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(1, 1, 5*time.Second)
		if !g.tryEnter() {
			t.Fatal("no place in an empty gate")
		}
		begun := time.Now()
		if got := g.wait(t.Context(), nil); got != tooLate || time.Since(begun) != 5*time.Second {
			t.Errorf("ended as %d after %v, want %d after 5s", got, time.Since(begun), tooLate)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ways := make(chan turn)
		go func() { ways <- g.wait(ctx, nil) }()
		synctest.Wait()
		if got := g.wait(t.Context(), nil); got != full {
			t.Errorf("with a full queue: %d, want %d", got, full)
		}
		cancel()
		if got := <-ways; got != givenUp {
			t.Errorf("cancelled: %d, want %d", got, givenUp)
		}
		shut := make(chan struct{})
		go func() { ways <- g.wait(t.Context(), shut) }()
		synctest.Wait()
		close(shut)
		if got := <-ways; got != gateClosed {
			t.Errorf("closed: %d, want %d", got, gateClosed)
		}
		go func() { ways <- g.wait(t.Context(), nil) }()
		synctest.Wait()
		g.leave()
		if got := <-ways; got != taken {
			t.Errorf("after the place came free: %d, want %d", got, taken)
		}
		if f, w := g.load(); f != 1 || w != 0 {
			t.Errorf("%d in flight and %d waiting, want 1 and 0", f, w)
		}
	})
}
