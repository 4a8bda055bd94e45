package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/bridge/tolegacy"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/assertion"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// takeTime is how long a holder has to take a request, with the connection that it may need. How long the call then takes
// is its own matter, and its client's.
const takeTime = 5 * time.Second

// maxHolders is to how many sidecars there are connections; the one that was not used for longest makes room. One that is
// not used at all closes itself.
const maxHolders = 256

// Client reaches other sidecars. It is a tolegacy.Peers, and safe for concurrent use.
type Client struct {
	// identity is this sidecar's. It fails while there is none.
	identity func() (Identity, error)
	deleted  *Revoked

	mu      sync.Mutex // guards below
	holders map[tolegacy.Holder]*link
	closed  bool
}

// link is a connection to a holder. Its other fields are guarded by the Client's lock.
type link struct {
	conn  *grpc.ClientConn
	calls int       // that use it
	used  time.Time // when the last of them ended
}

// NewClient makes a Client of the sidecar that identity gives, or an error while it has not joined. Sidecars that were
// deleted are not asked.
func NewClient(identity func() (Identity, error), deleted *Revoked) *Client {
	return &Client{identity: identity, deleted: deleted, holders: make(map[tolegacy.Holder]*link)}
}

// Close ends every connection, and with them what is under way.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for h := range c.holders {
		c.forgetLocked(h)
	}
}

// Resume implements tolegacy.Peers. It adds to r that this sidecar vouches for the principal.
func (c *Client) Resume(ctx context.Context, h tolegacy.Holder, r *outriggerv1.ResumeRequest) (upstream.EventStream, error) {
	if err := c.vouch(h, r); err != nil {
		return nil, err
	}
	l, err := c.take(h)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := outriggerv1.NewPeerServiceClient(l.conn).Resume(ctx, r)
	if err != nil {
		cancel()
		c.drop(h, l)
		return nil, known(err, r.GetUpstream())
	}
	if err := taken(stream, cancel); err != nil {
		cancel()
		c.drop(h, l)
		return nil, known(err, r.GetUpstream())
	}
	end := sync.OnceFunc(func() { cancel(); c.leave(l) })
	return &events{stream: stream, end: end, upstream: r.GetUpstream()}, nil
}

// vouch asserts to a holder who makes a request.
func (c *Client) vouch(h tolegacy.Holder, r *outriggerv1.ResumeRequest) error {
	id, err := c.identity()
	if err != nil {
		return err
	}
	r.Caller, err = assertion.Sign(id.Certificate(), r.GetPrincipal(), claimOf(h.ID, r), time.Now())
	return err
}

// taken waits until the holder says that it has the request. Until then nothing has happened there.
func taken(stream grpc.ServerStreamingClient[outriggerv1.ResumeResponse], cancel func()) error {
	late := time.AfterFunc(takeTime, cancel)
	head, err := stream.Header()
	switch {
	case !late.Stop():
		return context.DeadlineExceeded
	case err == nil && head == nil: // which is how gRPC shows a stream that has ended
		if _, err = stream.Recv(); err == nil {
			err = io.ErrUnexpectedEOF
		}
	}
	return err
}

// drop is leave for a call that the other side has not taken. A connection that is not there is forgotten, so that the
// next call tries at once: the holder may be back.
func (c *Client) drop(h tolegacy.Holder, l *link) {
	c.leave(l)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holders[h] == l && l.conn.GetState() != connectivity.Ready {
		c.forgetLocked(h)
	}
}

func (c *Client) forgetLocked(h tolegacy.Holder) {
	c.holders[h].conn.Close()
	delete(c.holders, h)
}

var (
	errClosed = errors.New("this sidecar is stopping")
	errFull   = fmt.Errorf("calls of %d other sidecars are under way, as many as are reached at a time", maxHolders)
)

// take gives the connection to a holder for one call; leave must follow.
func (c *Client) take(h tolegacy.Holder) (*link, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClosed
	}
	l := c.holders[h]
	if l != nil && l.conn.GetState() == connectivity.TransientFailure {
		c.forgetLocked(h) // and not waited for until it tries again: the holder may be back
		l = nil
	}
	if l == nil {
		if len(c.holders) >= maxHolders && !c.evictLocked() {
			return nil, errFull
		}
		conn, err := c.dial(h)
		if err != nil {
			return nil, err
		}
		l = &link{conn: conn}
		c.holders[h] = l
	}
	l.calls++
	return l, nil
}

func (c *Client) leave(l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.calls--
	l.used = time.Now()
}

// evictLocked closes the connection that was not used for longest, or reports that all are in use.
func (c *Client) evictLocked() bool {
	var oldest tolegacy.Holder
	var found *link
	for h, l := range c.holders {
		if l.calls == 0 && (found == nil || l.used.Before(found.used)) {
			oldest, found = h, l
		}
	}
	if found == nil {
		return false
	}
	c.forgetLocked(oldest)
	return true
}

// dial makes a connection, which reaches for nobody before it is used.
func (c *Client) dial(h tolegacy.Holder) (*grpc.ClientConn, error) {
	id, err := c.identity()
	if err != nil {
		return nil, err
	}
	creds := c.deleted.guard(credentials.NewTLS(id.PeerClientTLS(h.ID)))
	return grpc.NewClient("passthrough:///"+h.Address, grpc.WithTransportCredentials(creds), grpc.WithIdleTimeout(5*time.Minute),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxRequest)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: takeTime}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: 5 * time.Second}))
}

// events are what a holder sends.
type events struct {
	stream   grpc.ServerStreamingClient[outriggerv1.ResumeResponse]
	end      func() // gives the call up, and the connection back
	upstream string
}

// Next implements upstream.EventStream.
func (e *events) Next() (mcp.Event, error) {
	r, err := e.stream.Recv()
	switch {
	case err == io.EOF:
		return mcp.Event{}, io.EOF
	case err != nil:
		return mcp.Event{}, known(err, e.upstream)
	}
	return mcp.Event{Data: r.GetMessage()}, nil
}

// Ready implements upstream.EventStream.
func (e *events) Ready() bool { return false }

// Close implements upstream.EventStream.
func (e *events) Close() error {
	e.end()
	return nil
}
