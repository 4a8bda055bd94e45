package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/outrigger-mesh/outrigger/controlplane/ca"
	"github.com/outrigger-mesh/outrigger/controlplane/store"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/sidecar/bridge/tolegacy"
	"github.com/outrigger-mesh/outrigger/sidecar/config"
	"github.com/outrigger-mesh/outrigger/sidecar/identity/assertion"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fleet is a control plane's authority, which sidecars join.
type fleet struct {
	t       *testing.T
	address string
	ca      *ca.Authority
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	s, err := store.Open(t.Context(), store.Options{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	a, err := ca.Open(t.Context(), s, ca.Options{Log: log})
	if err != nil {
		t.Fatal(err)
	}
	l := listen(t)
	g := grpc.NewServer(grpc.Creds(credentials.NewTLS(a.ServerTLS())))
	outriggerv1.RegisterIdentityServiceServer(g, a)
	go g.Serve(l)
	t.Cleanup(func() { g.Stop(); s.Close() })
	return &fleet{t, l.Addr().String(), a}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// token is one to join the fleet with.
func (f *fleet) token(uses int32) string {
	f.t.Helper()
	token, _, err := f.ca.Create(f.t.Context(), nil, time.Hour, uses)
	if err != nil {
		f.t.Fatal(err)
	}
	return token
}

// join makes a sidecar of the fleet.
func (f *fleet) join(nodeID string) *config.Identity { return f.joinWith(f.token(1), nodeID) }

func (f *fleet) joinWith(token, nodeID string) *config.Identity {
	f.t.Helper()
	id, err := config.OpenIdentity(f.t.Context(), config.IdentityOptions{
		Addresses: []string{f.address}, NodeID: nodeID, Token: token, StateDir: f.t.TempDir(), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return id
}

// holder serves r as a sidecar and returns how others name it.
func (f *fleet) holder(id *config.Identity, r Resumer) tolegacy.Holder {
	l := listen(f.t)
	g := NewServer(r, id, slog.New(slog.DiscardHandler))
	go g.Serve(l)
	f.t.Cleanup(g.Stop)
	return tolegacy.Holder{ID: id.NodeID(), Address: l.Addr().String()}
}

// client is what a sidecar reaches others with.
func (f *fleet) client(id *config.Identity) *Client {
	return newClient(f.t, id)
}

func newClient(t *testing.T, id Identity) *Client {
	c := NewClient(func() (Identity, error) { return id, nil })
	t.Cleanup(c.Close)
	return c
}

type resumer func(ctx context.Context, r *outriggerv1.ResumeRequest) (*upstream.Answer, error)

func (f resumer) Resume(ctx context.Context, r *outriggerv1.ResumeRequest) (*upstream.Answer, error) {
	return f(ctx, r)
}

// script is a stream of messages, and then an error.
type script struct {
	messages []string
	end      error
	closed   chan struct{}
}

func (s *script) Next() (mcp.Event, error) {
	if len(s.messages) == 0 {
		return mcp.Event{}, s.end
	}
	m := s.messages[0]
	s.messages = s.messages[1:]
	return mcp.Event{Data: []byte(m)}, nil
}
func (s *script) Ready() bool  { return false }
func (s *script) Close() error { close(s.closed); return nil }

func TestARetryIsCarriedOnByItsHolder(t *testing.T) {
	f := newFleet(t)
	var got *outriggerv1.ResumeRequest
	closed := make(chan struct{})
	h := f.holder(f.join("ns/holder"), resumer(func(_ context.Context, r *outriggerv1.ResumeRequest) (*upstream.Answer, error) {
		got = r
		return &upstream.Answer{Status: 200, Events: &script{[]string{"one", "two"}, io.EOF, closed}}, nil
	}))
	c := f.client(f.join("ns/asking"))
	s, err := c.Resume(t.Context(), h, &outriggerv1.ResumeRequest{Upstream: "up", Message: []byte("retry"), Principal: "me"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var all []string
	for {
		ev, err := s.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(ev.Data))
	}
	if fmt.Sprint(all) != "[one two]" || string(got.Message) != "retry" || got.Principal != "me" || got.Upstream != "up" {
		t.Errorf("got %v of %v, want one and two", all, got)
	}
	<-closed
}

// first is the first that comes of a retry.
func first(ctx context.Context, c *Client, h tolegacy.Holder, r *outriggerv1.ResumeRequest) error {
	s, err := c.Resume(ctx, h, r)
	if err != nil {
		return err
	}
	defer s.Close()
	_, err = s.Next()
	return err
}

func TestOnlyTheSidecarThatAStateNamesIsAsked(t *testing.T) {
	f, other := newFleet(t), newFleet(t)
	asked := false
	serve := resumer(func(context.Context, *outriggerv1.ResumeRequest) (*upstream.Answer, error) {
		asked = true
		return nil, errors.New("no")
	})
	h := f.holder(f.join("real"), serve)
	for name, row := range map[string]struct {
		as     *config.Identity
		holder tolegacy.Holder
	}{
		"another node at the address":        {f.join("a"), tolegacy.Holder{ID: "else", Address: h.Address}},
		"a sidecar of another control plane": {other.join("b"), h},
		"nobody at the address":              {f.join("c"), tolegacy.Holder{ID: "real", Address: "127.0.0.1:1"}},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, err := f.client(row.as).Resume(ctx, row.holder, &outriggerv1.ResumeRequest{})
		cancel()
		var up *upstream.Error
		if err == nil || errors.As(err, &up) || asked {
			t.Errorf("%s: %v, asked %v; want an error of the connection", name, err, asked)
		}
	}
}

func TestAFailureOfTheUpstreamsIsTheSameFarAway(t *testing.T) {
	f := newFleet(t)
	var failure error
	h := f.holder(f.join("holder"), resumer(func(context.Context, *outriggerv1.ResumeRequest) (*upstream.Answer, error) {
		return nil, failure
	}))
	c := f.client(f.join("asking"))
	for _, kind := range []upstream.Kind{upstream.Lost, upstream.TimedOut, upstream.BadAnswer, upstream.Unauthorized, upstream.SessionGone, upstream.Overloaded} {
		failure = &upstream.Error{Kind: kind, Upstream: "up", Detail: "it did " + kind.Reason(), Cause: errors.New("secret")}
		err := first(t.Context(), c, h, &outriggerv1.ResumeRequest{Upstream: "up"})
		var got *upstream.Error
		if !errors.As(err, &got) || got.Kind != kind || got.Detail != "it did "+kind.Reason() || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v came as %v", failure, err)
		}
	}
	for _, failure = range []error{upstream.ErrNotHere, errors.New("secret")} {
		if err := first(t.Context(), c, h, &outriggerv1.ResumeRequest{}); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v came as %v", failure, err)
		}
	}
}

// forger is a sidecar that says of itself what a test wants.
type forger struct {
	*config.Identity
	signs *config.Identity
}

func (f forger) Certificate() *tls.Certificate { return f.signs.Certificate() }

// What a holder takes for the caller is what the sidecar that asks has signed, for it and for this request.
func TestWhoCallsIsNeverTakenFromTheRequestItself(t *testing.T) {
	f := newFleet(t)
	principals := make(chan string, 1)
	h := f.holder(f.join("holder"), resumer(func(_ context.Context, r *outriggerv1.ResumeRequest) (*upstream.Answer, error) {
		principals <- r.GetPrincipal()
		return nil, upstream.ErrNotHere
	}))
	asking, other := f.join("asking"), f.join("other")
	request := func() *outriggerv1.ResumeRequest {
		return &outriggerv1.ResumeRequest{Upstream: "up", Binding: "main", Message: []byte("retry"), Principal: "me"}
	}
	signed := func(audience string, change func(*outriggerv1.ResumeRequest)) *outriggerv1.ResumeRequest {
		r := request()
		a, err := assertion.Sign(asking.Certificate(), "me", claimOf(audience, r), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		r.Caller = a
		change(r)
		return r
	}
	conn, err := grpc.NewClient("passthrough:///"+h.Address, grpc.WithTransportCredentials(credentials.NewTLS(asking.PeerClientTLS("holder"))))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw := func(r *outriggerv1.ResumeRequest) error {
		stream, err := outriggerv1.NewPeerServiceClient(conn).Resume(t.Context(), r)
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	for name, row := range map[string]struct {
		r    *outriggerv1.ResumeRequest
		want codes.Code
	}{
		"as it should be":        {signed("holder", func(*outriggerv1.ResumeRequest) {}), codes.NotFound},
		"another name beside it": {signed("holder", func(r *outriggerv1.ResumeRequest) { r.Principal = "you" }), codes.NotFound},
		"only a name":            {request(), codes.Unauthenticated},
		"for another sidecar":    {signed("other", func(*outriggerv1.ResumeRequest) {}), codes.Unauthenticated},
		"for another message":    {signed("holder", func(r *outriggerv1.ResumeRequest) { r.Message = []byte("x") }), codes.Unauthenticated},
		"for another binding":    {signed("holder", func(r *outriggerv1.ResumeRequest) { r.Binding = "x" }), codes.Unauthenticated},
	} {
		if err := raw(row.r); status.Code(err) != row.want {
			t.Errorf("%s: %v, want %v", name, err, row.want)
		}
		if row.want == codes.NotFound {
			if got := <-principals; got != "me" {
				t.Errorf("%s: %q calls, want me", name, got)
			}
		}
	}
	err = first(t.Context(), newClient(t, forger{other, asking}), h, request())
	if status.Code(err) != codes.Unauthenticated || len(principals) != 0 {
		t.Errorf("signed by a sidecar that is not the one that asks: %v, want UNAUTHENTICATED", err)
	}
}

// A connection goes on with the certificate that it was made with when there is a newer one, with which calls are signed.
func TestARenewedCertificateSignsOnAConnectionOfTheOneBefore(t *testing.T) {
	f := newFleet(t)
	h := f.holder(f.join("holder"), resumer(func(context.Context, *outriggerv1.ResumeRequest) (*upstream.Answer, error) {
		return nil, upstream.ErrNotHere
	}))
	token := f.token(2)
	before, renewed := f.joinWith(token, "asking"), f.joinWith(token, "asking")
	if before.Certificate().Leaf.Equal(renewed.Certificate().Leaf) {
		t.Fatal("there is one certificate")
	}
	err := first(t.Context(), newClient(t, forger{before, renewed}), h, &outriggerv1.ResumeRequest{Principal: "me"})
	if !errors.Is(err, upstream.ErrNotHere) {
		t.Errorf("got %v, want the holder's answer", err)
	}
}

func TestLeavingEndsTheCallAtTheHolder(t *testing.T) {
	f := newFleet(t)
	begun, ended := make(chan struct{}), make(chan struct{})
	h := f.holder(f.join("holder"), resumer(func(ctx context.Context, _ *outriggerv1.ResumeRequest) (*upstream.Answer, error) {
		close(begun)
		<-ctx.Done()
		close(ended)
		return nil, ctx.Err()
	}))
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-begun
		cancel()
	}()
	if err := first(ctx, f.client(f.join("asking")), h, &outriggerv1.ResumeRequest{}); err == nil {
		t.Error("a call that was left succeeded")
	}
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the holder goes on with a call that was left")
	}
}

func TestAHolderThatIsBackIsFoundAtOnce(t *testing.T) {
	f := newFleet(t)
	id, l := f.join("holder"), listen(t)
	address := l.Addr().String()
	l.Close()
	c := f.client(f.join("asking"))
	h := tolegacy.Holder{ID: "holder", Address: address}
	for range 3 { // after which gRPC would wait for seconds
		if err := first(t.Context(), c, h, &outriggerv1.ResumeRequest{}); err == nil || errors.Is(err, io.EOF) {
			t.Fatalf("nobody there: %v", err)
		}
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	g := NewServer(resumer(func(context.Context, *outriggerv1.ResumeRequest) (*upstream.Answer, error) {
		return &upstream.Answer{Status: 200, Events: &script{nil, io.EOF, make(chan struct{})}}, nil
	}), id, slog.New(slog.DiscardHandler))
	go g.Serve(l)
	t.Cleanup(g.Stop)
	if err := first(t.Context(), c, h, &outriggerv1.ResumeRequest{}); !errors.Is(err, io.EOF) {
		t.Errorf("a holder that is back: %v, want its answer", err)
	}
}

// A holder that hangs takes nothing: whoever waits for it gets an error, in a time that is known.
func TestAHolderThatHangsIsNotWaitedFor(t *testing.T) {
	f := newFleet(t)
	l := listen(t) // which nobody accepts from
	defer l.Close()
	begun := time.Now()
	err := first(t.Context(), f.client(f.join("asking")), tolegacy.Holder{ID: "holder", Address: l.Addr().String()}, &outriggerv1.ResumeRequest{})
	var up *upstream.Error
	if took := time.Since(begun); err == nil || errors.As(err, &up) || took > 2*takeTime {
		t.Errorf("after %v: %v, want an error of the connection", took, err)
	}
}
