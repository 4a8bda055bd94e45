package care

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

const (
	leastBackoff = 50 * time.Millisecond
	mostBackoff  = 2 * time.Second
)

// retries are a resource's rules for sending again, and what is needed to follow them. A nil retries allows nothing.
type retries struct {
	attempts int
	budget   budget
	hints    hints
}

func newRetries(r *outriggerv1.Retry) *retries {
	if r.GetAttempts() == 0 {
		return nil
	}
	return &retries{attempts: int(r.GetAttempts()), budget: budget{percent: int(r.GetBudgetPercent())}}
}

// count takes note of a call.
func (r *retries) count() {
	if r != nil {
		r.budget.count(time.Now())
	}
}

// resent counts what was sent again, by what came of it.
type resent struct{ answered, failed atomic.Uint64 }

func (r *resent) note(err error) {
	if err == nil {
		r.answered.Add(1)
	} else {
		r.failed.Add(1)
	}
}

// again reports whether there is another attempt after the first and attempt more, and waits until it is due. Neither a
// call nor a server that has ended gets one.
func (r *retries) again(ctx, server context.Context, attempt int) bool {
	if r == nil || attempt >= r.attempts || ctx.Err() != nil || !r.budget.take(time.Now()) {
		return false
	}
	ceiling := min(leastBackoff<<attempt, mostBackoff)
	t := time.NewTimer(ceiling/2 + rand.N(ceiling/2))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
	case <-server.Done():
	}
	return false
}

// sendAgain goes on after c failed at e. What certainly did not happen is sent to another endpoint at once, one time.
// Beyond that what is safe to happen twice is sent as often as the resource says, to another endpoint where there is one.
func (s *Server) sendAgain(
	ctx context.Context, c *upstream.Call, e *endpoint, err error,
) (*upstream.Answer, *endpoint, uint64, error) {
	tried, moved := e.bit, false
	for attempt := 0; ctx.Err() == nil; {
		var ticket uint64
		e = nil
		if !moved && isUnreachable(err) {
			moved = true
			e, ticket = s.another(mcp.Stateless, tried)
		}
		if e == nil {
			if !mayBeLost(err) || !s.retries.safe(c.Message) || !s.retries.again(ctx, s.tasks.Context(), attempt) {
				break
			}
			attempt++
			var refused error
			if e, ticket, refused = s.acquireAgain(ctx, tried); refused != nil {
				err = refused
				continue
			}
		}
		tried |= e.bit
		a, failure := e.inner.Call(ctx, c)
		s.resent.note(failure)
		if failure == nil {
			e.answers(ticket)
			return a, e, ticket, nil
		}
		e.failed(ctx, ticket, failure)
		err = failure
	}
	return nil, nil, 0, err
}

// acquireAgain is acquire with a preference for endpoints that were not tried.
func (s *Server) acquireAgain(ctx context.Context, tried uint64) (*endpoint, uint64, error) {
	if e, ticket := s.another(mcp.Stateless, tried); e != nil {
		return e, ticket, nil
	}
	return s.acquire(ctx, mcp.Stateless)
}

// mayBeLost reports whether a call that failed so may be sent again if it does no harm: it was not reached, lost, or
// refused by something before the server. One that took all its time has none left.
func mayBeLost(err error) bool {
	var e *upstream.Error
	if !errors.As(err, &e) {
		return false
	}
	return e.Kind == upstream.Unreachable || e.Kind == upstream.Lost ||
		e.Kind == upstream.BadAnswer && e.Status >= http.StatusInternalServerError
}

// safe reports whether a request may happen twice.
func (r *retries) safe(m *mcp.Message) bool {
	if r == nil || m.Kind != mcp.Request {
		return false
	}
	switch m.Method {
	case mcp.MethodDiscover, mcp.MethodPing, mcp.MethodToolsList, mcp.MethodPromptsList, mcp.MethodResourcesList,
		mcp.MethodResourceTemplatesList, mcp.MethodResourcesRead, mcp.MethodPromptsGet, mcp.MethodComplete:
		return true
	case mcp.MethodToolsCall:
		return r.hints.repeatable(string(m.Name))
	}
	return false
}

const (
	budgetSeconds = 10
	// budgetLeast is how many retries there may be in budgetSeconds however few calls there are.
	budgetLeast = budgetSeconds
)

// budget bounds retries to a share of the calls, over the last budgetSeconds.
type budget struct {
	percent int
	refused atomic.Uint64 // how often it was spent

	mu      sync.Mutex // guards below
	seconds [budgetSeconds]second
}

// second is what happened within one second.
type second struct {
	at             int64 // Unix time
	calls, retries int
}

// nowLocked is the second of now, emptied of what was before.
func (b *budget) nowLocked(now time.Time) *second {
	at := now.Unix()
	s := &b.seconds[at%budgetSeconds]
	if s.at != at {
		*s = second{at: at}
	}
	return s
}

func (b *budget) count(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nowLocked(now).calls++
}

// take takes one retry from the budget, if there is one left.
func (b *budget) take(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	this := b.nowLocked(now)
	calls, retries := 0, 0
	for _, s := range b.seconds {
		if s.at > this.at-budgetSeconds {
			calls += s.calls
			retries += s.retries
		}
	}
	if retries >= max(calls*b.percent/100, budgetLeast) {
		b.refused.Add(1)
		return false
	}
	this.retries++
	return true
}
