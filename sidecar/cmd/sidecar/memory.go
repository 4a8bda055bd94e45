package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
)

const (
	// gcPercent lets the heap grow to five times what lives: a sidecar's live heap is small, so fewer collections cost
	// little memory and save a fifth of the CPU.
	gcPercent = 400
	// gcRoom is how much it may grow at most: where much lives, as with thousands of sessions, garbage would be most of
	// what the process takes. leastPercent is Go's default, below which collections would cost too much.
	gcRoom       = 48 << 20
	leastPercent = 100
	// memoryDefault is what the heap may take before it is collected harder, where the container sets no limit. It is
	// what bounds gcPercent's growth when much lives: large answers, many resumable streams.
	memoryDefault = 512 << 20
	// leastBudget is what budgetBytes is in any case: two of the longest answers.
	leastBudget = 32 << 20
)

// tuneMemory sets the collector, unless GOGC or GOMEMLIMIT say otherwise.
func tuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
		afterCollections(adjustPercent(gcPercent))
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit("/sys/fs/cgroup/memory.max"))
	}
}

// afterCollections runs f after each collection, in the runtime's goroutine for finalizers: f must be short.
func afterCollections(f func()) {
	type mark struct{ _ *byte } // with a pointer, so that it shares its memory with nothing
	runtime.SetFinalizer(new(mark), func(m *mark) {
		f()
		afterCollections(f)
	})
}

// adjustPercent makes a function that sets the collector for what lives now. set is what it was set to before.
func adjustPercent(set int) func() {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}}
	return func() {
		metrics.Read(live)
		want := percentFor(live[0].Value.Uint64() + live[1].Value.Uint64())
		if want*10 < set*9 || want*9 > set*10 { // to set it stops the world
			set = want
			debug.SetGCPercent(want)
		}
	}
}

// percentFor is by how much of it a heap of live bytes, stacks included, may grow.
func percentFor(live uint64) int {
	return int(min(gcPercent, max(leastPercent, gcRoom*100/max(live, 1))))
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

// budgetBytes is what answers that are translated may take together, and as much again federations' lists: a quarter of
// what the heap may take.
func budgetBytes() int64 { return shareOf(debug.SetMemoryLimit(-1)) }

// shareOf is a quarter of a limit, where there is one that means something.
func shareOf(limit int64) int64 {
	return max(leastBudget, min(limit, memoryDefault*8)/4)
}
