package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"
)

// noiseLimit is the share of the machine that other processes may take before a measurement is made again.
const noiseLimit = 0.05

// row is one thing measured.
type row struct {
	era, answer string
	conns       int
	what        string
}

// sample is one measurement of a row.
type sample struct {
	calls    int
	elapsed  time.Duration
	proxyCPU time.Duration // 0 for direct
	p50, p99 time.Duration
	noise    float64 // other processes' share of the machine
}

// rows are all rows of a run, those to compare beside each other.
func (o options) rows() []row {
	var rows []row
	for _, era := range o.eras {
		for _, answer := range o.answers {
			for _, conns := range o.conns {
				for _, what := range o.what {
					rows = append(rows, row{era, answer, conns, what})
				}
			}
		}
	}
	return rows
}

// measureAll measures every row once in each round. Its progress goes to standard error.
func measureAll(ctx context.Context, o options, t *targets) (*report, error) {
	r := &report{rows: o.rows(), samples: map[row][]sample{}, rounds: o.rounds}
	for round := range o.rounds {
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, o.rounds)
		for _, w := range r.rows {
			s, discarded, err := measureQuietly(ctx, o, t, w)
			if err != nil {
				return nil, fmt.Errorf("era=%s answer=%s conns=%d what=%s: %w", w.era, w.answer, w.conns, w.what, err)
			}
			r.samples[w] = append(r.samples[w], s)
			r.discarded += discarded
			if s.noise > noiseLimit {
				r.noisy++
			}
		}
	}
	return r, nil
}

// measureQuietly measures a row until other processes leave the machine alone, at most retries times more, and returns
// the quietest measurement and how many it discarded.
func measureQuietly(ctx context.Context, o options, t *targets, w row) (best sample, discarded int, err error) {
	for try := range o.retries + 1 {
		s, err := measure(ctx, o, t, w)
		if err != nil {
			return best, discarded, err
		}
		if try > 0 {
			discarded++
		}
		if try == 0 || s.noise < best.noise {
			best = s
		}
		if best.noise <= noiseLimit {
			break
		}
	}
	return best, discarded, nil
}

// measure connects, warms up and measures a row.
func measure(ctx context.Context, o options, t *targets, w row) (sample, error) {
	l, err := dialAll(t.endpoint(w), w.era, w.answer, w.conns)
	if err != nil {
		return sample{}, err
	}
	defer l.close()
	if _, err := l.drive(ctx, o.warm); err != nil {
		return sample{}, err
	}
	before, err := t.usage(w.what)
	if err != nil {
		return sample{}, err
	}
	start := time.Now()
	latencies, err := l.drive(ctx, o.measure)
	if err != nil {
		return sample{}, err
	}
	elapsed := time.Since(start)
	after, err := t.usage(w.what)
	if err != nil {
		return sample{}, err
	}
	if err := ctx.Err(); err != nil {
		return sample{}, err
	}
	slices.Sort(latencies)
	others := (after.busy - before.busy) - (after.ours - before.ours)
	return sample{
		calls:    len(latencies),
		elapsed:  elapsed,
		proxyCPU: after.proxy - before.proxy,
		p50:      quantile(latencies, 0.50),
		p99:      quantile(latencies, 0.99),
		noise:    max(0, others.Seconds()/elapsed.Seconds()/float64(runtime.NumCPU())),
	}, nil
}

// usage is CPU time used up to a moment.
type usage struct {
	proxy time.Duration // by the proxy of the row
	ours  time.Duration // by this process and everything it started
	busy  time.Duration // by every process of the machine
}

func (t *targets) usage(what string) (u usage, err error) {
	if p := t.proxies[what]; p != nil {
		if u.proxy, err = cpu(p.cmd.Process.Pid); err != nil {
			return u, err
		}
	}
	if u.ours, err = cpu(os.Getpid()); err != nil { // its children are the targets
		return u, err
	}
	u.busy, err = busy()
	return u, err
}

// quantile is a value of a sorted list; 0 for an empty one.
func quantile[T any](sorted []T, q float64) (v T) {
	if len(sorted) == 0 {
		return v
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
