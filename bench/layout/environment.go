package layout

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"github.com/outrigger-mesh/outrigger/bench/record"
)

// Environment is this machine, and what a layout of these programs runs on it. What cannot be found out is left empty.
func Environment(ctx context.Context, command string, p Programs) record.Environment {
	p = p.withDefaults()
	e := record.Environment{
		Time:       time.Now().UTC(),
		Command:    command,
		Commit:     Commit(ctx),
		Machine:    processor(),
		Cores:      runtime.NumCPU(),
		MemoryMiB:  memoryMiB(),
		Kernel:     firstLine(os.ReadFile("/proc/sys/kernel/osrelease")),
		Go:         runtime.Version(),
		Versions:   map[string]string{},
		Builds:     map[string]string{},
		Pinned:     pinnedByName(PinsHere()),
		Config:     map[string]string{"nginx": nginxConf, "sidecar": sidecarYAML},
		NoiseLimit: DefaultNoiseLimit,
	}
	for name, program := range map[string]string{"sidecar": p.Sidecar, "controlplane": p.ControlPlane, "load": p.Load,
		"upstream": p.Null, "nginx": p.Nginx, "redis": p.Redis} {
		if sum := buildOf(program); sum != "" {
			e.Builds[name] = sum
		}
	}
	for name, args := range map[string][]string{"nginx": {p.Nginx, "-v"}, "sidecar": {p.Sidecar, "--version"},
		"redis": {p.Redis, "--version"}, "taskset": {"taskset", "--version"}} {
		if v := said(ctx, args...); v != "" {
			e.Versions[name] = strings.TrimPrefix(v, "nginx version: ")
		}
	}
	return e
}

// Commit is the repository's, with "+" when the tree was changed.
func Commit(ctx context.Context) string {
	commit := said(ctx, "git", "rev-parse", "--short=12", "HEAD")
	if commit != "" && said(ctx, "git", "status", "--porcelain", "--untracked-files=no") != "" {
		commit += "+"
	}
	return commit
}

// said is the first line that a program writes, or nothing when it fails.
func said(ctx context.Context, args ...string) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return firstLine(exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput())
}

func firstLine(text []byte, err error) string {
	if err != nil {
		return ""
	}
	line, _, _ := bytes.Cut(bytes.TrimSpace(text), []byte("\n"))
	return string(line)
}

// buildOf is the SHA-256 of a program's file, or nothing when there is none.
func buildOf(program string) string {
	path, err := exec.LookPath(program)
	if err != nil {
		return ""
	}
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return ""
	}
	return hex.EncodeToString(sum.Sum(nil))
}

func processor() string {
	if fs, err := procfs.NewDefaultFS(); err == nil {
		if cpus, err := fs.CPUInfo(); err == nil && len(cpus) > 0 && cpus[0].ModelName != "" {
			return cpus[0].ModelName
		}
	}
	return runtime.GOARCH
}

func memoryMiB() int {
	if fs, err := procfs.NewDefaultFS(); err == nil {
		if m, err := fs.Meminfo(); err == nil && m.MemTotal != nil {
			return int(*m.MemTotal >> 10) // of KiB
		}
	}
	return 0
}

// pinnedByName is where each kind of process runs; empty when nothing is pinned.
func pinnedByName(p Pins) map[string]string {
	if p == (Pins{}) {
		return nil
	}
	return map[string]string{"nginx": p.Proxy, "sidecar": p.Proxy, "peers": p.Proxy, "upstream": p.Rest, "load": p.Rest,
		"controlplane": p.Rest, "redis": p.Rest}
}
