package scenario

import "github.com/outrigger-mesh/outrigger/bench/record"

// Figures that several scenarios take.
var (
	figureCPU    = record.Figure{Name: "cpu_us", Title: "CPU per call, us", Better: "lower", Digits: 1}
	figureRatio  = record.Figure{Name: "ratio_nginx", Title: "CPU per call, multiples of nginx", Better: "lower", Digits: 2}
	figureCalls  = record.Figure{Name: "calls_s", Title: "calls per second", Better: "higher", Digits: 0}
	figureP50    = record.Figure{Name: "p50_us", Title: "p50, us", Better: "lower", Digits: 0}
	figureP99    = record.Figure{Name: "p99_us", Title: "p99, us", Better: "lower", Digits: 0}
	figureP999   = record.Figure{Name: "p999_us", Title: "p99.9, us", Better: "lower", Digits: 0}
	figureTail   = record.Figure{Name: "p99_over_p50", Title: "p99 / p50", Better: "lower", Digits: 2}
	figureRSS    = record.Figure{Name: "rss_mib", Title: "RSS, MiB", Better: "lower", Digits: 1}
	figureAdded  = record.Figure{Name: "added_p50_us", Title: "added to p50, us", Better: "lower", Digits: 0}
	figureDirect = record.Figure{Name: "direct_p50_us", Title: "p50 directly, us", Digits: 0}
)

// callFigures are those of any row of calls: rates and latencies, and where the subject's process is known what it used.
func callFigures(row record.Row, s *Subject) map[string]float64 {
	l := row.Load
	v := map[string]float64{"calls_s": l.CallsPerS, "p50_us": l.Latency.P50, "p99_us": l.Latency.P99}
	if l.Latency.P50 > 0 {
		v["p99_over_p50"] = l.Latency.P99 / l.Latency.P50
	}
	if u := s.Usage(row); u.RSSMiB > 0 && l.Calls > 0 {
		v["cpu_us"] = 1e6 * (u.UserSeconds + u.SystemSeconds) / float64(l.Calls)
		v["rss_mib"] = u.RSSMiB
	}
	return v
}

// compare sets v[to] to how often v[figure] holds nginx's in the same case and round, where both were measured.
func compare(v map[string]float64, figure, to string, beside map[string]record.Row) {
	if nginx := beside["nginx"].Values[figure]; nginx > 0 && v[figure] > 0 {
		v[to] = v[figure] / nginx
	}
}

// addDifference sets v[to] to v[figure] less that of the direct row in the same case and round, where there is one.
func addDifference(v map[string]float64, figure, to string, beside map[string]record.Row) {
	if direct, ok := beside["direct"]; ok {
		v[to] = v[figure] - direct.Values[figure]
	}
}
