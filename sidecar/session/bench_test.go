package session

import (
	"bytes"
	"fmt"
	"testing"
	"time"
)

// many are settings for as many sessions as a benchmark wants.
var many = Settings{IdleTimeout: time.Hour, Max: 1 << 20, ReplayBytes: 256 << 10}

func BenchmarkGet(b *testing.B) {
	for _, n := range []int{1, 1_000, 100_000} {
		b.Run(fmt.Sprintf("sessions=%d", n), func(b *testing.B) {
			st, open, _ := newStore(b, many)
			ids := make([]string, n)
			for i := range ids {
				ids[i] = open().ID
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if st.Get(ids[i%n], "") == nil {
					b.Fatal("lost")
				}
				i += 7919 // not in the order of memory
			}
		})
	}
}

func TestLookingUpASessionDoesNotAllocate(t *testing.T) {
	st, open, _ := newStore(t, many)
	id := open().ID
	if n := testing.AllocsPerRun(100, func() { st.Get(id, "") }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// BenchmarkBegin is what a session adds to a call: its place among those in flight.
func BenchmarkBegin(b *testing.B) {
	_, open, _ := newStore(b, many)
	s, id := open(), []byte("12")
	b.ReportAllocs()
	for b.Loop() {
		_, done, err := s.Begin(id)
		if err != nil {
			b.Fatal(err)
		}
		done()
	}
}

func TestACallInASessionCostsTwoAllocations(t *testing.T) {
	_, open, _ := newStore(t, many)
	s, id := open(), []byte("12")
	if n := testing.AllocsPerRun(100, func() {
		_, done, err := s.Begin(id)
		if err != nil {
			t.Fatal(err)
		}
		done()
	}); n > 2 {
		t.Errorf("%v allocations, want 2: the call and its done", n)
	}
}

// streamed makes a stream of n messages, as an answer of events is one, and passes it to its client as it comes.
func streamed(tb testing.TB, s *Session, message []byte, n int) *Stream {
	st := s.NewStream()
	r := st.Attach()
	for range n {
		if _, mine := st.Append(message, r); !mine {
			tb.Fatal("another connection reads")
		}
	}
	st.End()
	r.Detach()
	return st
}

func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{100, 1 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			_, open, _ := newStore(b, many)
			st, message := open().NewStream(), bytes.Repeat([]byte("x"), size)
			r := st.Attach()
			defer r.Detach()
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, mine := st.Append(message, r); !mine {
					b.Fatal("another connection reads")
				}
			}
		})
	}
}

// BenchmarkStream is a stream's whole life: one answer of so many events.
func BenchmarkStream(b *testing.B) {
	for _, n := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("events=%d", n), func(b *testing.B) {
			_, open, _ := newStore(b, many)
			s, message := open(), bytes.Repeat([]byte("x"), 250)
			b.ReportAllocs()
			for b.Loop() {
				streamed(b, s, message, n)
			}
		})
	}
}

// A stream of one event is how many servers answer every call.
func TestAStreamOfOneEventCostsTwoAllocations(t *testing.T) {
	_, open, _ := newStore(t, many)
	s, message := open(), bytes.Repeat([]byte("x"), 250)
	for range 10 * keepStreams { // by now it forgets as many as it makes
		streamed(t, s, message, 1)
	}
	if n := testing.AllocsPerRun(500, func() { streamed(t, s, message, 1) }); n > 2 {
		t.Errorf("%v allocations, want 2: the stream and the message", n)
	}
}

// BenchmarkResume is a client that comes back for the second half of a stream.
func BenchmarkResume(b *testing.B) {
	for _, n := range []int{2, 100, 500} {
		b.Run(fmt.Sprintf("events=%d", n), func(b *testing.B) {
			_, open, _ := newStore(b, many)
			s := open()
			st := streamed(b, s, bytes.Repeat([]byte("x"), 250), n)
			id := string(st.EventID(uint64(n / 2)))
			b.ReportAllocs()
			for b.Loop() {
				if got := replay(b, s, id); got != n-n/2 {
					b.Fatalf("%d events after %s, want %d", got, id, n-n/2)
				}
			}
		})
	}
}

// replay reads a stream from an event id to its end.
func replay(tb testing.TB, s *Session, eventID string) (events int) {
	r, err := s.Resume(eventID)
	if err != nil {
		tb.Fatal(err)
	}
	defer r.Detach()
	for ; ; events++ {
		if _, _, err := r.Poll(); err != nil {
			return events
		}
	}
}

func TestReplayAllocatesNothingPerEvent(t *testing.T) {
	_, open, _ := newStore(t, many)
	s := open()
	id := string(streamed(t, s, []byte("message"), 500).EventID(0))
	if n := testing.AllocsPerRun(20, func() { replay(t, s, id) }); n > 1 {
		t.Errorf("%v allocations for 500 events, want 1: the reader", n)
	}
}
