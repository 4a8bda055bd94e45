package layout

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/procfs"

	"github.com/outrigger-mesh/outrigger/bench/record"
)

// sampleEvery is how often /proc is read while something is measured. A row's window begins and ends between samples;
// what was used at those moments is taken to lie on the line between them.
const sampleEvery = 50 * time.Millisecond

// sample is what was used up to a moment.
type sample struct {
	at      time.Time
	ours    float64 // CPU seconds of this process and all that it started, and of those that were told to the layout
	busy    float64 // CPU seconds of every process of the machine
	steal   float64 // seconds that the hypervisor took from its cores
	process map[*Process]record.Usage
	ended   map[*Process]record.Usage // of those that have ended since the first sample, as it was seen last
}

// Measure runs a load and fills in a row with what it found, what every process used, and what the rest of the machine
// did. The figures are of the time that the load measured: from Load.Began for Load.Seconds, or for its last Load.Seconds
// when it does not say when it began; without Seconds, of all the time that it ran. A row during which others used too much, or with a failed or wrong answer, comes back
// with Discarded set. An error means that there is no row: the load could not run.
func (l *Layout) Measure(ctx context.Context, row record.Row, load func(context.Context) (record.Load, error)) (record.Row, error) {
	for _, p := range l.running() {
		p.trim()
	}
	s, err := l.startSampling()
	if err != nil {
		return row, err
	}
	found, loadErr := load(ctx)
	samples, err := s.stop()
	if err := errors.Join(loadErr, err, ctx.Err()); err != nil {
		return row, err
	}
	row.Load = &found
	from, to := window(samples, found)
	row.Usage = between(from, to)
	row.Host = host(from, to, runtime.NumCPU())
	row.Discarded = l.judge(row)
	return row, nil
}

// judge says why a row does not count; empty: it does.
func (l *Layout) judge(row record.Row) string {
	l.mu.Lock()
	judged := row.Host
	if l.uncounted {
		judged.Others = 0
	}
	l.mu.Unlock()
	if row.Load.Wrong > 0 || row.Load.Failures > 0 {
		return fmt.Sprintf("%d wrong answers and %d failures, the first: %s", row.Load.Wrong, row.Load.Failures, row.Load.FirstFailure)
	}
	return Noise(judged, l.NoiseLimit)
}

// Noise says what disturbed a measurement; empty: nothing did beyond the limit, a share of the machine.
func Noise(h record.Host, limit float64) string {
	switch {
	case h.Others > limit:
		return fmt.Sprintf("other processes used %.1f %% of the machine", 100*h.Others)
	case h.Steal > limit:
		return fmt.Sprintf("the hypervisor took %.1f %% of the machine", 100*h.Steal)
	}
	return ""
}

// sampler reads /proc until it is stopped.
type sampler struct {
	layout *Layout
	end    chan struct{}
	wait   sync.WaitGroup

	// Owned by run until wait is over.
	samples []sample
	err     error
}

// startSampling takes the first sample before it returns.
func (l *Layout) startSampling() (*sampler, error) {
	first, err := l.sample()
	if err != nil {
		return nil, err
	}
	s := &sampler{layout: l, end: make(chan struct{}), samples: []sample{first}}
	s.wait.Go(s.run)
	return s, nil
}

func (s *sampler) run() {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.end:
			return
		case <-tick.C:
			next, err := s.layout.sample()
			if err != nil {
				s.err = err
				return
			}
			s.append(next)
		}
	}
}

// append keeps a sample, with what was seen last of processes that have ended.
func (s *sampler) append(next sample) {
	before := s.samples[len(s.samples)-1]
	next.ended = maps.Clone(before.ended)
	for p, u := range before.process {
		if _, lives := next.process[p]; !lives {
			next.ended[p] = u
		}
	}
	s.samples = append(s.samples, next)
}

// stop takes the last sample and returns all.
func (s *sampler) stop() ([]sample, error) {
	close(s.end)
	s.wait.Wait()
	if s.err != nil {
		return s.samples, s.err
	}
	last, err := s.layout.sample()
	s.append(last)
	return s.samples, err
}

// sample reads what was used up to now.
func (l *Layout) sample() (sample, error) {
	s := sample{at: time.Now(), process: map[*Process]record.Usage{}, ended: map[*Process]record.Usage{}}
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return s, err
	}
	stat, err := fs.Stat()
	if err != nil {
		return s, err
	}
	cpu := stat.CPUTotal
	s.busy, s.steal = cpu.User+cpu.Nice+cpu.System, cpu.Steal
	if s.ours, err = cpuSeconds(os.Getpid()); err != nil {
		return s, err
	}
	for _, p := range l.running() {
		u, err := p.Usage()
		if err != nil {
			continue // it has ended, or is not known
		}
		s.process[p] = u
		if p.cmd == nil {
			s.ours += u.UserSeconds + u.SystemSeconds
		}
	}
	return s, nil
}

// window is what was used up to the beginning and up to the end of the time that a load measured.
func window(samples []sample, l record.Load) (from, to sample) {
	last := samples[len(samples)-1]
	took := time.Duration(l.Seconds * float64(time.Second))
	switch {
	case took <= 0:
		return samples[0], last
	case l.Began.IsZero():
		return at(samples, last.at.Add(-took)), last
	}
	return at(samples, l.Began), at(samples, l.Began.Add(took))
}

// at is what was used up to a moment between two samples: that of the first sample before all, of the last after all.
func at(samples []sample, moment time.Time) sample {
	for i := len(samples) - 1; i > 0; i-- {
		a, b := samples[i-1], samples[i]
		if moment.Before(a.at) || !b.at.After(a.at) {
			continue
		}
		return mix(a, b, min(1, moment.Sub(a.at).Seconds()/b.at.Sub(a.at).Seconds()))
	}
	return samples[0]
}

// mix is the sample at a share of the way from a to b.
func mix(a, b sample, share float64) sample {
	on := func(x, y float64) float64 { return x + share*(y-x) }
	m := sample{
		at:      a.at.Add(time.Duration(share * float64(b.at.Sub(a.at)))),
		ours:    on(a.ours, b.ours),
		busy:    on(a.busy, b.busy),
		steal:   on(a.steal, b.steal),
		process: map[*Process]record.Usage{},
		ended:   b.ended,
	}
	for p, ub := range b.process {
		ua := a.process[p]
		ub.UserSeconds = on(ua.UserSeconds, ub.UserSeconds)
		ub.SystemSeconds = on(ua.SystemSeconds, ub.SystemSeconds)
		ub.VoluntarySwitches = int64(on(float64(ua.VoluntarySwitches), float64(ub.VoluntarySwitches)))
		ub.InvoluntarySwitches = int64(on(float64(ua.InvoluntarySwitches), float64(ub.InvoluntarySwitches)))
		m.process[p] = ub
	}
	return m
}

// between is what each process used from one sample to a later one, by name. Those of a name that have ended since are
// one: the load generators of a row.
func between(from, to sample) (list []record.Usage) {
	for p, u := range to.process {
		list = append(list, less(u, from.process[p]))
	}
	ended := map[string]record.Usage{}
	for p, u := range to.ended {
		if _, before := from.ended[p]; before {
			continue
		}
		sum := ended[p.Name]
		rss, peak, threads := max(sum.RSSMiB, u.RSSMiB), max(sum.PeakRSSMiB, u.PeakRSSMiB), max(sum.Threads, u.Threads)
		add(&sum, less(u, from.process[p]))
		sum.Process, sum.RSSMiB, sum.PeakRSSMiB, sum.Threads = p.Name, rss, peak, threads
		ended[p.Name] = sum
	}
	list = slices.AppendSeq(list, maps.Values(ended))
	slices.SortFunc(list, func(a, b record.Usage) int { return strings.Compare(a.Process, b.Process) })
	return list
}

// less is what was used beyond what had been before; sizes stay as they are.
func less(u, before record.Usage) record.Usage {
	u.UserSeconds -= before.UserSeconds
	u.SystemSeconds -= before.SystemSeconds
	u.VoluntarySwitches -= before.VoluntarySwitches
	u.InvoluntarySwitches -= before.InvoluntarySwitches
	return u
}

// host is the rest of the machine from one sample to a later one.
func host(from, to sample, cores int) record.Host {
	all := to.at.Sub(from.at).Seconds() * float64(cores)
	h := record.Host{}
	if all > 0 {
		h.Others = max(0, (to.busy-from.busy)-(to.ours-from.ours)) / all
		h.Steal = max(0, to.steal-from.steal) / all
	}
	if fs, err := procfs.NewDefaultFS(); err == nil {
		if load, err := fs.LoadAvg(); err == nil {
			h.Load1 = load.Load1
		}
	}
	return h
}
