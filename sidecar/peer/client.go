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
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// takeTime is how long a holder has to take a request, with the connection that it may need. How long the call then takes
// is its own matter, and its client's.
const takeTime = 5 * time.Second

// maxHolders is to how many sidecars connections are kept. One that is not used closes itself.
const maxHolders = 256

// Client reaches other sidecars. It is a tolegacy.Peers, and safe for concurrent use.
type Client struct {
	// credentials are for a connection to the sidecar with a node id. They fail while there is no identity.
	credentials func(nodeID string) (credentials.TransportCredentials, error)

	mu      sync.Mutex // guards below
	holders map[tolegacy.Holder]*grpc.ClientConn
	closed  bool
}

// NewClient makes a Client. credentials give those for a connection to the sidecar with a node id.
func NewClient(credentials func(nodeID string) (credentials.TransportCredentials, error)) *Client {
	return &Client{credentials: credentials, holders: make(map[tolegacy.Holder]*grpc.ClientConn)}
}

// Close ends every connection, and with them what is under way.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for h, conn := range c.holders {
		conn.Close()
		delete(c.holders, h)
	}
}

// Resume implements tolegacy.Peers.
func (c *Client) Resume(ctx context.Context, h tolegacy.Holder, r *outriggerv1.ResumeRequest) (upstream.EventStream, error) {
	conn, err := c.connection(h)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := outriggerv1.NewPeerServiceClient(conn).Resume(ctx, r)
	if err != nil {
		cancel()
		c.drop(h, conn)
		return nil, known(err, r.GetUpstream())
	}
	late := time.AfterFunc(takeTime, cancel)
	_, err = stream.Header() // a holder that has not taken the request shows here
	if !late.Stop() && err == nil {
		err = context.DeadlineExceeded
	}
	if err != nil {
		cancel()
		c.drop(h, conn)
		return nil, fmt.Errorf("resume: %w", err)
	}
	return &events{stream: stream, cancel: cancel, upstream: r.GetUpstream()}, nil
}

// drop forgets a connection that is not there, so that the next call tries at once: the holder may be back.
func (c *Client) drop(h tolegacy.Holder, conn *grpc.ClientConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holders[h] == conn && conn.GetState() != connectivity.Ready {
		conn.Close()
		delete(c.holders, h)
	}
}

var errClosed = errors.New("this sidecar is stopping")

func (c *Client) connection(h tolegacy.Holder) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClosed
	}
	if conn := c.holders[h]; conn != nil {
		if conn.GetState() != connectivity.TransientFailure {
			return conn, nil
		}
		conn.Close() // and not waited for until it tries again: the holder may be back
		delete(c.holders, h)
	}
	creds, err := c.credentials(h.ID)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("passthrough:///"+h.Address, grpc.WithTransportCredentials(creds), grpc.WithIdleTimeout(5*time.Minute),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: takeTime}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: 5 * time.Second}))
	if err != nil {
		return nil, err
	}
	for old, idle := range c.holders {
		if len(c.holders) < maxHolders {
			break
		}
		idle.Close() // any: the fleet is larger than what is kept
		delete(c.holders, old)
	}
	c.holders[h] = conn
	return conn, nil
}

// events are what a holder sends.
type events struct {
	stream   grpc.ServerStreamingClient[outriggerv1.ResumeResponse]
	cancel   context.CancelFunc
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
	e.cancel()
	return nil
}
