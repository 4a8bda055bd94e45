package stream

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/prometheus/client_golang/prometheus"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/controlplane/compile"
	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

var update = flag.Bool("update", false, "rewrite testdata")

// TestTranscripts walks conversations through a stream without a network or a clock that runs. Lines that begin with
// > are what happens; the rest is written by -update:
//
//	> desired u=1 b=1:u     Upstream u at version 1, Binding b at version 1 naming it
//	> revoked h=n,m         sidecars n and m deleted, in the group h
//	> connect [held b=1:u]  a new stream, with the versions that the sidecar still holds
//	> subscribe TYPE…
//	> ack TYPE, > nack TYPE "text" [name…]   of the last response of that type
//	> disconnect
//	< TYPE nonce +new =same -removed
//	= name state "reason" @when, running/desired generation as g1, g2…
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := replay(t, want)
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			} else if !bytes.Equal(got, want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// conversation is one transcript being replayed.
type conversation struct {
	t      *testing.T
	out    bytes.Buffer
	now    int // seconds since the epoch, one a command
	server *Server

	stream *stream
	held   map[string]map[string]string // type: name: version
	mux    chan cache.DeltaResponse
	cancel map[string]func()
	nonce  map[string]string // last, by type
	sent   int

	generations []string
}

func replay(t *testing.T, transcript []byte) []byte {
	c := &conversation{t: t}
	c.server = New(Options{
		Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Now: func() time.Time { return time.Unix(int64(c.now), 0) },
	})
	lines := bufio.NewScanner(bytes.NewReader(transcript))
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "#") || line == "" {
			fmt.Fprintln(&c.out, line)
		}
		if command, ok := strings.CutPrefix(line, "> "); ok {
			c.now++
			fmt.Fprintln(&c.out, line)
			c.do(strings.Fields(command))
			c.drain()
			c.show()
		}
	}
	return c.out.Bytes()
}

func (c *conversation) do(words []string) {
	switch verb, args := words[0], words[1:]; verb {
	case "desired":
		c.server.SetCompiled(compile.Compile(objects(args), int64(c.now)))
	case "revoked":
		c.server.SetRevoked(revocations(args))
	case "connect":
		c.connect(args)
	case "subscribe":
		for _, kind := range args {
			c.request(kind, &discovery.DeltaDiscoveryRequest{InitialResourceVersions: c.held[kind]})
		}
	case "ack":
		c.request(args[0], &discovery.DeltaDiscoveryRequest{ResponseNonce: c.nonce[args[0]]})
	case "nack":
		c.request(args[0], &discovery.DeltaDiscoveryRequest{
			ResponseNonce: c.nonce[args[0]], ErrorDetail: c.refusal(args[1], args[2:]),
		})
	case "disconnect":
		for _, cancel := range c.cancel {
			cancel()
		}
		c.stream.OnDeltaStreamClosed(1, nil)
	default:
		c.t.Fatalf("unknown command %q", verb)
	}
}

// objects are resources written as u=VERSION or b=VERSION:UPSTREAM. The version is put into a field.
func objects(args []string) (objs []resource.Object) {
	for _, arg := range args {
		name, rest, _ := strings.Cut(arg, "=")
		version, upstream, isBinding := strings.Cut(rest, ":")
		if isBinding {
			objs = append(objs, &outriggerv1.Binding{
				Name: name, Path: "/" + name + "/" + version, Selector: &outriggerv1.Selector{},
				Upstreams: []*outriggerv1.UpstreamReference{{Name: upstream}},
			})
		} else {
			objs = append(objs, httpUpstream(name, "http://127.0.0.1/"+version))
		}
	}
	return objs
}

// revocations are groups written as NAME=NODE,NODE.
func revocations(args []string) (all []*outriggerv1.Revocations) {
	for _, arg := range args {
		name, nodes, _ := strings.Cut(arg, "=")
		group := &outriggerv1.Revocations{Name: name}
		for _, node := range strings.Split(nodes, ",") {
			group.Revoked = append(group.Revoked, &outriggerv1.RevokedSidecar{NodeId: node, Admission: node})
		}
		all = append(all, group)
	}
	return all
}

func httpUpstream(name, url string) *outriggerv1.Upstream {
	return &outriggerv1.Upstream{Name: name, Transport: &outriggerv1.Upstream_Http{Http: &outriggerv1.HTTPTransport{Url: url}}}
}

// connect opens a stream whose sidecar holds what would be sent for args.
func (c *conversation) connect(args []string) {
	c.held = map[string]map[string]string{}
	if len(args) > 0 && args[0] == "held" {
		v := compile.Compile(objects(args[1:]), 1).View("node", nil)
		for _, e := range append(slices.Clone(v.Resources), v.Manifest) {
			kind := short(e.TypeURL)
			if c.held[kind] == nil {
				c.held[kind] = map[string]string{}
			}
			c.held[kind][e.Name] = e.Version
		}
	}
	c.mux = make(chan cache.DeltaResponse, 20)
	c.cancel, c.nonce, c.sent = map[string]func(){}, map[string]string{}, 0
	c.stream = &stream{server: c.server, end: func(error) {}, silent: time.NewTimer(time.Hour)}
}

// request does what the delta server does with a request.
func (c *conversation) request(kind string, req *discovery.DeltaDiscoveryRequest) {
	req.TypeUrl = resource.TypeURL(kind)
	if len(c.cancel) == 0 {
		req.Node = &core.Node{Id: "node"}
	}
	if err := c.stream.OnStreamDeltaRequest(1, req); err != nil {
		fmt.Fprintf(&c.out, "! %v\n", err)
		return
	}
	if cancel := c.cancel[kind]; cancel != nil {
		cancel()
	}
	cancel, err := c.stream.CreateDeltaWatch(req, nil, c.mux)
	if err != nil {
		fmt.Fprintf(&c.out, "! %v\n", err)
		return
	}
	c.cancel[kind] = cancel
}

// refusal is a NACK's status, with details when it names resources.
func (c *conversation) refusal(text string, names []string) *spb.Status {
	text, err := strconv.Unquote(text)
	if err != nil {
		c.t.Fatal(err)
	}
	s := &spb.Status{Code: 3, Message: text}
	if len(names) == 0 {
		return s
	}
	r := &outriggerv1.Refusals{}
	for _, name := range names {
		kind := resource.KindUpstream
		switch {
		case strings.HasPrefix(name, "b"):
			kind = resource.KindBinding
		case name == "node":
			kind = "Manifest"
		}
		r.Refusals = append(r.Refusals, &outriggerv1.Refusal{TypeUrl: resource.TypeURL(kind), Name: name, Reason: text})
	}
	detail, err := anypb.New(r)
	if err != nil {
		c.t.Fatal(err)
	}
	s.Details = []*anypb.Any{detail}
	return s
}

// drain sends what is queued, as the delta server does.
func (c *conversation) drain() {
	for {
		select {
		case r := <-c.mux:
			m, err := r.GetDeltaDiscoveryResponse()
			if err != nil {
				c.t.Fatal(err)
			}
			c.sent++
			m.Nonce = strconv.Itoa(c.sent)
			c.stream.OnStreamDeltaResponse(1, r.GetDeltaRequest(), m)
			kind := short(m.TypeUrl)
			c.nonce[kind] = m.Nonce
			fmt.Fprintf(&c.out, "< %s %s%s\n", kind, m.Nonce, contents(m))
		default:
			return
		}
	}
}

func short(typeURL string) string { return typeURL[strings.LastIndex(typeURL, ".")+1:] }

func contents(m *discovery.DeltaDiscoveryResponse) string {
	var b strings.Builder
	for _, r := range m.Resources {
		b.WriteString(" +" + r.Name)
	}
	slices.Sort(m.RemovedResources)
	for _, name := range m.RemovedResources {
		b.WriteString(" -" + name)
	}
	return b.String()
}

// show writes what the management API would tell of the sidecar.
func (c *conversation) show() {
	for _, sc := range c.server.Sidecars() {
		state := "disconnected"
		if sc.Connected {
			state = "connected"
		}
		fmt.Fprintf(&c.out, "= %s @%d runs %s of %s:", state, sc.Since.Seconds, c.generation(sc.RunningGeneration), c.generation(sc.DesiredGeneration))
		for _, r := range sc.Resources {
			fmt.Fprintf(&c.out, " %s %s @%d", r.Name, strings.ToLower(strings.TrimPrefix(r.State.String(), "STATE_")), r.Since.Seconds)
			if r.Reason != "" {
				fmt.Fprintf(&c.out, " %q", r.Reason)
			}
			fmt.Fprint(&c.out, ";")
		}
		fmt.Fprintln(&c.out)
	}
}

// generation is a hash's short name.
func (c *conversation) generation(hash string) string {
	if hash == "" {
		return "nothing"
	}
	if !slices.Contains(c.generations, hash) {
		c.generations = append(c.generations, hash)
	}
	return fmt.Sprint("g", slices.Index(c.generations, hash)+1)
}
