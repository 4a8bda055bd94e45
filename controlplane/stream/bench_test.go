package stream

import (
	"fmt"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/controlplane/compile"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

// wiredUp is a stream without a network, whose sidecar ACKs whatever comes.
type wiredUp struct {
	*stream
	mux    chan cache.DeltaResponse
	cancel [typeCount]func()
	nonce  int
}

func (w *wiredUp) request(tb testing.TB, req *discovery.DeltaDiscoveryRequest) {
	i := typeIndex(req.TypeUrl)
	err := w.OnStreamDeltaRequest(1, req)
	if cancel := w.cancel[i]; cancel != nil {
		cancel()
	}
	if err == nil {
		w.cancel[i], err = w.CreateDeltaWatch(req, nil, w.mux)
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// drain sends and ACKs what is queued.
func (w *wiredUp) drain(tb testing.TB) {
	for {
		select {
		case r := <-w.mux:
			m, _ := r.GetDeltaDiscoveryResponse()
			w.nonce++
			m.Nonce = fmt.Sprint(w.nonce)
			w.OnStreamDeltaResponse(1, r.GetDeltaRequest(), m)
			w.request(tb, &discovery.DeltaDiscoveryRequest{TypeUrl: m.TypeUrl, ResponseNonce: m.Nonce})
		default:
			return
		}
	}
}

// BenchmarkSharedChange is what one change of an upstream that every sidecar runs costs, without gRPC: views,
// differences, responses, ACKs and standings.
func BenchmarkSharedChange(b *testing.B) {
	for _, fleet := range []int{100, 2000} {
		b.Run(fmt.Sprintf("sidecars=%d", fleet), func(b *testing.B) {
			s := New(Options{Log: quietLog, Metrics: prometheus.NewRegistry()})
			defer s.Close()
			desired := func(rev int) *compile.Compiled {
				objs := []resource.Object{httpUpstream("u", fmt.Sprint("http://127.0.0.1/", rev))}
				for i := range 4 {
					objs = append(objs, bound(fmt.Sprint("b", i), "u", "demo"))
				}
				return compile.Compile(objs, int64(rev))
			}
			s.SetCompiled(desired(1))
			streams := make([]*wiredUp, fleet)
			for i := range streams {
				w := &wiredUp{
					stream: &stream{server: s, end: func(error) {}, silent: time.NewTimer(time.Hour)},
					mux:    make(chan cache.DeltaResponse, 20),
				}
				node := claim(fmt.Sprintf("n%05d", i), map[string]any{"app": "demo"})
				for _, url := range order {
					w.request(b, &discovery.DeltaDiscoveryRequest{TypeUrl: url, Node: node})
					node = (*core.Node)(nil)
				}
				w.drain(b)
				streams[i] = w
			}
			b.ReportAllocs()
			rev := 1
			for b.Loop() {
				rev++
				s.SetCompiled(desired(rev))
				for _, w := range streams {
					w.drain(b)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*fleet), "µs/sidecar")
		})
	}
}
