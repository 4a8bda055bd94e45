package main

import (
	"math"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

func TestTheContainersMemoryLimitIsKept(t *testing.T) {
	file := filepath.Join(t.TempDir(), "memory.max")
	for content, want := range map[string]int64{
		"201326592\n":           181193931, // of 192 MiB
		"max\n":                 memoryDefault,
		"":                      memoryDefault,
		"-1":                    memoryDefault,
		"9223372036854771712\n": memoryDefault * 8, // cgroup v1's way to say none
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := memoryLimit(file); got != want {
			t.Errorf("memory.max %q: limit %d, want %d", content, got, want)
		}
	}
	if got := memoryLimit(file + ".none"); got != memoryDefault {
		t.Errorf("without the file: %d, want %d", got, memoryDefault)
	}
}

func TestALargeHeapGrowsByLess(t *testing.T) {
	for live, want := range map[uint64]int{
		0: 400, 4 << 20: 400, 12 << 20: 400, 16 << 20: 300, 24 << 20: 200, 48 << 20: 100, 1 << 30: 100, 1 << 63: 100,
	} {
		if got := percentFor(live); got != want {
			t.Errorf("%d bytes live: %d %%, want %d", live, got, want)
		}
	}
}

// TestCollectionsAreNoticed: what runs after a collection runs again after the next.
func TestCollectionsAreNoticed(t *testing.T) {
	ran := make(chan struct{}, 1)
	afterCollections(func() {
		select {
		case ran <- struct{}{}:
		default:
		}
	})
	for i := range 3 {
		runtime.GC()
		select {
		case <-ran:
		case <-time.After(10 * time.Second):
			t.Fatalf("nothing ran after collection %d", i)
		}
	}
}

func TestABudgetIsAQuarterOfTheMemory(t *testing.T) {
	for limit, want := range map[int64]int64{
		memoryDefault: 128 << 20, 1 << 30: 256 << 20, 64 << 20: leastBudget, 0: leastBudget, math.MaxInt64: 1 << 30,
	} {
		if got := shareOf(limit); got != want {
			t.Errorf("of %d: %d, want %d", limit, got, want)
		}
	}
}
