package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/outrigger-mesh/outrigger/controlplane/store"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/outrigger/v1/outriggerv1connect"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fleet runs every resource on one sidecar.
type fleet struct{}

func (fleet) Status(kind, name string) *outriggerv1.Status {
	state := &outriggerv1.SidecarResourceState{Sidecar: "s1", State: outriggerv1.State_STATE_REFUSED, Reason: "no such file"}
	return &outriggerv1.Status{Refused: 1, Sidecars: []*outriggerv1.SidecarResourceState{state}}
}

func (fleet) Revision() int64 { return math.MaxInt64 }

func (fleet) Revoke(string) {}

func (fleet) Sidecars() []*outriggerv1.Sidecar { return []*outriggerv1.Sidecar{{Id: "s1"}} }

// authority writes its arguments into the token.
type authority struct{}

func (authority) Create(_ context.Context, labels map[string]string, ttl time.Duration, uses int32) (string, time.Time, error) {
	return fmt.Sprintf("%v %v %d", labels, ttl, uses), time.Unix(1e9, 0), nil
}

func (authority) Pepper(context.Context) ([]byte, error) { return []byte("pepper"), nil }

// Revoke knows one sidecar.
func (authority) Revoke(_ context.Context, nodeID string) (bool, error) { return nodeID == "s1", nil }

const secret = "a-secret-token"

// server is an API over a real store on a real listener.
type server struct {
	api   *API
	store *store.Store
	url   string
}

func start(t *testing.T) *server {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return serve(t, s)
}

// serve starts a replica over a store.
func serve(t *testing.T, s *store.Store) *server {
	t.Helper()
	a, err := New(s, fleet{}, authority{}, Options{Token: secret, Origins: []string{"https://console.example"}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := a.Server("")
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := srv.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve: %v", err)
		}
	})
	return &server{api: a, store: s, url: "http://" + l.Addr().String()}
}

// authorized adds the token to requests.
type authorized struct{ http.RoundTripper }

func (a authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+secret)
	return a.RoundTripper.RoundTrip(r)
}

// transport is a fresh one, over HTTP/1.1 or HTTP/2 without TLS.
func transport(t *testing.T, http2 bool) *http.Transport {
	p := new(http.Protocols)
	p.SetHTTP1(!http2)
	p.SetUnencryptedHTTP2(http2)
	tr := &http.Transport{Protocols: p}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

func (s *server) client(t *testing.T, opts ...connect.ClientOption) outriggerv1connect.ResourceServiceClient {
	return outriggerv1connect.NewResourceServiceClient(&http.Client{Transport: authorized{transport(t, true)}}, s.url, opts...)
}

// parse reads resources as their authors write them.
func parse(t *testing.T, text string) []*outriggerv1.Resource {
	t.Helper()
	resources, errs := resource.Parse("test", []byte(text))
	if len(errs) > 0 {
		t.Fatalf("parse: %v\n%s", errs, text)
	}
	return resources
}

const (
	upstream = `
kind: Upstream
name: weather
labels: {team: sky}
spec: {http: {url: "http://127.0.0.1:1/mcp"}, timeouts: {call: 90s}}
`
	binding = `
kind: Binding
name: demo
spec: {selector: {matchLabels: {app: weather}}, upstreams: [{name: weather}]}
`
)

func apply(t *testing.T, c outriggerv1connect.ResourceServiceClient, text string) []*outriggerv1.Resource {
	t.Helper()
	res, err := c.Apply(t.Context(), &outriggerv1.ApplyRequest{Resources: parse(t, text)})
	if err != nil {
		t.Fatalf("Apply: %v\n%s", err, text)
	}
	return res.Resources
}

func wantCode(t *testing.T, what string, err error, want connect.Code) {
	t.Helper()
	if err == nil || connect.CodeOf(err) != want {
		t.Errorf("%s: %v; want %v", what, err, want)
	}
}

// violations are the details of an error, each as "path: message".
func violations(t *testing.T, err error) []string {
	t.Helper()
	var failed *connect.Error
	if !errors.As(err, &failed) {
		t.Fatalf("%v is no connect error", err)
	}
	var lines []string
	for _, d := range failed.Details() {
		m, err := d.Value()
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range m.(*outriggerv1.FieldViolations).Violations {
			lines = append(lines, v.Path+": "+v.Message)
		}
	}
	return lines
}

// lagging has yet to hear of what was stored after its revision.
type lagging struct {
	fleet
	revision int64
}

func (l lagging) Revision() int64 { return l.revision }

func TestAStatusOfAnEarlierRevisionIsBehind(t *testing.T) {
	for revision, want := range map[int64]*outriggerv1.Status{7: {Behind: 1}, 8: {Refused: 1}, 9: {Refused: 1}} {
		a := &API{fleet: lagging{revision: revision}}
		got := a.status(&outriggerv1.Resource{Kind: "Binding", Name: "demo", Revision: 8})
		if !proto.Equal(counts(got), want) || len(got.Sidecars) != 1 {
			t.Errorf("revision 8, heard of %d: %v, want %v with its sidecar", revision, got, want)
		}
	}
}

func TestAppliedResourcesAreReadWithTheirStatus(t *testing.T) {
	s := start(t)
	for name, opts := range map[string][]connect.ClientOption{
		"connect":  nil,
		"json":     {connect.WithProtoJSON()},
		"grpc":     {connect.WithGRPC()},
		"grpc-web": {connect.WithGRPCWeb()},
		"get":      {connect.WithHTTPGet()},
	} {
		t.Run(name, func(t *testing.T) {
			c := s.client(t, opts...)
			applied := apply(t, c, upstream+"---"+binding)
			got, err := c.Get(t.Context(), &outriggerv1.GetRequest{Kind: "Upstream", Name: "weather"})
			if err != nil {
				t.Fatal(err)
			}
			r := got.Resource
			if r.Revision == 0 || r.Revision != applied[0].Revision || r.Labels["team"] != "sky" || r.Status.GetSidecars()[0].Reason != "no such file" {
				t.Errorf("Get = %v; want revision %d, the label and the status", r, applied[0].Revision)
			}
			if call := r.Spec.Fields["timeouts"].GetStructValue().Fields["call"].GetStringValue(); call != "1m30s" {
				t.Errorf("timeouts.call = %q, want the canonical 1m30s", call)
			}
			list, err := c.List(t.Context(), &outriggerv1.ListRequest{MatchLabels: map[string]string{"team": "sky"}})
			if err != nil || len(list.Resources) != 1 || list.Resources[0].Status.GetRefused() != 1 || list.Revision < r.Revision {
				t.Errorf("List = %v, %v; want the labelled upstream, with counts", list, err)
			}
			sidecars, err := c.ListSidecars(t.Context(), &outriggerv1.ListSidecarsRequest{})
			if err != nil || len(sidecars.Sidecars) != 1 {
				t.Errorf("ListSidecars = %v, %v; want s1", sidecars, err)
			}
		})
	}
}

func TestEveryMistakeIsReportedAtOnceAndNothingIsStored(t *testing.T) {
	s := start(t)
	c := s.client(t, connect.WithGRPC())
	_, err := c.Apply(t.Context(), &outriggerv1.ApplyRequest{Resources: parse(t, `
kind: Upstream
name: good
spec: {http: {url: "http://127.0.0.1:1/mcp"}}
---
kind: Upstream
name: bad
spec: {http: {url: "ftp://x"}, colour: red}
---
kind: Binding
name: lost
spec: {selector: {}, upstreams: [{name: nothing}]}
---
kind: Bindung
name: x
`)})
	wantCode(t, "Apply", err, connect.CodeInvalidArgument)
	got := violations(t, err)
	for _, want := range []string{
		"resources[1].spec.colour: ",
		"resources[2].spec.upstreams[0].name: ",
		"resources[3].kind: ",
	} {
		if !slices.ContainsFunc(got, func(line string) bool { return strings.HasPrefix(line, want) }) {
			t.Errorf("no violation at %s in:\n%s", want, strings.Join(got, "\n"))
		}
	}
	_, err = c.Get(t.Context(), &outriggerv1.GetRequest{Kind: "Upstream", Name: "good"})
	wantCode(t, "Get of the good one", err, connect.CodeNotFound)
}

func TestAnApplyIsCheckedAgainstWhatIsStored(t *testing.T) {
	c := start(t).client(t)
	apply(t, c, upstream+"---"+binding)
	_, err := c.Apply(t.Context(), &outriggerv1.ApplyRequest{Resources: parse(t, strings.Replace(binding, "demo", "other", 1))})
	wantCode(t, "Apply of a second binding at the path", err, connect.CodeInvalidArgument)
	if got := violations(t, err); len(got) != 1 || !strings.HasPrefix(got[0], "resources[0].spec.path: ") || !strings.Contains(got[0], "Binding/demo") {
		t.Errorf("violations %q; want resources[0].spec.path naming Binding/demo", got)
	}
}

func TestAnApplyThatChangesNothingWritesNothing(t *testing.T) {
	s := start(t)
	c := s.client(t)
	first := apply(t, c, upstream+"---"+binding)
	_, before, _ := s.store.List(t.Context(), "")
	again := apply(t, c, strings.Replace(upstream, "90s", "1m30s", 1)+"---"+binding)
	_, after, _ := s.store.List(t.Context(), "")
	if before != after || !proto.Equal(first[0], again[0]) || !proto.Equal(first[1], again[1]) {
		t.Errorf("store revision %d then %d, resources %v then %v; want no change", before, after, first, again)
	}
	changed := apply(t, c, strings.Replace(upstream, "90s", "91s", 1)+"---"+binding)
	if changed[0].Revision <= first[0].Revision || changed[1].Revision != first[1].Revision {
		t.Errorf("revisions %d and %d after %d; want a new one for the changed resource only",
			changed[0].Revision, changed[1].Revision, first[0].Revision)
	}
}

func TestAStaleRevisionIsAborted(t *testing.T) {
	s := start(t)
	c := s.client(t)
	revision := apply(t, c, upstream)[0].Revision
	change := parse(t, strings.Replace(upstream, "90s", "91s", 1))
	change[0].Revision = revision + 1
	_, err := c.Apply(t.Context(), &outriggerv1.ApplyRequest{Resources: change})
	wantCode(t, "Apply with another revision", err, connect.CodeAborted)
	change[0].Revision = revision
	if _, err := c.Apply(t.Context(), &outriggerv1.ApplyRequest{Resources: change}); err != nil {
		t.Errorf("Apply with the stored revision: %v", err)
	}
	_, err = c.Delete(t.Context(), &outriggerv1.DeleteRequest{Kind: "Upstream", Name: "weather", Revision: revision})
	wantCode(t, "Delete with the old revision", err, connect.CodeAborted)
	if status, body := s.post(t, "Delete", fmt.Sprintf(`{"kind":"Upstream","name":"weather","revision":"%d"}`, revision)); status != http.StatusConflict {
		t.Errorf("JSON Delete with the old revision: %d %s; want 409", status, body)
	}
}

func TestADryRunStoresNothing(t *testing.T) {
	c := start(t).client(t)
	res, err := c.Apply(t.Context(), &outriggerv1.ApplyRequest{DryRun: true, Resources: parse(t, upstream)})
	if err != nil || len(res.Resources) != 1 || res.Resources[0].Revision != 0 {
		t.Errorf("dry run = %v, %v; want the resource without revision", res, err)
	}
	_, err = c.Get(t.Context(), &outriggerv1.GetRequest{Kind: "Upstream", Name: "weather"})
	wantCode(t, "Get", err, connect.CodeNotFound)
	_, err = c.Apply(t.Context(), &outriggerv1.ApplyRequest{DryRun: true, Resources: parse(t, binding)})
	wantCode(t, "dry run of an invalid set", err, connect.CodeInvalidArgument)
}

func TestWhatIsNamedCannotBeDeleted(t *testing.T) {
	c := start(t).client(t)
	apply(t, c, upstream+"---"+binding)
	remove := func(kind, name string) error {
		_, err := c.Delete(t.Context(), &outriggerv1.DeleteRequest{Kind: kind, Name: name})
		return err
	}
	err := remove("Upstream", "weather")
	wantCode(t, "Delete while named", err, connect.CodeFailedPrecondition)
	if !strings.Contains(err.Error(), "Binding/demo (spec.upstreams[0].name)") {
		t.Errorf("%v; want who names it", err)
	}
	if err := remove("Binding", "demo"); err != nil {
		t.Error(err)
	}
	if err := remove("Upstream", "weather"); err != nil {
		t.Error(err)
	}
	wantCode(t, "Delete again", remove("Upstream", "weather"), connect.CodeNotFound)
	wantCode(t, "Delete of no kind", remove("Thing", "weather"), connect.CodeInvalidArgument)
}

// TestReplicasKeepTheWholeValid has two replicas over one store: one deletes an upstream, the other binds it.
// Whatever their order, no binding may be left that names nothing.
func TestReplicasKeepTheWholeValid(t *testing.T) {
	one := start(t)
	a, b := one.client(t), serve(t, one.store).client(t)
	for round := range 20 {
		apply(t, a, upstream)
		var wg sync.WaitGroup
		var deleted, bound error
		wg.Go(func() {
			_, deleted = a.Delete(t.Context(), &outriggerv1.DeleteRequest{Kind: "Upstream", Name: "weather"})
		})
		wg.Go(func() {
			_, bound = b.Apply(t.Context(), &outriggerv1.ApplyRequest{Resources: parse(t, binding)})
		})
		wg.Wait()
		if (deleted == nil) == (bound == nil) {
			t.Fatalf("round %d: Delete %v, Apply %v; want exactly one of them refused", round, deleted, bound)
		}
		if bound == nil {
			if _, err := b.Delete(t.Context(), &outriggerv1.DeleteRequest{Kind: "Binding", Name: "demo"}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestManyWritersOfOtherResourcesAllSucceed(t *testing.T) {
	one := start(t)
	clients := []outriggerv1connect.ResourceServiceClient{one.client(t), serve(t, one.store).client(t)}
	var wg sync.WaitGroup
	errs := make([]error, 16)
	for i := range errs {
		resources := parse(t, strings.Replace(upstream, "weather", fmt.Sprint("u", i), 1))
		wg.Go(func() {
			_, errs[i] = clients[i%2].Apply(t.Context(), &outriggerv1.ApplyRequest{Resources: resources})
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

func TestAMistakeThatWasStoredBlocksNobodyElse(t *testing.T) {
	s := start(t)
	lost := parse(t, strings.Replace(binding, "demo", "lost", 1))[0]
	value, err := store.EncodeResource(lost)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.store.Apply(t.Context(), []store.Write{{Key: store.ResourceKey("Binding", "lost"), Value: value}}); err != nil {
		t.Fatal(err)
	}
	c := s.client(t)
	apply(t, c, strings.Replace(upstream, "weather", "other", 1))
	_, err = c.Apply(t.Context(), &outriggerv1.ApplyRequest{Resources: []*outriggerv1.Resource{lost}})
	wantCode(t, "Apply of the mistaken resource", err, connect.CodeInvalidArgument)
}

func TestPagesHoldEverythingOnce(t *testing.T) {
	c := start(t).client(t)
	var want []string
	var text strings.Builder
	for i := range 7 {
		name := fmt.Sprint("u", i)
		want = append(want, name)
		text.WriteString(strings.Replace(upstream, "weather", name, 1) + "---\n")
	}
	revision := apply(t, c, text.String())[0].Revision
	var got []string
	req := &outriggerv1.ListRequest{Kind: "Upstream", PageSize: 3}
	for page := 0; ; page++ {
		res, err := c.List(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range res.Resources {
			got = append(got, r.Name)
		}
		if res.Revision != revision {
			t.Errorf("page %d at revision %d, want the first page's %d", page, res.Revision, revision)
		}
		if req.PageToken = res.NextPageToken; req.PageToken == "" {
			break
		}
		apply(t, c, strings.Replace(upstream, "weather", fmt.Sprint("a", page), 1)) // before the next page: not in any
	}
	if !slices.Equal(got, want) {
		t.Errorf("pages hold %v, want %v", got, want)
	}
	_, err := c.List(t.Context(), &outriggerv1.ListRequest{PageToken: "bogus"})
	wantCode(t, "List with a bogus token", err, connect.CodeInvalidArgument)
}

// receive takes one change from a Watch within a deadline.
func receive(t *testing.T, stream *connect.ServerStreamForClient[outriggerv1.WatchResponse]) string {
	t.Helper()
	timer := time.AfterFunc(10*time.Second, func() { stream.Close() })
	defer timer.Stop()
	if !stream.Receive() {
		t.Fatalf("Watch ended: %v", stream.Err())
	}
	r := stream.Msg().Resource
	return fmt.Sprintf("%v %s/%s %d", stream.Msg().Change, r.Kind, r.Name, r.Revision)
}

func TestAWatchStartsWithWhatThereIsAndGoesOn(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		s := start(t)
		c := outriggerv1connect.NewResourceServiceClient(&http.Client{Transport: authorized{transport(t, http2)}}, s.url)
		revision := apply(t, c, upstream)[0].Revision
		stream, err := c.Watch(t.Context(), &outriggerv1.WatchRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := receive(t, stream), fmt.Sprintf("CHANGE_PUT Upstream/weather %d", revision); got != want {
			t.Errorf("first %q, want %q", got, want)
		}
		revision = apply(t, c, binding)[0].Revision
		if got, want := receive(t, stream), fmt.Sprintf("CHANGE_PUT Binding/demo %d", revision); got != want {
			t.Errorf("then %q, want %q", got, want)
		}
		if _, err := c.Delete(t.Context(), &outriggerv1.DeleteRequest{Kind: "Binding", Name: "demo"}); err != nil {
			t.Fatal(err)
		}
		if got, want := receive(t, stream), fmt.Sprintf("CHANGE_DELETED Binding/demo %d", revision+1); got != want {
			t.Errorf("last %q, want %q", got, want)
		}
		stream.Close()

		only, err := c.Watch(t.Context(), &outriggerv1.WatchRequest{Kind: "Binding", FromRevision: revision})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := receive(t, only), fmt.Sprintf("CHANGE_DELETED Binding/demo %d", revision+1); got != want {
			t.Errorf("from a revision %q, want %q", got, want)
		}
		only.Close()
	}
}

func TestAWatchEndsWhenTheServerStops(t *testing.T) {
	s := start(t)
	stream, err := s.client(t).Watch(t.Context(), &outriggerv1.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	s.api.Stop()
	timer := time.AfterFunc(10*time.Second, func() { stream.Close() })
	defer timer.Stop()
	if stream.Receive() {
		t.Errorf("received %v, want the end", stream.Msg())
	}
	wantCode(t, "Watch", stream.Err(), connect.CodeUnavailable)
}

// TestClientsThatLeaveTogetherDisturbNobody has each on its own connection, which it just closes.
func TestClientsThatLeaveTogetherDisturbNobody(t *testing.T) {
	s := start(t)
	c := s.client(t)
	stays, err := c.Watch(t.Context(), &outriggerv1.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	defer stays.Close()
	leave := openWatches(t, s, 200)
	leave()
	apply(t, c, upstream)
	if got, want := receive(t, stays), "CHANGE_PUT Upstream/weather "; !strings.HasPrefix(got, want) {
		t.Errorf("received %q, want %q", got, want)
	}
	for deadline := time.Now().Add(10 * time.Second); len(s.api.watching) > 1; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d watches are served, want 1", len(s.api.watching))
		}
	}
}

// openWatches starts n Watches over HTTP/1.1. Its result closes their connections.
func openWatches(t *testing.T, s *server, n int) (leave func()) {
	t.Helper()
	var connections []net.Conn
	leave = func() {
		for _, c := range connections {
			c.Close()
		}
	}
	t.Cleanup(leave)
	for range n {
		c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		connections = append(connections, c)
		c.SetDeadline(time.Now().Add(20 * time.Second))
		fmt.Fprintf(c, "POST /outrigger.v1.ResourceService/Watch HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n"+
			"Content-Type: application/connect+json\r\nContent-Length: 7\r\n\r\n\x00\x00\x00\x00\x02{}", secret)
	}
	for i, c := range connections {
		line := make([]byte, len("HTTP/1.1 200"))
		if _, err := io.ReadFull(c, line); err != nil || string(line) != "HTTP/1.1 200" {
			t.Fatalf("watch %d begins with %q, %v", i, line, err)
		}
	}
	return leave
}

func TestOneWatchTooManyIsRefused(t *testing.T) {
	s := start(t)
	s.api.watching = make(chan struct{}, 2)
	openWatches(t, s, 2)
	third, err := s.client(t).Watch(t.Context(), &outriggerv1.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	defer third.Close()
	if third.Receive() {
		t.Error("a third of two watches was served")
	}
	wantCode(t, "third Watch", third.Err(), connect.CodeResourceExhausted)
}

func TestJoinTokensHaveDefaultsAndBounds(t *testing.T) {
	c := start(t).client(t)
	for name, row := range map[string]struct {
		req  *outriggerv1.CreateJoinTokenRequest
		want string // the token, or the path of a violation
	}{
		"defaults":     {&outriggerv1.CreateJoinTokenRequest{}, "map[] 1h0m0s 1"},
		"given":        {&outriggerv1.CreateJoinTokenRequest{Labels: map[string]string{"app": "x"}, Ttl: durationpb.New(time.Minute), MaxUses: 3}, "map[app:x] 1m0s 3"},
		"too long":     {&outriggerv1.CreateJoinTokenRequest{Ttl: durationpb.New(31 * 24 * time.Hour)}, "ttl"},
		"over already": {&outriggerv1.CreateJoinTokenRequest{Ttl: durationpb.New(-1)}, "ttl"},
		"negative":     {&outriggerv1.CreateJoinTokenRequest{MaxUses: -1}, "max_uses"},
		"bad label":    {&outriggerv1.CreateJoinTokenRequest{Labels: map[string]string{"a b": "x"}}, "labels.a b"},
	} {
		res, err := c.CreateJoinToken(t.Context(), row.req)
		if err != nil {
			if got := violations(t, err); len(got) != 1 || !strings.HasPrefix(got[0], row.want+": ") {
				t.Errorf("%s: %q, want one at %s", name, got, row.want)
			}
		} else if res.Token != row.want || res.Expires.AsTime() != time.Unix(1e9, 0).UTC() {
			t.Errorf("%s: %v, want %s", name, res, row.want)
		}
	}
}

// post calls an RPC with JSON over HTTP/1.1, as curl would.
func (s *server) post(t *testing.T, rpc, body string) (status int, answer string) {
	t.Helper()
	client := &http.Client{Transport: authorized{transport(t, false)}}
	res, err := client.Post(s.url+"/outrigger.v1.ResourceService/"+rpc, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(data)
}

func TestJSONClientsGetStatusesAndDetails(t *testing.T) {
	s := start(t)
	status, body := s.post(t, "Apply", `{"resources":[{"kind":"Upstream","name":"x","spec":{"color":1}}]}`)
	var failed struct{ Code, Message string }
	if err := json.Unmarshal([]byte(body), &failed); err != nil || status != 400 || failed.Code != "invalid_argument" ||
		!strings.Contains(failed.Message, "resources[0].spec.color") || !strings.Contains(body, "outrigger.v1.FieldViolations") {
		t.Errorf("%d %s; want 400, invalid_argument with its path and details", status, body)
	}
	if status, body := s.post(t, "Get", `{"kind":"Upstream","name":"x"}`); status != 404 {
		t.Errorf("Get of nothing: %d %s; want 404", status, body)
	}
	if status, body := s.post(t, "Apply", `{"resources":[{"name":"`+strings.Repeat("x", maxRequestBytes)+`"}]}`); status != 429 {
		t.Errorf("an oversized request: %d %.200s; want 429 (resource_exhausted)", status, body)
	}
}

func TestOnlyTheTokenOpensRPCs(t *testing.T) {
	s := start(t)
	for _, authorization := range []string{"", "Bearer", "Bearer ", "Bearer wrong", "Basic " + secret, secret, "Bearer " + secret + "x"} {
		for contentType, want := range map[string]int{"application/json": 401, "application/proto": 401, "text/plain": 401, "application/grpc": 200} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+outriggerv1connect.ResourceServiceListProcedure, strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", contentType)
			if authorization != "" {
				req.Header.Set("Authorization", authorization)
			}
			res, err := transport(t, true).RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, res.Body)
			res.Body.Close()
			grpc := res.Header.Get("Grpc-Status") + res.Trailer.Get("Grpc-Status")
			if res.StatusCode != want || want == 200 && grpc != "16" {
				t.Errorf("%q as %s: %d, grpc-status %q; want %d, or grpc-status 16", authorization, contentType, res.StatusCode, grpc, want)
			}
		}
	}
	if _, err := New(s.store, fleet{}, authority{}, Options{}); err == nil {
		t.Error("New without a token: no error")
	}
}

func TestARefusalWaitsForNoBody(t *testing.T) {
	s := start(t)
	for name, row := range map[string]struct {
		head string
		want string
	}{
		"no token":     {"POST /outrigger.v1.ResourceService/List HTTP/1.1\r\nHost: localhost\r\n", "401"},
		"other host":   {"POST /outrigger.v1.ResourceService/List HTTP/1.1\r\nHost: evil.example\r\n", "403"},
		"other origin": {"POST /outrigger.v1.ResourceService/List HTTP/1.1\r\nHost: localhost\r\nOrigin: null\r\n", "403"},
		"no such path": {"POST /nowhere HTTP/1.1\r\nHost: localhost\r\n", "404"},
		"health":       {"GET /healthz HTTP/1.1\r\nHost: localhost\r\n", "200"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			began := time.Now()
			c.SetDeadline(began.Add(strangerTimeout / 2))
			fmt.Fprint(c, row.head, "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
			line := make([]byte, len("HTTP/1.1 401"))
			if _, err := io.ReadFull(c, line); err != nil || string(line) != "HTTP/1.1 "+row.want {
				t.Fatalf("answered %q, %v after %v; want %s at once", line, err, time.Since(began), row.want)
			}
			c.SetDeadline(began.Add(2 * strangerTimeout))
			if _, err := io.Copy(io.Discard, c); err != nil {
				t.Errorf("the connection after %v: %v; want it closed", time.Since(began), err)
			}
		})
	}
}

func TestABodyHasADeadlineAndItsAnswerNone(t *testing.T) {
	s := start(t)
	s.api.bodyTimeout = 200 * time.Millisecond
	for _, http2 := range []bool{false, true} {
		c := outriggerv1connect.NewResourceServiceClient(&http.Client{Transport: authorized{transport(t, http2)}}, s.url)
		name := fmt.Sprintf("http2-%v", http2)
		stream, err := c.Watch(t.Context(), &outriggerv1.WatchRequest{Kind: "Upstream", FromRevision: 1})
		if err != nil {
			t.Fatal(err)
		}
		body, feed := io.Pipe()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+outriggerv1connect.ResourceServiceListProcedure, body)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := authorized{transport(t, http2)}.RoundTrip(req) // until the server has waited for long enough
		if err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				t.Errorf("%s: a body that never came is answered with %s", name, res.Status)
			}
		}
		feed.Close()
		apply(t, c, strings.ReplaceAll(upstream, "weather", name))
		for got := ""; !strings.HasPrefix(got, "CHANGE_PUT Upstream/"+name); {
			got = receive(t, stream)
		}
		stream.Close()
	}
}

func TestPagesInBrowsersAreKeptOut(t *testing.T) {
	s := start(t)
	for name, row := range map[string]struct {
		host, origin string
		want         int
	}{
		"a command line":    {"", "", 200},
		"localhost":         {"localhost:7600", "", 200},
		"IPv6":              {"[::1]:7600", "", 200},
		"rebound":           {"evil.example", "", 403},
		"rebound with port": {"evil.example:7600", "", 403},
		"like localhost":    {"localhost.evil.example", "", 403},
		"another origin":    {"", "https://evil.example", 403},
		"own origin":        {"", s.url, 403},
		"sandboxed":         {"", "null", 403},
		"listed origin":     {"", "https://console.example", 200},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+outriggerv1connect.ResourceServiceListProcedure, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Host = row.host
		req.Header.Set("Content-Type", "application/json")
		if row.origin != "" {
			req.Header.Set("Origin", row.origin)
		}
		res, err := authorized{transport(t, false)}.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != row.want {
			t.Errorf("%s: %d %s; want %d", name, res.StatusCode, bytes.TrimSpace(body), row.want)
		}
	}
}

func TestHealthNeedsNoTokenButTheStore(t *testing.T) {
	s, err := store.Open(t.Context(), store.Options{DataDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	srv := serve(t, s)
	get := func() int {
		client := &http.Client{Transport: transport(t, false), Timeout: 10 * time.Second}
		res, err := client.Get(srv.url + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	if got := get(); got != 200 {
		t.Errorf("healthz = %d, want 200", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := get(); got != 503 {
		t.Errorf("healthz after the store closed = %d, want 503", got)
	}
}
