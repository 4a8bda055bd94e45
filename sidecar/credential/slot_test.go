package credential

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestCallersAreKeptWithinBounds(t *testing.T) {
	start := time.Hour
	c := newCallers()
	for i := range maxCallers + 100 {
		at := start + time.Duration(i)*10*time.Millisecond
		c.slot(fmt.Sprint("caller-", i), at)
		if i > 0 {
			c.slot("caller-0", at) // calls all the time
		}
	}
	if n := len(c.slots); n != maxCallers {
		t.Errorf("%d are kept, want %d", n, maxCallers)
	}
	if c.slots["caller-0"] == nil || c.slots[fmt.Sprint("caller-", maxCallers+99)] == nil {
		t.Error("the longest unused were not the ones that went")
	}
	alike := newCallers()
	for _, token := range []string{"a" + strings.Repeat("x", 40), "b" + strings.Repeat("x", 40)} {
		if s := alike.slot(token, start); s.subject != token || len(alike.slots) != 1 || alike.bytes != len(token) {
			t.Errorf("of %s there is %s, %d kept in %d bytes", token, s.subject, len(alike.slots), alike.bytes)
		}
	}
	long := newCallers()
	for i := range 100 {
		s := long.slot(fmt.Sprint(strings.Repeat("x", 300<<10), i), start)
		long.grew(s, 100<<10)
		if long.bytes > maxBytes {
			t.Fatalf("%d bytes are kept after %d, want %d at most", long.bytes, i, maxBytes)
		}
	}
	if want := maxBytes / (400 << 10); len(long.slots) < want-2 {
		t.Errorf("%d are kept, want about %d", len(long.slots), want)
	}
}

func TestWhoDoesNotCallIsForgotten(t *testing.T) {
	start := time.Hour
	c := newCallers()
	first := c.slot("first", start)
	c.slot("second", start+9*time.Minute)
	c.slot("third", start+11*time.Minute)
	if c.slots["first"] != nil || c.slots["second"] == nil {
		t.Errorf("kept are %v, want the first gone", c.slots)
	}
	before := c.bytes
	c.grew(first, 100) // its request ends when it is gone
	if c.bytes != before || before != len("second")+len("third") {
		t.Errorf("%d bytes are counted, %d before, want those of two callers", c.bytes, before)
	}
}
