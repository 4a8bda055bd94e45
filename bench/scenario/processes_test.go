package scenario

import (
	"context"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/outrigger-mesh/outrigger/bench/layout"
	"github.com/outrigger-mesh/outrigger/bench/record"
)

// builtPrograms are the programs of this tree, built anew.
func builtPrograms(t *testing.T) layout.Programs {
	t.Helper()
	if testing.Short() {
		t.Skip("builds programs and starts them")
	}
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", dir+"/", "./sidecar/cmd/sidecar", "./controlplane/cmd/controlplane",
		"./bench/load", "./bench/null")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	return layout.Programs{Sidecar: at("sidecar"), ControlPlane: at("controlplane"), Load: at("load"), Null: at("null")}
}

// withProcesses is a bench with a layout of its own, which measures for a moment, and what it writes.
func withProcesses(t *testing.T, programs layout.Programs) (*Bench, *[]record.Row) {
	t.Helper()
	l, err := layout.New(t.TempDir(), programs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	rows := new([]record.Row)
	return &Bench{Layout: l, Short: true, Rounds: 1, Warm: 20 * time.Millisecond, Duration: 200 * time.Millisecond,
		KeepNoisy: true, Progress: io.Discard,
		Write: func(r record.Row) error { *rows = append(*rows, r); return nil }}, rows
}

func TestRealProcessesAreMeasured(t *testing.T) {
	programs := builtPrograms(t)
	b, rows := withProcesses(t, programs)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	up, err := b.Layout.Null(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("native", func(t *testing.T) { isNotTranslated(ctx, t, b, up) })
	t.Run("held", func(t *testing.T) { holdsFew(ctx, t, b, rows) })
	t.Run("boot", func(t *testing.T) { startsTwice(ctx, t, b, rows, up) })
	t.Run("memory", func(t *testing.T) { livesShortly(ctx, t, b, rows, up) })
	t.Run("bridge", func(t *testing.T) { bridgesShortly(ctx, t, programs) })
	t.Run("federation", func(t *testing.T) { federatesShortly(ctx, t, programs) })
	t.Run("soak", func(t *testing.T) { soaksShortly(ctx, t, b, up) })
}

// isNotTranslated holds that a legacy client's sessions are the upstream's own, so that what scenarios call legacy is.
func isNotTranslated(ctx context.Context, t *testing.T, b *Bench, up *layout.Process) {
	sidecar, err := b.Layout.Sidecar(ctx, layout.SidecarYAML(up.URL))
	if err != nil {
		t.Fatal(err)
	}
	defer sidecar.Stop()
	held, err := b.Layout.Hold(ctx, "-era", "legacy", "-op", "session", "-conns", "3", sidecar.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+up.Address+"/stats", nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := ask(req); err != nil || !strings.Contains(string(body), `"sessions":3,`) {
		t.Errorf("with 3 sessions held, the upstream says %s, %v; want that it has them", body, err)
	}
}

func holdsFew(ctx context.Context, t *testing.T, b *Bench, rows *[]record.Row) {
	*rows = nil
	if err := b.holdCase(ctx, Case{"of": ofGETs, "count": "20"}, 1); err != nil {
		t.Fatal(err)
	}
	if v := (*rows)[0].Values; v["open_mib"] <= 0 || v["left"] != 0 || v["live_kib_each"] <= 0 || v["before_mib"] <= 0 {
		t.Errorf("%v; want none left, and some memory in use", v)
	}
}

func startsTwice(ctx context.Context, t *testing.T, b *Bench, rows *[]record.Row, up *layout.Process) {
	*rows = nil
	file, err := b.configuredByFile(ctx, up)
	if err != nil {
		t.Fatal(err)
	}
	saved, err := b.configuredOnce(ctx, up)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*starter{file, saved} {
		if err := b.boot(ctx, c, 2, 1); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
	}
	for _, row := range *rows {
		v := row.Values
		if v["starts"] != 2 || v["healthz_ms"] <= 0 || v["first_call_ms"] <= 0 || v["worst_ms"] < v["first_call_ms"] || v["cpu_ms"] <= 0 {
			t.Errorf("%s: %v; want two starts with their times", row.Case["configuration"], v)
		}
	}
}

func livesShortly(ctx context.Context, t *testing.T, b *Bench, rows *[]record.Row, up *layout.Process) {
	*rows = nil
	subjects, err := b.SubjectsBefore(ctx, up, "sidecar")
	if err != nil {
		t.Fatal(err)
	}
	phases := []phase{{phaseIdle, nil, 100 * time.Millisecond}, {phaseCalls, []string{"-conns", "4"}, 300 * time.Millisecond}}
	if err := b.live(ctx, subjects[0], phases, 1); err != nil {
		t.Fatal(err)
	}
	idle, calls := (*rows)[0], (*rows)[1]
	if _, measured := idle.Values["idle_cpu_ms_s"]; !measured || idle.Values["rss_mib"] <= 0 {
		t.Errorf("idle: %v; want memory, and CPU at rest", idle.Values)
	}
	if v := calls.Values; v["calls_s"] <= 0 || v["peak_mib"] < v["rss_mib"] || calls.Discarded != "" {
		t.Errorf("calls: %v, discarded: %q; want calls, and a peak", v, calls.Discarded)
	}
}

func soaksShortly(ctx context.Context, t *testing.T, b *Bench, up *layout.Process) {
	sidecar, err := b.Layout.Sidecar(ctx, layout.SidecarYAML(up.URL), "--pprof")
	if err != nil {
		t.Fatal(err)
	}
	s := &soak{layout: b.Layout, subject: &Subject{Name: "sidecar", Process: sidecar}, warm: 100 * time.Millisecond, load: 2 * time.Second}
	path := 0.0
	for ; path == 0 && s.load <= 16*time.Second; s.load *= 2 { // a busy machine leaves few samples to a short profile
		row, err := s.run(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if v := row.Values; row.Discarded != "" || v["calls_s"] <= 0 || v["goroutines"] <= 0 {
			t.Errorf("%v, discarded: %q; want calls and goroutines", row.Values, row.Discarded)
		}
		for _, one := range s.shares {
			if one.Kind == kindPath {
				path += one.Percent
			}
		}
	}
	if path <= 0 || path >= 100 {
		t.Errorf("%v %% of the CPU time is our path's, want some: %+v", path, s.shares)
	}
}
