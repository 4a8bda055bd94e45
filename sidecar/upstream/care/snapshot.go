package care

import (
	"fmt"
	"net/url"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
)

// Snapshot is how a Server is at a moment, for metrics.
type Snapshot struct {
	InFlight, Waiting int // calls
	Endpoints         []EndpointSnapshot
	Retries           RetrySnapshot
}

// RetrySnapshot is how often something was sent again since the Server was made.
type RetrySnapshot struct {
	Answered, Failed uint64 // by what came of it
	NoBudget         uint64 // it was not sent, since the budget of retries was spent
}

// EndpointSnapshot is how an endpoint is.
type EndpointSnapshot struct {
	// Name is the host and path of its URL, without what else a URL may have; of a process it is "stdio". It is its place
	// among the endpoints when the resource does not say.
	Name string
	Up   bool // calls are let through; also while nothing is known
}

// Snapshot says how s is. The slice is the caller's.
func (s *Server) Snapshot() Snapshot {
	var shot Snapshot
	shot.InFlight, shot.Waiting = s.gate.load()
	for _, e := range s.endpoints {
		shot.Endpoints = append(shot.Endpoints, EndpointSnapshot{Name: e.name, Up: e.up()})
	}
	shot.Retries = RetrySnapshot{Answered: s.resent.answered.Load(), Failed: s.resent.failed.Load()}
	if s.retries != nil {
		shot.Retries.NoBudget = s.retries.budget.refused.Load()
	}
	return shot
}

// Healthy reports whether an endpoint takes calls.
func (s *Server) Healthy() bool {
	for _, e := range s.endpoints {
		if e.up() {
			return true
		}
	}
	return false
}

// endpointNames are the names of n endpoints of a resource.
func endpointNames(spec *outriggerv1.Upstream, n int) (names []string) {
	var urls []string
	switch {
	case spec.GetHttp() != nil:
		urls = append([]string{spec.GetHttp().GetUrl()}, spec.GetHttp().GetMoreUrls()...)
	case spec.GetSse() != nil:
		urls = []string{spec.GetSse().GetUrl()}
	case spec.GetStdio() != nil && n == 1:
		return []string{"stdio"}
	}
	for i := range n {
		names = append(names, fmt.Sprint(i))
		if i >= len(urls) {
			continue
		}
		if u, err := url.Parse(urls[i]); err == nil && u.Host != "" {
			names[i] = u.Host + u.Path
		}
	}
	return names
}
