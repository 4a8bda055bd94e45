package main

import (
	"os"
	"path/filepath"
	"testing"
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
