package stdio

import (
	"context"
	"errors"

	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
	"golang.org/x/sync/errgroup"
)

// toldAtOnce bounds the subscriptions that a task has in flight, so that calls find room in the outbox too.
const toldAtOnce = 32

// startLocked runs a task whose context ends with the process.
func (o *pool) startLocked(p *pipe, task func(context.Context)) {
	if o.closed {
		return
	}
	o.tasks.Go(func() {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		o.tasks.Go(func() {
			defer cancel()
			select {
			case <-p.broken:
			case <-ctx.Done():
			}
		})
		task(ctx)
	})
}

// tellLevel gives a new process the level of the one before it.
func (o *pool) tellLevel(ctx context.Context, p *pipe) {
	o.tellInTurn(ctx, p, func() string {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.level == noLevel {
			return ""
		}
		return setLevel("0", o.level)
	})
}

// tellSubscriptions makes subscriptions, or ends them (resources/unsubscribe), a few at a time. Those that clients have
// changed meanwhile are left as they are.
func (o *pool) tellSubscriptions(ctx context.Context, p *pipe, method string, uris map[string]struct{}) {
	var some errgroup.Group
	some.SetLimit(toldAtOnce)
	for uri := range uris {
		some.Go(func() error {
			o.tellInTurn(ctx, p, func() string {
				if o.held(uri) != (method == mcp.MethodResourcesSubscribe) {
					return ""
				}
				return subscription(method, uri)
			})
			return nil
		})
	}
	some.Wait()
}

// tellInTurn sends the request that message returns while the turn is taken; "" for none. It waits for room in the
// outbox, and then, without the turn, for the answer, which nobody needs.
func (o *pool) tellInTurn(ctx context.Context, p *pipe, message func() string) {
	for size := 0; ; {
		p.out.awaitRoom(size)
		select {
		case o.turn <- struct{}{}:
		case <-ctx.Done():
			return
		}
		text := message()
		if text == "" {
			o.release()
			return
		}
		k, err := p.request(ctx, text, o.server.times.Handshake)
		o.release()
		if e := (*upstream.Error)(nil); errors.As(err, &e) && e.Kind == upstream.Overloaded {
			size = len(text) + spliceRoom
			continue
		}
		if err == nil {
			_, err = k.box.Response()
		}
		if err != nil && ctx.Err() == nil {
			p.log.Warn("server did not take up a subscription or the log level", "error", err)
		}
		return
	}
}
