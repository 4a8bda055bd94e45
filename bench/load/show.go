package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/bench/drive"
	"github.com/outrigger-mesh/outrigger/bench/record"
)

// summary writes what was found for a reader.
func summary(w io.Writer, l record.Load) error {
	var b strings.Builder
	fmt.Fprintf(&b, "calls       %d right, %d failed, %d wrong, %d never sent\n", l.Calls, l.Failures, l.Wrong, l.Unsent)
	if l.FirstFailure != "" {
		fmt.Fprintf(&b, "first       %s\n", l.FirstFailure)
	}
	fmt.Fprintf(&b, "rate        %.1f calls/s over %.2f s on %d connections", l.CallsPerS, l.Seconds, l.Connections)
	if l.Intended > 0 {
		fmt.Fprintf(&b, ", %.1f intended", l.Intended)
	}
	fmt.Fprintf(&b, "\nset-up      %.3f s\n", l.SetUpSeconds)
	if l.Events > 0 {
		fmt.Fprintf(&b, "events      %d\n", l.Events)
	}
	distribution(&b, "latency", l.Latency)
	distribution(&b, "first event", l.FirstEvent)
	if l.Calls > 0 {
		fmt.Fprintf(&b, "own cost    %.1f us of CPU per call\n", l.CPUSeconds*1e6/float64(l.Calls))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func distribution(w io.Writer, name string, l record.Latency) {
	if l.Count > 0 {
		fmt.Fprintf(w, "%-11s mean %s  p50 %s  p90 %s  p99 %s  p99.9 %s  p99.99 %s  max %s\n", name, ms(l.Mean), ms(l.P50),
			ms(l.P90), ms(l.P99), ms(l.P999), ms(l.P9999), ms(l.Max))
	}
}

// ms is microseconds as milliseconds.
func ms(us float64) string { return fmt.Sprintf("%.3f ms", us/1e3) }

// isTerminal reports whether a person may be looking at f.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}

// showProgress writes a line over itself once a second, until the function it returns is called.
func showProgress(w io.Writer, d *drive.Driver) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		lastStage, last := "", int64(0)
		for {
			select {
			case <-done:
				fmt.Fprint(w, "\r\033[K")
				return
			case <-tick.C:
			}
			stage, l := d.Progress()
			if stage != lastStage {
				lastStage, last = stage, 0
			}
			fmt.Fprintf(w, "\r\033[K%s: %d calls (%d/s), %d failed, %d wrong, p50 %s, p99 %s", stage, l.Calls, l.Calls-last,
				l.Failures, l.Wrong, ms(l.Latency.P50), ms(l.Latency.P99))
			last = l.Calls
		}
	})
	return func() { close(done); wg.Wait() }
}
