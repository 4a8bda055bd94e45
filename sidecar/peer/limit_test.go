package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/bridge/tolegacy"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

// wantOverloaded holds that a call was refused for a bound, which its client is told.
func wantOverloaded(t *testing.T, what string, err error) {
	t.Helper()
	var up *upstream.Error
	if !errors.As(err, &up) || up.Kind != upstream.Overloaded {
		t.Errorf("%s: %v, want one of kind %s", what, err, upstream.Overloaded.Reason())
	}
}

func TestOneSidecarsCallsAreBoundedAndTakeNothingFromOthers(t *testing.T) {
	f := newFleet(t)
	h := f.holder(f.join("holder"), resumer(func(ctx context.Context, r *outriggerv1.ResumeRequest) (*upstream.Answer, error) {
		if r.Upstream == "waits" {
			<-ctx.Done()
		}
		return nil, upstream.ErrNotHere
	}))
	greedy, modest := f.join("greedy"), f.join("modest")
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	waiting, more := f.client(greedy), f.client(greedy) // on a connection of its own
	for i := range maxCalls {
		s, err := waiting.Resume(ctx, h, &outriggerv1.ResumeRequest{Upstream: "waits"})
		if err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
		defer s.Close()
	}
	for what, c := range map[string]*Client{"one call more": waiting, "over another connection": more} {
		_, err := c.Resume(ctx, h, &outriggerv1.ResumeRequest{Upstream: "up"})
		wantOverloaded(t, what, err)
	}
	if err := first(ctx, f.client(modest), h, &outriggerv1.ResumeRequest{}); !errors.Is(err, upstream.ErrNotHere) {
		t.Errorf("another sidecar's call: %v, want the holder's answer", err)
	}
}

func TestARequestThatIsTooLongIsRefused(t *testing.T) {
	f := newFleet(t)
	h := f.holder(f.join("holder"), resumer(func(context.Context, *outriggerv1.ResumeRequest) (*upstream.Answer, error) {
		t.Error("it came through")
		return nil, upstream.ErrNotHere
	}))
	id := f.join("asking")
	r := &outriggerv1.ResumeRequest{Message: make([]byte, maxRequest+1)}
	wantOverloaded(t, "here", first(t.Context(), f.client(id), h, r))

	conn, err := grpc.NewClient("passthrough:///"+h.Address, grpc.WithTransportCredentials(credentials.NewTLS(id.PeerClientTLS("holder"))))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := outriggerv1.NewPeerServiceClient(conn).Resume(t.Context(), r, grpc.MaxCallSendMsgSize(2*maxRequest))
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("at a holder: %v, want RESOURCE_EXHAUSTED", err)
	}
}

// stalled is a stream whose message does not come.
type stalled struct {
	grpc.ServerStream
	ctx   context.Context
	reads chan struct{}
}

func (s stalled) Context() context.Context { return s.ctx }

func (s stalled) RecvMsg(any) error {
	s.reads <- struct{}{}
	<-s.ctx.Done()
	return s.ctx.Err()
}

func TestFewRequestsOfOneSidecarAreReadAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, reads := newQuota(), make(chan struct{}, 99)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 99)
		for range 3 * maxReading {
			go func() {
				ended <- q.intercept(nil, stalled{nil, ctx, reads}, nil, func(_ any, s grpc.ServerStream) error { return s.RecvMsg(nil) })
			}()
		}
		synctest.Wait()
		if len(reads) != maxReading {
			t.Errorf("%d are read at a time, want %d", len(reads), maxReading)
		}
		cancel()
		for range 3 * maxReading {
			<-ended
		}
		if len(q.peers) != 0 {
			t.Errorf("%d sidecars are still counted, want none", len(q.peers))
		}
	})
}

// anybody is an Identity that connects to whoever is there.
type anybody struct{ Identity }

func (anybody) PeerClientTLS(string) *tls.Config { return &tls.Config{InsecureSkipVerify: true} }

func TestTheConnectionThatWasNotUsedForLongestMakesRoom(t *testing.T) {
	c := NewClient(func() (Identity, error) { return anybody{}, nil }, nil)
	defer c.Close()
	holder := func(i int) tolegacy.Holder {
		return tolegacy.Holder{ID: fmt.Sprint(i), Address: fmt.Sprint("127.0.0.1:", i+1)}
	}
	begun := time.Now()
	var links []*link
	for i := range maxHolders {
		l, err := c.take(holder(i))
		if err != nil {
			t.Fatal(err)
		}
		if links = append(links, l); i > 0 { // the first stays in use
			c.leave(l)
		}
		l.used = begun.Add(time.Duration(i) * time.Second)
	}
	links[1].used = begun.Add(time.Hour)
	if _, err := c.take(holder(maxHolders)); err != nil {
		t.Fatal(err)
	}
	if _, kept := c.holders[holder(2)]; kept || len(c.holders) != maxHolders {
		t.Errorf("%d connections, that of holder 2 among them: %v; want %d and not that", len(c.holders), kept, maxHolders)
	}
	for i := range maxHolders + 1 {
		if i == 2 {
			continue
		}
		if _, err := c.take(holder(i)); err != nil {
			t.Fatalf("holder %d: %v", i, err)
		}
	}
	if _, err := c.take(holder(maxHolders + 1)); !errors.Is(err, errFull) {
		t.Errorf("with all in use: %v, want %v", err, errFull)
	}
}

// endless is a listener to which everybody connects.
type endless struct{ net.Listener }

func (endless) Accept() (net.Conn, error) {
	c, _ := net.Pipe()
	return c, nil
}

func TestConnectionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, accepted := Limit(endless{}), make(chan net.Conn, 2*maxConnections)
		go func() {
			for range maxConnections + 1 {
				c, err := l.Accept()
				if err != nil {
					t.Error(err)
				}
				accepted <- c
			}
		}()
		synctest.Wait()
		if n := len(accepted); n != maxConnections {
			t.Errorf("%d connections were accepted, want %d", n, maxConnections)
		}
		(<-accepted).Close()
		synctest.Wait()
		if n := len(accepted); n != maxConnections {
			t.Errorf("%d connections are there after one was closed, want the next in its place: %d", n, maxConnections)
		}
	})
}
