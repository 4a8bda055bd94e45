package main

import (
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/outrigger-mesh/outrigger/controlplane/api"
)

// adminServer serves health and metrics. The process is healthy while it answers; ready reports why it should not be
// sent sidecars or requests yet, or any more. It is kept from pages in browsers as the API is.
func adminServer(ready func(*http.Request) error, metrics prometheus.Gatherer, profiles bool) *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := ready(r); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Write([]byte("ok\n"))
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	if profiles {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	}
	return &http.Server{Handler: api.Guard(mux, nil, nil), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute}
}

// buildInfo is a metric that tells the version.
func buildInfo() prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "outrigger_controlplane_build_info", Help: "Always 1; its label tells the build.",
		ConstLabels: prometheus.Labels{"version": buildVersion()},
	})
	g.Set(1)
	return g
}
