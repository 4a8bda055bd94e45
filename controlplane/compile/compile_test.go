package compile

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	outriggerv1 "github.com/outrigger-mesh/outrigger/proto/outrigger/v1"
	"github.com/outrigger-mesh/outrigger/proto/resource"
)

func load(t testing.TB, text string) []resource.Object {
	t.Helper()
	objs, errs := resource.Load("test", []byte(text))
	if len(errs) > 0 {
		t.Fatalf("load: %v\n%s", errs, text)
	}
	return objs
}

const fleet = `
kind: Upstream
name: weather
spec: {http: {url: "http://127.0.0.1:1/mcp"}}
---
kind: Upstream
name: files
spec: {stdio: {command: [files], env: {A: "1", B: "2", C: "3", D: "4"}}}
---
kind: Upstream
name: unused
spec: {stdio: {command: [unused]}}
---
kind: Binding
name: everywhere
spec: {selector: {}, path: /files, upstreams: [{name: files}]}
---
kind: Binding
name: sky
spec: {selector: {matchLabels: {app: weather, zone: north}}, path: /a, upstreams: [{name: weather}]}
---
kind: Binding
name: sky-too
spec: {selector: {matchLabels: {app: weather}}, path: /b, upstreams: [{name: weather}]}
---
kind: Binding
name: other
spec: {selector: {matchLabels: {app: other}}, path: /c, upstreams: [{name: unused}]}
`

func names(encoded []*Encoded) []string {
	var out []string
	for _, e := range encoded {
		kind, _ := resource.KindOfTypeURL(e.TypeURL)
		out = append(out, kind+"/"+e.Name)
	}
	return out
}

func TestAViewHoldsWhatMatchesAndWhatThatNames(t *testing.T) {
	c := Compile(load(t, fleet), 7)
	for _, row := range []struct {
		labels map[string]string
		want   []string
	}{
		{nil, []string{"Upstream/files", "Binding/everywhere"}},
		{map[string]string{"app": "nothing"}, []string{"Upstream/files", "Binding/everywhere"}},
		{map[string]string{"zone": "north"}, []string{"Upstream/files", "Binding/everywhere"}},
		{map[string]string{"app": "other"}, []string{"Upstream/files", "Upstream/unused", "Binding/everywhere", "Binding/other"}},
		{map[string]string{"app": "weather", "zone": "south"},
			[]string{"Upstream/files", "Upstream/weather", "Binding/everywhere", "Binding/sky-too"}},
		{map[string]string{"app": "weather", "zone": "north", "more": "x"},
			[]string{"Upstream/files", "Upstream/weather", "Binding/everywhere", "Binding/sky", "Binding/sky-too"}},
	} {
		v := c.View("n1", row.labels)
		if got := names(v.Resources); !slices.Equal(got, row.want) {
			t.Errorf("labels %v: %v, want %v", row.labels, got, row.want)
		}
		checkManifest(t, v, "n1", 7)
	}
}

// checkManifest checks that a view's manifest names its resources, in its own order.
func checkManifest(t *testing.T, v *View, node string, revision int64) {
	t.Helper()
	m := new(outriggerv1.Manifest)
	if err := v.Manifest.Any.UnmarshalTo(m); err != nil {
		t.Fatal(err)
	}
	if m.Name != node || v.Manifest.Name != node || m.StoreRevision != revision || m.Generation == "" || m.Generation != v.Manifest.Version {
		t.Errorf("manifest %v at version %s; want node %s at revision %d, and its generation as version", m, v.Manifest.Version, node, revision)
	}
	var got, want []string
	for _, r := range m.References {
		got = append(got, r.TypeUrl+" "+r.Name+" "+r.Version)
	}
	for _, e := range v.Resources {
		want = append(want, e.TypeURL+" "+e.Name+" "+e.Version)
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("references\n%v, want\n%v", got, want)
	}
}

func TestAVersionIsTheHashOfTheBytes(t *testing.T) {
	objs := load(t, fleet)
	for _, e := range Compile(objs, 1).View("n1", map[string]string{"app": "other"}).Resources {
		sum := sha256.Sum256(e.Any.Value)
		if e.Version != hex.EncodeToString(sum[:]) || e.Any.TypeUrl != e.TypeURL {
			t.Errorf("%s: version %s of type %s; want the SHA-256 of its bytes", e.Name, e.Version, e.Any.TypeUrl)
		}
		i := slices.IndexFunc(objs, func(o resource.Object) bool { return o.GetName() == e.Name })
		got, err := e.Any.UnmarshalNew()
		if err != nil || !proto.Equal(got, objs[i]) {
			t.Errorf("%s decodes to %v, %v; want %v", e.Name, got, err, objs[i])
		}
	}
}

func TestReplicasCompileTheSameInAnyOrder(t *testing.T) {
	objs := load(t, fleet)
	labels := map[string]string{"app": "weather", "zone": "north"}
	want := Compile(objs, 1).View("n1", labels)
	for range 50 {
		rand.Shuffle(len(objs), func(i, j int) { objs[i], objs[j] = objs[j], objs[i] })
		got := Compile(objs, 2).View("n1", labels) // another revision that changed nothing here
		if got.Manifest.Version != want.Manifest.Version || !slices.Equal(names(got.Resources), names(want.Resources)) {
			t.Fatalf("generation %s of %v, want %s of %v", got.Manifest.Version, names(got.Resources), want.Manifest.Version, names(want.Resources))
		}
	}
}

func TestAChangeMovesOnlyTheGenerationsThatHaveIt(t *testing.T) {
	before := load(t, fleet)
	after := load(t, fleet)
	for _, o := range after {
		if u, ok := o.(*outriggerv1.Upstream); ok && u.Name == "weather" {
			u.GetHttp().Url = "http://127.0.0.1:2/mcp"
		}
	}
	old, changed := Compile(before, 1), Compile(after, 2)
	for app, want := range map[string]bool{"weather": true, "other": false} {
		labels := map[string]string{"app": app}
		moved := old.View("n1", labels).Manifest.Version != changed.View("n1", labels).Manifest.Version
		if moved != want {
			t.Errorf("app=%s: generation moved = %v, want %v", app, moved, want)
		}
	}
}

func TestViewsShareTheirResources(t *testing.T) {
	c := Compile(load(t, fleet), 1)
	a, b := c.View("n1", nil), c.View("n2", map[string]string{"app": "other"})
	if a.Resources[0] != b.Resources[0] {
		t.Error("two views hold two copies of Upstream/files")
	}
	same := c.View("n3", map[string]string{"app": "other", "host": "n3"})
	if &same.Resources[0] != &b.Resources[0] {
		t.Error("views of the same bindings hold two lists of resources")
	}
}

func TestAViewHoldsTheAuthorityOfItsBindings(t *testing.T) {
	c := Compile(load(t, fleet+`
---
kind: Secret
name: mine
spec: {values: {token: t}}
---
kind: Secret
name: nobodys
spec: {values: {token: t}}
---
kind: Upstream
name: mail
spec: {http: {url: "http://a"}, credential: {secret: {name: mine, key: token}}}
---
kind: Binding
name: mail
spec: {selector: {matchLabels: {app: mail}}, path: /mail, upstreams: [{name: mail}]}
---
kind: Tenant
name: acme
spec: {selectors: [{groups: [acme]}]}
---
kind: Key
name: k
spec: {hash: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855}
---
kind: Policy
name: of-mail
spec: {target: {bindings: [mail]}, identity: {providers: [{name: keys, keys: {}}]}}
---
kind: Policy
name: of-weather
spec: {target: {upstreams: [weather]}, rules: [{action: deny, tools: [rm]}]}
`), 1)
	for app, want := range map[string][]string{
		"mail":    {"Secret/mine", "Upstream/files", "Upstream/mail", "Binding/everywhere", "Binding/mail", "Tenant/acme", "Key/k", "Policy/of-mail"},
		"weather": {"Upstream/files", "Upstream/weather", "Binding/everywhere", "Binding/sky-too", "Tenant/acme", "Policy/of-weather"},
		"other":   {"Upstream/files", "Upstream/unused", "Binding/everywhere", "Binding/other"},
	} {
		v := c.View("n1", map[string]string{"app": app})
		if got := names(v.Resources); !slices.Equal(got, want) {
			t.Errorf("app %s: %v, want %v", app, got, want)
		}
		checkManifest(t, v, "n1", 1)
	}
}

func TestAMissingUpstreamIsLeftOut(t *testing.T) {
	objs := slices.DeleteFunc(load(t, fleet), func(o resource.Object) bool { return o.GetName() == "files" })
	v := Compile(objs, 1).View("n1", nil)
	if got := names(v.Resources); !slices.Equal(got, []string{"Binding/everywhere"}) {
		t.Errorf("view %v, want the binding alone", got)
	}
}

// TestAViewIsWhatSelectorsSay compares views with every binding tried, over random selectors and labels.
func TestAViewIsWhatSelectorsSay(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	some := func(n int) map[string]string {
		labels := map[string]string{}
		for range n {
			labels[fmt.Sprint("k", random.IntN(4))] = fmt.Sprint("v", random.IntN(3))
		}
		return labels
	}
	var objs []resource.Object
	for i := range 200 {
		objs = append(objs, &outriggerv1.Binding{
			Name:     fmt.Sprintf("b%03d", i),
			Selector: &outriggerv1.Selector{MatchLabels: some(random.IntN(4))},
		})
	}
	c := Compile(objs, 1)
	for range 200 {
		labels := some(random.IntN(5))
		var want []string
		for _, o := range objs {
			if resource.Matches(o.(*outriggerv1.Binding).Selector, labels) {
				want = append(want, "Binding/"+o.GetName())
			}
		}
		if got := names(c.View("n1", labels).Resources); !slices.Equal(got, want) {
			t.Fatalf("labels %v: %v, want %v", labels, got, want)
		}
	}
}

func TestManyMayReadViewsAtOnce(t *testing.T) {
	c := Compile(load(t, fleet), 1)
	want := c.View("n1", map[string]string{"app": "other"}).Manifest
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 100 {
				c.View("n1", map[string]string{"app": []string{"weather", "other"}[i%2]})
			}
			if got := c.View("n1", map[string]string{"app": "other"}).Manifest; !proto.Equal(got.Any, want.Any) {
				t.Errorf("manifest %v, want %v", got, want)
			}
		})
	}
	wg.Wait()
}

// large is a fleet's state: apps of one upstream and binding each, and one binding everywhere.
func large(apps int) []resource.Object {
	objs := []resource.Object{
		&outriggerv1.Upstream{Name: "shared"},
		&outriggerv1.Binding{Name: "shared", Selector: &outriggerv1.Selector{}, Upstreams: []*outriggerv1.UpstreamReference{{Name: "shared"}}},
	}
	for i := range apps {
		name := fmt.Sprint("app-", i)
		http := &outriggerv1.HTTPTransport{Url: "http://127.0.0.1:3000/" + name}
		objs = append(objs,
			&outriggerv1.Upstream{Name: name, Transport: &outriggerv1.Upstream_Http{Http: http}},
			&outriggerv1.Binding{
				Name:      name,
				Path:      "/" + name,
				Selector:  &outriggerv1.Selector{MatchLabels: map[string]string{"app": name, "env": "production"}},
				Upstreams: []*outriggerv1.UpstreamReference{{Name: name}},
			})
	}
	return objs
}

// BenchmarkFleet compiles one change and reads the views of 10,000 sidecars out of it.
func BenchmarkFleet(b *testing.B) {
	for _, apps := range []int{10, 1000, 10000} {
		objs := large(apps)
		labels := make([]map[string]string, 10000)
		for i := range labels {
			labels[i] = map[string]string{"app": fmt.Sprint("app-", i%apps), "env": "production", "host": fmt.Sprint("h", i)}
		}
		b.Run(fmt.Sprintf("apps=%d/views=%d", apps, len(labels)), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c := Compile(objs, 1)
				for i, l := range labels {
					if v := c.View("node-"+l["host"], l); len(v.Resources) != 4 {
						b.Fatalf("view %d holds %d resources, want 4", i, len(v.Resources))
					}
				}
			}
		})
	}
}
