package scenario

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/outrigger-mesh/outrigger/bench/layout"
)

// adminTimeout bounds one question to an admin port, without what it is asked to wait for.
const adminTimeout = 10 * time.Second

// errNoAdmin is what asking a process without an admin port ends with.
var errNoAdmin = errors.New("it has no admin port")

// metrics are what a process says of itself at a moment: values by name, those of one name added up over its labels. A
// histogram and a summary are two values, NAME_count and NAME_sum.
type metrics map[string]float64

// readMetrics reads a process's /metrics.
func readMetrics(ctx context.Context, p *layout.Process) (metrics, error) {
	var m metrics
	err := askAdmin(ctx, p, "/metrics", adminTimeout, func(r io.Reader) (err error) {
		m, err = parseMetrics(r)
		return err
	})
	return m, err
}

// parseMetrics reads the Prometheus text format.
func parseMetrics(r io.Reader) (metrics, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(r)
	if err != nil {
		return nil, err
	}
	m := metrics{}
	for name, family := range families {
		for _, one := range family.GetMetric() {
			m.add(name, one)
		}
	}
	return m, nil
}

func (m metrics) add(name string, one *dto.Metric) {
	if h := one.GetHistogram(); h != nil {
		m[name+"_count"] += float64(h.GetSampleCount())
		m[name+"_sum"] += h.GetSampleSum()
		return
	}
	if s := one.GetSummary(); s != nil {
		m[name+"_count"] += float64(s.GetSampleCount())
		m[name+"_sum"] += s.GetSampleSum()
		return
	}
	m[name] += one.GetCounter().GetValue() + one.GetGauge().GetValue() + one.GetUntyped().GetValue()
}

// liveBytes is what a Go process's memory holds in use: its heap's objects, and its goroutines' stacks.
func (m metrics) liveBytes() float64 {
	return m["go_memstats_heap_alloc_bytes"] + m["go_memstats_stack_inuse_bytes"]
}

// collect makes a Go process collect its garbage. Twice: what is in a sync.Pool lives through one collection. It needs
// /debug/pprof.
func collect(ctx context.Context, p *layout.Process) error {
	for range 2 {
		err := askAdmin(ctx, p, "/debug/pprof/heap?gc=1", adminTimeout, func(r io.Reader) error {
			_, err := io.Copy(io.Discard, r)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// askAdmin gets a page of a process's admin port, within a time.
func askAdmin(ctx context.Context, p *layout.Process, page string, within time.Duration, read func(io.Reader) error) error {
	if p.Admin == "" {
		return fmt.Errorf("%s: %w", p.Name, errNoAdmin)
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.Admin+page, nil)
	if err != nil {
		return err
	}
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("ask %s: %w", p.Name, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("ask %s: %s: %s", p.Name, page, res.Status)
	}
	if err := read(res.Body); err != nil {
		return fmt.Errorf("ask %s: %s: %w", p.Name, page, err)
	}
	return nil
}
