package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/outrigger-mesh/outrigger/bench/layout"
	"github.com/outrigger-mesh/outrigger/bench/record"
)

const (
	// A process's memory has settled when it moved by less than settleShare of it for settleFor; after a collection for
	// returnFor, since the Go runtime gives memory back when it finds time.
	settleFor   = time.Second
	returnFor   = 3 * time.Second
	settleEvery = 100 * time.Millisecond
	settleShare = 0.005
	// settleMost is how long memory may take to settle; what it is then counts.
	settleMost = 12 * time.Second
	// holdMost is how long opening may take, and letting go.
	holdMost = 90 * time.Second
)

// held is what a sidecar's memory was around opening many of one thing: sizes in MiB.
type held struct {
	opened    int     // how many were open
	setUp     float64 // seconds to open them
	before    float64 // RSS, settled
	open      float64 // RSS while they are open, settled
	live      float64 // what is in use of the heap and of stacks while they are open, less what was before
	released  float64 // RSS after they were let go, settled
	collected float64 // RSS after two collections more, settled
	left      float64 // sessions and streams that the sidecar still has
}

// each is a growth in KiB for each of what was opened.
func (h held) each(growthMiB float64) float64 { return growthMiB * 1024 / float64(h.opened) }

// hold opens what the load generator's args say at a sidecar that serves /debug/pprof, looks at its memory, and lets go.
func hold(ctx context.Context, l *layout.Layout, sidecar *layout.Process, args ...string) (h held, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 4*holdMost, errors.New("holding took too long"))
	defer cancel()
	atRest, err := collected(ctx, sidecar)
	if err != nil {
		return h, err
	}
	if h.before, err = settle(ctx, sidecar, settleFor); err != nil {
		return h, err
	}
	begun := time.Now()
	load, err := l.Hold(ctx, append(args, sidecar.URL)...)
	if err != nil {
		return h, err
	}
	h.opened, h.setUp = load.Holding, time.Since(begun).Seconds()
	lookErr := h.look(ctx, sidecar, atRest)
	found, err := release(ctx, load)
	if err := errors.Join(lookErr, err); err != nil {
		return h, err
	}
	if found.Failures > 0 || found.Wrong > 0 {
		return h, fmt.Errorf("%d failures and %d wrong answers while holding, the first: %s", found.Failures, found.Wrong, found.FirstFailure)
	}
	return h, h.letGo(ctx, sidecar)
}

// firstCalls makes calls on each of the wires, so that what a process takes once, at its first calls, is there before its
// memory is looked at.
func firstCalls(ctx context.Context, l *layout.Layout, p *layout.Process, eras ...string) error {
	for _, era := range eras {
		found, err := l.Load(ctx, "-era", era, "-conns", "4", "-calls", "400", "-streamed", "0.5", p.URL)
		if err != nil {
			return err
		}
		if text := wrongs(&found); text != "" {
			return errors.New(text)
		}
	}
	return nil
}

// release tells the load generator to let go of everything, and waits until it has: to end thousands of sessions takes
// longer than a process otherwise has.
func release(ctx context.Context, load *layout.Held) (record.Load, error) {
	load.Process().Interrupt()
	ctx, cancel := context.WithTimeout(ctx, holdMost)
	defer cancel()
	_ = load.Process().Wait(ctx) // how it ended, Stop tells
	return load.Stop()
}

// look takes the figures of while all are open.
func (h *held) look(ctx context.Context, sidecar *layout.Process, atRest metrics) (err error) {
	if h.open, err = settle(ctx, sidecar, settleFor); err != nil {
		return err
	}
	now, err := collected(ctx, sidecar)
	h.live = (now.liveBytes() - atRest.liveBytes()) / (1 << 20)
	return err
}

// letGo takes the figures of after.
func (h *held) letGo(ctx context.Context, sidecar *layout.Process) (err error) {
	if h.left, err = drained(ctx, sidecar); err != nil {
		return err
	}
	if h.released, err = settle(ctx, sidecar, settleFor); err != nil {
		return err
	}
	if err := collect(ctx, sidecar); err != nil {
		return err
	}
	if err := returned(ctx, sidecar); err != nil {
		return err
	}
	h.collected, err = settle(ctx, sidecar, returnFor)
	return err
}

// collected is what a process says of itself after it collected its garbage.
func collected(ctx context.Context, p *layout.Process) (metrics, error) {
	if err := collect(ctx, p); err != nil {
		return nil, err
	}
	return readMetrics(ctx, p)
}

// settle waits until a process's resident memory has kept still for a time, at most for settleMost, and returns it in
// MiB.
func settle(ctx context.Context, p *layout.Process, still time.Duration) (float64, error) {
	var seen []float64
	tick := time.NewTicker(settleEvery)
	defer tick.Stop()
	for end := time.Now().Add(settleMost); ; {
		u, err := p.Usage()
		if err != nil {
			return 0, err
		}
		seen = append(seen, u.RSSMiB)
		if settled(seen, still) || time.Now().After(end) {
			return u.RSSMiB, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// settled reports whether the last of sizes seen every settleEvery have kept still for a time.
func settled(seen []float64, still time.Duration) bool {
	n := int(still/settleEvery) + 1
	if len(seen) < n {
		return false
	}
	last := seen[len(seen)-n:]
	return slices.Max(last)-slices.Min(last) <= settleShare*slices.Max(last)
}

// returned waits until a Go process has given the operating system most of the memory that it does not use, at most for
// settleMost: the runtime does that in its own time, and later on a busy machine.
func returned(ctx context.Context, p *layout.Process) error {
	_, err := await(ctx, p, settleMost, func(m metrics) bool {
		return m["go_memstats_heap_idle_bytes"]-m["go_memstats_heap_released_bytes"] < m["go_memstats_next_gc_bytes"]
	})
	return err
}

// drained waits until a sidecar has no session and no stream open, at most for holdMost, and returns how many are left.
func drained(ctx context.Context, sidecar *layout.Process) (left float64, err error) {
	open := func(m metrics) float64 { return m["outrigger_sessions"] + m["outrigger_open_streams"] }
	last, err := await(ctx, sidecar, holdMost, func(m metrics) bool { return open(m) == 0 })
	return open(last), err
}

// await reads a process's metrics until they are as they should be, at most for a time, and returns the last.
func await(ctx context.Context, p *layout.Process, most time.Duration, right func(metrics) bool) (metrics, error) {
	tick := time.NewTicker(settleEvery)
	defer tick.Stop()
	for end := time.Now().Add(most); ; {
		m, err := readMetrics(ctx, p)
		if err != nil || right(m) || time.Now().After(end) {
			return m, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return m, context.Cause(ctx)
		}
	}
}

// openable is how many things a sidecar can have open that take a number of files each, at most so many: it inherits
// this process's limit, and needs some files for itself.
func openable(most, filesEach int) int {
	const own = 200
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return most
	}
	return max(1, min(most, (int(min(limit.Max, 1<<30))-own)/filesEach))
}
