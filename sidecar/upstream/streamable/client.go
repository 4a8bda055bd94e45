package streamable

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/outrigger-mesh/outrigger/sidecar/background"
	"github.com/outrigger-mesh/outrigger/sidecar/credential"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// client sends requests to one server.
type client struct {
	upstream       string // the resource's name
	log            *slog.Logger
	tasks          *background.Tasks
	pool           pool
	post, get, del string // fixed heads
	credential     *credential.Source
	varies         bool // the credential does; else the fixed heads hold it
}

func (cl *client) fixed(method string) string {
	switch method {
	case http.MethodGet:
		return cl.get
	case http.MethodDelete:
		return cl.del
	}
	return cl.post
}

// send sends r, with what it presents, and waits for the answer's head. The caller finishes the exchange. A request that the
// server refused with 401 and a challenge was not applied (RFC 9110, section 15.5.2): it is sent once more if there is another
// token to present.
func (cl *client) send(ctx context.Context, r *request) (*exchange, error) {
	if !cl.varies {
		return cl.attempt(ctx, r)
	}
	var err error
	if r.credential, err = cl.credential.Value(ctx, r.caller); err != nil {
		return nil, err
	}
	x, err := cl.attempt(ctx, r)
	if err != nil || x.head.status != http.StatusUnauthorized {
		return x, err
	}
	if !x.head.challenged {
		cl.credential.Forget(r.caller, r.credential)
		return x, nil
	}
	another, ok := cl.credential.Renew(ctx, r.caller, r.credential)
	if !ok {
		return x, nil
	}
	x.discard()
	r.credential, r.timeout = another, time.Until(x.deadline)
	return cl.attempt(ctx, r)
}

// attempt sends r once.
//
// Hot: runs on every call. It costs one look at the socket, one write and one read; a whole call allocates its exchange
// (TestACallAllocatesLittle).
func (cl *client) attempt(ctx context.Context, r *request) (*exchange, error) {
	buf := writeBuffers.Get().(*[]byte)
	if err := r.encode(buf, cl.fixed(r.method), cl.credential); err != nil {
		keepWriteBuffer(buf)
		return nil, cl.fault(upstream.Unreachable, "the request cannot be sent on: "+err.Error(), nil)
	}
	x, err := cl.transmit(ctx, r, *buf)
	keepWriteBuffer(buf)
	if err == nil {
		err = x.readHead()
	}
	if err != nil {
		return nil, err
	}
	return x, nil
}

// transmit writes the encoded request to a connection. It is written again only when the connection had lain idle and
// took not one byte of it: then the server cannot have seen it.
func (cl *client) transmit(ctx context.Context, r *request, encoded []byte) (*exchange, error) {
	start := time.Now()
	for {
		if ctx.Err() != nil {
			return nil, cl.unreachable(ctx, ctx.Err())
		}
		c, used, err := cl.pool.get(ctx, start)
		if err != nil {
			return nil, cl.unreachable(ctx, err)
		}
		x := cl.begin(ctx, c, r, start)
		n, err := c.send(encoded, r.body, used)
		if err == nil {
			return x, nil
		}
		x.finish(false)
		if n > 0 || !used || errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, x.failure(err, n > 0)
		}
	}
}

// unreachable says why there is no connection.
func (cl *client) unreachable(ctx context.Context, err error) error {
	kind, detail := upstream.Unreachable, "no connection to the server"
	if ctx.Err() != nil {
		kind, detail, err = cancelled(ctx)
	}
	return cl.fault(kind, detail, err)
}

// cancelled is the failure of a call whose own context ended.
func cancelled(ctx context.Context) (upstream.Kind, string, error) {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return upstream.TimedOut, "no whole answer before the call's deadline", ctx.Err()
	}
	return upstream.Lost, "the call was cancelled", ctx.Err()
}

func (cl *client) fault(kind upstream.Kind, detail string, cause error) *upstream.Error {
	return &upstream.Error{Kind: kind, Upstream: cl.upstream, Detail: detail, Cause: cause}
}
