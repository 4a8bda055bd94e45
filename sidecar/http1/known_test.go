package http1

import (
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// learned is what is known of a plain head that is read from its beginning.
func learned(head string) (k *knownHead, ok bool) {
	k = &knownHead{header: make(http.Header)}
	end, _, ok := headEnd([]byte(head), 0)
	if !ok || end == 0 || end != len(head) {
		return k, false
	}
	length, ok := plainHead([]byte(head))
	if ok {
		k.learn(head, length)
	}
	return k, ok
}

// sameHead compares what handlers see.
func sameHead(a, b *knownHead) bool {
	return a.method == b.method && a.path == b.path && a.host == b.host && a.length == b.length && reflect.DeepEqual(a.header, b.header)
}

func TestAHeadIsReadAgainFromWhatChanged(t *testing.T) {
	for name, change := range map[string]struct {
		old, new string
		known    bool
	}{
		"nothing":            {"", "", true},
		"a value":            {"echo", "search", true},
		"spaces":             {"Mcp-Name: echo", "Mcp-Name:\t search ", true},
		"the length":         {"350", "7", true},
		"the host":           {"127.0.0.1:8080", "localhost", true},
		"a value to nothing": {"echo", "", true},
		"no length":          {"350", "-1", false},
		"two lengths":        {"Mcp-Name: echo", "Content-Length: 7", false},
		"another name":       {"Mcp-Name", "Mcp-Names", false},
		"another case":       {"Mcp-Name", "mcp-name", false},
		"the path":           {"/mcp", "/other", false},
		"no host":            {"Host: 127.0.0.1:8080\r\n", "", false},
		"a host like none":   {"127.0.0.1:8080", "a b", false},
		"one line more":      {"Mcp-Name: echo", "X: y\r\nMcp-Name: echo", false},
		"one line less":      {"Mcp-Name: echo\r\n", "", false},
		"a line at the end":  {"gzip\r\n", "gzip\r\nX: y\r\n", false},
		"a bare LF":          {"echo\r\n", "echo\n", false},
		"a control":          {"echo", "ec\x01ho", false},
		"not whole":          {"gzip\r\n\r\n", "gzip\r\n", false},
		"half a line":        {"gzip\r\n\r\n", "gz", false},
	} {
		k, ok := learned(callHead)
		if !ok {
			t.Fatal("the head is not plain")
		}
		head := strings.Replace(callHead, change.old, change.new, 1)
		end := k.again([]byte(head + "{}"))
		if known := end > 0; known != change.known {
			t.Errorf("%s: known %v, want %v: %q", name, known, change.known, head)
		}
		if want, _ := learned(head); end > 0 && (end != len(head) || !sameHead(k, want)) {
			t.Errorf("%s: got  %+v to %d\nwant %+v to %d", name, k, end, want, len(head))
		}
	}
}

// FuzzKnownHead holds that a head read by what is known of another says the same as when it is read from its beginning,
// and that a head that was not taken leaves nothing behind that the next one read from its beginning could show.
func FuzzKnownHead(f *testing.F) {
	f.Add(callHead, callHead)
	f.Add(callHead, strings.Replace(callHead, "echo", "x", 1))
	f.Add(callHead, strings.Replace(callHead, "350", "x", 1))
	f.Add(callHead, strings.Replace(callHead, "Host", "host", 1))
	f.Add(callHead, strings.Replace(callHead, "Mcp-Name", "Mcp-Method", 1))
	f.Add(getHead, callHead)
	f.Add(getHead, strings.Replace(getHead, "Accept", "Content-Length", 1))
	f.Add(getHead, strings.Replace(getHead, "5a", "5b", 1))
	f.Fuzz(func(t *testing.T, first, second string) {
		k, ok := learned(first)
		if !ok {
			return
		}
		end := k.again([]byte(second))
		want, plain := learned(second[:max(end, 0)])
		if end > 0 && (!plain || !sameHead(k, want)) {
			t.Fatalf("got  %+v\nwant %+v, plain %v\nfrom %q after %q", k, want, plain, second, first)
		}
		length, _ := plainHead([]byte(first))
		k.learn(first, length)
		if want, _ := learned(first); !sameHead(k, want) {
			t.Errorf("after %q: got %+v, want %+v", second, k, want)
		}
	})
}

func TestAKnownHeadAllocatesNothing(t *testing.T) {
	k, _ := learned(callHead)
	head := []byte(callHead)
	if n := testing.AllocsPerRun(100, func() { k.again(head) }); n != 0 {
		t.Errorf("%v allocations for the same head, want 0", n)
	}
	other := []byte(strings.Replace(callHead, "350", "351", 1))
	if n := testing.AllocsPerRun(100, func() { k.again(head); k.again(other) }); n != 2 {
		t.Errorf("%v allocations for two changes of a value, want 2", n)
	}
}

// TestLongAndRepeatedHeadsAreNotRemembered: what a connection holds between requests is bounded.
func TestLongAndRepeatedHeadsAreNotRemembered(t *testing.T) {
	for name, line := range map[string]string{"long": "X: " + strings.Repeat("y", maxKnown), "repeated": "Mcp-Name: other"} {
		k, ok := learned(strings.Replace(callHead, "Mcp-Name", line+"\r\nMcp-Name", 1))
		if !ok || len(k.lines) != 0 {
			t.Errorf("%s: plain %v, %d lines remembered, want none", name, ok, len(k.lines))
		}
		want := map[string]int{"long": 1, "repeated": 2}[name]
		if got := k.header["Mcp-Name"]; len(got) != want || !slices.Contains(slices.Collect(maps.Keys(k.header)), "Accept") {
			t.Errorf("%s: got %q", name, k.header)
		}
	}
}

func BenchmarkHead(b *testing.B) {
	head := []byte(callHead)
	b.Run("known", func(b *testing.B) {
		k, _ := learned(callHead)
		b.ReportAllocs()
		for b.Loop() {
			if k.again(head) == 0 {
				b.Fatal("not known")
			}
		}
	})
	b.Run("new", func(b *testing.B) {
		k := &knownHead{header: make(http.Header)}
		b.ReportAllocs()
		for b.Loop() {
			end, _, _ := headEnd(head, 0)
			length, _ := plainHead(head[:end])
			k.learn(string(head[:end]), length)
		}
	})
}
