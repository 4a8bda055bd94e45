package federate

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// counted counts what is asked of a member now.
type counted struct {
	*peer
	now atomic.Int64
}

func (c *counted) Call(ctx context.Context, q *upstream.Call) (*upstream.Answer, error) {
	c.now.Add(1)
	defer c.now.Add(-1)
	runtime.Gosched()
	return c.peer.Call(ctx, q)
}

// Lists and listens begin goroutines of the federation's own, which nobody would wait for after Close.
func TestNothingBeginsOnceTheFederationIsClosed(t *testing.T) {
	for range 50 {
		m := &counted{peer: newPeer().on(mcp.MethodToolsList, always(page(tools, named(tools, "m", "a"), forOne))).notifies(nil)}
		s := federation(t, "", m)
		c := newClient(t, s)
		var callers sync.WaitGroup
		var closed atomic.Bool
		begun := make(chan struct{}, 4)
		for i := range 4 {
			callers.Go(func() {
				for n := 0; !closed.Load(); n++ {
					who := c.as(fmt.Sprint(i, n)) // for whom nothing is at hand
					who.do(mcp.MethodToolsList, "")
					if a, err := s.Call(context.Background(), who.message(mcp.MethodListen, `"notifications":{"toolsListChanged":true}`)); err == nil {
						a.Close()
					}
					if n == 0 {
						begun <- struct{}{}
					}
				}
			})
		}
		<-begun
		shut(t, s)
		before := m.count(mcp.MethodToolsList) + m.count(mcp.MethodListen)
		if n := m.now.Load(); n != 0 {
			t.Errorf("%d requests at the member are under way after Close", n)
		}
		c.as("late").do(mcp.MethodToolsList, "")
		closed.Store(true)
		callers.Wait()
		if after := m.count(mcp.MethodToolsList) + m.count(mcp.MethodListen); after != before {
			t.Errorf("%d requests at the member after Close", after-before)
		}
	}
}

func TestCloseWaitsNoLongerThanItIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		deaf := newPeer().on(mcp.MethodToolsList, func(context.Context, *upstream.Call) (*upstream.Answer, error) {
			<-release // whatever its caller says
			return nil, &upstream.Error{Kind: upstream.Lost, Upstream: "m0", Detail: "released"}
		})
		s := federation(t, "", deaf)
		newClient(t, s).do(mcp.MethodToolsList, "")
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		if err := s.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the deadline", err)
		}
		close(release)
		shut(t, s)
	})
}
