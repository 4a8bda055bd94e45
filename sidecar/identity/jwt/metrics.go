package jwt

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	fetchesDesc = prometheus.NewDesc("outrigger_jwks_fetches_total",
		"Fetches of an issuer's keys, by how they ended.", []string{"issuer", "result"}, nil)
	ageDesc = prometheus.NewDesc("outrigger_jwks_age_seconds",
		"How old the keys of an issuer are; none for one whose keys were never fetched.", []string{"issuer"}, nil)
	tokensDesc = prometheus.NewDesc("outrigger_jwt_remembered_tokens",
		"Tokens that were verified and are remembered.", nil, nil)
)

// collector shows the issuers that are in use. Settings that differ for one issuer add up, and the oldest keys count.
type collector struct {
	issuers *Issuers
}

func (c *collector) Describe(to chan<- *prometheus.Desc) {
	to <- fetchesDesc
	to <- ageDesc
	to <- tokensDesc
}

func (c *collector) Collect(to chan<- prometheus.Metric) {
	fetches := make(map[string]*[len(results)]uint64)
	oldest := make(map[string]time.Time)
	c.issuers.mu.Lock()
	for _, s := range c.issuers.sources {
		if fetches[s.issuer] == nil {
			fetches[s.issuer] = new([len(results)]uint64)
		}
		for i := range s.fetched {
			fetches[s.issuer][i] += s.fetched[i].Load()
		}
		if set := s.current.Load(); set != nil && (oldest[s.issuer].IsZero() || set.at.Before(oldest[s.issuer])) {
			oldest[s.issuer] = set.at
		}
	}
	c.issuers.mu.Unlock()
	for issuer, counts := range fetches {
		for i, n := range counts {
			to <- prometheus.MustNewConstMetric(fetchesDesc, prometheus.CounterValue, float64(n), issuer, results[i].label)
		}
	}
	for issuer, at := range oldest {
		to <- prometheus.MustNewConstMetric(ageDesc, prometheus.GaugeValue, time.Since(at).Seconds(), issuer)
	}
	to <- prometheus.MustNewConstMetric(tokensDesc, prometheus.GaugeValue, float64(c.issuers.tokens.len()))
}
