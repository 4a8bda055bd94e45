// Package credential is what a sidecar presents to its servers: nothing, a value that is read where the sidecar runs, or a
// token that it obtains, for itself (RFC 6749, section 4.4) or for each caller in exchange for the caller's own (RFC 8693).
//
// A Source is one Upstream's. A token is asked for once however many calls wait for it, each as long as its own context
// lasts; it is used until shortly before it expires, and another is got ahead of that while it still serves. Why there is
// none is remembered for seconds. Of callers' tokens a bounded number is kept, by the caller's own: the longest unused gives
// way, and what was unused for ten minutes goes.
//
// A caller's own token goes to the token endpoint alone. No error, log line or metric holds a token, a secret, or what an
// endpoint wrote.
//
// Everything here is safe for concurrent use. Requests to token endpoints are tasks of the Sources, which Close waits for.
// Not here: how a request carries a credential (the transports), who a caller is (package identity).
package credential

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/sidecar/background"
	"github.com/outrigger-mesh/outrigger/sidecar/identity"
)

// Options are what Sources need. All have a default.
type Options struct {
	Log        *slog.Logger          // default: nowhere
	Dir        string                // where files are that credentials name; empty: there are none
	Registerer prometheus.Registerer // nil: nothing is counted
	Now        func() time.Time      // default time.Now
}

// Sources makes what Upstreams name. There is one in a process, for its whole life. A nil Sources has nothing to present.
type Sources struct {
	// Set by New, never changed.
	log     *slog.Logger
	dir     string
	now     func() time.Duration // since an hour before New, so that zero is long ago; at half the cost of the time of day
	asked   *prometheus.CounterVec
	tasks   *background.Tasks
	clients *clients
}

// New makes Sources. It fetches nothing.
func New(o Options) *Sources {
	s := &Sources{
		log: o.Log, dir: o.Dir, now: sinceNow(o.Now), tasks: background.New(), clients: newClients(),
		asked: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outrigger_token_requests_total",
			Help: "Requests to token endpoints for what servers are presented, by outcome: ok; refused, with an error of OAuth; failed.",
		}, []string{"outcome"}),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if o.Registerer != nil {
		o.Registerer.MustRegister(s.asked)
	}
	return s
}

// sinceNow is a clock that stands at an hour.
func sinceNow(clock func() time.Time) func() time.Duration {
	if clock == nil {
		began := time.Now().Add(-time.Hour)
		return func() time.Duration { return time.Since(began) }
	}
	began := clock().Add(-time.Hour)
	return func() time.Duration { return clock().Sub(began) }
}

// Close ends requests under way and waits for them, within ctx. Calls that wait for them fail.
func (s *Sources) Close(ctx context.Context) error {
	s.tasks.Stop()
	err := s.tasks.Wait(ctx)
	s.clients.close()
	return err
}

// Source is what one server is presented: one header. A nil Source presents nothing.
type Source struct {
	header string
	value  string  // when it is the same for all requests
	tokens *tokens // nil when it is
	digest []byte
}

// Header is the header's name in canonical form; empty when nothing is presented.
func (s *Source) Header() string {
	if s == nil {
		return ""
	}
	return s.header
}

// Fixed is the value for all requests, if there is one such.
func (s *Source) Fixed() (value string, ok bool) {
	if s == nil || s.tokens != nil {
		return "", false
	}
	return s.value, true
}

// PerCaller reports whether the value depends on who calls.
func (s *Source) PerCaller() bool { return s != nil && s.tokens != nil && s.tokens.endpoint.exchanges }

// Varies reports whether the value is not the same for all requests, so that each has to ask Value.
func (s *Source) Varies() bool { return s != nil && s.tokens != nil }

// Digest tells Sources apart by what they read beside the resource: a value, a client's secret, authorities.
func (s *Source) Digest() []byte {
	if s == nil {
		return nil
	}
	return s.digest
}

// Value is what a request for caller presents: upstream.Self for what the sidecar asks for itself, nil for nobody known.
// Empty is nothing. It waits for a token as long as ctx lasts. Errors: an *upstream.Error of kind NoCredential, or Lost when
// ctx was cancelled.
//
// Hot: a token that is at hand costs a lookup and allocates nothing (BenchmarkValue, TestATokenAtHandCostsNoMemory).
func (s *Source) Value(ctx context.Context, caller *identity.Principal) (string, error) {
	switch {
	case s == nil:
		return "", nil
	case s.tokens == nil:
		return s.value, nil
	}
	return s.tokens.value(ctx, caller)
}

// Forget gives up the value that a server refused, so that the next call gets another. It is Renew without the wait, for a
// call that cannot be sent again.
func (s *Source) Forget(caller *identity.Principal, refused string) {
	if s.Varies() && refused != "" {
		s.tokens.forget(caller, refused)
	}
}

// Renew is what a request presents once more after the server refused it with 401 for refused. It is another value, or
// false when there is none: tokens that are refused are replaced once in ten seconds, so a server that refuses all of them
// makes nobody fetch more.
func (s *Source) Renew(ctx context.Context, caller *identity.Principal, refused string) (value string, ok bool) {
	if !s.Varies() || refused == "" {
		return "", false
	}
	return s.tokens.replace(ctx, caller, refused)
}
