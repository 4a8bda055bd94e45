package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// The gates of CI: what a call may cost at gateConns connections, in multiples of nginx. GATE_JSON and GATE_SSE in the
// environment replace them.
const (
	gateConns = 64
	gateJSON  = 2.2
	gateSSE   = 2.5
)

// report is what a run found.
type report struct {
	rows      []row
	samples   map[row][]sample
	rounds    int
	discarded int // measurements made again because other processes were busy
	noisy     int // measurements kept although they were
}

// median of a figure over a row's rounds; 0 when the row was not measured.
func (r *report) median(w row, figure func(sample) float64) float64 {
	var values []float64
	for _, s := range r.samples[w] {
		values = append(values, figure(s))
	}
	slices.Sort(values)
	return quantile(values, 0.5)
}

func cpuMicros(s sample) float64 {
	return float64(s.proxyCPU.Nanoseconds()) / 1e3 / float64(max(1, s.calls))
}
func callsPerSecond(s sample) float64 { return float64(s.calls) / s.elapsed.Seconds() }
func p50Micros(s sample) float64      { return float64(s.p50.Nanoseconds()) / 1e3 }
func p99Micros(s sample) float64      { return float64(s.p99.Nanoseconds()) / 1e3 }

// ratio is a row's CPU per call in multiples of nginx's, 0 when nginx was not measured.
func (r *report) ratio(w row) float64 {
	nginx := w
	nginx.what = "nginx"
	if n := r.median(nginx, cpuMicros); n > 0 {
		return r.median(w, cpuMicros) / n
	}
	return 0
}

// print writes one line for each row and what it was measured on. Scripts read the lines: add fields at the end.
func (r *report) print(out io.Writer) {
	for _, w := range r.rows {
		fmt.Fprintf(out, "era=%s answer=%s conns=%d what=%s cpu_us=%.1f ratio_nginx=%.2f calls_s=%.0f p50_us=%.0f p99_us=%.0f\n",
			w.era, w.answer, w.conns, w.what, r.median(w, cpuMicros), r.ratio(w), r.median(w, callsPerSecond),
			r.median(w, p50Micros), r.median(w, p99Micros))
	}
	fmt.Fprintf(out, "machine: %s, %d cores, Linux %s; %s; %s\n", cpuModel(), runtime.NumCPU(), kernel(),
		runtime.Version(), nginxVersion())
	fmt.Fprintf(out, "medians of %d rounds; request %d B, answer %d B; each proxy on one core; closed loop; every answer checked\n",
		r.rounds, requestBytes, answerBytes)
	fmt.Fprintf(out, "discarded because other processes took over %.0f %% of the machine: %d; kept although they did: %d\n",
		noiseLimit*100, r.discarded, r.noisy)
}

// gate prints each gated row's verdict and returns an error when one is over its limit, or none was measured.
func (r *report) gate(out io.Writer) error {
	jsonLimit, err := limit("GATE_JSON", gateJSON)
	if err != nil {
		return err
	}
	sseLimit, err := limit("GATE_SSE", gateSSE)
	if err != nil {
		return err
	}
	passed, failed := 0, 0
	for _, w := range r.rows {
		if w.what != "sidecar" || w.conns != gateConns {
			continue
		}
		most := jsonLimit
		if w.answer == sse {
			most = sseLimit
		}
		verdict := "pass"
		if got := r.ratio(w); got <= 0 || got > most {
			verdict = "fail"
			failed++
		} else {
			passed++
		}
		fmt.Fprintf(out, "gate era=%s answer=%s ratio_nginx=%.2f limit=%.2f: %s\n", w.era, w.answer, r.ratio(w), most, verdict)
	}
	fmt.Fprintf(out, "bench-gate: %d passed, %d failed\n", passed, failed)
	if failed > 0 || passed == 0 {
		return fmt.Errorf("gate: %d of %d rows are within their limits", passed, passed+failed)
	}
	return nil
}

// limit is a gate's value from the environment, or its default.
func limit(name string, def float64) (float64, error) {
	s := os.Getenv(name)
	if s == "" {
		return def, nil
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %q is not a number", name, s)
	}
	return v, nil
}

func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "unknown processor"
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if name, ok := strings.CutPrefix(s.Text(), "model name"); ok {
			return strings.TrimLeft(name, "\t :")
		}
	}
	return runtime.GOARCH
}

func kernel() string {
	b, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}

func nginxVersion() string {
	out, err := exec.Command("nginx", "-v").CombinedOutput()
	if err != nil {
		return "no nginx"
	}
	return strings.TrimPrefix(strings.TrimSpace(string(out)), "nginx version: ")
}
