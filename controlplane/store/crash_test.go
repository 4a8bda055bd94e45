package store

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// crashDirEnv makes the test binary a writer in that directory, for TestAcknowledgedWritesSurviveAKill.
const crashDirEnv = "OUTRIGGER_STORE_CRASH_DIR"

// writeUntilKilled writes pairs of keys as fast as it can, and prints a pair's number once it is acknowledged.
func writeUntilKilled(dir string) {
	s, err := Open(context.Background(), Options{DataDir: dir})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for n := 0; ; n++ {
		left, right := fmt.Sprintf("left/%d", n), fmt.Sprintf("right/%d", n)
		if _, err := s.Apply(context.Background(), []Write{put(left, "x"), put(right, "x")}); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(n)
	}
}

func TestAcknowledgedWritesSurviveAKill(t *testing.T) {
	dir := t.TempDir()
	next := 0
	for round := range 3 {
		acknowledged := runAndKill(t, dir, 50)
		next = max(next, acknowledged+1)
		s, err := Open(t.Context(), Options{DataDir: dir})
		if err != nil {
			t.Fatalf("round %d: open after the kill: %v", round, err)
		}
		left, right := names(t, s, "left/"), names(t, s, "right/")
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		for n := range next {
			if !left[n] || !right[n] {
				t.Errorf("round %d: pair %d was acknowledged; stored: left %v, right %v", round, n, left[n], right[n])
			}
		}
		for n := range left {
			if !right[n] {
				t.Errorf("round %d: half of pair %d is stored", round, n)
			}
		}
	}
}

// runAndKill starts a writer, kills it in the middle of writing once it has acknowledged some, and returns the last.
func runAndKill(t *testing.T, dir string, some int) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	child := exec.CommandContext(ctx, os.Args[0])
	child.Env = append(os.Environ(), crashDirEnv+"="+dir)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	last := -1
	for lines := bufio.NewScanner(out); lines.Scan(); {
		n, err := strconv.Atoi(lines.Text())
		if err != nil {
			t.Fatalf("the writer failed: %s", lines.Text())
		}
		if last = n; n == some {
			child.Process.Kill() // SIGKILL; what it still acknowledged is read until its output ends
		}
	}
	child.Wait()
	if last < some {
		t.Fatalf("the writer acknowledged up to %d within 30 s, want %d", last, some)
	}
	return last
}

// names are the numbers after prefix of the keys that are stored.
func names(t *testing.T, s *Store, prefix string) map[int]bool {
	t.Helper()
	entries, _, err := s.List(t.Context(), prefix)
	if err != nil {
		t.Fatal(err)
	}
	found := map[int]bool{}
	for _, e := range entries {
		n, err := strconv.Atoi(strings.TrimPrefix(e.Key, prefix))
		if err != nil {
			t.Fatalf("key %s: %v", e.Key, err)
		}
		found[n] = true
	}
	return found
}
