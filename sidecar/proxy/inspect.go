package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/config"
)

// errUnconfigured is a sidecar that has never had a configuration.
var errUnconfigured = errors.New("no configuration yet")

// Ready reports why the sidecar should get no traffic, or nothing: it needs a configuration, and each of its servers
// that an endpoint stands for must answer a true handshake within ctx and its own handshake timeout; of several that are
// offered as one, one must. All are asked at once.
func (p *Proxy) Ready(ctx context.Context) []error {
	if p.draining.Load() {
		return []error{errors.New("draining")}
	}
	t := p.table.Load()
	if t.generation == "" {
		return []error{errUnconfigured}
	}
	var (
		wait     sync.WaitGroup
		mu       sync.Mutex
		problems []error
	)
	problems = append(problems, t.closed()...)
	for s := range t.offered() {
		wait.Go(func() {
			if err := s.Check(ctx); err != nil {
				mu.Lock()
				problems = append(problems, withCause(err))
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	slices.SortFunc(problems, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	return problems
}

// closed are the bindings at which nothing is allowed for want of a policy that can run.
func (t *table) closed() (problems []error) {
	for _, ep := range t.endpoints {
		if g := ep.guard.Load(); g != nil && g.closed != "" {
			problems = append(problems, fmt.Errorf("binding %q allows nothing: %s", ep.name, g.closed))
		}
	}
	return problems
}

// offered are the servers that endpoints stand for, each once: of those made of several, not what they are made of.
func (t *table) offered() map[*server]bool {
	all := make(map[*server]bool)
	for _, ep := range t.endpoints {
		all[ep.server] = true
	}
	return all
}

// withCause says all that is known of why a server is not ready: this is read by operators, not by clients.
func withCause(err error) error {
	if cause := errors.Unwrap(err); cause != nil {
		return fmt.Errorf("not ready: %w: %v", err, cause)
	}
	return fmt.Errorf("not ready: %w", err)
}

// Running is the configuration that runs now, last good forms of refused resources included.
func (p *Proxy) Running() *config.Config {
	t := p.table.Load()
	c := &config.Config{Generation: t.generation}
	if t.config != nil {
		c.Policies, c.Tenants, c.Keys, c.Secrets = t.config.Policies, t.config.Tenants, t.config.Keys, t.config.Secrets
		c.Missing = t.config.Missing
	}
	for _, s := range t.servers {
		if s.spec != nil {
			c.Upstreams = append(c.Upstreams, s.spec)
		}
	}
	for _, ep := range t.endpoints {
		c.Bindings = append(c.Bindings, ep.spec)
	}
	slices.SortFunc(c.Upstreams, func(a, b *outriggerv1.Upstream) int { return cmp.Compare(a.GetName(), b.GetName()) })
	slices.SortFunc(c.Bindings, func(a, b *outriggerv1.Binding) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return c
}

// CountSessions sets the gauge of live sessions. It is called when metrics are read, so that no call pays for it.
func (p *Proxy) CountSessions() {
	for _, ep := range p.table.Load().endpoints {
		ep.metrics.Sessions.Set(float64(ep.sessions.Len()))
	}
}
