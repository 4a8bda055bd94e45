// Package admin is the sidecar's port for its operators: health, readiness, metrics, and what runs now.
//
// It is served apart from MCP, on an address of its own, and holds no secret: of a process's environment the names are
// shown, and of a URL its user's and its query's, never the values.
package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/protobuf/proto"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
	"github.com/outrigger-mesh/outrigger/sidecar/config"
)

const (
	// readyTimeout bounds one readiness check, with every server's handshake in it.
	readyTimeout = 5 * time.Second
	// bodyTimeout is how long a body that nobody asked for may take.
	bodyTimeout = time.Second
	// readyFresh is how long a verdict stands, so that a storm of probes is one check.
	readyFresh = time.Second
)

// Options are what the admin port shows. All but Profiling are required.
type Options struct {
	Gatherer  prometheus.Gatherer
	Ready     func(context.Context) []error // why the sidecar should get no traffic
	Running   func() *config.Config         // what runs now
	Source    func() any                    // where it came from, as JSON
	Profiling bool                          // serve /debug/pprof
}

// Handler serves the admin port:
//
//	/healthz  200 while the process answers
//	/readyz   200 or 503, with the reasons
//	/metrics  Prometheus
//	/config   the configuration that runs, and its source
func Handler(o Options) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.Handle("GET /readyz", &readiness{check: o.Ready})
	mux.Handle("GET /metrics", promhttp.HandlerFor(o.Gatherer, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second}))
	mux.HandleFunc("GET /config", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{"source": o.Source(), "running": dump(o.Running())})
	})
	if o.Profiling {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	}
	return guarded(mux)
}

// guarded refuses what a browser was led to ask on a loopback connection (DNS rebinding): there, Host must name loopback
// and no page may be behind the request.
func guarded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
		if ok && local.IP.IsLoopback() && (!isLoopback(r.Host) || r.Header.Get("Origin") != "") {
			http.Error(w, "the admin port answers on loopback by its own names only, and no web page", http.StatusForbidden)
			return
		}
		if r.ContentLength != 0 { // nobody reads it here, and the server waits for it before it answers
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout))
		}
		h.ServeHTTP(w, r)
	})
}

func isLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return strings.EqualFold(host, "localhost") || err == nil && ip.IsLoopback()
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) // the client is gone; there is nobody to tell
}

// readiness answers /readyz. Probes that come while a check runs share it, and for a moment its verdict.
type readiness struct {
	check func(context.Context) []error

	mu       sync.Mutex // held by the one check that runs
	at       time.Time
	problems []string
}

func (r *readiness) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	problems := r.verdict()
	status := http.StatusOK
	if len(problems) > 0 {
		status = http.StatusServiceUnavailable
	}
	writeJSON(w, status, map[string]any{"ready": len(problems) == 0, "problems": problems})
}

func (r *readiness) verdict() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.at.IsZero() && time.Since(r.at) < readyFresh {
		return r.problems
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	r.problems = []string{}
	for _, err := range r.check(ctx) {
		r.problems = append(r.problems, err.Error())
	}
	r.at = time.Now()
	return r.problems
}

// dump is a configuration as its authors would write it, with what may be secret masked.
func dump(c *config.Config) map[string]any {
	resources := []any{}
	for _, u := range c.Upstreams {
		resources = append(resources, entry(masked(u)))
	}
	for _, b := range c.Bindings {
		resources = append(resources, entry(b))
	}
	for _, p := range c.Policies {
		resources = append(resources, entry(p))
	}
	for _, t := range c.Tenants {
		resources = append(resources, entry(t))
	}
	for _, k := range c.Keys {
		resources = append(resources, entry(k))
	}
	for _, s := range c.Secrets {
		resources = append(resources, entry(emptied(s)))
	}
	return map[string]any{"generation": c.Generation, "resources": resources}
}

func entry(o resource.Object) map[string]any {
	return map[string]any{"kind": resource.KindOf(o), "name": o.GetName(), "spec": resource.Encode(o).AsMap()}
}

// emptied is a Secret with its keys only.
func emptied(s *outriggerv1.Secret) *outriggerv1.Secret {
	s = proto.CloneOf(s)
	for key := range s.GetValues() {
		s.Values[key] = ""
	}
	return s
}

// masked is u without what may be secret in it.
func masked(u *outriggerv1.Upstream) *outriggerv1.Upstream {
	u = proto.Clone(u).(*outriggerv1.Upstream)
	for name := range u.GetStdio().GetEnv() {
		u.GetStdio().Env[name] = "***"
	}
	if s := u.GetStdio(); s != nil {
		s.Command = maskedCommand(s.GetCommand())
	}
	if h := u.GetHttp(); h != nil {
		h.Url = maskedURL(h.GetUrl())
		for i, more := range h.GetMoreUrls() {
			h.MoreUrls[i] = maskedURL(more)
		}
	}
	if s := u.GetSse(); s != nil {
		s.Url = maskedURL(s.GetUrl())
	}
	for _, e := range []*outriggerv1.TokenEndpoint{
		u.GetCredential().GetClientCredentials().GetEndpoint(), u.GetCredential().GetTokenExchange().GetEndpoint(),
	} {
		if e != nil {
			e.Url, e.Resource = maskedURL(e.GetUrl()), maskedURL(e.GetResource())
		}
	}
	return u
}

// maskedCommand keeps what arguments say to itself when they look like a secret or a setting: what follows a "=", or an
// option whose name speaks of one.
func maskedCommand(command []string) []string {
	masked := slices.Clone(command)
	for i, arg := range command {
		name, _, set := strings.Cut(arg, "=")
		switch {
		case i == 0:
		case set:
			masked[i] = name + "=***"
		case strings.HasPrefix(command[i-1], "-") && secretName.MatchString(command[i-1]):
			masked[i] = "***"
		}
	}
	return masked
}

var secretName = regexp.MustCompile(`(?i)key|token|secret|pass|auth|cred`)

// maskedURL keeps a password and the values of a query to itself.
func maskedURL(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "***"
	}
	if u.RawQuery != "" {
		q := u.Query()
		for name := range q {
			q.Set(name, "xxxxx") // as Redacted has it
		}
		u.RawQuery = q.Encode()
	}
	return u.Redacted()
}
