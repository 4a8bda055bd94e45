package scenario

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/bench/record"
)

// Phases of memory, in their order.
const (
	phaseIdle  = "idle"
	phaseCalls = "64 connections"
	phaseMany  = "1000 connections"
	phaseBig   = "1 MiB answers"
	phaseRest  = "at rest"
)

// peakEvery is how often memory is read for its peak.
const peakEvery = 20 * time.Millisecond

var _ = register(Scenario{
	Scenario: record.Scenario{
		Name:     "memory",
		Title:    "Memory, and the cost of doing nothing",
		Question: "How much memory does the proxy take idle, under load, in bursts, and does it give it back?",
		Method: "One process of each proxy goes through the phases in order: `" + phaseIdle + "`, as it started; `" + phaseCalls +
			"`, a closed loop of calls with 250 B answers; `" + phaseMany + "`, the same; `" + phaseBig + "` on 64 connections, of which " +
			"a quarter come as event streams; `" + phaseRest + "`, without any call. A Go process at rest collects its garbage " +
			"every two minutes and gives memory back in the time after, so only a rest longer than that shows what is given back. `rss_mib` is at the phase's end and `peak_mib` the most that was seen in it, read every 20 ms. " +
			"No collection is forced. `idle_cpu_ms_s` is CPU time per second while nothing happens, over `seconds`; the kernel counts in steps of " +
			"10 ms, so over 10 s one step is 1 ms/s.",
		Fields: []string{"phase"},
		Figures: []record.Figure{figureRSS,
			{Name: "peak_mib", Title: "peak RSS, MiB", Better: "lower", Digits: 1},
			{Name: "idle_cpu_ms_s", Title: "CPU at rest, ms per second", Better: "lower", Digits: 1},
			{Name: "seconds", Title: "length, s", Digits: 0},
			figureCalls,
		},
		Charts: []record.Chart{
			{Name: "memory-rss", Title: "RSS at the end of each phase, MiB", Kind: "bar", X: "phase", Y: "rss_mib", Series: "subject"},
			{Name: "memory-peak", Title: "Peak RSS in each phase, MiB", Kind: "bar", X: "phase", Y: "peak_mib", Series: "subject"},
		},
		Targets: []record.Target{
			{Name: "RSS idle, MiB", Figure: "rss_mib", Subject: "sidecar", Where: map[string]string{"phase": phaseIdle}, Most: 20, Gate: 30},
			{Name: "RSS at 64 connections, MiB", Figure: "rss_mib", Subject: "sidecar", Where: map[string]string{"phase": phaseCalls}, Most: 60, Gate: 90},
			{Name: "CPU at rest, ms per second", Figure: "idle_cpu_ms_s", Subject: "sidecar", Where: map[string]string{"phase": phaseIdle}, Most: 2, Gate: 5},
		},
	},
	Run: runMemory,
})

// phase is one part of a process's life.
type phase struct {
	name string
	load []string      // of the load generator; nil: nothing happens
	last time.Duration // how long
}

func memoryPhases(short bool) []phase {
	idle, calls, burst, rest := 10*time.Second, 30*time.Second, 5*time.Second, 150*time.Second
	if short {
		calls, burst, rest = 6*time.Second, 2*time.Second, 6*time.Second
	}
	return []phase{
		{phaseIdle, nil, idle},
		{phaseCalls, []string{"-era", "stateless", "-conns", "64"}, calls},
		{phaseMany, []string{"-era", "stateless", "-conns", "1000"}, burst},
		{phaseBig, []string{"-era", "stateless", "-conns", "64", "-answer-bytes", "1048576", "-streamed", "0.25"}, burst},
		{phaseRest, nil, rest},
	}
}

func runMemory(ctx context.Context, b *Bench) error {
	phases, rounds := memoryPhases(b.Short), b.heldRounds()
	b.Plan(rounds * len(phases) * (2 + len(b.Peers)))
	up, err := b.Layout.Null(ctx)
	if err != nil {
		return err
	}
	for round := 1; round <= rounds; round++ {
		for _, name := range []string{"nginx", "sidecar", "peers"} {
			subjects, err := b.SubjectsBefore(ctx, up, name) // new processes
			if err != nil {
				return err
			}
			for _, s := range subjects {
				if err := b.live(ctx, s, phases, round); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// live takes one process through the phases, and ends it.
func (b *Bench) live(ctx context.Context, s *Subject, phases []phase, round int) error {
	defer s.Process.Stop()
	for _, p := range phases {
		row, err := b.pass(ctx, s, p)
		if err != nil {
			return fmt.Errorf("memory: %s: %s: %w", s.Name, p.name, err)
		}
		row.Scenario, row.Subject, row.Round, row.Case = "memory", s.Name, round, Case{"phase": p.name}
		if err := b.Emit(row); err != nil {
			return err
		}
	}
	return nil
}

// pass takes a process through one phase.
func (b *Bench) pass(ctx context.Context, s *Subject, p phase) (row record.Row, err error) {
	before, err := s.Process.Usage()
	if err != nil {
		return row, err
	}
	begun := time.Now()
	highest := watchPeak(s)
	if p.load == nil {
		err = pause(ctx, p.last)
	} else {
		var found record.Load
		found, err = b.Layout.Load(ctx, append(p.load, "-duration", p.last.String(), s.URL())...)
		row.Load = &found
	}
	seconds, peak := time.Since(begun).Seconds(), highest()
	after, usageErr := s.Process.Usage()
	if err := errors.Join(err, usageErr); err != nil {
		return row, err
	}
	after.UserSeconds -= before.UserSeconds
	after.SystemSeconds -= before.SystemSeconds
	row.Usage = []record.Usage{after}
	row.Values = map[string]float64{"rss_mib": after.RSSMiB, "peak_mib": max(peak, after.RSSMiB), "seconds": seconds}
	if row.Load == nil {
		row.Values["idle_cpu_ms_s"] = 1000 * (after.UserSeconds + after.SystemSeconds) / seconds
	} else {
		row.Values["calls_s"] = row.Load.CallsPerS
		row.Discarded = wrongs(row.Load)
	}
	return row, nil
}

// wrongs says what of a load went wrong; empty: nothing.
func wrongs(l *record.Load) string {
	if l.Wrong == 0 && l.Failures == 0 {
		return ""
	}
	return fmt.Sprintf("%d wrong answers and %d failures, the first: %s", l.Wrong, l.Failures, l.FirstFailure)
}

// watchPeak reads a subject's memory until highest is called, which returns the most that was seen, in MiB.
func watchPeak(s *Subject) (highest func() float64) {
	var most float64
	var wait sync.WaitGroup
	end := make(chan struct{})
	wait.Go(func() {
		tick := time.NewTicker(peakEvery)
		defer tick.Stop()
		for {
			if u, err := s.Process.Usage(); err == nil {
				most = max(most, u.RSSMiB)
			}
			select {
			case <-tick.C:
			case <-end:
				return
			}
		}
	})
	return func() float64 {
		close(end)
		wait.Wait()
		return most
	}
}

// pause lets time pass: what is measured is a process that is left alone.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
