package config

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

func TestAConfigurationArrivesAndIsAcknowledgedType(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, target := newPlane(t), &fakeTarget{}
		p.put(up("u", "http://a"), bind("b", "/a", "u"))
		p.manifest("g1")
		s := startSidecar(t, p, target, "")
		wantEqual(t, "runs", target.runs(), []string{"Upstream/u=http://a", "Binding/b=/a"})
		for _, typeURL := range subscribed {
			if r := p.last(typeURL); r.ErrorDetail != nil {
				t.Errorf("%s: NACK %v, want an ACK", typeURL, r.ErrorDetail)
			}
		}
		st := s.Status()
		if st.Source != SourceControlPlane || st.Generation != "g1" || !st.Connected || len(st.Refused) > 0 {
			t.Errorf("status: %+v", st)
		}
		p.put(up("u", "http://b"))
		p.manifest("g2")
		p.push()
		wantEqual(t, "runs after a change", target.runs(), []string{"Upstream/u=http://b", "Binding/b=/a"})
	})
}

func TestNothingRunsBeforeTheManifestSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, target := newPlane(t), &fakeTarget{}
		p.put(up("u", "http://a"), bind("b", "/a", "u"))
		startSidecar(t, p, target, "")
		if target.count() != 0 {
			t.Errorf("applied without a manifest: %v", target.runs())
		}
		p.manifest("g1", up("late", "http://late"))
		p.push()
		if target.count() != 0 {
			t.Errorf("applied before everything arrived: %v", target.runs())
		}
		p.put(up("late", "http://late"))
		p.push()
		wantEqual(t, "runs", target.runs(), []string{"Upstream/late=http://late", "Upstream/u=http://a", "Binding/b=/a"})
		wantEqual(t, "refused", refusedBy(t, p.last(resource.ManifestTypeURL)), map[string]string{})
	})
}

// L41: A rejected configuration shows nowhere, or blocks everything after it.
func TestOneBadResourceAmong100ShowsAndBlocksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, target := newPlane(t), &fakeTarget{}
		p.put(up("u", "http://a"))
		for i := range 100 {
			p.put(bind(fmt.Sprintf("b%02d", i), fmt.Sprintf("/%02d", i), "u"))
		}
		p.manifest("g1")
		s := startSidecar(t, p, target, "")
		for i := range 100 {
			p.put(bind(fmt.Sprintf("b%02d", i), fmt.Sprintf("/%02d/new", i), "u"))
		}
		p.put(bind("b50", "no-slash", "u"))
		p.manifest("g2")
		p.push()
		runs := target.runs()
		for i := range 100 {
			want := fmt.Sprintf("Binding/b%02d=/%02d/new", i, i)
			if i == 50 {
				want = "Binding/b50=/50"
			}
			if runs[1+i] != want {
				t.Errorf("runs %s, want %s", runs[1+i], want)
			}
		}
		want := map[string]string{"Binding/b50": `spec.path: "no-slash", expected a path that begins with '/'`}
		for _, typeURL := range []string{bindingType, resource.ManifestTypeURL} {
			r := p.last(typeURL)
			wantEqual(t, "refused in "+typeURL, refusedBy(t, r), want)
			if r.GetErrorDetail().GetCode() != int32(codes.InvalidArgument) || !strings.Contains(r.GetErrorDetail().GetMessage(), "Binding/b50") {
				t.Errorf("NACK: %v", r.ErrorDetail)
			}
		}
		wantEqual(t, "status", s.Status().Refused, []Refusal{{"Binding", "b50", want["Binding/b50"]}})
		p.put(bind("b50", "/50/new", "u"))
		p.manifest("g3")
		p.push()
		wantEqual(t, "refused after the repair", refusedBy(t, p.last(resource.ManifestTypeURL)), map[string]string{})
		wantEqual(t, "runs after the repair", target.runs()[51], "Binding/b50=/50/new")
		wantEqual(t, "status after the repair", len(s.Status().Refused), 0)
	})
}

func TestWhatOnlyTheSidecarKnowsRefusesAResource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t)
		target := &fakeTarget{
			check: map[string]string{"Upstream/c": "no credential"}, apply: map[string]string{"Binding/b2": "port in use"},
		}
		p.put(up("u", "http://a"), up("c", "http://c"), bind("b1", "/1", "u"), bind("b2", "/2", "u"), bind("b3", "/3", "c"))
		p.manifest("g1")
		startSidecar(t, p, target, "")
		want := map[string]string{
			"Upstream/c": "no credential", "Binding/b2": "port in use",
			"Binding/b3": `spec.upstreams[0].name: its Upstream "c" was refused: no credential`,
		}
		wantEqual(t, "refused", refusedBy(t, p.last(resource.ManifestTypeURL)), want)
		wantEqual(t, "runs", target.runs(), []string{"Upstream/u=http://a", "Binding/b1=/1", "Binding/b2=/2"})
	})
}

func TestABindingWithoutItsUpstreamKeepsItsLastGoodFormWithWhatThatNeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, target := newPlane(t), &fakeTarget{}
		p.put(up("u", "http://a"), bind("b", "/1", "u"))
		p.manifest("g1")
		startSidecar(t, p, target, "")
		p.put(bind("b", "/2", "gone"))
		p.remove(up("u", ""))
		p.manifest("g2")
		p.push()
		wantEqual(t, "runs", target.runs(), []string{"Upstream/u=http://a", "Binding/b=/1"})
		wantEqual(t, "refused", refusedBy(t, p.last(resource.ManifestTypeURL)),
			map[string]string{"Binding/b": `spec.upstreams[0].name: no Upstream is named "gone"`})
		p.put(up("gone", "http://b"))
		p.manifest("g3")
		p.push()
		wantEqual(t, "runs when it came", target.runs(), []string{"Upstream/gone=http://b", "Binding/b=/2"})
		wantEqual(t, "refused when it came", refusedBy(t, p.last(resource.ManifestTypeURL)), map[string]string{})
	})
}

func TestAResourceThatNeverArrivesIsRefusedAndTheRestRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, target := newPlane(t), &fakeTarget{}
		p.put(up("u", "http://a"), bind("b", "/1", "u"))
		p.manifest("g1", bind("lost", "/lost", "u"))
		startSidecar(t, p, target, "")
		time.Sleep(absentAfter - time.Millisecond)
		synctest.Wait()
		if target.count() != 0 {
			t.Fatalf("applied too early: %v", target.runs())
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		wantEqual(t, "runs", target.runs(), []string{"Upstream/u=http://a", "Binding/b=/1"})
		wantEqual(t, "refused", refusedBy(t, p.last(resource.ManifestTypeURL)), map[string]string{"Binding/lost": "did not arrive within 15s"})
		p.put(bind("lost", "/lost", "u"))
		p.push()
		wantEqual(t, "runs when it came", target.runs(), []string{"Upstream/u=http://a", "Binding/b=/1", "Binding/lost=/lost"})
		wantEqual(t, "refused when it came", refusedBy(t, p.last(resource.ManifestTypeURL)), map[string]string{})
	})
}

func TestADamagedResourceIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, target := newPlane(t), &fakeTarget{}
		p.put(up("u", "http://a"), up("v", "http://v"), bind("b", "/1", "u"))
		p.view[upstreamType]["v"].Resource.Value[3]++
		p.manifest("g1")
		startSidecar(t, p, target, "")
		wantEqual(t, "refused", refusedBy(t, p.last(upstreamType)), map[string]string{"Upstream/v": "its bytes do not match its version"})
		wantEqual(t, "runs", target.runs(), []string{"Upstream/u=http://a", "Binding/b=/1"})
	})
}

func TestAForeignManifestIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, target := newPlane(t), &fakeTarget{}
		p.view[resource.ManifestTypeURL][node] = wired(&outriggerv1.Manifest{Name: "other", Generation: "g"}, node)
		s := startSidecar(t, p, target, "")
		wantEqual(t, "refused", refusedBy(t, p.last(resource.ManifestTypeURL)), map[string]string{"Manifest/" + node: `it is the manifest of "other"`})
		p.manifest("g1")
		p.push()
		wantEqual(t, "status after a good one", s.Status().Refused, []Refusal(nil))
		wantEqual(t, "generation", s.Status().Generation, "g1")
	})
}

func TestRemovedResourcesStopWhenTheManifestSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, target := newPlane(t), &fakeTarget{}
		p.put(up("u", "http://a"), bind("b", "/1", "u"), bind("c", "/2", "u"))
		p.manifest("g1")
		startSidecar(t, p, target, "")
		p.remove(bind("c", "", ""))
		p.push(bindingType)
		wantEqual(t, "applied without a manifest", target.count(), 1)
		p.manifest("g2")
		p.push()
		wantEqual(t, "runs", target.runs(), []string{"Upstream/u=http://a", "Binding/b=/1"})
	})
}

func TestAReconnectTransfersOnlyWhatChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, target := newPlane(t), &fakeTarget{}
		p.put(up("u", "http://a"), bind("b", "/1", "u"), bind("c", "/2", "u"))
		p.manifest("g1")
		s := startSidecar(t, p, target, "")
		p.taken()
		p.stop()
		synctest.Wait()
		if st := s.Status(); st.Connected || st.Generation != "g1" {
			t.Errorf("status while the control plane is away: %+v", st)
		}
		p.start()
		time.Sleep(time.Minute)
		synctest.Wait()
		wantEqual(t, "sent after a restart", p.taken(), []string{})
		wantEqual(t, "applied", target.count(), 1)
		if !s.Status().Connected {
			t.Error("not connected again")
		}
		p.stop()
		p.put(bind("c", "/3", "u"))
		p.remove(bind("b", "", ""))
		p.manifest("g2")
		p.start()
		time.Sleep(time.Minute)
		synctest.Wait()
		wantEqual(t, "sent after a change while away", p.taken(), []string{"Binding/c", "Manifest/" + node})
		wantEqual(t, "runs", target.runs(), []string{"Upstream/u=http://a", "Binding/c=/3"})
	})
}

func TestWhatTheTargetRefusedIsTriedAgainOnAReconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, target := newPlane(t), &fakeTarget{apply: map[string]string{"Binding/b": "busy"}}
		p.put(up("u", "http://a"), bind("b", "/1", "u"))
		p.manifest("g1")
		startSidecar(t, p, target, "")
		wantEqual(t, "refused", refusedBy(t, p.last(resource.ManifestTypeURL)), map[string]string{"Binding/b": "busy"})
		target.mu.Lock()
		target.apply = nil
		target.mu.Unlock()
		p.stop()
		p.taken()
		p.start()
		time.Sleep(time.Minute)
		synctest.Wait()
		wantEqual(t, "sent", p.taken(), []string{"Binding/b", "Manifest/" + node})
		wantEqual(t, "refused after a reconnect", refusedBy(t, p.last(resource.ManifestTypeURL)), map[string]string{})
	})
}

func TestASidecarOnceConfiguredStartsWithTheControlPlaneAway(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p, target := newPlane(t), &fakeTarget{}
		p.put(up("u", "http://a"), bind("b", "/1", "u"))
		p.manifest("g1")
		startSidecar(t, p, target, dir).stop()
		p.stop()
		time.Sleep(time.Hour)

		again := &fakeTarget{}
		s := startSidecar(t, p, again, dir)
		wantEqual(t, "runs from disk", again.runs(), []string{"Upstream/u=http://a", "Binding/b=/1"})
		st := s.Status()
		if st.Source != SourceDisk || st.Generation != "g1" || time.Since(st.Confirmed) < time.Hour {
			t.Errorf("status: %+v at %v", st, time.Now())
		}
		p.taken()
		p.start()
		time.Sleep(time.Minute)
		synctest.Wait()
		wantEqual(t, "sent when it came back", p.taken(), []string{})
		if st := s.Status(); st.Source != SourceControlPlane || !st.Connected || time.Since(st.Confirmed) > 0 {
			t.Errorf("status when it came back: %+v", st)
		}
		wantEqual(t, "applied", again.count(), 1)
	})
}

func TestWhatIsOnDiskRunsBeforeAnythingElseIsTried(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t)
		p.put(up("u", "http://a"), bind("b", "/1", "u"))
		p.manifest("g1")
		first := startSidecar(t, p, &fakeTarget{}, dir)
		first.stop()

		target, o := &fakeTarget{}, first.o
		o.Target, o.Reg = target, nil
		x, err := NewXDS(o)
		if err != nil {
			t.Fatal(err)
		}
		x.Restore()
		x.Restore() // does nothing
		wantEqual(t, "runs", target.runs(), []string{"Upstream/u=http://a", "Binding/b=/1"})
		wantEqual(t, "applied", target.count(), 1)
		if st := x.Status(); st.Source != SourceDisk || st.Generation != "g1" {
			t.Errorf("status: %+v", st)
		}
	})
}

func TestWhatIsOnDiskOfAnotherSidecarIsNotRun(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t)
		p.put(up("u", "http://a"), bind("b", "/1", "u"))
		p.manifest("g1")
		first := startSidecar(t, p, &fakeTarget{}, dir)
		first.stop()

		target, o := &fakeTarget{}, first.o
		o.Target, o.Reg, o.NodeID = target, nil, "another"
		x, err := NewXDS(o)
		if err != nil {
			t.Fatal(err)
		}
		x.Restore()
		if target.count() != 0 || x.Status().Generation != "" {
			t.Errorf("%q runs what was saved by %q: %v", o.NodeID, node, target.runs())
		}
	})
}

// rivalry is a control plane at which each stream ends the one before.
type rivalry struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer

	mu      sync.Mutex // guards below
	streams int
	replace chan struct{}
}

func (r *rivalry) DeltaAggregatedResources(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	r.mu.Lock()
	if r.replace != nil {
		close(r.replace)
	}
	replaced := make(chan struct{})
	r.replace = replaced
	r.streams++
	r.mu.Unlock()
	if err := s.Send(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: upstreamType, Nonce: "1"}); err != nil {
		return err
	}
	select {
	case <-replaced:
		return status.Error(codes.Aborted, "another stream of the same node id has taken over")
	case <-s.Context().Done():
		return s.Context().Err()
	}
}

func TestTwoSidecarsOfOneNodeIDSlowDownAndSaySo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, l, server := &rivalry{}, bufconn.Listen(1<<20), grpc.NewServer()
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, r)
		go func() { _ = server.Serve(l) }()
		defer server.Stop()
		var log strings.Builder // of one of them; read when it has stopped
		ctx, cancel := context.WithCancel(t.Context())
		var wait sync.WaitGroup
		for _, logger := range []*slog.Logger{slog.New(slog.NewTextHandler(&log, nil)), slog.New(slog.DiscardHandler)} {
			x, err := NewXDS(XDSOptions{Addresses: []string{"127.0.0.1:1"}, NodeID: node, Target: &fakeTarget{}, Log: logger,
				Credentials: func() credentials.TransportCredentials { return insecure.NewCredentials() }})
			if err != nil {
				t.Fatal(err)
			}
			x.dial = []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) })}
			wait.Go(func() { _ = x.Run(ctx) })
		}
		time.Sleep(10 * time.Minute)
		cancel()
		wait.Wait()
		if r.streams < 3 || r.streams > 150 {
			t.Errorf("%d streams in ten minutes, want some, and no more than one in four seconds", r.streams)
		}
		if !strings.Contains(log.String(), `level=ERROR msg="another sidecar has connected with this node id`) {
			t.Errorf("the log does not say why:\n%s", log.String())
		}
	})
}

func TestStatusAsJSON(t *testing.T) {
	b := board{status: Status{Source: SourceNone, Since: time.Unix(1, 0)}}
	check := func(want string) {
		t.Helper()
		if got, err := json.Marshal(b.read()); err != nil || string(got) != want {
			t.Errorf("got  %s (%v)\nwant %s", got, err, want)
		}
	}
	check(`{"source":"none","generation":"","connected":false,"since":"1970-01-01T00:00:01Z","refused":[]}`)
	b.status = Status{Source: SourceFile, Generation: "g", Confirmed: time.Unix(2, 0), Since: time.Unix(1, 0), Refused: []Refusal{{Kind: "File", Reason: "r"}}}
	check(`{"source":"file","generation":"g","confirmed":"1970-01-01T00:00:02Z","connected":false,"since":"1970-01-01T00:00:01Z","refused":[{"kind":"File","reason":"r"}]}`)
}

func TestTheConfigurationHasNoAgeWhileConnected(t *testing.T) {
	past := time.Now().Add(-time.Minute)
	for _, tt := range []struct {
		s    Status
		want func(float64) bool
	}{
		{Status{Source: SourceNone}, func(age float64) bool { return age == -1 }},
		{Status{Source: SourceControlPlane, Connected: true, Confirmed: past}, func(age float64) bool { return age == 0 }},
		{Status{Source: SourceControlPlane, Confirmed: past}, func(age float64) bool { return age >= 60 }},
		{Status{Source: SourceDisk, Connected: true, Confirmed: past}, func(age float64) bool { return age >= 60 }},
	} {
		if got := tt.s.age(); !tt.want(got) {
			t.Errorf("%+v: age %v", tt.s, got)
		}
	}
}

func TestACorruptFileFallsBackToTheGenerationBefore(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p, target := newPlane(t), &fakeTarget{}
		p.put(up("u", "http://a"))
		s := startSidecar(t, p, target, dir)
		for i := 1; i <= 5; i++ {
			time.Sleep(time.Second)
			p.put(bind("b", fmt.Sprintf("/%d", i), "u"))
			p.manifest(fmt.Sprintf("g%d", i))
			p.push()
			at := time.Now() // the file system's clock is not this one
			if err := os.Chtimes(filepath.Join(dir, fmt.Sprintf("g%d.pb", i)), at, at); err != nil {
				t.Fatal(err)
			}
		}
		s.stop()
		p.stop()
		files, _ := filepath.Glob(filepath.Join(dir, "*.pb"))
		if len(files) != keepSaved {
			t.Errorf("kept %v, want %d", files, keepSaved)
		}
		damage(t, filepath.Join(dir, "g5.pb"))
		target = &fakeTarget{}
		startSidecar(t, p, target, dir).stop()
		wantEqual(t, "runs", target.runs(), []string{"Upstream/u=http://a", "Binding/b=/4"})
		damage(t, filepath.Join(dir, "g4.pb"))
		damage(t, filepath.Join(dir, "g3.pb"))
		target = &fakeTarget{}
		st := startSidecar(t, p, target, dir)
		wantEqual(t, "applied with nothing whole", target.count(), 0)
		wantEqual(t, "source", st.Status().Source, SourceNone)
	})
}

func damage(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 0x40
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestMetricsShowTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, target := newPlane(t), &fakeTarget{}
		p.put(up("u", "http://a"), bind("b", "no-slash", "u"))
		p.manifest("g1")
		s := startSidecar(t, p, target, "")
		reg := s.o.Reg.(*prometheus.Registry)
		check := func(want string) {
			t.Helper()
			if got := gathered(t, reg); got != want {
				t.Errorf("metrics\n got %s\nwant %s", got, want)
			}
		}
		check("age=0 connected=1 refused=1")
		p.stop()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		check("age=10 connected=0 refused=1")
	})
}

func gathered(t *testing.T, reg *prometheus.Registry) string {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		if g := f.Metric[0].GetGauge(); g != nil {
			values[f.GetName()] = g.GetValue()
		}
	}
	return fmt.Sprintf("age=%v connected=%v refused=%v", values["outrigger_xds_config_age_seconds"],
		values["outrigger_xds_connected"], values["outrigger_xds_refused_resources"])
}

func TestOnlyARefusalToAdmitAsksForAnotherIdentity(t *testing.T) {
	told := 0
	x := &XDS{o: XDSOptions{Log: slog.New(slog.DiscardHandler), NotAdmitted: func() { told++ }}}
	for code, want := range map[codes.Code]int{
		codes.PermissionDenied: 1, codes.Unavailable: 0, codes.Unauthenticated: 0, codes.Aborted: 0,
	} {
		told = 0
		x.logLost("a:1", status.Error(code, "no"), 0)
		wantEqual(t, code.String(), told, want)
	}
}
