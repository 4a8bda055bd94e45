package proxy

import (
	"strings"
	"testing"
)

// Long data is not copied, so it takes another way to the client than short.
func TestEventsOfAnySizeComeWhole(t *testing.T) {
	f := &fake{}
	calls := streaming(f)
	r := newRig(t, f)
	s := r.open("POST", r.initialize(), toolCall("1", "echo", "{}"))
	s.event() // the priming one
	events := <-calls
	for _, size := range []int{0, longData - 100, longData, longData + 1, 100 << 10, 2 << 20} {
		note := strings.Replace(progressNote, `"progress":1`, `"progress":1,"message":"`+strings.Repeat("x", size)+`"`, 1)
		events.feed <- note
		if e := s.event(); e.data != note || e.id == "" {
			t.Errorf("a message of %d bytes came as %d bytes with id %q", len(note), len(e.data), e.id)
		}
		lines := strings.Replace(note, ":1,", ":1,\n", 1) // JSON takes as many lines as its sender likes
		events.feed <- lines
		if e := s.event(); e.data != note { // event puts lines together
			t.Errorf("a message of two lines and %d bytes came as %d bytes", len(lines), len(e.data))
		}
	}
	events.feed <- response("1", strings.Repeat("y", 100<<10))
	close(events.feed)
	if left, err := s.end(); err != nil || len(left) != 1 || left[0].data != response("1", strings.Repeat("y", 100<<10)) {
		t.Errorf("then %d events, %v; want the response and the end", len(left), err)
	}
}
