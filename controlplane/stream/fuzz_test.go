package stream

import (
	"testing"
	"time"
	"unicode/utf8"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/outrigger-mesh/outrigger/controlplane/compile"
)

// FuzzRequests sends a stranger's two requests on a stream in plaintext mode: whatever they are, they are refused or
// leave a sidecar that can be listed, and never block what comes after.
func FuzzRequests(f *testing.F) {
	c := &conversation{}
	for _, req := range []*discovery.DeltaDiscoveryRequest{
		{Node: claim("node", map[string]any{"app": "demo"}), TypeUrl: order[1], ResourceNamesSubscribe: []string{"*"}},
		{TypeUrl: order[3], InitialResourceVersions: map[string]string{"node": "v1", "x": ""}},
		{TypeUrl: order[1], ResponseNonce: "1"},
		{TypeUrl: order[1], ResponseNonce: "1", ErrorDetail: c.refusal(`"no"`, []string{"u", "b"})},
	} {
		b, err := proto.Marshal(req)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, b)
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		s := New(Options{Log: quietLog, Metrics: prometheus.NewRegistry()})
		defer s.Close()
		s.SetCompiled(compile.Compile(objects([]string{"u=1", "b=1:u"}), 1))
		w := &wiredUp{
			stream: &stream{server: s, end: func(error) {}, silent: time.NewTimer(time.Hour)},
			mux:    make(chan cache.DeltaResponse, 20),
		}
		for _, b := range [][]byte{first, second} {
			req := &discovery.DeltaDiscoveryRequest{}
			if proto.Unmarshal(b, req) != nil || req.TypeUrl == "" || w.OnStreamDeltaRequest(1, req) != nil {
				return
			}
			if i := typeIndex(req.TypeUrl); i >= 0 {
				cancel, err := w.CreateDeltaWatch(req, nil, w.mux)
				if err != nil {
					t.Fatal(err)
				}
				w.cancel[i] = cancel
				w.drain(t)
			}
		}
		s.SetCompiled(compile.Compile(objects([]string{"u=2", "b=1:u"}), 2))
		w.drain(t)
		for _, sc := range s.Sidecars() {
			for _, r := range sc.Resources {
				if !utf8.ValidString(r.Reason) || len(r.Reason) > maxReason {
					t.Errorf("reason %q", r.Reason)
				}
			}
			if _, err := proto.Marshal(sc); err != nil {
				t.Errorf("cannot be listed: %v", err)
			}
		}
	})
}
