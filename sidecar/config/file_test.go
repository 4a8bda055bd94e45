package config

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/proto/resource"
)

const goodFile = `
kind: Upstream
name: u
spec: {http: {url: "http://a"}}
---
kind: Upstream
name: unused
spec: {http: {url: "http://b"}}
---
kind: Binding
name: b
spec: {selector: {matchLabels: {app: x}}, path: /PATH, upstreams: [{name: u}]}
---
kind: Binding
name: other
spec: {selector: {matchLabels: {app: y}}, upstreams: [{name: unused}]}
`

// seenTarget tells when a configuration is applied.
type seenTarget struct {
	fakeTarget
	applied chan []string
}

func (s *seenTarget) Apply(c *Config) []Refusal {
	out := s.fakeTarget.Apply(c)
	s.applied <- marks(c)
	return out
}

func newSeenTarget() *seenTarget { return &seenTarget{applied: make(chan []string, 10)} }

// next waits for a configuration.
func (s *seenTarget) next(t *testing.T) []string {
	t.Helper()
	select {
	case runs := <-s.applied:
		return runs
	case <-time.After(10 * time.Second):
		t.Fatal("no configuration within 10 s")
		return nil
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func newTestFile(path string, target Target) *File {
	return NewFile(FileOptions{
		Path: path, Labels: map[string]string{"app": "x"}, Target: target, Log: slog.New(slog.DiscardHandler),
	})
}

// run runs a file source until the test ends.
func run(t *testing.T, f *File) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
}

func TestAFileRunsWhatItsLabelsSelect(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sidecar.yaml")
	write(t, path, goodFile)
	target := newSeenTarget()
	f := newTestFile(path, target)
	if err := f.Reload(); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "runs", target.next(t), []string{"Upstream/u=http://a", "Binding/b=/PATH"})
	if s := f.Status(); s.Source != SourceFile || s.Generation == "" {
		t.Errorf("status: %+v", s)
	}
}

func TestABadFileIsRefusedWhole(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sidecar.yaml")
	target := newSeenTarget()
	f := newTestFile(path, target)
	if err := f.Run(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	write(t, path, "kind: Upstream\nname: u\nspec: {era: modern, http: {url: 'http://a'}}\n---\nkind: Binding\nname: b\nspec: {selector: {}, path: x, upstreams: [{name: u}]}")
	want := path + `: Upstream/u: spec.era: expected auto, legacy or stateless, got "modern"` + "\n" +
		path + `: Binding/b: spec.path: "x", expected a path that begins with '/'`
	if err := f.Run(t.Context()); err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
	wantEqual(t, "status", len(f.Status().Refused), 2)
	wantEqual(t, "applied", target.count(), 0)
}

func TestWhatTheSidecarLacksRefusesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sidecar.yaml")
	write(t, path, goodFile)
	target := newSeenTarget()
	target.check = map[string]string{"Upstream/u": "no credential", "Binding/b": "no port"}
	err := newTestFile(path, target).Reload()
	if want := path + ": Upstream/u: no credential\n" + path + ": Binding/b: no port"; err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
	wantEqual(t, "applied", target.count(), 0)
	target.check, target.apply = nil, map[string]string{"Binding/b": "busy"}
	err = newTestFile(path, target).Reload()
	if want := path + ": Binding/b: busy"; err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

func TestAChangedFileIsReadAgain(t *testing.T) {
	at := func(path string) string { return goodFile[:len(goodFile)-1] + "# " + path + "\n" }
	changes := map[string]func(t *testing.T, dir, text string){
		"written in place": func(t *testing.T, dir, text string) { write(t, filepath.Join(dir, "sidecar.yaml"), text) },
		"renamed over": func(t *testing.T, dir, text string) {
			write(t, filepath.Join(dir, ".swap"), text)
			if err := os.Rename(filepath.Join(dir, ".swap"), filepath.Join(dir, "sidecar.yaml")); err != nil {
				t.Fatal(err)
			}
		},
		"removed and made again": func(t *testing.T, dir, text string) {
			if err := os.Remove(filepath.Join(dir, "sidecar.yaml")); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, "sidecar.yaml"), text)
		},
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "sidecar.yaml"), goodFile)
			target := newSeenTarget()
			f := newTestFile(filepath.Join(dir, "sidecar.yaml"), target)
			run(t, f)
			target.next(t)
			until(t, f, "running", func(s Status) bool { return s.Generation != "" })
			before := f.Status().Generation
			change(t, dir, at(name))
			target.next(t)
			if f.Status().Generation == before && f.Reload() != nil {
				t.Error("the generation is the same")
			}
		})
	}
}

// A ConfigMap volume is a link to a link to a directory; kubelet swaps the middle one.
func TestAKubernetesSwapIsSeen(t *testing.T) {
	dir := t.TempDir()
	revision := func(name, text string) {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name, "sidecar.yaml"), text)
		if err := os.Symlink(name, filepath.Join(dir, "..data_tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	revision("..1", goodFile)
	if err := os.Symlink("..data/sidecar.yaml", filepath.Join(dir, "sidecar.yaml")); err != nil {
		t.Fatal(err)
	}
	target := newSeenTarget()
	run(t, newTestFile(filepath.Join(dir, "sidecar.yaml"), target))
	target.next(t)
	revision("..2", goodFile+"---\nkind: Binding\nname: c\nspec: {selector: {}, path: /c, upstreams: [{name: u}]}\n")
	wantEqual(t, "runs", target.next(t), []string{"Upstream/u=http://a", "Binding/b=/PATH", "Binding/c=/c"})
}

func TestABadChangeKeepsWhatRuns(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sidecar.yaml")
	write(t, path, goodFile)
	target := newSeenTarget()
	f := newTestFile(path, target)
	run(t, f)
	target.next(t)
	until(t, f, "running", func(s Status) bool { return s.Generation != "" }) // the target has it before the status does
	before := f.Status().Generation
	write(t, path, "kind: Upstream\nname: u\nspec: {era: modern, http: {url: 'http://a'}}")
	if err := f.Reload(); err == nil {
		t.Error("a bad file was taken")
	}
	s := f.Status()
	if s.Generation != before || len(s.Refused) != 1 {
		t.Errorf("status: %+v", s)
	}
	write(t, path, goodFile)
	if err := f.Reload(); err != nil || len(f.Status().Refused) > 0 {
		t.Errorf("after the repair: %v, %+v", err, f.Status())
	}
}

// until waits for a file's status to be so.
func until(t *testing.T, f *File, what string, holds func(Status) bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !holds(f.Status()); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not %s within 10 s: %+v", what, f.Status())
		}
	}
}

func TestAFileThatComesBackIsNoLongerRefused(t *testing.T) {
	bad := goodFile + "---\nkind: Binding\nname: c\nspec: {selector: {}, path: x, upstreams: [{name: u}]}\n"
	for name, tt := range map[string]struct {
		last string // what the file says when it goes away, and after
		left int    // what is refused of that
	}{"whole": {goodFile, 0}, "with a mistake": {bad, 1}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path, away := filepath.Join(dir, "sidecar.yaml"), filepath.Join(dir, "away")
			write(t, path, goodFile)
			target, reg := newSeenTarget(), prometheus.NewRegistry()
			f := NewFile(FileOptions{Path: path, Labels: map[string]string{"app": "x"}, Target: target, Log: slog.New(slog.DiscardHandler), Reg: reg})
			run(t, f)
			target.next(t)
			write(t, path, tt.last)
			until(t, f, "read", func(s Status) bool { return len(s.Refused) == tt.left })
			if err := os.Rename(path, away); err != nil {
				t.Fatal(err)
			}
			gone := func(s Status) bool {
				return len(s.Refused) == 1 && strings.Contains(s.Refused[0].Reason, "no such file")
			}
			until(t, f, "refused", gone)
			wantEqual(t, "outrigger_config_refused", gauge(t, reg, "outrigger_config_refused"), 1)
			if err := os.Rename(away, path); err != nil {
				t.Fatal(err)
			}
			until(t, f, "as before", func(s Status) bool { return len(s.Refused) == tt.left && !gone(s) })
			wantEqual(t, "outrigger_config_refused", gauge(t, reg, "outrigger_config_refused"), float64(tt.left))
			wantEqual(t, "applied", target.count(), 1)
		})
	}
}

// gauge is the value of a gauge that has no labels.
func gauge(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.Metric[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric is named %s", name)
	return 0
}

func TestASidecarThatServesNothingSaysSo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sidecar.yaml")
	write(t, path, goodFile)
	for app, want := range map[string]bool{"x": false, "z": true} {
		var log bytes.Buffer
		f := NewFile(FileOptions{
			Path: path, Labels: map[string]string{"app": app}, Target: newSeenTarget(), Log: slog.New(slog.NewTextHandler(&log, nil)),
		})
		if err := f.Reload(); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(log.String(), "serves nothing"); got != want || want && !strings.Contains(log.String(), "app:z") {
			t.Errorf("app=%s: log %q, want a warning with the labels: %v", app, log.String(), want)
		}
	}
}

func TestAFileThatStaysAwayIsRefusedOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sidecar.yaml")
	write(t, path, goodFile)
	var log bytes.Buffer
	f := NewFile(FileOptions{
		Path: path, Labels: map[string]string{"app": "x"}, Target: newSeenTarget(), Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err := f.Reload(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		f.reloadIfChanged() // as after an event, such as a line of a log beside the file
	}
	wantEqual(t, "lines", strings.Count(log.String(), "has a mistake"), 1)
	if err := f.Reload(); err == nil {
		t.Error("a file that is away was loaded")
	}
	wantEqual(t, "lines after SIGHUP", strings.Count(log.String(), "has a mistake"), 2)
}

func TestAFileGivesASidecarTheAuthorityOfItsBindings(t *testing.T) {
	const text = `
kind: Secret
name: mine
spec: {values: {token: t}}
---
kind: Secret
name: anothers
spec: {values: {token: t}}
---
kind: Upstream
name: u
spec: {http: {url: "http://a"}, credential: {secret: {name: mine, key: token}}}
---
kind: Upstream
name: v
spec: {http: {url: "http://b"}, credential: {secret: {name: anothers, key: token}}}
---
kind: Binding
name: here
spec: {selector: {matchLabels: {app: here}}, upstreams: [{name: u}]}
---
kind: Binding
name: there
spec: {selector: {matchLabels: {app: there}}, upstreams: [{name: v}]}
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
name: all
spec: {rules: [{action: deny, tools: [rm]}]}
---
kind: Policy
name: theirs
spec: {target: {bindings: [there]}, rules: [{action: deny}]}
`
	target := &fakeTarget{}
	path := filepath.Join(t.TempDir(), "sidecar.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f := NewFile(FileOptions{Path: path, Labels: map[string]string{"app": "here"}, Target: target, Log: slog.New(slog.DiscardHandler)})
	if err := f.Reload(); err != nil {
		t.Fatal(err)
	}
	c := target.configs[0]
	var got []string
	for _, s := range c.Secrets {
		got = append(got, resource.Ref(s))
	}
	for _, o := range objects(c) {
		got = append(got, resource.Ref(o))
	}
	for _, x := range c.Tenants {
		got = append(got, resource.Ref(x))
	}
	for _, k := range c.Keys {
		got = append(got, resource.Ref(k))
	}
	wantEqual(t, "runs", got, []string{"Secret/mine", "Upstream/u", "Binding/here", "Policy/all", "Tenant/acme", "Key/k"})
}
