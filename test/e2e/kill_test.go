package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

func TestTheControlPlaneIsKilledUnderLoad(t *testing.T) {
	t.Parallel()
	p := startPlane(t, filepath.Join(t.TempDir(), "data"))
	s := p.joinSidecar("edge-1", p.join("--label", "app=demo"), t.TempDir(), nil, "--access-log=false")
	p.apply(both(newPeer("first").serve(t), "app: demo")...)
	p.runs("Binding", "legacy", "edge-1 running")
	p.runs("Binding", "stateless", "edge-1 running")
	before := p.must("get", "-o", "yaml")

	calls := wireLoad(t, s.url, 8)
	calls.more(200)
	p.kill()
	s.says("no connection to the control plane")
	calls.more(200)
	away := s.config().Source
	if away.Connected || away.Source != "control plane" || time.Since(away.Confirmed) > patience {
		t.Errorf("while it is away, the source is %+v, want what it last confirmed", away)
	}
	p.start(t)
	for _, name := range []string{"legacy", "stateless"} {
		p.runs("Upstream", name, "edge-1 running")
		p.runs("Binding", name, "edge-1 running")
	}
	calls.more(200)
	calls.stop()
	if failed := calls.failures(); len(failed) > 0 {
		t.Errorf("%d of %d calls failed, the first with %v; want none", len(failed), calls.done.Load(), failed[0])
	}
	if after := p.must("get", "-o", "yaml"); !equalSpecs(t, before, after) {
		t.Errorf("resources after the restart:\n%s\nwant as before:\n%s", after, before)
	}
	p.apply(httpUpstream("stateless", newPeer("second").serve(t)+statelessPath))
	p.runs("Upstream", "stateless", "edge-1 running")
	wantText(t, connectSDK(t, s.url+statelessPath, versionStateless, nil), "name", nil, fmt.Sprintf("second %d", os.Getpid()))
}

// equalSpecs reports whether two outputs of rigctl are of the same resources at the same revisions.
func equalSpecs(t *testing.T, a, b string) bool {
	var texts []string
	for _, out := range []string{a, b} {
		var text strings.Builder
		for d := yaml.NewDecoder(strings.NewReader(out)); ; {
			var document map[string]any
			if d.Decode(&document) != nil {
				break
			}
			delete(document, "status")
			fmt.Fprintln(&text, document)
		}
		texts = append(texts, text.String())
	}
	return texts[0] == texts[1] && strings.Count(texts[0], "kind:") == 4
}

func TestASidecarOnceConfiguredServesWithoutTheControlPlane(t *testing.T) {
	t.Parallel()
	p := startPlane(t, filepath.Join(t.TempDir(), "data"))
	state := t.TempDir()
	s := p.joinSidecar("edge-1", p.join(), state, nil)
	begun := time.Now()
	for _, name := range []string{"first", "second"} { // each a generation on disk
		p.apply(both(newPeer(name).serve(t), "")...)
		p.runs("Binding", "stateless", "edge-1 running")
	}
	p.runs("Upstream", "stateless", "edge-1 running")
	p.kill()
	s.stop()
	again := func() *sidecar {
		return startSidecar(t, nil, "--control-plane", p.xds, "--node-id", "edge-1", "--state-dir", state)
	}
	name := func(s *sidecar, want string) {
		t.Helper()
		wantText(t, connectSDK(t, s.url+statelessPath, versionStateless, nil), "name", nil, fmt.Sprintf("%s %d", want, os.Getpid()))
	}

	s = again()
	s.says("configuration restored from disk", `"age"`)
	s.serves()
	if got := s.config().Source; got.Source != "disk" || got.Connected || got.Confirmed.Before(begun.Truncate(time.Second)) || got.Confirmed.After(time.Now()) {
		t.Errorf("the source is %+v, want the disk and when it was confirmed", got)
	}
	name(s, "second")
	s.stop()

	current, err := os.Readlink(filepath.Join(state, "current"))
	if err != nil {
		t.Fatal(err)
	}
	damage(t, filepath.Join(state, current))
	s = again()
	s.says("a saved configuration cannot be used", current, "damaged")
	s.serves()
	name(s, "first")
	s.stop()

	saved, err := filepath.Glob(filepath.Join(state, "*.pb"))
	if err != nil || len(saved) < 2 {
		t.Fatalf("generations on disk: %q (%v), want at least 2", saved, err)
	}
	for _, file := range saved {
		writeFile(t, file, "")
	}
	s = again()
	s.says("no connection to the control plane")
	if status, body, err := get(t, s.admin, "/readyz"); status != http.StatusServiceUnavailable || !strings.Contains(body, "no configuration yet") {
		t.Errorf("with nothing whole on disk, readyz answers %d %s (%v), want that there is no configuration", status, body, err)
	}
	if got := s.config().Source; got.Source != "none" {
		t.Errorf("with nothing whole on disk, the source is %+v, want none", got)
	}
	p.start(t)
	p.runs("Upstream", "stateless", "edge-1 running")
	s.serves()
	name(s, "second")
}

// damage changes one byte in the middle of a file.
func damage(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil || len(b) == 0 {
		t.Fatalf("%s: %d bytes (%v)", path, len(b), err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// outage is what a client of a server that is killed may see: an answer, or a clear error.
type outage struct {
	wires []*wire
	fails []atomic.Int64 // of each client
	after []atomic.Int64 // when each client's last failure was answered, in Unix nanoseconds
	wrong chan error     // capacity 64: what no client may see
}

func (o *outage) call(ctx context.Context, client, n int) error {
	text := fmt.Sprintf("client %d call %d", client, n)
	w := o.wires[client]
	if w.session == "" && w.version == versionLegacy {
		return w.initialize(ctx) // its session had ended; an error is that of a server which is away
	}
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	r, err := w.call(ctx, fmt.Sprint(n), "echo", text, nil)
	if err == nil && r.Error == nil && r.text() == text {
		return nil
	}
	if err == nil && r.Error != nil {
		o.fails[client].Add(1)
		o.after[client].Store(time.Now().UnixNano())
		if r.Status == http.StatusNotFound && w.version == versionLegacy {
			w.session = ""
		}
		gone := r.Status == http.StatusNotFound && r.Error.Data.Reason == "" // the session, which the sidecar has ended
		if r.Error.Data.Source == "outrigger" && r.Error.Message != "" && r.Error.Data.Reason != "internal" || gone {
			return errors.New(r.Error.Data.Reason)
		}
	}
	select {
	case o.wrong <- fmt.Errorf("client %d, call %d: %+v (%w)", client, n, r, err):
	default: // there are enough
	}
	return errors.New("wrong")
}

// callsInFlight makes a unary call and a stream of each era that do not end by themselves, and waits until the streams
// have begun. Each says on the channel whether it ended with the error that tells that its fate is unknown.
func callsInFlight(t *testing.T, url string) <-chan error {
	t.Helper()
	ended, begun := make(chan error, 2*len(eras)), make(chan bool, len(eras))
	for _, era := range eras {
		for _, tool := range []string{"hold", "stream"} {
			w := dialWire(t, url+era.path, era.version)
			go func() {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				r, err := w.call(ctx, fmt.Sprintf("%q", tool), tool, "cut", func(string) { begun <- true })
				// Of a call without events nobody knows whether it had been sent.
				unsent := tool == "hold" && err == nil && r.Error != nil && r.Error.Data.Reason == "upstream_unreachable"
				if err == nil && !unsent && (r.Error == nil || r.Error.Data.Source != "outrigger" || r.Error.Data.Reason != "upstream_lost") {
					err = fmt.Errorf("%s %s answered %+v, want upstream_lost", era.name, tool, r)
				}
				ended <- err
			}()
		}
	}
	for range eras {
		select {
		case <-begun:
		case <-time.After(patience):
			t.Fatal("the streams did not begin")
		}
	}
	return ended
}

func TestTheServerIsKilledUnderLoad(t *testing.T) {
	t.Parallel()
	const clients = 8
	server, at := startPeer(t, "127.0.0.1:0")
	s, _ := fileSidecar(t, nil, both("http://"+at, "")...)
	o := &outage{fails: make([]atomic.Int64, clients), after: make([]atomic.Int64, clients), wrong: make(chan error, 64)}
	for i := range clients {
		o.wires = append(o.wires, dialWire(t, s.url+eras[i%2].path, eras[i%2].version))
	}
	calls := underLoad(t, clients, o.call)
	calls.more(200)
	inFlight := callsInFlight(t, s.url)
	calls.more(50)
	server.kill()
	killed := time.Now()
	for range cap(inFlight) {
		if err := <-inFlight; err != nil {
			t.Errorf("a call in flight: %v", err)
		}
	}
	if took := time.Since(killed); took > soon {
		t.Errorf("calls in flight were answered after %v, want within %v", took, soon)
	}
	eventually(t, "every client has seen it", func() error {
		for i := range o.fails {
			if o.fails[i].Load() == 0 {
				return fmt.Errorf("client %d has not", i)
			}
		}
		return nil
	})
	startPeer(t, at)
	up := time.Now()
	calls.more(200)
	eventually(t, "every client is served again", func() error {
		for i := range o.after {
			if last := time.Unix(0, o.after[i].Load()); time.Since(last) < soon {
				return fmt.Errorf("client %d failed at %v", i, last)
			}
		}
		return nil
	})
	calls.stop()
	for i := range o.after {
		if took := time.Unix(0, o.after[i].Load()).Sub(up); took > soon {
			t.Errorf("client %d (%s) failed until %v after the server was back, want less than %v", i, o.wires[i].version, took, soon)
		}
	}
	close(o.wrong)
	for err := range o.wrong {
		t.Error(err)
	}
}
