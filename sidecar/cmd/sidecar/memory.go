package main

import (
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

const (
	// gcPercent lets the heap grow to five times what lives: a sidecar's live heap is small, so fewer collections cost
	// little memory and save a fifth of the CPU.
	gcPercent = 400
	// memoryDefault is what the heap may take before it is collected harder, where the container sets no limit. It is
	// what bounds gcPercent's growth when much lives: large answers, many resumable streams.
	memoryDefault = 512 << 20
)

// tuneMemory sets the collector, unless GOGC or GOMEMLIMIT say otherwise.
func tuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit("/sys/fs/cgroup/memory.max"))
	}
}

// memoryLimit is nine tenths of the container's limit (cgroup v2, memory.max), or the default where it has none.
func memoryLimit(file string) int64 {
	b, err := os.ReadFile(file)
	if err != nil {
		return memoryDefault
	}
	limit, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil || limit <= 0 { // "max": none
		return memoryDefault
	}
	return min(limit/10*9, memoryDefault*8)
}
