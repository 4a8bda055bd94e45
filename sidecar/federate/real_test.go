package federate

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
	"github.com/outrigger-mesh/outrigger/sidecar/bridge/tolegacy"
	"github.com/outrigger-mesh/outrigger/sidecar/mcp"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream"
	"github.com/outrigger-mesh/outrigger/sidecar/upstream/streamable"
)

// soon is how long what must happen soon may take.
const soon = 15 * time.Second

// real is a server of the SDK.
type real struct {
	*sdk.Server
	owner string

	mu      sync.Mutex
	headers []string // Mcp-Name of the calls that came
}

// serve makes a server whose lists have pages of 10, and the transport to it, of the wire that the options give it.
func serve(t testing.TB, owner string, o *sdk.StreamableHTTPOptions) (*real, upstream.Server) {
	t.Helper()
	r := &real{owner: owner, Server: sdk.NewServer(&sdk.Implementation{Name: owner, Version: "1"}, &sdk.ServerOptions{PageSize: 10, Instructions: "Use " + owner})}
	inner := sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return r.Server }, o)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if name := q.Header.Get(mcp.HeaderName); name != "" {
			r.mu.Lock()
			r.headers = append(r.headers, name)
			r.mu.Unlock()
		}
		inner.ServeHTTP(w, q)
	}))
	spec := resource.WithDefaults(&outriggerv1.Upstream{
		Name: owner, Transport: &outriggerv1.Upstream_Http{Http: &outriggerv1.HTTPTransport{Url: web.URL}},
	})
	plain, err := streamable.New(owner, spec, streamable.Options{})
	if err != nil {
		t.Fatal(err)
	}
	bridged := tolegacy.New(plain, tolegacy.Options{Upstream: spec})
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), soon)
		defer stop()
		_ = bridged.Close(ctx)
		for s := range r.Sessions() {
			s.Close()
		}
		web.CloseClientConnections()
		web.Close()
	})
	return r, bridged
}

// add adds a tool that says whose it is and how it was called.
func (r *real) add(name string) {
	sdk.AddTool(r.Server, &sdk.Tool{Name: name}, func(_ context.Context, q *sdk.CallToolRequest, _ struct{}) (*sdk.CallToolResult, any, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: r.owner + " " + q.Params.Name}}}, nil, nil
	})
}

func (r *real) addResource(uri string) {
	r.AddResource(&sdk.Resource{URI: uri, Name: uri}, func(context.Context, *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
		return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: uri, Text: r.owner}}}, nil
	})
}

func realFederation(t *testing.T) ([]*real, *client) {
	var servers []*real
	var members []upstream.Server
	for i, o := range []*sdk.StreamableHTTPOptions{nil, {Stateless: true}, {Stateless: true, JSONResponse: true}} {
		r, u := serve(t, fmt.Sprintf("m%d", i), o)
		servers, members = append(servers, r), append(members, u)
	}
	return servers, newClient(t, federation(t, "", members...)).as("ann")
}

// L1, L2, L3 with servers of both wires.
func TestRealServersOfBothWiresAreOne(t *testing.T) {
	servers, c := realFederation(t)
	long := strings.Repeat("long_name_", 7)
	var want []string
	for _, r := range servers {
		for i := range 25 {
			r.add(fmt.Sprintf("tool%02d", i))
		}
		r.add(long)
		r.add("dotted.name")
		r.addResource("file:///same")
		r.addResource("file:///" + r.owner)
	}
	keys, _ := c.all(tools)
	for _, r := range servers {
		for i := range 25 {
			want = append(want, fmt.Sprintf("%s_tool%02d", r.owner, i))
		}
	}
	for _, name := range want {
		if !slices.Contains(keys, name) {
			t.Errorf("%s is not listed", name)
		}
	}
	if len(keys) != 3*27 {
		t.Errorf("%d tools, want %d: %q", len(keys), 3*27, keys)
	}
	for _, name := range keys {
		if !strict.MatchString(name) {
			t.Errorf("%s is a name that clients refuse", name)
		}
		got := c.do(mcp.MethodToolsCall, fmt.Sprintf(`"name":%q,"arguments":{}`, name))
		owner, called, _ := strings.Cut(name, "_")
		if !strings.Contains(got, `"text":"`+owner+" "+called[:4]) {
			t.Errorf("%s: got %s", name, got)
		}
	}
	if l := c.list(resources, ""); len(l.keys) != 4 || len(l.leftOut) != 2 {
		t.Errorf("resources: %s", l.raw)
	}
	for uri, owner := range map[string]string{"file:///same": "m0", "file:///m1": "m1", "file:///m2": "m2"} {
		if got := c.do(mcp.MethodResourcesRead, fmt.Sprintf(`"uri":%q`, uri)); !strings.Contains(got, `"text":"`+owner+`"`) {
			t.Errorf("%s: got %s, want %s's", uri, got, owner)
		}
	}
	d := c.do(mcp.MethodDiscover, "")
	for _, part := range []string{`m0: Use m0\n\nm1: Use m1\n\nm2: Use m2`, `"tools":{"listChanged":true}`} {
		if !strings.Contains(d, part) {
			t.Errorf("discover: %s, want %s", d, part)
		}
	}
}

// The header repeats the name that the member knows, whatever the client's own said.
func TestTheNameInTheHeaderFollowsTheBody(t *testing.T) {
	servers, c := realFederation(t)
	r := servers[1]
	r.add("find")
	m := c.message(mcp.MethodToolsCall, `"name":"m1_find","arguments":{}`)
	m.Header = http.Header{mcp.HeaderName: {"m1_find"}, mcp.HeaderMethod: {mcp.MethodToolsCall}, mcp.HeaderVersion: {mcp.Version20260728}}
	a, err := c.s.Call(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if got, _, err := upstream.ReadResponse("m", a, nil, maxPage); err != nil || !strings.Contains(string(got.Raw), "m1 find") {
		t.Errorf("got %s, %v", got.Raw, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if fmt.Sprint(r.headers) != "[find]" {
		t.Errorf("Mcp-Name: got %q, want find", r.headers)
	}
}

// A page of an app that is not listed, at servers that answer in event streams.
func TestARealUnlistedResourceIsFound(t *testing.T) {
	servers, c := realFederation(t)
	for _, r := range servers { // so that each has resources at all
		r.addResource("file:///" + r.owner)
	}
	servers[2].AddResourceTemplate(&sdk.ResourceTemplate{URITemplate: "ui://{page}", Name: "pages"}, func(_ context.Context, q *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
		return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: q.Params.URI, Text: "m2"}}}, nil
	})
	uri := `"uri":"ui://page"`
	if got := c.do(mcp.MethodResourcesRead, uri); !strings.Contains(got, `"text":"m2"`) {
		t.Errorf("by template: %s", got)
	}
	a, _, err := c.s.(*Server).search(t.Context(), c.message(mcp.MethodResourcesRead, uri), "ui://page") // as if there were no template
	if err != nil {
		t.Fatal(err)
	}
	if got, _, err := upstream.ReadResponse("m", a, nil, maxPage); err != nil || !strings.Contains(string(got.Raw), `"text":"m2"`) {
		t.Errorf("by trying: %s, %v", got.Raw, err)
	}
	if got := c.do(mcp.MethodResourcesRead, `"uri":"none:///"`); !strings.Contains(got, "-32602") {
		t.Errorf("what nobody has: %s", got)
	}
}

// L7 with servers of both wires.
func TestARealChangeIsToldAndListed(t *testing.T) {
	servers, c := realFederation(t)
	for _, r := range servers {
		r.add("first")
	}
	c.list(tools, "")
	ctx, stop := context.WithTimeout(t.Context(), soon)
	defer stop()
	a, err := c.s.Call(ctx, c.message(mcp.MethodListen, `"notifications":{"toolsListChanged":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if ev, err := a.Events.Next(); err != nil || !strings.Contains(string(ev.Data), `"notifications":{"toolsListChanged":true}`) {
		t.Fatalf("acknowledged: %s, %v", ev.Data, err)
	}
	for _, r := range servers {
		r.add("second")
		if ev, err := a.Events.Next(); err != nil || !strings.Contains(string(ev.Data), mcp.NotificationToolsChanged) {
			t.Fatalf("%s changed: %s, %v", r.owner, ev.Data, err)
		}
		for !slices.Contains(c.list(tools, "").keys, r.owner+"_second") {
			if ctx.Err() != nil {
				t.Fatalf("%s_second is not listed", r.owner)
			}
			time.Sleep(10 * time.Millisecond) // another member's notification may come between
		}
	}
}
