package stream

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/http2"
	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/outrigger-mesh/outrigger/controlplane/compile"
)

// strangers runs f in a bubble with a Server that takes at most so many connections, and a dialer to it.
func strangers(t *testing.T, most int, f func(t *testing.T, dial func() net.Conn)) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{Log: quietLog, Metrics: prometheus.NewRegistry()})
		s.SetCompiled(compile.Compile(nil, 1))
		l := bufconn.Listen(1 << 16)
		g := grpc.NewServer(GRPCOptions()...)
		discovery.RegisterAggregatedDiscoveryServiceServer(g, s)
		go g.Serve(netutil.LimitListener(l, most))
		f(t, func() net.Conn {
			conn, err := l.DialContext(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return conn
		})
		g.Stop()
		s.Close()
	})
}

// wantClosedAfter reads until the other side closes, and checks how long that took.
func wantClosedAfter(t *testing.T, conn net.Conn, want time.Duration) {
	t.Helper()
	start := time.Now()
	conn.SetReadDeadline(start.Add(time.Hour))
	_, err := io.Copy(io.Discard, conn)
	if took := time.Since(start); err != nil || took < want || took > want+time.Minute {
		t.Errorf("closed after %v (%v), want %v", took, err, want)
	}
	conn.Close()
}

func TestAConnectionThatSaysNothingIsClosed(t *testing.T) {
	strangers(t, 1, func(t *testing.T, dial func() net.Conn) { wantClosedAfter(t, dial(), connectTimeout) })
}

func TestAConnectionWithoutAStreamIsClosed(t *testing.T) {
	strangers(t, 1, func(t *testing.T, dial func() net.Conn) {
		conn := dial()
		if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
			t.Fatal(err)
		}
		if err := http2.NewFramer(conn, conn).WriteSettings(); err != nil {
			t.Fatal(err)
		}
		wantClosedAfter(t, conn, maxConnectionIdle)
	})
}

func TestASidecarWaitsWhileStrangersHoldEveryConnection(t *testing.T) {
	strangers(t, 2, func(t *testing.T, dial func() net.Conn) {
		held := []net.Conn{dial(), dial()}
		start := time.Now()
		conn, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Hour}),
			grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return dial(), nil }))
		if err != nil {
			t.Fatal(err)
		}
		s := connect(t, conn, nil).subscribe(claim("n", nil))
		s.settle()
		if took := time.Since(start); took != connectTimeout {
			t.Errorf("served after %v, want %v", took, connectTimeout)
		}
		conn.Close()
		for _, c := range held {
			c.Close()
		}
	})
}
