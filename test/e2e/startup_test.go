package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// startBound is generous, since the machine that tests run on may be busy; the aim is startAim.
const (
	startBound = time.Second
	startAim   = 300 * time.Millisecond
)

func TestStartUpTime(t *testing.T) {
	for _, program := range []string{"sidecar", "controlplane", "rigctl"} {
		info, err := os.Stat(filepath.Join(releases, program))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %.1f MB", program, float64(info.Size())/1e6)
	}
	file := writeFile(t, filepath.Join(t.TempDir(), "sidecar.yaml"), strings.Join(both("http://127.0.0.1:1", ""), "---\n"))
	data := filepath.Join(t.TempDir(), "data")
	for _, tc := range []struct {
		name, program string
		args          []string
	}{
		{"a sidecar", "sidecar", []string{"--config", file, "--listen", "127.0.0.1:0"}},
		{"a control plane with its data", "controlplane", []string{"--data-dir", data, "--api", "127.0.0.1:0", "--xds", "127.0.0.1:0"}},
	} {
		var took []time.Duration
		for range 5 {
			admin := freeAddress(t)
			begun := time.Now()
			p := start(t, nil, filepath.Join(releases, tc.program), append(tc.args, "--admin", admin)...)
			eventually(t, tc.name+" answers", func() error {
				status, _, err := get(t, admin, "/healthz")
				if err == nil && status != http.StatusOK {
					t.Errorf("%s: /healthz answers %d", tc.name, status)
				}
				return err
			})
			took = append(took, time.Since(begun))
			p.stop()
		}
		slices.Sort(took)
		t.Logf("%s answers /healthz after %v (median of %v; the aim is %v)", tc.name, took[2], took, startAim)
		if took[2] > startBound {
			t.Errorf("%s took %v to answer, want less than %v", tc.name, took[2], startBound)
		}
	}
}
