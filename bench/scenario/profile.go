package scenario

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/pprof/profile"

	"github.com/outrigger-mesh/outrigger/bench/layout"
)

// module is what the import paths of our own packages begin with.
const module = "github.com/outrigger-mesh/outrigger/"

// Kinds of package in a profile, as the report names them.
const (
	kindPath      = "ours, the call path"
	kindOurs      = "ours, outside the path"
	kindRuntime   = "Go runtime and system calls"
	kindStandard  = "standard library"
	kindLibraries = "libraries"
)

// noPackage stands for functions that are in none: assembly, C, the kernel.
const noPackage = "(no package)"

var kindsInOrder = []string{kindPath, kindOurs, kindRuntime, kindStandard, kindLibraries}

// onPath are our packages that carry calls: what a call costs is to be spent there.
var onPath = []string{
	"sidecar/http1", "sidecar/proxy", "sidecar/mcp", "sidecar/session", "sidecar/upstream", "sidecar/lazyctx",
}

// share is one package's part of the CPU time of a profile: flat, the functions that they call not counted.
type share struct {
	Package string // import path; our own without the module's
	Kind    string
	Percent float64
}

// cpuProfile takes a CPU profile of a process for a time, in whole seconds. The process must serve /debug/pprof.
func cpuProfile(ctx context.Context, p *layout.Process, d time.Duration) (*profile.Profile, error) {
	var taken *profile.Profile
	page := fmt.Sprintf("/debug/pprof/profile?seconds=%d", max(1, int(d.Seconds())))
	err := askAdmin(ctx, p, page, d+adminTimeout, func(r io.Reader) (err error) {
		taken, err = profile.Parse(r)
		return err
	})
	return taken, err
}

// shares divides a CPU profile's time among packages, the largest first.
func shares(p *profile.Profile) ([]share, error) {
	at := slices.IndexFunc(p.SampleType, func(t *profile.ValueType) bool { return t.Type == "cpu" })
	if at < 0 {
		return nil, errors.New("the profile has no CPU time")
	}
	times := map[string]int64{}
	total := int64(0)
	for _, s := range p.Sample {
		times[packageOf(leaf(s))] += s.Value[at]
		total += s.Value[at]
	}
	if total == 0 {
		return nil, errors.New("the profile has no samples")
	}
	var list []share
	for _, name := range slices.Sorted(maps.Keys(times)) {
		list = append(list, share{Package: name, Kind: kindOf(name), Percent: 100 * float64(times[name]) / float64(total)})
	}
	slices.SortStableFunc(list, func(a, b share) int { return cmp.Compare(b.Percent, a.Percent) })
	return list, nil
}

// leaf is the function that ran when a sample was taken, an inlined one for itself; empty when it is not known.
func leaf(s *profile.Sample) string {
	if len(s.Location) == 0 || len(s.Location[0].Line) == 0 || s.Location[0].Line[0].Function == nil {
		return ""
	}
	return s.Location[0].Line[0].Function.Name
}

// packageOf is the import path of a function's package, from its symbol: "a.b/c/d.(*T).F[...]" is in "a.b/c/d". A dot
// in a path's last element is written %2e there. Our own packages are named without the module's path.
func packageOf(symbol string) string {
	name, _, _ := strings.Cut(symbol, "[") // type arguments have paths too
	slash := strings.LastIndexByte(name, '/') + 1
	dot := strings.IndexByte(name[slash:], '.')
	if dot <= 0 {
		return noPackage
	}
	name = name[:slash+dot]
	if plain, err := url.PathUnescape(name); err == nil {
		name = plain
	}
	return strings.TrimPrefix(strings.TrimPrefix(name, "vendor/"), module)
}

// kindOf tells what kind of package one is that packageOf named.
func kindOf(name string) string {
	first, _, nested := strings.Cut(name, "/")
	switch {
	case slices.ContainsFunc(onPath, func(p string) bool { return name == p || strings.HasPrefix(name, p+"/") }):
		return kindPath
	case name == "main", slices.Contains([]string{"sidecar", "controlplane", "proto", "bench"}, first) && nested:
		return kindOurs
	case name == noPackage, name == "runtime", name == "syscall", strings.HasPrefix(name, "runtime/"),
		strings.HasPrefix(name, "internal/runtime/"):
		return kindRuntime
	case strings.Contains(first, "."):
		return kindLibraries
	}
	return kindStandard
}

// largestOutside is the largest share of a package of ours that does not carry calls.
func largestOutside(list []share) (largest share) {
	for _, s := range list {
		if s.Kind == kindOurs && s.Percent > largest.Percent {
			largest = s
		}
	}
	return largest
}
